"""The book of a run: its epochs on disk, the lines of its closing table, its models."""

from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor, nn

from ..files import model_file
from ..graph.channel_graph import ChannelGraph
from ..training.run_directory import Paths, Row, write_metrics
from .summary import describe, latencies
from ..training.loop import Setting, evaluate


@dataclass
class Book:
    """What a run has come to so far: its metrics on disk, the lines of its closing table."""

    setting: Setting
    paths: Paths
    graph: ChannelGraph
    example: Tensor
    rows: list[Row] = field(default_factory=list)
    stages: list[Row] = field(default_factory=list)
    networks: dict[tuple[int, int], nn.Module] = field(default_factory=dict)  # by their cost

    def enter(
        self, name: str, model: nn.Module, filters: int, rows: list[Row],
        accuracy: float | None = None,
    ) -> None:  # fmt: skip
        """Take in a finished stage."""
        self.publish(rows)
        self.rows.extend(rows)
        line = describe(name, model, filters, self.graph, self.example, rows, accuracy)
        self.networks.setdefault((line["params"], line["macs"]), model)
        self.stages.append(line)

    def enter_given(self, model: nn.Module) -> None:
        """The network as it was given: what all later stages are compared with."""
        accuracy, _ = evaluate(model.to(self.setting.accelerator.device), self.setting, "test")
        self.enter("baseline", model, self.graph.filters, [], accuracy)

    def time(self) -> None:
        """Put the latencies into the lines: measured at the end and by turns, so that they compare.

        Stages end minutes or days apart, on a machine that is now busy and now is not.
        """
        accelerator = self.setting.accelerator
        if accelerator.is_main_process:
            models = [model.to(accelerator.device) for model in self.networks.values()]
            found = latencies(models, self.example.to(accelerator.device))
            seconds = dict(zip(self.networks, found, strict=True))
            for line in self.stages:
                line["latency_s"] = seconds[line["params"], line["macs"]]

    def publish(self, rows: list[Row]) -> None:
        """Put the epochs so far on disk, those of a stage that is still running too."""
        if self.setting.accelerator.is_main_process:
            write_metrics(self.paths, self.rows + rows)

    def save(self, model: nn.Module, path: Path) -> None:
        if self.setting.accelerator.is_main_process:
            model_file.save(model, path)
