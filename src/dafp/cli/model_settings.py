"""The configuration of a command for its MODEL: a saved file, a run, or a network by name."""

from pathlib import Path

from ..errors import ModelError
from ..models import is_ours
from ..runs.loading import saved_file
from ..training.config import Config, make_config
from .model_argument import find_builder, is_saved, refuse_beside, refuse_path
from .setting_options import all_settings, config_for_saved, data_settings


def model_settings(
    model: str,
    *,
    weights: Path | None,
    width: float,
    builder: str | None,
    trust: bool,
    preset: str | None,
    config: Path | None,
    settings: list[str],
    data: str | None,
    root: Path | None,
) -> tuple[Config, Path | None]:
    """The configuration, and the file of the model; None for a network by name.

    What a saved file or a run knows is not asked for again. A network by name needs --weights,
    unless a function of the user's builds it, which may load them.
    """
    if is_saved(model):
        refuse_beside(model, weights=weights, width=None if width == 1 else width)
        given = [*settings, *all_settings(None, model=builder)]
        chosen = config_for_saved(Path(model), preset, config, given, data, root)
        file = saved_file(Path(model))
    else:
        refuse_path(model)
        if builder is not None or trust:
            raise ModelError(f"{model!r} is a network by name: leave --model and --trust out")
        if weights is None and is_ours(model):
            raise ModelError(
                f"{model} without --weights has random weights, so there is nothing to measure or "
                "to improve; give the file of its weights, a .safetensors file that dafp wrote, or "
                "the directory of a run (dafp run trains a network)"
            )
        named = all_settings(
            None, width=width, model=model, weights=None if weights is None else str(weights)
        )
        given = [*settings, *named, *all_settings(None, **data_settings(data, root))]
        chosen, file = make_config(preset or "digits", config, given), None
    find_builder(chosen.model, trust)
    return chosen, file
