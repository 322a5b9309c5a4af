"""The work of `dafp finetune`."""

from pathlib import Path

from ..runs.saved_models import finetune as finetune_saved
from ..training.config import make_config
from .model_argument import find_here
from .printing import is_first_process
from .progress import TerminalProgress
from .run_result import show_result
from .setting_options import all_settings, distill_share


def finetune(
    *,
    file: Path,
    out: Path,
    preset: str,
    config: Path | None,
    settings: list[str] | None,
    distill: Path | None,
    recalibrate: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Fine-tune the model of a file, write the report and print the result."""
    named = {"teacher": None if distill is None else str(distill)}
    share = distill_share(distill, settings)
    given = all_settings(settings, **named, distill=share, recalibrate=recalibrate or None)
    chosen = make_config(preset, config, given)
    find_here(chosen.model)
    with TerminalProgress(quiet=quiet or as_json or not is_first_process()) as progress:
        result = finetune_saved(chosen, file, out, progress)
    show_result(result, out, as_json)
