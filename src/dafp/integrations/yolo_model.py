"""The YOLO class that prunes, and trainers that keep a pruned network as it is."""

from collections.abc import Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import ultralytics
from torch import Tensor, nn
from ultralytics.cfg import get_cfg
from ultralytics.data.build import build_yolo_dataset
from ultralytics.data.dataset import ClassificationDataset
from ultralytics.data.utils import check_cls_dataset, check_det_dataset
from ultralytics.models import yolo as tasks

from ..errors import DataError, FileError, ModelError, PlanError
from ..graph.plan import PruningPlan
from ..one_call import SlimReport, slim, slim_report
from ..selection.target_value import Target
from . import yolo_networks as networks
from .callback_results import CallbackResults

IMAGES = 256  # for calibration, unless the caller says otherwise


class _KeepsPruned:
    """A trainer that trains a pruned network as it is, where others rebuild it from its YAML."""

    data: dict[str, Any]

    def get_model(self, cfg: Any = None, weights: Any = None, verbose: bool = True) -> Any:
        own = networks.for_training(weights, cfg, self.data["nc"])
        return super().get_model(cfg, weights, verbose) if own is None else own  # type: ignore[misc]


class DetectionTrainer(_KeepsPruned, tasks.detect.DetectionTrainer):
    """Trains for detection."""


class SegmentationTrainer(_KeepsPruned, tasks.segment.SegmentationTrainer):
    """Trains for instance segmentation."""


class PoseTrainer(_KeepsPruned, tasks.pose.PoseTrainer):
    """Trains for pose estimation."""


class OBBTrainer(_KeepsPruned, tasks.obb.OBBTrainer):
    """Trains for the detection of rotated boxes."""


class ClassificationTrainer(_KeepsPruned, tasks.classify.ClassificationTrainer):
    """Trains for classification."""


TRAINERS = {
    "detect": DetectionTrainer,
    "segment": SegmentationTrainer,
    "pose": PoseTrainer,
    "obb": OBBTrainer,
    "classify": ClassificationTrainer,
}


class YOLO(ultralytics.YOLO):
    """A YOLO of ultralytics that can be pruned, and whose `train` keeps it pruned.

        yolo = YOLO("best.pt")
        small = yolo.slim(0.5, unit="macs", data="shapes.yaml")
        small.train(data="shapes.yaml", epochs=20)
        small.export(format="onnx")

    Everything else is as in ultralytics: `val`, `predict`, `save`, `export`, and
    `YOLO("last.pt").train(resume=True)`.

    Args:
        model: a checkpoint (.pt), the YAML of an architecture, or a YOLO object of ultralytics
        task: as in ultralytics
        verbose: as in ultralytics
    """

    def __init__(
        self, model: str | Path | Any = "yolo26n.pt", task: str | None = None, verbose: bool = False
    ) -> None:
        source = str(model) if isinstance(model, (str, Path)) else type(model).__name__
        path = Path(source)
        known = path.suffix == ".pt" and path.is_file()
        try:
            super().__init__(model, task, verbose)
        except Exception as error:
            if isinstance(error, NotImplementedError):
                raise ModelError(
                    f"{source} is not an architecture of the tasks {', '.join(TRAINERS)}; try "
                    f"dafp.slim on the network itself. (ultralytics: {error})"
                ) from error
            if not known:
                raise
            raise FileError(_not_loaded(path, error)) from error
        networks.check_network(self.model, source)
        if not isinstance(self, YOLO):  # ultralytics makes another class of it
            raise ModelError(
                f"{source} is a {type(self).__name__} model; dafp.integrations.ultralytics prunes "
                f"models of the tasks {', '.join(TRAINERS)}"
            )

    @property
    def task_map(self) -> dict[str, dict[str, Any]]:
        """The classes for every task, with trainers that keep pruned networks."""
        known = super().task_map
        return {
            task: {**parts, "trainer": TRAINERS.get(task, parts["trainer"])}
            for task, parts in known.items()
        }

    def train(self, trainer: Any = None, **options: Any) -> Any:
        """`ultralytics.YOLO.train`, which keeps a pruned network pruned."""
        return super().train(trainer or self._smart_load("trainer"), **options)

    def slim(
        self,
        ratio: float | Target = 0.5,
        unit: str = "macs",
        *,
        data: str | Path | Iterable[Any] | None = None,
        imgsz: int | None = None,
        images: int = IMAGES,
        **options: Any,
    ) -> "YOLO":
        """Prune in one call, by `dafp.slim`, verified.

        Args:
            ratio: the share of `unit` to remove, or a `dafp.selection.Target`, such as
                `Target("macs", left=2e9)`
            unit: "macs", "params" or "filters"
            data: calibration images: the data set's YAML (or folder, for classification), whose
                training images are used, or batches of images between 0 and 1
            imgsz: size of the images; that of the training, if it is known
            images: number of calibration images
            options: those of `dafp.slim`

        Returns:
            A new YOLO; this one is not changed.
        """
        networks.check_network(self.model, type(self).__name__)
        size = int(imgsz or self._argument("imgsz") or 640)
        model = networks.without_loss(deepcopy(self.model)).requires_grad_(True)
        first = next(model.parameters())
        example = torch.zeros(1, self._channels, size, size, device=first.device, dtype=first.dtype)
        if data is not None:
            options["data"] = self._calibration(data, size, images, first.device)
            options["images"] = images
        with networks.without_features(model):
            small = slim(model, example, ratio, unit, **options)
        report = slim_report(small)
        return self._with(networks.finished(small), report)

    @property
    def plan(self) -> PruningPlan:
        """The plan of the last pruning, also after saving and loading."""
        plan = networks.pruned_plan(self.model)
        if plan is None:
            raise PlanError("this YOLO is not pruned: slim() returns one that is")
        return plan

    @property
    def report(self) -> SlimReport:
        """What `slim` did to make this model; it is not saved."""
        report = vars(self).get("_report")
        if not isinstance(report, SlimReport):
            raise PlanError("this YOLO is not a result of slim()")
        return report

    # ---- internals -------------------------------------------------------------------------------

    @property
    def _channels(self) -> int:
        return int(self.model.yaml.get("channels", 3))

    def _argument(self, name: str) -> Any:
        """An argument of the training, as the network remembers it."""
        known = getattr(self.model, "args", {})
        return (vars(known) if not isinstance(known, dict) else known).get(name)

    def _with(self, model: nn.Module, report: SlimReport | None = None) -> "YOLO":
        """This YOLO with another network, from which its trainer starts."""
        new: YOLO = object.__new__(type(self))
        new.__dict__.update(vars(self))
        new._modules = {"model": model}
        new.ckpt = {"model": model, "train_args": (self.ckpt or {}).get("train_args", {})}
        new.ckpt_path = new.predictor = new.trainer = new.metrics = None
        new.callbacks = self.callbacks.copy()
        for event, calls in self.callbacks.items():  # what is trained next is not trained sparse
            new.callbacks[event] = [call for call in calls if not _is_sparsity(call)]
        new.overrides = dict(self.overrides)
        new.__dict__["_report"] = report
        return new

    def _calibration(
        self, data: str | Path | Iterable[Any], size: int, images: int, device: torch.device
    ) -> list[Any]:
        if not isinstance(data, (str, Path)):
            return list(data)
        return [batch.to(device) for batch in self._training_images(str(data), size, images)]

    def _training_images(self, data: str, size: int, images: int) -> Iterator[Tensor]:
        """Batches of training images as they are prepared for validation."""
        options = {"task": self.task, "data": data, "imgsz": size, "mode": "val"}
        config: SimpleNamespace = get_cfg(overrides=options)
        try:
            if self.task == "classify":
                folder = check_cls_dataset(data)["train"]
                found = ClassificationDataset(str(folder), config, augment=False)
            else:
                about = check_det_dataset(data)
                stride = max(int(self.model.stride.max()), 32)
                found = build_yolo_dataset(config, about["train"], 32, about, "val", False, stride)
        except (FileNotFoundError, RuntimeError) as error:
            raise DataError(f"data={data!r} cannot be read by ultralytics: {error}") from error
        count = min(images, len(found))
        places = [n * len(found) // count for n in range(count)]
        for start in range(0, count, 32):
            batch = torch.stack([found[n]["img"] for n in places[start : start + 32]])
            yield batch if batch.is_floating_point() else batch.float() / 255


def _is_sparsity(call: Any) -> bool:
    return isinstance(getattr(call, "__self__", None), CallbackResults)


def _not_loaded(path: Path, error: Exception) -> str:
    written, here = networks.version_in(path), ultralytics.__version__
    if written is None:
        advice = "It is damaged, or no checkpoint of a YOLO that ultralytics trained"
    elif written == here:
        advice = "The same version wrote it: it is damaged, or has layers of your own to import"
    else:
        advice = f"ultralytics {written} wrote it; try: pip install ultralytics=={written}"
    reason = f"{type(error).__name__}: {error}".rstrip(". ")
    return f"{path} cannot be loaded by ultralytics {here}. {advice}. ({reason})"
