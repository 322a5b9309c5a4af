"""The work of `dafp finetune`."""

from pathlib import Path

from ..runs.loading import is_pruned, saved_file
from ..runs.saved_models import finetune as finetune_saved
from .model_argument import is_saved
from .model_settings import model_settings
from .printing import is_first_process
from .progress import TerminalProgress
from .run_result import show_result
from .setting_options import all_settings, distill_share


def finetune(
    *,
    model: str,
    weights: Path | None,
    width: float,
    out: Path,
    data: str | None,
    root: Path | None,
    skip_unreadable: bool,
    preset: str | None,
    config: Path | None,
    settings: list[str] | None,
    distill: Path | None,
    recalibrate: bool,
    builder: str | None,
    trust: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Fine-tune the model, write the report and print the result."""
    given = all_settings(
        settings,
        skip_unreadable=skip_unreadable or None,
        teacher=None if distill is None else str(saved_file(distill)),
        distill=distill_share(distill, settings),
        recalibrate=recalibrate or None,
    )
    if config is None and is_saved(model) and is_pruned(Path(model)):
        given = [*_for_pruned(given), *given]
    chosen, file = model_settings(
        model,
        weights=weights,
        width=width,
        builder=builder,
        trust=trust,
        preset=preset,
        config=config,
        settings=given,
        data=data,
        root=root,
    )
    with TerminalProgress(quiet=quiet or as_json or not is_first_process()) as progress:
        result = finetune_saved(chosen, file, out, progress, trust)
    show_result(result, out, as_json)


def _for_pruned(given: list[str]) -> list[str]:
    """The schedule that is best for a pruned network, unless the user asks for another.

    Measured by benchmarks/finetuning.py: what was kept or rebuilt is lost at larger rates.
    """
    keys = {setting.partition("=")[0].strip() for setting in given}
    if any(key.startswith("finetune.") for key in keys - {"finetune.epochs"}):
        return []
    return ["finetune.lr=0.01", 'finetune.shape="cosine"']
