"""The work of `dafp run`."""

from pathlib import Path

from ..models import check_name
from ..runs.pipeline import run as run_pipeline
from ..training.config import make_config
from ..training.run_directory import Paths, read_config
from .model_argument import find_here
from .printing import is_first_process
from .progress import TerminalProgress
from .run_result import show_result
from .setting_options import all_settings, data_settings, distill_share, rounded, target_settings
from .target_options import step_from_option


def run(
    *,
    out: Path,
    preset: str | None,
    config: Path | None,
    settings: list[str] | None,
    model: str | None,
    data: str | None,
    root: Path | None,
    size: int | None,
    skip_unreadable: bool,
    target: str | None,
    runtime: str | None,
    rule: str | None,
    round_to: str | None,
    min_channels: int | None,
    keep: list[str] | None,
    seed: int | None,
    distill: bool,
    steps: int | None,
    recalibrate: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run all stages that are not finished yet, write the report and print the result."""
    given = all_settings(
        settings,
        model=model,
        **data_settings(data, root),
        size=size,
        skip_unreadable=skip_unreadable or None,
        **target_settings(target, settings),
        runtime=runtime,
        rule=rule,
        round_to=step_from_option(round_to),
        min_channels=min_channels,
        keep=keep,
        seed=seed,
        steps=steps,
        distill=distill_share(distill, settings),
        recalibrate=recalibrate or None,
    )
    if Paths(out).config.exists() and not (given or preset or config):
        chosen = read_config(out)
    else:
        chosen = rounded(make_config(preset or "digits", config, given), target)
    find_here(chosen.model)
    if not Paths(out).result.exists():
        check_name(chosen.model)  # before images are read, which may take minutes
    with TerminalProgress(quiet=quiet or as_json or not is_first_process()) as progress:
        result = run_pipeline(chosen, out, progress)
    show_result(result, out, as_json)
