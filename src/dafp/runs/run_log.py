"""The run log: epochs on disk, the rows of the summary table, the saved models."""

import dataclasses
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import __version__
from ..files import model_file
from ..graph.channel_graph import ChannelGraph
from ..graph.plan import PruningPlan
from ..latency.runtimes import runner, threads_of_torch
from ..latency.timing import Run, in_sessions, ratio
from ..network.cost import Cost, cost
from ..network.model_info import ModelInfo, info_of, with_info
from ..training.loop import TrainingContext, evaluate
from ..training.run_directory import Paths, write_metrics
from ..training.run_records import Epoch, LayerWidths, Stage, StageSpeed


@dataclass
class RunLog:
    """State of a run so far: its metrics on disk, and the rows of its summary table."""

    context: TrainingContext
    paths: Paths
    graph: ChannelGraph
    example: Tensor
    rows: list[Epoch] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    networks: dict[object, nn.Module] = field(default_factory=dict)  # by (params, macs)
    history: tuple[Mapping[str, Any], ...] = ()  # of the model, before this run

    def enter(
        self,
        name: str,
        model: nn.Module,
        filters: int,
        rows: list[Epoch],
        accuracy: float | None = None,
    ) -> None:
        """Add a finished stage: its epochs, and its row of the summary table."""
        self.publish(rows)
        self.rows.extend(rows)
        line = describe(name, model, filters, self.graph, self.example, rows, accuracy)
        self.networks.setdefault((line["params"], line["macs"]), model)
        self.stages.append(line)

    def enter_given(self, model: nn.Module) -> None:
        """Add the given network as the baseline, with which all later stages are compared."""
        accuracy, _ = evaluate(model.to(self.context.accelerator.device), self.context, "test")
        self.enter("baseline", model, self.graph.filters, [], accuracy)

    def time(self) -> None:
        """Measure the latency of all networks, and add it to the rows of the summary table.

        They are measured at the end, alternating, so that they can be compared: stages end minutes
        or days apart, and the load of the machine varies between them.
        """
        accelerator = self.context.accelerator
        if accelerator.is_main_process:
            models = [model.to(accelerator.device) for model in self.networks.values()]
            example = self.example.to(accelerator.device)
            by_threads = [speeds(models, example, n) for n in sorted({1, torch.get_num_threads()})]
            found = dict(zip(self.networks, zip(*by_threads, strict=True), strict=True))
            for line in self.stages:
                line["speeds"] = list(found[line["params"], line["macs"]])
                line["latency_s"] = line["speeds"][0]["latency_s"]

    def publish(self, rows: list[Epoch]) -> None:
        """Write the epochs so far to metrics.jsonl; `rows` are those of the current stage."""
        if self.context.accelerator.is_main_process:
            write_metrics(self.paths, self.rows + rows)

    def save(self, model: nn.Module, path: Path) -> None:
        """Write a model with what the run knows of it: how to build it, its input, its stages."""
        if self.context.accelerator.is_main_process:
            model_file.save(with_info(model, self._info(model)), path)

    def _info(self, model: nn.Module) -> ModelInfo:
        config, data, info = self.context.config, self.context.data, info_of(model)
        arguments: dict[str, Any] = {"classes": data.classes}
        if config.width != 1.0:
            arguments["width"] = config.width
        accuracy = {row["stage"]: row["accuracy"] for row in self.stages}
        done: dict[str, Any] = {"dafp": __version__, "accuracy": accuracy}
        if "given" in accuracy:
            done["command"] = "finetune"
        else:
            done |= {"command": "run", "method": config.method}
            done |= {"target": config.target, "unit": config.unit}
        return dataclasses.replace(
            info,
            builder=info.builder or config.model,
            arguments=info.arguments or arguments,
            input=tuple(data.shape),
            mean=data.mean,
            std=data.std,
            resize=data.resize,
            classes=data.class_names,
            data=data.name,
            history=(*self.history, done),
        )

    def __repr__(self) -> str:
        stages = ", ".join(row["stage"] for row in self.stages)
        return f"RunLog({str(self.paths.root)!r}, {len(self.rows)} epochs, stages: {stages})"


TIMED = 1.0  # seconds for each network in the summary table


def describe(
    name: str,
    model: nn.Module,
    filters: int,
    graph: ChannelGraph,
    example: Tensor,
    rows: list[Epoch],
    accuracy: float | None = None,
) -> Stage:
    """One row of the summary table; `RunLog.time` adds its latency at the end of the run."""
    whole = cost(model, example.to(next(model.parameters()).device))
    row: Stage = {
        "stage": name,
        "accuracy": accuracy if accuracy is not None else rows[-1]["test_accuracy"],
        "filters": filters,
        "all_filters": graph.all_filters - (graph.filters - filters),
        "params": whole.params,
        "macs": whole.macs,
    }
    validated = [r for r in rows if r["val_accuracy"] is not None]
    if validated:
        best = max(validated, key=lambda r: r["val_accuracy"] or 0.0)
        row |= {
            "best_val_epoch": best["epoch"],
            "best_val_accuracy": best["val_accuracy"],
            "best_val_test_accuracy": best["test_accuracy"],
        }
    return row


def layers(
    graph: ChannelGraph, plan: PruningPlan, before: dict[str, Cost], after: dict[str, Cost]
) -> list[LayerWidths]:
    """Widths of every group, and the cost of its producer (of a selection group: its consumer)."""
    rows = []
    for group in graph.groups:
        row: LayerWidths = {
            "name": group.name,
            "kind": group.kind,
            "before": group.size,
            "after": len(plan.keep[group.name]),
        }
        slots = group.producers if group.kind == "filter" else group.consumers
        module = slots[0].param.rpartition(".")[0] if slots else ""
        if module in before and module in after:
            old, new = before[module], after[module]
            row |= {
                "params_before": old.params,
                "params_after": new.params,
                "macs_before": old.macs,
                "macs_after": new.macs,
            }
        rows.append(row)
    return rows


def versions() -> dict[str, str]:
    return {"dafp": __version__, "torch": torch.__version__, "python": platform.python_version()}


def machine() -> dict[str, object]:
    return {
        "cpu": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
    }


def speeds(models: Sequence[nn.Module], example: Tensor, threads: int) -> list[StageSpeed]:
    """The latency of every model, and its speed-up over the first, as `dafp bench` measures them.

    The models are measured alternately; a machine that is too busy is reported as such.
    """

    def start() -> dict[str, Run]:
        return {str(n): runner(model, "eager", example, batch=1) for n, model in enumerate(models)}

    with threads_of_torch(threads):
        timings = list(in_sessions(start, TIMED).values())
    found: list[StageSpeed] = []
    for timing in timings:
        gain = ratio(timings[0], timing)
        found.append(
            {
                "threads": threads,
                "latency_s": timing.median,
                "speedup": gain.value,
                "low": gain.low,
                "high": gain.high,
                "doubt": timing.doubt or timings[0].doubt,
            }
        )
    return found
