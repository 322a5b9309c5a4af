"""The commands: what they print, what they write, and how they fail."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner, Result

import dafp
from dafp import cli
from dafp.cli.model_argument import find_here
from dafp.models import build

NET = """
import torch
from torch import nn

def net(num_classes=5):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 12, 3), nn.BatchNorm2d(12), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, num_classes),
    )

class TwelveOnly(nn.Module):
    "Does not run on another width, but while it is traced."

    def forward(self, x):
        if str(x.shape[1]) != "12" and not x.is_meta:
            raise ValueError("12 channels are needed")
        return x

def hidden(num_classes=5):
    return nn.Sequential(*net()[:6], TwelveOnly(), *net()[6:])
"""
MODEL = ("users_network:net", "--input", "1,3,8,8")


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in an empty directory, with a user's module that can be imported."""
    home = tmp_path / "home"
    modules = tmp_path / "modules"
    home.mkdir()
    modules.mkdir()
    (modules / "users_network.py").write_text(NET)
    monkeypatch.syspath_prepend(modules)
    monkeypatch.setenv("PYTHONPATH", str(modules))
    monkeypatch.chdir(home)
    return home


def invoke(*args: object) -> Result:
    """Run a command that is expected to work."""
    result = CliRunner().invoke(cli.app, [str(arg) for arg in args], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def fail(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    """Run a command that is expected to fail: one line on stderr, exit code 2."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["dafp", *map(str, args)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
    out, err = capsys.readouterr()
    assert stop.value.code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1, err
    return err


def users_net() -> nn.Module:
    return build("users_network:net")


# ---- inspect -------------------------------------------------------------------------------------


def test_inspect_shows_groups_consumers_cost_and_what_is_kept():
    text = invoke("inspect", *MODEL).stdout
    for word in ("group", "channels", "producers", "scales", "consumers", "kept", "reason"):
        assert word in text
    assert "20 of 25 filters can be pruned" in text
    assert "an output of the" in text
    assert "1,205 parameters" in text


def test_inspect_json_has_the_same_content():
    value = json.loads(invoke("inspect", *MODEL, "--json").stdout)
    assert (value["params"], value["filters"], value["all_filters"]) == (1205, 20, 25)
    assert [(g["name"], g["kind"], g["size"]) for g in value["groups"]] == [
        ("0", "filter", 8),
        ("3", "filter", 12),
    ]
    assert value["groups"][0]["producers"] == ["0.weight"]
    assert value["groups"][0]["scales"] == ["1.weight"]
    assert value["groups"][0]["consumers"] == ["3.weight"]
    assert value["kept"][0]["name"] == "8"
    assert value["macs"] == dafp.cost(users_net(), torch.randn(1, 3, 8, 8)).macs


def test_inspect_explains_a_group():
    text = invoke("inspect", *MODEL, "--explain", "0").stdout
    assert "0: filter group of 8 channels" in text
    assert "producers: 0.weight axis 0" in text
    assert "consumers: 3.weight axis 1" in text


def test_inspect_explains_what_is_kept():
    text = invoke("inspect", *MODEL, "--explain", "8").stdout
    assert "is kept: an output of the model" in text


def test_inspect_takes_our_own_networks_by_name_and_width():
    value = json.loads(invoke("inspect", "vgg11", "--width", "0.1", "--json").stdout)
    assert value["groups"][0]["size"] == 6


def test_inspect_keeps_the_layers_that_the_user_names():
    value = json.loads(invoke("inspect", *MODEL, "--keep", "3", "--json").stdout)
    assert [g["name"] for g in value["groups"]] == ["0"]


def test_inspect_takes_the_number_of_classes():
    value = json.loads(invoke("inspect", *MODEL, "--classes", "9", "--json").stdout)
    assert value["all_filters"] == 29


def test_inspect_writes_nothing(workplace):
    invoke("inspect", *MODEL)
    assert list(workplace.iterdir()) == []


# ---- prune ---------------------------------------------------------------------------------------


def test_prune_keeps_groups_that_fail_and_says_so_in_one_line():
    args = ("prune", "users_network:hidden", "--input", "1,3,8,8", "--ratio", "0.2")
    text = invoke(*args, "--out", "small.safetensors").stdout
    line = "1 group is kept whole, because verification failed with it pruned: 3;"
    assert line in " ".join(text.split())
    done = json.loads(invoke(*args, "--out", "small.safetensors", "--json").stdout)
    assert done["failing_groups"] == ["3"]
    assert done["filters_removed"] == 4, "20 % of 20 filters, all of the first layer"
    small = dafp.load("small.safetensors", trust=True)
    assert (small[0].out_channels, small[3].out_channels) == (4, 12)


def test_prune_writes_a_model_that_loads_and_is_smaller(workplace):
    invoke("prune", *MODEL, "--ratio", "0.5", "--out", "small.safetensors")
    small = dafp.load("small.safetensors", users_net())
    plan = dafp.plan_of(small)
    assert sum(len(kept) for kept in plan.keep.values()) == 10
    assert [p.name for p in workplace.iterdir()] == ["small.safetensors"]


def test_prune_writes_pruned_safetensors_by_default(workplace):
    invoke("prune", *MODEL)
    assert [p.name for p in workplace.iterdir()] == ["pruned.safetensors"]


def test_prune_shows_widths_and_before_and_after():
    text = invoke("prune", *MODEL, "--ratio", "0.5", "--out", "small.safetensors").stdout
    for word in ("widths", "before", "after", "removed", "prunable filters", "parameters",
                 "multiply-adds", "50.0%", "1,205", "verified", "small.safetensors"):  # fmt: skip
        assert word in text


def test_prune_json_has_plan_and_cost():
    result = invoke("prune", *MODEL, "--ratio", "0.5", "--unit", "params", "--json")
    value = json.loads(result.stdout)
    small = dafp.load(value["file"], users_net())
    assert value["verified"] is True
    assert value["after"]["params"] == sum(p.numel() for p in small.parameters())
    assert value["before"]["params"] == 1205
    assert dafp.PruningPlan.from_json(json.dumps(value["plan"])) == dafp.plan_of(small)
    assert abs(value["after"]["params"] / 1205 - 0.5) < 0.08


DIGITS = ("vgg11", "--width", "0.125", "--data", "digits", "--images", "60")


@pytest.mark.parametrize("fast", [True, False])
def test_prune_with_images_measures_widths_and_shows_accuracy(fast):
    options = ("--fast",) if fast else ()
    result = invoke("prune", *DIGITS, "--target", "macs=0.5", *options, "--json")
    value = json.loads(result.stdout)
    assert value["after"]["macs"] / value["before"]["macs"] == pytest.approx(0.5, abs=0.02)
    assert 0 <= value["accuracy_after"] <= 1
    assert 0 <= value["accuracy_before"] <= 1
    plan = dafp.PruningPlan.from_json(json.dumps(value["plan"]))
    left = [len(kept) / plan.sizes[name] for name, kept in plan.keep.items()]
    assert (max(left) - min(left) < 0.2) is fast


def test_prune_measures_damage_once_for_every_target(workplace, monkeypatch):
    network = dafp.models.build("vgg11", width=0.125)
    torch.save(network.state_dict(), "vgg.pth")
    options = ("--damage", "damage.json", "--weights", "vgg.pth", "--json")
    invoke("prune", *DIGITS, "--target", "macs=0.3", *options)
    assert "Damage by layer" in (workplace / "damage.html").read_text()
    table = (workplace / "damage.json").read_text()
    whole = json.loads(invoke("prune", *DIGITS, "--target", "macs=0.6", *options[2:]).stdout)
    monkeypatch.setattr("dafp.one_call.measure_damage", None)  # it would raise
    value = json.loads(invoke("prune", *DIGITS, "--target", "macs=0.6", *options).stdout)
    assert value["plan"] == whole["plan"]
    assert value["after"]["macs"] / value["before"]["macs"] == pytest.approx(0.4, abs=0.02)
    assert (workplace / "damage.json").read_text() == table


def test_prune_refuses_a_damage_file_that_is_none(workplace, capsys):
    (workplace / "damage.json").write_text("{}")
    message = fail(capsys, "prune", *DIGITS, "--damage", "damage.json")
    assert "damage.json: this is not a damage table" in message
    assert "delete this one" in message


def test_prune_with_images_prints_its_steps_and_the_accuracy():
    result = invoke("prune", *DIGITS, "--criterion", "taylor", "--mean", "0,0,0", "--std", "1,1,1")
    assert "test accuracy" in result.stdout
    assert all(step in result.stderr for step in ("scores", "widths", "rebuilding", "verifying"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("vgg11", "--fast"), "--fast concerns calibration images: give --data"),
        (("vgg11", "--damage", "a.json"), "--damage concerns calibration images"),
        (("vgg11", "--data", "digits", "--fast", "--damage", "a.json"), "--fast does not"),
        (("vgg11", "--data", "digits", "--data-free"), "--data-free uses no images"),
        (("vgg11", "--data", "nothing"), "there is no data set 'nothing'"),
        (("vgg11", "--data", "digits", "--mean", "1,2,3"), "--mean and --std belong together"),
        (
            ("vgg11", "--data", "digits", "--mean", "a", "--std", "1,1,1"),
            "is not a list of numbers",
        ),
        (("vgg11", "--data", "digits", "--mean", "0,0,0", "--std", "1,1"), "give three numbers"),
        (("vgg11", "--data", "digits", "--images", "1"), "at least 2 are needed"),
        (("vgg11", "--criterion", "taylor"), "needs data: give labelled calibration images"),
    ],
)
def test_prune_refuses_images_that_it_cannot_use(options, words, workplace, capsys):
    assert words in fail(capsys, "prune", *options)
    assert list(workplace.iterdir()) == []


@pytest.mark.parametrize("rule", ["local_threshold", "global_ranking", "uniform"])
def test_prune_takes_every_rule(rule):
    value = json.loads(invoke("prune", *MODEL, "--rule", rule, "--json").stdout)
    assert value["filters_removed"] == 10


@pytest.mark.parametrize("criterion", ["shift_aware", "bn_scale", "l2_norm", "random"])
def test_prune_takes_a_criterion_by_name(criterion):
    value = json.loads(
        invoke("prune", *MODEL, "--criterion", criterion, "--compensate", "--json").stdout
    )
    assert value["filters_removed"] == 10


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".safetensors"])
def test_prune_loads_weights_first(suffix):
    model = users_net()
    with torch.no_grad():
        model[8].bias.copy_(torch.arange(5.0))
    if suffix == ".safetensors":
        save_file(model.state_dict(), f"weights{suffix}")
    else:
        torch.save(model.state_dict(), f"weights{suffix}")
    invoke(
        "prune", *MODEL, "--weights", f"weights{suffix}", "--no-compensate",
        "--out", "small.safetensors",
    )  # fmt: skip
    small = dafp.load("small.safetensors", users_net())
    assert torch.equal(small[8].bias, torch.arange(5.0))


def test_prune_leaves_no_file_when_counting_the_cost_fails(capsys, workplace, monkeypatch):
    def refuse(*args: object) -> None:
        raise dafp.errors.TraceError("it does not run")

    monkeypatch.setattr("dafp.cli.prune.cost", refuse)
    assert "it does not run" in fail(capsys, "prune", *MODEL)
    assert list(workplace.iterdir()) == []


# ---- run -----------------------------------------------------------------------------------------


SHORT = [
    "run", "--model", "resnet8", "--quiet", "--set", "images=80", "--set", "width=0.25",
    "--set", "baseline.epochs=0", "--set", "sparse.epochs=1", "--set", "finetune.epochs=1",
]  # fmt: skip


def test_run_writes_into_its_directory_only(workplace):
    text = invoke(*SHORT, "--out", "there/deep").stdout
    assert [p.name for p in workplace.iterdir()] == ["there"]
    assert {p.name for p in (workplace / "there/deep").iterdir()} >= {
        "config.toml", "metrics.jsonl", "plan.json", "model.safetensors", "report.html"
    }  # fmt: skip
    assert "fine-tuned" in text
    assert isinstance(dafp.load("there/deep/model.safetensors"), dafp.models.ResNet)


def test_run_gives_the_same_file_every_time():
    for name in ("a", "b"):
        invoke(*SHORT, "--out", name)
    assert Path("a/model.safetensors").read_bytes() == Path("b/model.safetensors").read_bytes()


# ---- help ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["inspect", "prune"])
def test_the_help_of_a_command_has_an_example(command):
    text = invoke(command, "--help").stdout
    assert "Example" in text
    assert f" dafp {command} " in text
    assert "package.module:function" in text.replace("\n", "")


def test_the_help_lists_the_commands():
    text = invoke("--help").stdout
    for command in ("inspect", "prune", "run"):
        assert command in text


def test_version_prints_the_version_of_the_package():
    assert invoke("--version").stdout == f"dafp {dafp.__version__}\n"


def test_a_call_without_a_command_shows_the_help():
    assert "inspect" in CliRunner().invoke(cli.app, []).output


# ---- errors --------------------------------------------------------------------------------------


def test_an_unknown_model_is_one_line_that_lists_what_is_allowed(capsys):
    error = fail(capsys, "inspect", "lenet")
    for word in ("'lenet'", "vgg11/13/16/19", "preresnet20", "timm:NAME", "module:function"):
        assert word in error


def test_a_ratio_outside_0_and_1_is_one_line(capsys, workplace):
    message = fail(capsys, "prune", *MODEL, "--ratio", "1.5")
    assert "--ratio 1.5: the share to remove, between 0 and 1; 1.5 % is 0.015" in message
    assert list(workplace.iterdir()) == []


def test_an_unknown_criterion_is_one_line(capsys):
    assert "l1_norm" in fail(capsys, "prune", *MODEL, "--criterion", "best")


def test_an_unknown_rule_is_one_line(capsys):
    assert "local_threshold" in fail(capsys, "prune", *MODEL, "--rule", "best")


def test_an_unknown_unit_is_one_line(capsys):
    assert "'macs'" in fail(capsys, "prune", *MODEL, "--unit", "flops")


@pytest.mark.parametrize("shape", ["", "a,b", "1,3,-4,4", "3.5", "0,3,8,8"])
def test_an_input_that_is_no_shape_is_one_line(capsys, shape):
    assert "1,3,224,224" in fail(capsys, "inspect", "users_network:net", "--input", shape)


def test_an_input_that_the_model_refuses_is_one_line(capsys):
    assert "[1, 4, 8, 8]" in fail(capsys, "inspect", "users_network:net", "--input", "1,4,8,8")


def test_missing_weights_are_one_line(capsys):
    assert "no file" in fail(capsys, "prune", *MODEL, "--weights", "nowhere.pth")


def test_weights_of_another_model_are_one_line(capsys):
    torch.save(nn.Linear(2, 2).state_dict(), "other.pth")
    assert "does not fit" in fail(capsys, "prune", *MODEL, "--weights", "other.pth")


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("inspect", ("weights", "classes", "width")),
        ("prune", ("weights", "classes", "width")),
        ("export", ("weights", "classes", "width")),
        ("bench", ("classes", "width")),
        ("sensitivity", ("weights", "width")),
    ],
)
def test_options_that_build_a_network_are_refused_beside_a_file(
    capsys, workplace, command, options
):
    for option in options:
        error = fail(capsys, command, "small.safetensors", f"--{option}", "7")
        assert f"small.safetensors has its own weights, classes and widths, so --{option}" in error
    assert not list(workplace.iterdir())


def test_an_output_that_cannot_be_written_is_one_line(capsys, workplace):
    assert "cannot write" in fail(capsys, "prune", *MODEL, "--out", "no/such/place.safetensors")
    assert list(workplace.iterdir()) == []


def test_an_unknown_group_to_explain_is_one_line(capsys):
    assert "groups are 0, 3" in fail(capsys, "inspect", *MODEL, "--explain", "nobody")


def test_an_unreachable_target_is_one_line(capsys, workplace):
    assert "at most" in fail(capsys, "prune", *MODEL, "--ratio", "0.99")
    assert list(workplace.iterdir()) == []


def test_a_run_into_a_file_is_one_line(capsys):
    Path("occupied").write_text("a file")
    assert "occupied" in fail(capsys, "run", "--model", "resnet8", "--out", "occupied")


def test_traceback_raises_the_error_itself(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["dafp", "--traceback", "inspect", "lenet"])
    with pytest.raises(dafp.errors.ModelError):
        cli.main()


def installed(where: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run the command that pip installs: it does not look for modules where it is called."""
    environment = {**os.environ, "PYTHONPATH": str(Path(dafp.__file__).parents[1])}
    return subprocess.run(
        [Path(sys.executable).with_name("dafp"), *args],
        cwd=where, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow(reason="a new process imports torch")
def test_the_installed_command_finds_a_module_in_the_current_directory(workplace):
    (workplace / "local_network.py").write_text(NET)
    done = installed(workplace, "inspect", "local_network:net", "--input", "1,3,8,8")
    assert (done.returncode, done.stderr) == (0, "")
    assert "20 of 25 filters can be pruned" in done.stdout


@pytest.mark.parametrize(
    "args",
    [
        ("inspect", "here_too:net"),
        ("run", "--model", "here_too:net", "--quiet"),
        ("compare", "--model", "here_too:net", "--quiet"),
        ("sensitivity", "here_too:net", "--quiet"),
        ("eval", "net.safetensors", "--set", "model=here_too:net"),
        ("finetune", "net.safetensors", "--set", "model=here_too:net", "--quiet"),
    ],
    ids=lambda args: args[0],
)
def test_every_command_finds_a_function_in_the_current_directory_and_reports_its_error(
    capsys, workplace, monkeypatch, args
):
    (workplace / "here_too.py").write_text("def net(**options):\n    raise OSError('no disk')\n")
    dafp.save(users_net(), "net.safetensors")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "here_too", raising=False)
    assert "here_too:net" in (error := fail(capsys, *args))
    assert "raised OSError: no disk" in error


@pytest.mark.parametrize("name", ["vgg11", "timm:resnet18", "torchvision:resnet18"])
def test_other_models_are_not_looked_for_in_the_current_directory(workplace, monkeypatch, name):
    monkeypatch.setattr(sys, "path", [*sys.path])
    find_here(name)
    assert str(workplace) not in sys.path


@pytest.mark.slow(reason="a new process imports torch")
def test_the_installed_command_prints_errors_to_stderr_and_exits_with_2(workplace):
    command = Path(sys.executable).with_name("dafp")
    done = subprocess.run(
        [command, "prune", "users_network:net", "--ratio", "7", "--input", "1,3,8,8"],
        cwd=workplace, env=dict(os.environ), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: --ratio 7: the share to remove, between 0 and 1")
