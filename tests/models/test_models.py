"""Our own networks: sizes, depths, widths and names."""

import pytest
import torch
from torch import nn

import dafp
from dafp.errors import ModelError
from dafp.models import VGG, ImageNetVGG, PreResNet, ResNet, build, default_example, is_ours
from support.training import with_random_bn


def params(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def on_meta(name: str, **options: float) -> nn.Module:
    with torch.device("meta"):
        return build(name, **options)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("vgg11", 9_228_362),
        ("vgg16", 14_724_042),
        ("vgg19", 20_035_018),
        # He et al.: 269,722 with padded shortcuts; here with two projections and their BN
        ("resnet20", 269_722 + 16 * 32 + 2 * 32 + 32 * 64 + 2 * 64),
    ],
)
def test_a_network_has_the_number_of_parameters_of_its_paper(name, count):
    assert params(on_meta(name)) == count


def test_imagenet_vgg11_has_about_132_9_million_parameters():
    model = on_meta("vgg11-imagenet")
    assert isinstance(model, ImageNetVGG)
    assert params(model) == pytest.approx(132.9e6, abs=0.05e6)


@pytest.mark.parametrize("depth", [50, 101])
def test_an_imagenet_preresnet_has_about_the_parameters_of_its_resnet(depth):
    model = on_meta(f"preresnet{depth}-imagenet")
    assert params(model) == pytest.approx({50: 25.55e6, 101: 44.55e6}[depth], rel=0.01)


@pytest.mark.parametrize("depth", [11, 20, 29, 56, 110, 164])
def test_a_preresnet_of_depth_9n_plus_2_has_that_many_layers_with_weights(depth):
    model = on_meta(f"preresnet{depth}")
    layers = [
        name for name, module in model.named_modules()
        if isinstance(module, (nn.Conv2d, nn.Linear)) and "downsample" not in name
    ]  # fmt: skip
    assert isinstance(model, PreResNet)
    assert len(layers) == depth


def test_the_projection_of_preresnet_reads_the_activation_and_that_of_slm_its_input():
    """Where bn1 is switched off, only a projection of the raw input still hears it."""
    for name, hears in (("preresnet20", False), ("preresnet20-slm", True)):
        model = build(name, width=0.25).eval()
        block = model.stages[1][0]
        x = torch.randn(2, block.bn1.num_features, 8, 8)
        with torch.no_grad():
            block.bn1.weight.zero_()
            assert bool((block(x) - block(2 * x)).abs().max() > 1e-3) == hears
        assert build(name, width=0.25)._dafp_name["name"] == name


def test_preresnet_as_in_slm_is_pruned_exactly():
    model = with_random_bn(build("preresnet20-slm", width=0.25)).eval()
    x = torch.randn(2, 3, 32, 32)
    graph = dafp.trace(model, x)
    scores = dafp.criteria.dependency_aware(model, graph)
    plan = dafp.selection.to_target(scores, graph, 0.5)
    small = dafp.prune(model, graph, plan)
    assert params(small) < 0.75 * params(model)
    torch.testing.assert_close(small(x), dafp.mask(model, graph, plan)(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("depth", [8, 20, 56])
def test_a_resnet_of_depth_6n_plus_2_has_that_many_layers_with_weights(depth):
    model = on_meta(f"resnet{depth}")
    layers = [
        name for name, module in model.named_modules()
        if isinstance(module, (nn.Conv2d, nn.Linear)) and "shortcut" not in name
    ]  # fmt: skip
    assert isinstance(model, ResNet)
    assert len(layers) == depth


@pytest.mark.parametrize("name", ["vgg11", "preresnet20", "resnet8"])
def test_a_network_computes_one_row_of_logits_per_image(name):
    model = build(name, classes=7, width=0.25).eval()
    with torch.no_grad():
        assert model(torch.randn(2, 3, 32, 32)).shape == (2, 7)


def test_imagenet_networks_take_images_of_224():
    model = on_meta("vgg11-imagenet", width=0.25).eval()
    example = default_example("vgg11-imagenet", model)
    assert example.shape == (1, 3, 224, 224)
    assert model(example.to("meta")).shape == (1, 1000)


def test_the_default_example_is_the_same_every_time():
    model = on_meta("vgg11")
    assert torch.equal(default_example("vgg11", model), default_example("vgg11", model))


def test_width_scales_every_layer():
    whole, half = on_meta("vgg11"), on_meta("vgg11", width=0.5)
    assert isinstance(half, VGG)
    widths = [
        [m.out_channels for m in model.modules() if isinstance(m, nn.Conv2d)]
        for model in (whole, half)
    ]
    assert widths[1] == [wide // 2 for wide in widths[0]]


def test_a_tiny_width_leaves_no_layer_empty():
    model = on_meta("preresnet20", width=0.01)
    assert min(p.numel() for p in model.parameters()) >= 1


@pytest.mark.parametrize(
    "name",
    ["vgg12", "vgg", "preresnet2", "preresnet21", "preresnet", "resnet2", "resnet21",
     "resnet20-imagenet", "preresnet20-imagenet", "vgg11-cifar", "VGG16", "", "vgg11 "],
)  # fmt: skip
def test_a_name_that_is_no_network_is_refused_with_what_is_allowed(name):
    with pytest.raises(ModelError, match=r"(?i)no model .*vgg.*9n\+2.*6n\+2"):
        build(name)


@pytest.mark.parametrize("options", [{"width": 0}, {"width": -1.0}, {"width": float("nan")},
                                     {"classes": 0}, {"classes": -3}], ids=str)  # fmt: skip
def test_a_width_or_number_of_classes_that_makes_no_network_is_refused(options):
    (name,) = options
    with pytest.raises(ModelError, match=name):
        build("vgg11", **options)


def test_a_width_is_refused_for_networks_of_others():
    with pytest.raises(ModelError, match=r"width=0\.5 is for built-in models"):
        build("torch.nn:Identity", width=0.5)


def test_a_users_function_builds_a_network():
    assert isinstance(build("torch.nn:Identity"), nn.Identity)


def test_a_module_that_cannot_be_imported_is_named():
    with pytest.raises(ModelError, match=r"cannot import 'no_such_package_here' .*'net'"):
        build("no_such_package_here:net")


def test_a_function_that_does_not_exist_is_named():
    with pytest.raises(ModelError, match=r"'torch\.nn' has no function 'Nonesuch'"):
        build("torch.nn:Nonesuch")


def test_a_function_that_gives_no_module_is_refused():
    with pytest.raises(ModelError, match=r"gave a str, not an nn\.Module"):
        build("os:getcwd")


def test_an_attribute_error_inside_a_users_function_is_not_taken_for_a_missing_function(
    tmp_path, monkeypatch
):
    (tmp_path / "broken_factory.py").write_text("def net():\n    return (1).colour\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModelError, match="colour"):
        build("broken_factory:net")


@pytest.mark.parametrize("error", ["OSError", "KeyError", "ImportError", "ZeroDivisionError"])
def test_whatever_a_users_function_raises_is_reported_with_its_name(tmp_path, monkeypatch, error):
    name = f"raises_{error.lower()}"
    (tmp_path / f"{name}.py").write_text(f"def net(num_classes=5):\n    raise {error}('why')\n")
    monkeypatch.syspath_prepend(tmp_path)
    words = rf"{name}:net, called with num_classes=3, raised {error}: '?why"
    with pytest.raises(ModelError, match=words):
        build(f"{name}:net", classes=3)


@pytest.mark.parametrize("text", ["def net(:", "1 / 0", "import no_such_package_here"])
def test_a_module_that_fails_while_it_is_imported_is_named(tmp_path, monkeypatch, text):
    (tmp_path / "fails_at_once.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModelError, match="cannot import 'fails_at_once' for model 'net'"):
        build("fails_at_once:net")


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_missing_library_gives_the_pip_command(library, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, library, None)
    with pytest.raises(ModelError, match=rf'{library}.*pip install "dafp\[zoo\]"'):
        build(f"{library}:resnet18")


def test_our_names_are_distinguished_from_others():
    assert is_ours("preresnet56")
    assert not is_ours("timm:resnet18")


def test_the_same_seed_builds_the_same_network():
    first, second = (
        (torch.manual_seed(3), build("vgg11", width=0.1).state_dict())[1] for _ in range(2)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
