"""Which networks of torchvision and timm the zoo benchmark prunes."""

import importlib.util
import runpy
from pathlib import Path

import torch
from torch import Tensor, nn

SHIM = Path(__file__).parents[1] / "tests" / "support" / "cpu_torchvision" / "sitecustomize.py"

MAX_PARAMETERS = 100_000_000
TRANSFORMERS = ("vit", "swin", "maxvit")
NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)
DEPTHS = tuple(f"dafp:preresnet{depth}" for depth in (20, 56, 110, 164, 326, 1001))

# CNNs of timm by source file: a small one of every design, including difficult cases
TIMM = {
    "bagnet": ["bat_resnext26ts"],
    "byobnet": ["gernet_s", "repvgg_a0", "resnet51q", "mobileone_s0", "eca_resnet33ts"],
    "byoanet": ["botnet26t_256", "halonet26t"],
    "convmixer": ["convmixer_768_32"],
    "convnext": ["convnext_atto", "convnextv2_atto"],
    "cspnet": ["cspresnet50", "cspresnext50", "cspdarknet53", "darknet53", "cs3darknet_s"],
    "densenet": ["densenet121", "densenet169", "densenet201", "densenetblur121d"],
    "dla": ["dla34", "dla46x_c", "dla60_res2net"],
    "dpn": ["dpn68", "dpn48b"],
    "edgenext": ["edgenext_xx_small"],
    "efficientnet": ["efficientnet_b0", "mixnet_s", "mnasnet_100", "tf_efficientnetv2_b0",
                     "efficientnet_lite0", "fbnetc_100", "spnasnet_100", "tinynet_e",
                     "mobilenetv2_100"],
    "fasternet": ["fasternet_t0"],
    "focalnet": ["focalnet_tiny_srf"],
    "ghostnet": ["ghostnet_100", "ghostnetv2_100"],
    "hardcorenas": ["hardcorenas_a"],
    "hgnet": ["hgnet_tiny", "hgnetv2_b0"],
    "hrnet": ["hrnet_w18_small"],
    "inception_next": ["inception_next_atto"],
    "inception_resnet_v2": ["inception_resnet_v2"],
    "inception_v3": ["inception_v3"],
    "inception_v4": ["inception_v4"],
    "metaformer": ["poolformerv2_s12", "convformer_s18"],
    "mambaout": ["mambaout_femto"],
    "mobilenetv3": ["mobilenetv3_small_100", "lcnet_050", "fbnetv3_b", "mobilenetv4_conv_small"],
    "nasnet": ["nasnetalarge"],
    "nfnet": ["nf_resnet26", "dm_nfnet_f0"],
    "pnasnet": ["pnasnet5large"],
    "rdnet": ["rdnet_tiny"],
    "regnet": ["regnetx_002", "regnety_002", "regnetz_005"],
    "repghost": ["repghostnet_050"],
    "repvit": ["repvit_m0_9"],
    "res2net": ["res2net50_26w_4s", "res2next50"],
    "resnest": ["resnest14d", "resnest26d"],
    "resnet": ["resnet18", "resnet26t", "resnet50", "seresnet50", "ecaresnet26t",
               "resnext50_32x4d"],
    "resnetv2": ["resnetv2_50", "resnetv2_50d_gn"],
    "rexnet": ["rexnet_100"],
    "selecsls": ["selecsls42b"],
    "senet": ["legacy_seresnet18", "legacy_senet154"],
    "sknet": ["skresnet18", "skresnext50_32x4d"],
    "starnet": ["starnet_s1"],
    "tresnet": ["tresnet_m"],
    "vgg": ["vgg11_bn"],
    "vovnet": ["vovnet39a", "ese_vovnet19b_dw"],
    "xception": ["legacy_xception"],
    "xception_aligned": ["xception41", "xception65p"],
}  # fmt: skip


def shim_torchvision() -> object:
    """Define what torchvision's wheel lacks beside a CPU build of torch: see the file."""
    if importlib.util.find_spec("torchvision") is None:
        return None  # --help works without it
    return runpy.run_path(str(SHIM))


def names() -> list[str]:
    """All networks of the benchmark, as library:name."""
    import torchvision  # noqa: PLC0415 - needs the shim first

    ours = torchvision.models.list_models(module=torchvision.models)
    classifiers = [f"torchvision:{n}" for n in ours if not n.startswith(TRANSFORMERS)]
    return [*classifiers, *(f"timm:{n}" for group in TIMM.values() for n in group), *DEPTHS]


def build(name: str) -> tuple[nn.Module, Tensor]:
    """A network with seeded random weights and BN statistics, and a random image of its size."""
    import timm  # noqa: PLC0415
    import torchvision  # noqa: PLC0415

    import dafp.models  # noqa: PLC0415

    torch.manual_seed(0)
    library, _, entry = name.partition(":")
    size = 224
    if library == "dafp":
        model, size = dafp.models.build(entry), 32
    elif library == "timm":
        model = timm.create_model(entry)
        size = model.default_cfg["input_size"][-1]
    else:
        options = {"init_weights": False} if entry in ("googlenet", "inception_v3") else {}
        model = torchvision.models.get_model(entry, weights=None, **options)
        size = 299 if entry == "inception_v3" else 224
    randomise(model)
    return model.eval(), torch.randn(1, 3, size, size)


def randomise(model: nn.Module) -> None:
    """Random scales, shifts and statistics: with those of new norms, faults would not be seen."""
    for module in model.modules():
        if isinstance(module, NORMS) and module.weight is not None:
            nn.init.uniform_(module.weight, 0.5, 1.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.2)
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.running_mean is not None:
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
