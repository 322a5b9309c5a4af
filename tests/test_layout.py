"""The shape of the package: layers of imports, the public names, devices that follow tensors."""

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dafp

SOURCE = Path(dafp.__file__).parent

# Packages (and the few modules beside them) in layers: one imports only from layers above its own.
LAYERS = [
    ["errors", "choices"],
    ["extras", "storage", "network", "models"],
    ["graph", "data", "export"],
    ["tracing", "calibration"],
    ["criteria"],
    ["selection", "pruning"],
    ["recovery", "sparse_training", "files", "latency"],
    ["one_call", "repair", "sensitivity", "training"],
    ["integrations", "methods", "report"],
    ["runs"],
    ["sweeps"],
    ["reproduce"],
    ["cli"],
    ["__main__"],
]
LONGEST_CHAIN = 26  # modules, each importing the next
MOST_SKIPS = 19  # places where the formatter does not break lines: tables that are read as tables

PUBLIC = {
    "trace", "criteria", "selection", "prune", "mask", "plan_of", "carry_over", "recalibrate",
    "bake", "reconstruct", "slim", "save", "load", "cost", "PruningPlan", "Cost", "ChannelGraph",
    "Group", "Slot", "errors", "DafpError", "SparsityController", "SparseTraining",
}  # fmt: skip
CRITERIA = {
    "dependency_aware", "shift_aware", "bn_scale", "l1_norm", "l2_norm", "geometric_median",
    "random", "taylor", "reconstruction_error", "activation_norm", "loss_by_removal", "lasso",
}  # fmt: skip
RULES = {"local_threshold", "global_ranking", "uniform", "to_target"}


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    """src/dafp/tracing/call.py -> tracing.call; the package itself is the empty name."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path) -> Iterator[str]:
    """Modules of dafp that a file imports, wherever in the file the import stands."""
    known = {name_of(p) for p in files()}
    package = name_of(path) if path.name == "__init__.py" else name_of(path).rpartition(".")[0]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (
                alias.name.removeprefix("dafp").lstrip(".")
                for alias in node.names
                if alias.name.split(".")[0] == "dafp"
            )
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                parts = package.split(".") if package else []
                base = ".".join(parts[: len(parts) - node.level + 1])
                target = ".".join(p for p in (base, node.module or "") if p)
            elif (node.module or "").split(".")[0] == "dafp":
                target = (node.module or "").removeprefix("dafp").lstrip(".")
            else:
                continue
            for alias in node.names:  # `from . import criteria` imports the module
                inner = f"{target}.{alias.name}".lstrip(".")
                yield inner if inner in known else target


def package_of(name: str) -> str:
    return name.split(".", maxsplit=1)[0]


def test_there_are_few_modules_beside_the_packages():
    assert len(list(SOURCE.glob("*.py"))) <= 8


def test_every_folder_with_modules_is_a_package():
    folders = {path.parent for path in files()}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_there_are_at_most_14_layers():
    assert len(LAYERS) <= 14


def test_every_package_is_in_one_layer():
    placed = [package for layer in LAYERS for package in layer]
    assert sorted(placed) == sorted({package_of(name_of(p)) for p in files()} - {""})


@pytest.mark.parametrize("path", files(), ids=name_of)
def test_a_package_imports_only_from_layers_above_its_own(path):
    package = package_of(name_of(path))
    if not package:
        return  # dafp itself: it imports its public names when they are asked for
    layer = next(number for number, layer in enumerate(LAYERS) if package in layer)
    above = {"", package, *(name for layer in LAYERS[:layer] for name in layer)}
    assert {package_of(name) for name in imports(path)} <= above


def test_no_module_imports_itself_through_others_and_chains_are_short():
    direct = {name_of(path): set(imports(path)) - {""} for path in files() if name_of(path)}
    assert len(longest_chain(direct)) <= LONGEST_CHAIN


def longest_chain(direct: dict[str, set[str]]) -> list[str]:
    """The longest way from a module to one that imports nothing of dafp."""
    found: dict[str, list[str]] = {}

    def chain(name: str, begun: tuple[str, ...]) -> list[str]:
        assert name not in begun, " imports ".join([*begun, name])
        if name not in found:
            below = [chain(other, (*begun, name)) for other in direct[name]]
            found[name] = [name, *max(below, key=len, default=[])]
        return found[name]

    return max((chain(name, ()) for name in direct), key=len)


def test_the_longest_chain_of_three_modules_is_found():
    assert longest_chain({"a": {"b", "c"}, "b": {"c"}, "c": set(), "d": {"c"}}) == ["a", "b", "c"]


def test_the_oracle_shares_no_code_with_slicing():
    oracle = set(imports(SOURCE / "pruning/masking.py"))
    assert oracle & {"graph.slicing", "pruning.pruned_model"} == set()
    assert "copy_with" not in (SOURCE / "pruning/masking.py").read_text()


@pytest.mark.parametrize("path", files(), ids=name_of)
def test_a_file_says_its_job_in_its_first_line(path):
    assert ast.get_docstring(tree(path))


def test_no_class_name_exists_twice():
    names = [n.name for p in files() for n in ast.walk(tree(p)) if isinstance(n, ast.ClassDef)]
    assert sorted(names) == sorted(set(names))


def test_the_formatter_decides_almost_everywhere():
    assert sum(path.read_text().count("# fmt: skip") for path in files()) <= MOST_SKIPS


@pytest.mark.parametrize("path", files(), ids=name_of)
def test_a_module_logs_under_its_own_name(path):
    named = [
        ast.unparse(node.args[0])
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "logging.getLogger"
    ]
    assert set(named) <= {"__name__", "'torch._subclasses.fake_tensor'"}  # torch's: it is silenced


# ---- public names --------------------------------------------------------------------------------


def test_all_is_complete():
    assert set(dafp.__all__) >= PUBLIC


def test_all_is_sorted_and_can_be_imported():
    assert list(dafp.__all__) == sorted(dafp.__all__)
    assert [name for name in dafp.__all__ if not hasattr(dafp, name)] == []


def test_all_names_imported_for_type_checkers_are_in_all():
    defined = {
        alias.name
        for node in ast.walk(tree(SOURCE / "__init__.py"))
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
    }
    assert defined == set(dafp.__all__)


def test_dir_shows_the_public_api_and_nothing_else():
    packages = {"data", "export", "integrations", "latency", "models", "recovery"}
    assert set(dir(dafp)) == {*dafp.__all__, *packages, "__version__"}


@pytest.mark.parametrize("old", ["sensitivity.layer_sensitivity"])
def test_a_name_that_has_moved_is_still_found_and_warns(old):
    module, name = old.split(".")
    with pytest.warns(DeprecationWarning, match="dafp.recovery"):
        found = getattr(importlib.import_module(f"dafp.{module}"), name)
    assert found is getattr(dafp.recovery, name)


@pytest.mark.parametrize("name", sorted(CRITERIA))
def test_a_criterion_is_there(name):
    assert callable(getattr(dafp.criteria, name))


@pytest.mark.parametrize("name", sorted(RULES))
def test_a_rule_of_selection_is_there(name):
    assert callable(getattr(dafp.selection, name))


@pytest.mark.parametrize("name", sorted(PUBLIC | {"Kept", "Call"}))
def test_a_public_name_has_a_docstring(name):
    assert getattr(dafp, name).__doc__


def test_every_error_is_a_dafp_error():
    kinds = [v for v in vars(dafp.errors).values() if isinstance(v, type)]
    assert len(kinds) >= 7
    assert all(issubclass(kind, dafp.DafpError) for kind in kinds)


def test_the_package_is_marked_as_typed():
    assert (SOURCE / "py.typed").is_file()


def test_the_version_is_the_one_of_the_distribution():
    assert importlib.metadata.version("dafp") == dafp.__version__


# ---- what an import costs ------------------------------------------------------------------------


def loaded_by(code: str) -> set[str]:
    """Top-level modules in a fresh process after some code ran."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import sys\n{code}\nprint(*sys.modules)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {name.split(".")[0] for name in done.stdout.split()}


def test_importing_dafp_loads_nothing_else():
    assert loaded_by("import dafp") - set(sys.stdlib_module_names) <= {"dafp"} | loaded_by("")


def test_using_dafp_loads_only_torch_and_safetensors():
    extra = loaded_by("import dafp; dafp.slim") - loaded_by("import torch, safetensors.torch")
    assert extra - set(sys.stdlib_module_names) == {"dafp"}


# ---- devices -------------------------------------------------------------------------------------

FACTORIES = {
    "arange", "as_tensor", "empty", "empty_strided", "eye", "from_numpy", "full", "hann_window",
    "linspace", "logspace", "normal", "ones", "rand", "randint", "randn", "randperm",
    "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros",
}  # fmt: skip

# Files whose tensors are label bookkeeping, on the CPU by design: no tensor of the user's is near.
LABELS = {
    "graph/label_index.py": "labels of all channels",
    "graph/channel_graph.py": "flags of channels",
    "graph/kept_groups.py": "numbers of groups",
    "tracing/rules/pointwise.py": "labels made by operators",
    "tracing/label_tracker.py": "labels that flow through the skeleton",
    "tracing/rules/data_movement.py": "labels made by operators",
    "tracing/run_network.py": "labels that another branch may read",
    "tracing/residual_streams.py": "labels of residual streams",
    "tracing/union_find.py": "union-find over labels",
    "tracing/groups.py": "union-find over labels",
    "tracing/slots.py": "positions of labels in tensors",
    "tracing/labels.py": "label arithmetic",
    "tracing/forward_pass.py": "the numbering of labels",
    "tracing/width_check.py": "which channels a trial removes",
    "tracing/trial.py": "labels of a narrower skeleton",
    "tracing/width_candidates.py": "labels behind a number in the code",
}

# Functions elsewhere that make a tensor on the CPU, and why it meets no tensor of the user's there.
ON_CPU = {
    "graph/slicing.py:_renumber": "positions; meets `old.cpu()` and moved by `.to(tensor)`",
    "cli/predict.py:run": "outputs of ONNX Runtime, which runs on the CPU",
    "data/pictures.py:read_pictures": "files; the model that they are for is on the CPU",
    "cli/model_argument.py:_example": "an example of the shape that a file states, on the CPU",
    "cli/model_argument.py:example_from": "the example of a model that was just built, on the CPU",
    "pruning/mean_compensation.py:compensate_means": "per label; weights come by `.cpu()`",
    "recovery/variance_compensation.py:compensate_variances": "shares, moved by `.to(tensor)`",
    "criteria/channel_norms.py:cat": "labels",
    "criteria/taylor.py:_gates": "per label; gradients come by `.cpu()`",
    "criteria/scores.py:sum_by_channel": "per label; weights come by `.cpu()`",
    "criteria/weights.py:_rows": "positions; the weight is brought to them by `.cpu()`",
    "criteria/channel_norms.py:scale_pairs": "labels",
    "criteria/channel_norms.py:strengths": "per label; weights come by `.cpu()`",
    "criteria/weights.py:random": "scores by a CPU generator, the same on every machine",
    "criteria/taylor.py:taylor": "per channel; meets what _gates gives",
    "data/cifar.py:part": "files; batches are moved to the device asked for",
    "data/dataset.py:fewer": "places of images",
    "data/folders.py:_batch": "files; batches are moved to the device asked for",
    "data/svhn.py:_part": "files; batches are moved to the device asked for",
    "data/digits.py:read": "a file; batches are moved to the device asked for",
    "export/output_check.py:one": "noise by a CPU generator, moved by `.to(value)`",
    "latency/runtimes.py:example_of": "input for an ONNX file, which runs on the CPU",
    "latency/timing.py:quantile": "seconds, no tensor of the user's",
    "latency/timing.py:ratio": "seconds, no tensor of the user's",
    "pruning/masking.py:_removed_slices": "positions, moved by `.to(weight.device)`",
    "methods/scale_shrinking.py:_per_channel": "per channel, for ScalePenalty.set_penalties",
    "methods/scale_shrinking.py:_due": "flags of channels, for ScalePenalty.set_penalties",
    "methods/bn_ista.py:rescale": "noise by a CPU generator, moved by `.to(parameter)`",
    "tracing/reasons.py:__init__": "labels",
    "network/channel_norms.py:random": "for a copy with weights by the same CPU generator",
    "network/channel_norms.py:_recognise": "positions; meets what `random` gives",
    "pruning/masked_norms.py:_kept_positions": "positions, moved by `.to(x.device)`",
    "network/baking.py:_alike": "zero, compared with a number",
    "network/baking.py:_noise": "noise by a CPU generator, moved by `.to(module.weight)`",
    "methods/morphnet.py:_wider": "an example of shape only; models are traced on the CPU",
    "methods/zeroing.py:choose": "flags of channels, used on the CPU",
    "methods/zeroing.py:entries": "positions, moved to the device asked for",
    "methods/zeroing.py:kept": "flags of channels, used on the CPU",
    "methods/zeroing.py:all_zero": "flags; weights come by `.cpu()`",
    "methods/taylor.py:__init__": "per channel; meets what gate_changes gives",
    "methods/taylor.py:gate_changes": "per channel; gradients come by `.cpu()`",
    "models/__init__.py:default_example": "an example for a model that was just built",
    "criteria/activation_moments.py:_quadrature": "as γ from _scale_and_shift, on the CPU",
    "criteria/activation_moments.py:_scale_and_shift": "per label; weights come by `.cpu()`",
    "runs/pipeline.py:_stages": "an example of shape only; models are traced on the CPU",
    "methods/rescaling.py:_entries": "places by a CPU generator, moved by `.to(….device)`",
    "methods/rescaling.py:rescale": "per channel; samples and weights come by `.cpu()`",
    "calibration/closed_form.py:rebuilt_from_gram": "Gram matrices and weights come by `.cpu()`",
    "calibration/closed_form.py:fit_from_grams": "Gram matrices and weights come by `.cpu()`",
    "calibration/consumers.py:wanted": "flags of channels, used on the CPU",
    "calibration/consumers.py:calibrated_consumers": "labels",
    "calibration/fitting.py:fit": "samples come by `.cpu()`: float64 is not on every device",
    "calibration/gram.py:__init__": "sums; products are added by `.cpu()`",
    "calibration/inputs.py:split": "numbers of images, moved by `.to(leaf.device)`",
    "calibration/inputs.py:at_most": "numbers of images, moved by `.to(leaf.device)`",
    "calibration/inputs.py:read_inputs": "numbers of images, moved by `.to(leaf.device)`",
    "calibration/linear_map.py:draw_places": "places by a CPU generator, moved in _take",
    "calibration/linear_map.py:patches_at": "places, moved in _take",
    "criteria/elimination.py:eliminate": "Gram matrices and weights come by `.cpu()`",
    "criteria/elimination.py:_systems": "Gram matrices and weights come by `.cpu()`",
    "criteria/elimination.py:_columns": "positions of columns",
    "recovery/reconstruction.py:_gain": "zeros; the others come by `.cpu()`",
    "recovery/layer_goals.py:hook": "numbers of images, on the CPU",
    "selection/least_damage.py:_steps": "widths, used on the CPU",
    "selection/least_damage.py:_savings": "widths, used on the CPU",
    "selection/width_cost.py:__init__": "widths, used on the CPU",
    "reproduce/estimate.py:measure": "a batch for a model that was just built, on the CPU",
    "runs/saved_models.py:_finetune": "an example of shape only",
    "runs/saved_models.py:try_layers": "an example of shape only; models are traced on the CPU",
    "sparse_training/automatic_control.py:filter_channels": "flags of channels, on the CPU",
    "sparse_training/automatic_control.py:share_without": "flags of channels, on the CPU",
    "sparse_training/scale_penalty.py:__init__": "flags of channels, used on the CPU",
    "sparse_training/scale_penalty.py:_find_scales": "positions of channels, used on the CPU",
    "sparse_training/scale_penalty.py:by_channel": "per channel; weights come by `.cpu()`",
    "selection/rules.py:_counts_by_ranking": "scores come by `.cpu()`",
    "selection/score_per_cost.py:score_per_cost": "flags for graph.predict",
    "selection/targets.py:from_counts": "flags for graph.predict",
    "selection/targets.py:reach": "flags for graph.predict",
    "criteria/activation_norm.py:add": "norms come by `.cpu()`",
    "criteria/loss_by_removal.py:_in_copies": "losses as numbers; flags move to the input",
    "criteria/loss_by_removal.py:_one_by_one": "scores, and entries moved by `.to(…device)`",
    "criteria/lasso.py:lasso": "Gram matrices are on the CPU",
    "criteria/lasso.py:by_channel": "Gram matrices are on the CPU",
    "criteria/lasso.py:last_used": "Gram matrices are on the CPU",
    "criteria/lasso.py:lasso_path": "Gram matrices are on the CPU",
    "methods/lasso.py:plan": "flags, and Gram matrices on the CPU",
    "methods/lasso.py:_system": "Gram matrices are on the CPU",
    "recovery/width_search.py:_tournament": "random numbers by a CPU generator",
    "recovery/width_search.py:_child": "random numbers by a CPU generator",
    "recovery/width_search.py:_mutated": "random numbers by a CPU generator",
    "methods/bayes.py:__init__": "per channel; factors move to the weights or outputs",
    "methods/bayes.py:_draw": "noise by a CPU generator",
    "methods/bayes.py:hook": "factors move to the outputs by `.to(output)`",
    "methods/bayes.py:_close": "factors move to the weights by `.to(weight)`",
    "pruning/random_inputs.py:one": "noise by a CPU generator, moved by `.to(value)`",
}


def makes_tensors(path: Path) -> Iterator[tuple[str, int]]:
    """(function, line) of every call of a tensor factory of torch without `device=`."""

    def visit(node: ast.AST, function: str) -> Iterator[tuple[str, int]]:
        if isinstance(node, ast.FunctionDef):
            function = node.name
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and (node.func.value.id, node.func.attr in FACTORIES) == ("torch", True)
            and not any(keyword.arg == "device" for keyword in node.keywords)
        ):
            yield function, node.lineno
        for child in ast.iter_child_nodes(node):
            yield from visit(child, function)

    yield from visit(tree(path), "")


@pytest.mark.parametrize("path", files(), ids=name_of)
def test_no_tensor_is_made_on_a_default_device_where_it_meets_the_users(path):
    short = path.relative_to(SOURCE).as_posix()
    strays = [
        f"{short}:{line} in {function}"
        for function, line in makes_tensors(path)
        if short not in LABELS and f"{short}:{function}" not in ON_CPU
    ]
    assert strays == []


def test_the_lists_of_exceptions_name_only_existing_functions():
    made = {
        (p.relative_to(SOURCE).as_posix(), function)
        for p in files()
        for function, _ in makes_tensors(p)
    }
    assert set(ON_CPU) - {f"{file}:{function}" for file, function in made} == set()
    assert set(LABELS) - {file for file, _ in made} <= {"tracing/labels.py"}


@pytest.mark.parametrize("path", files(), ids=name_of)
def test_nothing_is_moved_to_a_device_by_name(path):
    moved = [
        node.lineno
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("cuda", "set_default_device", "set_default_tensor_type")
    ]
    assert moved == []


@pytest.mark.parametrize("path", files(), ids=name_of)
def test_nothing_is_evaluated_executed_or_unpickled(path):
    calls = [ast.unparse(node.func) for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]
    forbidden = {"eval", "exec", "pickle.load", "pickle.loads", "torch.save"}
    assert forbidden & set(calls) == set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
            assert "weights_only=True" in ast.unparse(node)
