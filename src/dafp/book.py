"""The book of a run: its epochs on disk, the lines of its closing table, its models."""

from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor, nn

from . import artifact
from .graph import ChannelGraph
from .rundir import Paths, Row, write_metrics
from .summary import describe
from .train import Setting, evaluate


@dataclass
class Book:
    """What a run has come to so far: its metrics on disk, the lines of its closing table."""

    setting: Setting
    paths: Paths
    graph: ChannelGraph
    example: Tensor
    rows: list[Row] = field(default_factory=list)
    stages: list[Row] = field(default_factory=list)

    def enter(
        self, name: str, model: nn.Module, filters: int, rows: list[Row],
        accuracy: float | None = None,
    ) -> None:  # fmt: skip
        """Take in a finished stage."""
        self.publish(rows)
        self.rows.extend(rows)
        self.stages.append(describe(name, model, filters, self.graph, self.example, rows, accuracy))

    def enter_given(self, model: nn.Module) -> None:
        """The network as it was given: what all later stages are compared with."""
        accuracy, _ = evaluate(model.to(self.setting.accelerator.device), self.setting, "test")
        self.enter("baseline", model, self.graph.filters, [], accuracy)

    def publish(self, rows: list[Row]) -> None:
        """Put the epochs so far on disk, those of a stage that is still running too."""
        if self.setting.accelerator.is_main_process:
            write_metrics(self.paths, self.rows + rows)

    def save(self, model: nn.Module, path: Path) -> None:
        if self.setting.accelerator.is_main_process:
            artifact.save(model, path)
