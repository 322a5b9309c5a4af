"""Networks of other families than classification for the zoo benchmark.

Each has random weights: nothing is downloaded. Of several sizes, it is the smallest.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import networks
from transformer_networks import ATTENTION, TRANSFORMERS, transformer

Inputs = Callable[[int, int], Any]  # batch and size -> what the network takes
Built = tuple[nn.Module, Inputs, int, int]  # with a size, and how much another size differs


@dataclass(frozen=True)
class Subject:
    """A network and three inputs; the first one is the example, the others test the result."""

    model: nn.Module
    inputs: tuple[Any, ...]
    outputs: tuple[str, ...] = ()  # layers that make its outputs


DETECTORS = (
    "fcos_resnet50_fpn", "ssd300_vgg16", "retinanet_resnet50_fpn", "retinanet_resnet50_fpn_v2",
    "ssdlite320_mobilenet_v3_large", "fasterrcnn_resnet50_fpn", "fasterrcnn_resnet50_fpn_v2",
    "fasterrcnn_mobilenet_v3_large_fpn", "fasterrcnn_mobilenet_v3_large_320_fpn",
    "maskrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn_v2", "keypointrcnn_resnet50_fpn",
)  # fmt: skip
YOLOS = (
    "yolov3-tiny", "yolov3", "yolov5n", "yolov6n", "yolov8n", "yolov8n-seg", "yolov8n-pose",
    "yolov8n-obb", "yolov8n-cls", "yolov9t", "yolov10n", "yolo11n", "yolo11n-seg", "yolo11n-pose",
    "yolo12n", "yolo26n", "yolo26n-seg", "yolo26n-pose",
)  # fmt: skip
SEGMENTERS = (
    "fcn_resnet50", "deeplabv3_resnet50", "deeplabv3_mobilenet_v3_large",
    "lraspp_mobilenet_v3_large",
)  # fmt: skip
SMP = ("Unet", "UnetPlusPlus", "MAnet", "Linknet", "FPN", "PSPNet", "PAN", "DeepLabV3",
       "DeepLabV3Plus", "UPerNet", "Segformer")  # fmt: skip
CLASSIFIERS = (
    "legacy_seresnext26_32x4d", "ghostnetv3_100", "mobilenetv4_hybrid_medium", "resnetv2_50x1_bit",
    "tf_efficientnet_cc_b0_4e", "sequencer2d_s", "pit_ti_224", "vit_tiny_patch16_224",
)  # fmt: skip
TRANSFORMERS_OF_TIMM = (
    "vit_base_patch16_224", "deit_small_patch16_224", "swin_tiny_patch4_window7_224",
    "convnext_tiny", "convnextv2_tiny", "mobilevit_s", "maxvit_tiny_tf_224", "coatnet_0_rw_224",
    "cait_xxs24_224", "levit_128s",
)  # fmt: skip
FIXED_SIZE = ("pit", "vit", "sequencer", "deit", "swin", "maxvit", "coatnet", "cait", "levit")
VOLUMES = {"spatial_dims": 3, "in_channels": 1, "out_channels": 2}
MONAI: dict[str, dict[str, Any]] = {
    "UNet": {**VOLUMES, "channels": (16, 32, 64, 128), "strides": (2, 2, 2), "num_res_units": 2},
    "BasicUNet": VOLUMES,
    "BasicUNetPlusPlus": VOLUMES,
    "AttentionUnet": {**VOLUMES, "channels": (16, 32, 64), "strides": (2, 2)},
    "SegResNet": {**VOLUMES, "init_filters": 16},
    "SegResNetDS": {**VOLUMES, "init_filters": 16},
    "VNet": VOLUMES,
    "DynUNet": {**VOLUMES, "kernel_size": [3] * 4, "strides": [1, 2, 2, 2],
                "upsample_kernel_size": [2] * 3},
    "HighResNet": VOLUMES,
    "FlexibleUNet": {"in_channels": 3, "out_channels": 2, "backbone": "resnet18", "spatial_dims": 2,
                     "pretrained": False},
}  # fmt: skip
CLIPS = ("r3d_18", "mc3_18", "r2plus1d_18", "s3d", "mvit_v1_b", "mvit_v2_s", "swin3d_t")
DIFFUSERS: dict[str, dict[str, Any]] = {
    "UNet2DModel": {"sample_size": 32, "block_out_channels": (32, 64, 64, 64)},
    "UNet2DConditionModel": {"sample_size": 32, "block_out_channels": (32, 64, 64, 64),
                             "cross_attention_dim": 64, "in_channels": 3, "out_channels": 3},
    "AutoencoderKL": {"block_out_channels": (32, 64), "norm_num_groups": 32,
                      "down_block_types": ("DownEncoderBlock2D",) * 2,
                      "up_block_types": ("UpDecoderBlock2D",) * 2},
    "VQModel": {"block_out_channels": (32, 64), "down_block_types": ("DownEncoderBlock2D",) * 2,
                "up_block_types": ("UpDecoderBlock2D",) * 2},
    "AutoencoderTiny": {},
    "AsymmetricAutoencoderKL": {"down_block_out_channels": (32, 64), "up_block_out_channels":
                                (32, 64), "down_block_types": ("DownEncoderBlock2D",) * 2,
                                "up_block_types": ("UpDecoderBlock2D",) * 2},
}  # fmt: skip
SPANDREL: dict[str, dict[str, Any]] = {
    "RCAN": {"n_resgroups": 2, "n_resblocks": 3}, "SCUNet": {"config": [1] * 7},
    "ESRGAN": {"num_blocks": 2}, "Compact": {}, "SPAN": {"num_in_ch": 3, "num_out_ch": 3},
    "NAFNet": {"width": 16}, "DnCNN": {"in_nc": 3, "out_nc": 3},
    "DRUNet": {"in_nc": 3, "out_nc": 3, "nc": [16, 32, 64, 128], "nb": 2}, "OmniSR": {},
    "SwinIR": {"depths": (2, 2), "num_heads": (4, 4), "embed_dim": 48, "window_size": 8},
    "PLKSR": {"n_blocks": 4}, "SAFMN": {"dim": 36}, "SwiftSRGAN": {},
}  # fmt: skip


def images(batch: int, size: int, channels: int = 3) -> Tensor:
    return torch.randn(batch, channels, size, size)


def volumes(batch: int, size: int) -> Tensor:
    return torch.randn(batch, 1, size, size, size)


def clips(batch: int, size: int) -> Tensor:
    return torch.randn(batch, 3, 16 if size == 224 else 8, size, size)


def noisy(batch: int, size: int) -> tuple[Tensor, Tensor]:
    """Images and steps of a diffusion."""
    return images(batch, size), torch.randint(0, 1000, (batch,))


def noisy_with_text(batch: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    return (*noisy(batch, size), torch.randn(batch, 7, 64))


def with_targets(batch: int, size: int, extra: str = "") -> tuple[Any, Any]:
    """A list of images and what is in them: boxes, and masks or keypoints."""
    targets = []
    for _ in range(batch):
        target = {"boxes": torch.tensor([[0.1, 0.1, 0.6, 0.7], [0.3, 0.2, 0.9, 0.8]]) * size,
                  "labels": torch.tensor([1, 1 if extra == "keypoints" else 2])}  # fmt: skip
        if extra == "masks":
            target["masks"] = (torch.rand(2, size, size) > 0.5).to(torch.uint8)
        if extra == "keypoints":
            target["keypoints"] = torch.rand(2, 17, 3) * 0.4 * size + 0.3 * size
        targets.append(target)
    return [torch.rand(3, size, size) for _ in range(batch)], targets


def detector(entry: str) -> Built:
    models = importlib.import_module("torchvision.models.detection")
    kind = entry.partition("rcnn")[0]
    extra = {"mask": "masks", "keypoint": "keypoints"}.get(kind, "")
    options = {} if entry.startswith("ssd") else {"min_size": 320, "max_size": 384}
    model = getattr(models, entry)(weights=None, weights_backbone=None, **options)
    return model, partial(with_targets, extra=extra), 320, 64


def yolo(entry: str) -> Built:
    tasks = importlib.import_module("ultralytics.nn.tasks")
    kinds = {"seg": "Segmentation", "pose": "Pose", "obb": "OBB", "cls": "Classification"}
    kind = kinds.get(entry.partition("-")[2], "Detection")
    model = getattr(tasks, f"{kind}Model")(f"{entry}.yaml", verbose=False)
    return model, images, 224 if kind == "Classification" else 320, 64


def segmenter(entry: str) -> Built:
    models = importlib.import_module("torchvision.models.segmentation")
    return getattr(models, entry)(weights=None, weights_backbone=None), images, 128, 32


def smp(entry: str) -> Built:
    models = importlib.import_module("segmentation_models_pytorch")
    encoder = "mit_b0" if entry == "Segformer" else "resnet18"
    return getattr(models, entry)(encoder, encoder_weights=None, classes=5), images, 128, 32


def classifier(entry: str) -> Built:
    model, example = networks.build(f"timm:{entry}")
    fixed = entry.startswith(FIXED_SIZE)
    return model, images, example.shape[-1], 0 if fixed else 32


def monai(entry: str) -> Built:
    model = getattr(importlib.import_module("monai.networks.nets"), entry)(**MONAI[entry])
    flat = MONAI[entry]["spatial_dims"] == 2
    return (
        model,
        images if flat else volumes,
        64 if flat else 32,
        0 if entry == "BasicUNet" else 32 if flat else 16,
    )


def clip_model(entry: str) -> Built:
    models = importlib.import_module("torchvision.models.video")
    return (
        models.__dict__[entry](weights=None),
        clips,
        *((80, 16) if entry.endswith("_18") else (224, 0)),
    )


def diffuser(entry: str) -> Built:
    model = getattr(importlib.import_module("diffusers"), entry)(**DIFFUSERS[entry])
    inputs = {"UNet2DModel": noisy, "UNet2DConditionModel": noisy_with_text}.get(entry, images)
    return model, inputs, 32, 16


def upscaler(entry: str) -> Built:
    code = importlib.import_module(f"spandrel.architectures.{entry}")
    return getattr(code, entry)(**SPANDREL[entry]), images, 48, 16


FAMILIES: dict[str, dict[str, tuple[tuple[str, ...], Callable[[str], Built]]]] = {
    "detection": {"torchvision": (DETECTORS, detector), "ultralytics": (YOLOS, yolo)},
    "segmentation": {"torchvision": (SEGMENTERS, segmenter), "smp": (SMP, smp),
                     "monai": (tuple(MONAI), monai)},
    "more classifiers": {"timm": (CLASSIFIERS, classifier)},
    "attention": {"timm": (TRANSFORMERS_OF_TIMM, classifier),
                  "transformers": (tuple(ATTENTION), transformer)},
    "video": {"torchvision": (CLIPS, clip_model)},
    "generation": {"diffusers": (tuple(DIFFUSERS), diffuser),
                   "spandrel": (tuple(SPANDREL), upscaler)},
    "speech and others": {"transformers": (tuple(TRANSFORMERS), transformer)},
}  # fmt: skip
BUILDERS = {
    f"{library}:{entry}": (family, build)
    for family, libraries in FAMILIES.items()
    for library, (entries, build) in libraries.items()
    for entry in entries
}


def family_of(name: str) -> str:
    return BUILDERS[name][0] if name in BUILDERS else "classification"


def subject(name: str) -> Subject:
    """The network of this name, and inputs of batch 1, 2 and 3, of three sizes if it takes them."""
    torch.manual_seed(0)
    if name in BUILDERS:
        model, inputs, size, step = BUILDERS[name][1](name.partition(":")[2])
        networks.randomise(model)
    else:
        model, example = networks.build(name)
        inputs, size, step = images, example.shape[-1], 32
    third = size - 2 * step if size > 4 * step else size
    sizes = ((1, size), (2, size - step), (3, third))
    return Subject(model.eval(), tuple(inputs(*of) for of in sizes))
