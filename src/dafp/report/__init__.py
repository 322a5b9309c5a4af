"""HTML pages: `report.html` of a training run, and the parts to build other pages from."""

from pathlib import Path

from ..storage.atomic_write import write_atomically
from .chart_options import Axis, Band, Series
from .charts import Chart, bar, line, scatter
from .damage_map import write_damage
from .page import Cell, Section, Tile, page
from .run_files import Run, read_run
from .run_page import sections_of, subtitle_of, title_of
from .sensitivity_map import write_sensitivity

__all__ = [
    "Axis",
    "Band",
    "Cell",
    "Chart",
    "Run",
    "Section",
    "Series",
    "Tile",
    "bar",
    "line",
    "page",
    "read_run",
    "scatter",
    "write_damage",
    "write_report",
    "write_sensitivity",
]


def write_report(run: Path) -> Path:
    """Write report.html into the directory of a run, finished or not, and return its path."""
    found = read_run(run)
    path = found.path / "report.html"
    text = page(title_of(found), sections_of(found), subtitle_of(found), "Written by dafp report.")
    write_atomically(path, text.encode())
    return path
