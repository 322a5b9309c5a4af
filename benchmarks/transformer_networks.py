"""Networks of transformers for the zoo benchmark, from their configurations."""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


def pixels(batch: int, size: int) -> Tensor:
    return torch.randn(batch, 3, size, size)


def words(batch: int, size: int) -> Tensor:
    return torch.randint(5, 200, (batch, size))


def sound(batch: int, size: int) -> Tensor:
    return torch.randn(batch, size)


def one_channel_sound(batch: int, size: int) -> Tensor:
    return torch.randn(batch, 1, size)


def spectrum(batch: int, size: int) -> Tensor:
    return torch.randn(batch, size, 80)


def mel(batch: int, size: int) -> Tensor:
    return torch.randn(batch, 80, size)


class Entry(NamedTuple):
    """The class of a network, the options of its configuration, and what it takes."""

    kind: str
    options: dict[str, Any]
    inputs: Callable[[int, int], Any]
    size: int
    step: int  # how much a second input is larger; 0 if it takes one size


TEXT: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
    "vocab_size": 256,
}  # fmt: skip
SPEECH: dict[str, Any] = {**TEXT, "vocab_size": 32, "apply_spec_augment": False,
                          "num_conv_pos_embeddings": 16,
                          "num_conv_pos_embedding_groups": 4}  # fmt: skip
VISION: dict[str, Any] = {**TEXT, "image_size": 64, "patch_size": 16}
DEPTHS = {"depths": [2, 2, 2, 2], "hidden_sizes": [32, 64, 96, 128]}
TRANSFORMERS: dict[str, Entry] = {
    "ResNet": Entry("ResNetForImageClassification", {}, pixels, 160, 32),
    "RegNet": Entry("RegNetForImageClassification", {}, pixels, 160, 32),
    "MobileNetV1": Entry("MobileNetV1ForImageClassification", {}, pixels, 160, 32),
    "MobileNetV2": Entry("MobileNetV2ForImageClassification", {}, pixels, 160, 32),
    "EfficientNet": Entry("EfficientNetForImageClassification", {"width_coefficient": 1.0,
                          "depth_coefficient": 1.0, "hidden_dim": 1280}, pixels, 160, 32),
    "Bit": Entry("BitForImageClassification", {}, pixels, 160, 32),
    "ConvNext": Entry("ConvNextForImageClassification", DEPTHS, pixels, 128, 32),
    "ConvNextV2": Entry("ConvNextV2ForImageClassification", DEPTHS, pixels, 128, 32),
    "PoolFormer": Entry("PoolFormerForImageClassification", {}, pixels, 128, 32),
    "MobileViT": Entry("MobileViTForImageClassification", {}, pixels, 128, 64),
    "MobileViTV2": Entry("MobileViTV2ForImageClassification", {}, pixels, 128, 64),
    "LevitForImageClassification": Entry("LevitForImageClassification", {}, pixels, 224, 0),
    "Cvt": Entry("CvtForImageClassification", {}, pixels, 128, 32),
    "FocalNet": Entry("FocalNetForImageClassification", {}, pixels, 224, 0),
    "Swin": Entry("SwinForImageClassification", {"embed_dim": 48}, pixels, 224, 0),
    "ViT": Entry("ViTForImageClassification", VISION, pixels, 64, 0),
    "Segformer": Entry("SegformerForSemanticSegmentation", {}, pixels, 128, 32),
    "Bert": Entry("BertForSequenceClassification", TEXT, words, 12, 5),
    "GPT2": Entry("GPT2LMHeadModel", {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 256},
                  words, 12, 5),
    "Wav2Vec2": Entry("Wav2Vec2ForCTC", SPEECH, sound, 8000, 1600),
    "Hubert": Entry("HubertForCTC", SPEECH, sound, 8000, 1600),
    "WavLM": Entry("WavLMForCTC", SPEECH, sound, 8000, 1600),
    "SEW": Entry("SEWForCTC", {**SPEECH, "squeeze_factor": 2}, sound, 8000, 1600),
    "AudioSpectrogram": Entry("ASTForAudioClassification", {**TEXT, "num_mel_bins": 80,
                              "max_length": 128}, spectrum, 128, 0),
    "Whisper": Entry("WhisperForAudioClassification", {"d_model": 64, "encoder_layers": 2,
                     "encoder_attention_heads": 4, "encoder_ffn_dim": 128,
                     "max_source_positions": 50}, mel, 100, 0),
    "SpeechT5HifiGan": Entry("SpeechT5HifiGan", {}, spectrum, 20, 10),
    "Encodec": Entry("EncodecModel", {}, one_channel_sound, 6400, 3200),
    "Dac": Entry("DacModel", {}, one_channel_sound, 8192, 4096),
}  # fmt: skip
BASE: dict[str, Any] = {"vocab_size": 8000}  # fewer words: the zoo skips very large networks
ATTENTION: dict[str, Entry] = {
    "ViT-base": Entry("ViTForImageClassification", {}, pixels, 224, 0),
    "Swin-tiny": Entry("SwinForImageClassification", {}, pixels, 224, 0),
    "Segformer-b0": Entry("SegformerForImageClassification", {}, pixels, 128, 32),
    "Detr": Entry("DetrForObjectDetection", {"use_timm_backbone": False, "backbone": None,
                  "use_pretrained_backbone": False, "encoder_layers": 2, "decoder_layers": 2,
                  "backbone_config": {"model_type": "resnet", "out_features": ["stage4"]}},
                  pixels, 160, 32),
    "Bert-base": Entry("BertForSequenceClassification", BASE, words, 64, 16),
    "Whisper-encoder": Entry("WhisperForAudioClassification", {"d_model": 384, "encoder_layers": 4,
                             "encoder_attention_heads": 6, "encoder_ffn_dim": 1536,
                             "max_source_positions": 100}, mel, 200, 0),
}  # fmt: skip


def transformer(entry: str) -> tuple[nn.Module, Callable[[int, int], Any], int, int]:
    library = importlib.import_module("transformers")
    chosen = (TRANSFORMERS | ATTENTION)[entry]
    kind = getattr(library, chosen.kind)
    model = kind(kind.config_class(**chosen.options))
    return model, chosen.inputs, chosen.size, chosen.step
