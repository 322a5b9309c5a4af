"""Networks of transformers with random weights: half of the multiply-adds go, exactly."""

import pytest
import torch

import dafp

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow(reason="eleven networks, each traced, pruned and run: 10 s")

SIZES = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
}  # fmt: skip


def images(side):
    return {"pixel_values": torch.randn(2, 3, side, side)}


def words():
    mask = torch.ones(2, 16, dtype=torch.long)
    mask[1, 9:] = 0
    return {"input_ids": torch.randint(0, 100, (2, 16)), "attention_mask": mask}


def vit():
    config = transformers.ViTConfig(image_size=32, patch_size=8, **SIZES)
    return transformers.ViTForImageClassification(config), images(32)


def dino():
    sizes = {**SIZES, "intermediate_size": None}
    config = transformers.Dinov2WithRegistersConfig(image_size=32, patch_size=8, **sizes)
    return transformers.Dinov2WithRegistersForImageClassification(config), images(32)


def masked_autoencoder():
    config = transformers.ViTMAEConfig(image_size=32, patch_size=8, mask_ratio=0.0, **SIZES)
    return transformers.ViTMAEModel(config), images(32)


def beit():
    config = transformers.BeitConfig(
        image_size=32, patch_size=8, use_relative_position_bias=True, **SIZES
    )
    return transformers.BeitForImageClassification(config), images(32)


def bert():
    config = transformers.BertConfig(vocab_size=100, **SIZES)
    return transformers.BertForSequenceClassification(config), words()


def llama():
    config = transformers.LlamaConfig(
        vocab_size=100, num_key_value_heads=2, pad_token_id=0, use_cache=False, **SIZES
    )
    return transformers.LlamaForSequenceClassification(config), words()


def swin():
    config = transformers.SwinConfig(
        image_size=32, patch_size=2, embed_dim=32, depths=[2, 2], num_heads=[2, 4], window_size=4
    )
    return transformers.SwinForImageClassification(config), images(32)


def convnext_v2():
    config = transformers.ConvNextV2Config(hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 2, 1])
    return transformers.ConvNextV2ForImageClassification(config), images(64)


def mobilevit():
    config = transformers.MobileViTConfig(
        image_size=64, hidden_sizes=[48, 64, 80], neck_hidden_sizes=[8, 16, 24, 32, 40, 48, 64]
    )
    return transformers.MobileViTForImageClassification(config), images(64)


def segformer():
    config = transformers.SegformerConfig(
        depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 64, 96], decoder_hidden_size=48
    )
    return transformers.SegformerForSemanticSegmentation(config), images(64)


def whisper():
    config = transformers.WhisperConfig(
        d_model=64, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=128,
        decoder_attention_heads=4, num_mel_bins=20, max_source_positions=50,
    )  # fmt: skip
    encoder = transformers.WhisperModel(config).get_encoder()
    return encoder, {"input_features": torch.randn(2, 20, 100)}


def network(build):
    """Norms, and what is initialised with zeros, get random numbers; nothing is dropped out.

    Dropout of channels draws other numbers where there are fewer channels.
    """
    torch.manual_seed(0)
    model, example = build()
    for parameter in model.parameters():
        if parameter.dim() == 1 or not bool(parameter.any()):
            torch.nn.init.normal_(parameter.data, float(parameter.data.mean()), 0.2)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model.eval(), example


@pytest.mark.parametrize(
    "build",
    [
        vit,
        dino,
        masked_autoencoder,
        beit,
        bert,
        llama,
        swin,
        convnext_v2,
        mobilevit,
        segformer,
        whisper,
    ],
)
def test_half_of_the_multiply_adds_go_exactly(build):
    model, example = network(build)
    graph = dafp.trace(model, example, residual="couple")
    scores = dafp.criteria.dependency_aware(model, graph)
    plan = dafp.selection.to_target(
        scores, graph, target=0.5, unit="macs", rule=dafp.selection.uniform
    )
    small, masked = dafp.prune(model, graph, plan), dafp.mask(model, graph, plan)
    whole, left = dafp.cost(model, example), dafp.cost(small, example)
    assert left == dafp.plan_of(small).after
    assert 0.4 < left.macs / whole.macs < 0.55
    other = {name: torch.cat([value, value.flip(0)]) for name, value in example.items()}
    for training in (False, True):
        small.train(training)
        masked.train(training)
        outputs = []
        for one in (small, masked):
            torch.manual_seed(1)
            outputs.append(one(**other)[0])
        torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-4)
