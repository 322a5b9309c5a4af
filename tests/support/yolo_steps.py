"""Steps with YOLO models in a process of their own; prints facts about them as JSON.

`python tests/support/yolo_steps.py STEP FOLDER`, in a process that finds ultralytics: see
support/vision.py. In the process of the tests a torchvision without operators would break others.
"""

import json
import os
import random
import re
import socket
import sys
import zipfile
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[2])
os.environ |= {
    "YOLO_OFFLINE": "1", "YOLO_AUTOINSTALL": "0", "YOLO_VERBOSE": "0",
    "YOLO_CONFIG_DIR": str(FOLDER),
}  # fmt: skip

import torch  # noqa: E402 - the environment comes first
from PIL import Image, ImageDraw  # noqa: E402
from torch import nn  # noqa: E402

torch.set_num_threads(1)

import ultralytics  # noqa: E402
from matplotlib import get_data_path  # noqa: E402

import dafp  # noqa: E402
from dafp.errors import DafpError  # noqa: E402
from dafp.integrations.ultralytics import YOLO, SparsityCallback  # noqa: E402

tried: list[str] = []  # hosts that something wanted to reach
TINY = "scales:\n  n: [0.33, 0.0625, 256]\n\n"
VERSION = ultralytics.__version__
OLD = "1" + VERSION[1:]  # as long as the other: lengths are in the file
EXTRA = {"detect": "", "segment": "-seg", "pose": "-pose", "classify": "-cls", "obb": "-obb"}
OPTIONS: dict[str, Any] = {
    "imgsz": 64, "batch": 8, "plots": False, "project": str(FOLDER), "verbose": False,
    "exist_ok": True,
}  # fmt: skip


def offline() -> None:
    """Refuse every connection and name look-up; give ultralytics the font it would download."""

    def refuse(*args: Any, **options: Any) -> Any:
        tried.append(str(args[:2]))
        raise OSError("the tests do not use the network")

    socket.getaddrinfo = refuse
    socket.socket.connect = refuse  # type: ignore[method-assign]
    font = Path(get_data_path(), "fonts/ttf/DejaVuSans.ttf").read_bytes()
    (FOLDER / "Ultralytics" / "Arial.ttf").write_bytes(font)


def architecture(task: str, family: str = "v8") -> str:
    """The YAML of a small YOLO of this task."""
    name = f"yolo{family}{EXTRA[task]}.yaml"
    text = Path(ultralytics.__file__).with_name("cfg").joinpath("models", family, name).read_text()
    text = re.sub(r"scales:.*?\n\n", TINY, text, flags=re.DOTALL)
    text = re.sub(r"nc: \d+", "nc: 2", text)
    path = FOLDER / name.replace(family, f"{family}n")
    path.write_text(re.sub(r"kpt_shape: .*", "kpt_shape: [2, 2]", text))
    return str(path)


def labels(task: str, kind: int, box: list[float]) -> str:
    x, y, a, b = (v / 64 for v in (box[0], box[1], box[2], box[3]))
    if task in ("segment", "obb"):
        return f"{kind} {x} {y} {a} {y} {a} {b} {x} {b}"
    points = f" {x} {y} {a} {b}" if task == "pose" else ""
    return f"{kind} {(x + a) / 2} {(y + b) / 2} {a - x} {b - y}{points}"


def data(task: str, count: int = 24) -> str:
    """Images of one box or disc each; what `data=` names."""
    root, chance = FOLDER / f"data-{task}", random.Random(0)
    for part in ("train", "val"):
        for n in range(count):
            image, kind = Image.new("RGB", (64, 64), (chance.randrange(90),) * 3), n % 2
            w, h = chance.uniform(16, 32), chance.uniform(16, 32)
            x, y = chance.uniform(0, 63 - w), chance.uniform(0, 63 - h)
            draw = ImageDraw.Draw(image)
            (draw.rectangle, draw.ellipse)[kind]([x, y, x + w, y + h], (200, 220, 240))
            folder = root / part / (("box", "disc")[kind] if task == "classify" else "images")
            folder.mkdir(parents=True, exist_ok=True)
            image.save(folder / f"{n}.png")
            if task != "classify":
                (root / part / "labels").mkdir(exist_ok=True)
                text = labels(task, kind, [x, y, x + w, y + h])
                (root / part / "labels" / f"{n}.txt").write_text(text)
    lines = [f"path: {root}", "train: train/images", "val: val/images", "names: [box, disc]"]
    if task == "pose":
        lines += ["kpt_shape: [2, 2]"]
    (root / "shapes.yaml").write_text("\n".join(lines))
    return str(root if task == "classify" else root / "shapes.yaml")


def used(yolo: Any, seed: int = 0) -> Any:
    """The model with the statistics and scales of one that was trained."""
    chance = torch.Generator().manual_seed(seed)
    for module in yolo.model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor, low, high in (
                (module.weight, 0.5, 1.5), (module.bias, -0.3, 0.3),
                (module.running_mean, -0.2, 0.2), (module.running_var, 0.5, 1.5),
            ):  # fmt: skip
                tensor.data.uniform_(low, high, generator=chance)
    return yolo


def macs(yolo: Any) -> int:
    return dafp.cost(yolo.model, torch.zeros(1, 3, 64, 64)).macs


def output(yolo: Any, x: torch.Tensor) -> torch.Tensor:
    found = yolo.model.eval()(x)
    while isinstance(found, (tuple, list)):
        found = found[0]
    return found.detach()


def refused(call: Any) -> str:
    try:
        call()
    except (DafpError, KeyError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def whole_route(task: str, family: str = "v8") -> dict[str, Any]:
    """Prune, train an epoch, load, resume, validate and export."""
    torch.manual_seed(0)
    where, yolo = data(task), used(YOLO(architecture(task, family)))
    small = yolo.slim(0.5, imgsz=64, residual="couple")
    facts: dict[str, Any] = {"left": macs(small) / macs(yolo), "groups": len(small.plan.keep)}
    options = {**OPTIONS, "data": where}
    small.train(epochs=1, **options)
    facts["trained"] = macs(small) / macs(yolo)
    small.save(FOLDER / "small.pt")
    loaded, x = YOLO(FOLDER / "small.pt"), torch.rand(2, 3, 64, 64)
    facts["loaded"] = macs(loaded) / macs(yolo)
    facts["same plan"] = loaded.plan == small.plan
    half = [p.half().float() for p in small.model.parameters()]  # as ultralytics saves them
    facts["same weights"] = all(map(torch.equal, half, loaded.model.parameters()))
    facts["plain"] = macs(ultralytics.YOLO(FOLDER / "small.pt")) == macs(small)
    facts["knows dafp"] = "dafp." in str(vars(loaded.model)) and any(
        type(v).__module__.startswith("dafp") for v in vars(loaded.model).values()
    )
    metrics = loaded.val(**options)
    facts["metric"] = float(metrics.fitness)
    exported = loaded.export(format="onnx", simplify=False, imgsz=64)
    import onnxruntime  # noqa: PLC0415 - this step only

    session = onnxruntime.InferenceSession(exported)
    name, expected = session.get_inputs()[0].name, output(loaded, x[:1])
    found = torch.from_numpy(session.run(None, {name: x[:1].numpy()})[0])
    facts["onnx"] = float((found - expected).abs().max() / expected.abs().max())
    facts["stock trainer"] = refused(
        lambda: ultralytics.YOLO(FOLDER / "small.pt").train(epochs=1, **options)
    )
    return facts


def stop_after(epoch: int) -> Any:
    """A callback that interrupts the training when this epoch is saved."""

    def on_model_save(trainer: Any) -> None:
        if trainer.epoch == epoch:
            raise KeyboardInterrupt

    return on_model_save


def sparse(*, interrupted: bool = False) -> tuple[YOLO, SparsityCallback]:
    """Four epochs of sparse training in ultralytics' trainer."""
    torch.manual_seed(0)
    yolo = YOLO(architecture("detect"))
    options = {**OPTIONS, "data": data("detect"), "epochs": 4, "val": False, "optimizer": "SGD"}
    options |= {"name": f"interrupted-{interrupted}", "lr0": 0.01, "nbs": 8}
    sparsity = SparsityCallback(0.5, unit="macs", p=0.05)
    sparsity.add_to(yolo)
    if interrupted:
        yolo.add_callback("on_model_save", stop_after(1))
        try:
            yolo.train(**options)
        except KeyboardInterrupt:
            yolo, sparsity = YOLO(yolo.trainer.last), SparsityCallback(0.5, unit="macs", p=0.05)
            sparsity.add_to(yolo)
            yolo.train(resume=True)
    else:
        yolo.train(**options)
    return yolo, sparsity


def sparse_training() -> dict[str, Any]:
    """Sparse training, pruning, and what is left of the callbacks."""
    yolo, sparsity = sparse()
    small, optimizer = sparsity.prune(), sparsity.sparse.optimizer
    table = (Path(yolo.trainer.save_dir) / "results.csv").read_text().splitlines()
    small.train(**OPTIONS, data=data("detect"), epochs=1, val=False, name="finetuned")
    return {
        "epochs": [record.epoch for record in sparsity.records],
        "reached": [record.sparsity for record in sparsity.records],
        "left": macs(small) / macs(yolo),
        "hooks": len(optimizer._optimizer_step_post_hooks),
        "columns": [name for name in table[0].split(",") if name.startswith("sparsity/")],
        "after": len(sparsity.records),
    }


def resumed_training() -> dict[str, Any]:
    """Sparse training that was interrupted after two epochs, beside one that was not."""
    whole, resumed = sparse()[1], sparse(interrupted=True)[1]
    plain = YOLO(architecture("detect"))
    plain.add_callback("on_model_save", stop_after(0))
    options = {**OPTIONS, "data": data("detect"), "epochs": 2, "val": False, "name": "plain"}
    options["nbs"] = 8
    try:
        plain.train(**options)
    except KeyboardInterrupt:
        again, late = YOLO(plain.trainer.last), SparsityCallback(0.5)
        late.add_to(again)
    small = resumed.prune()
    small.add_callback("on_model_save", stop_after(0))
    try:
        small.train(**{**options, "name": "small"})
    except KeyboardInterrupt:
        follow = YOLO(small.trainer.last)
        follow.train(resume=True)
    return {
        "whole": [vars(record) for record in whole.records],
        "resumed": [vars(record) for record in resumed.records],
        "without state": refused(lambda: again.train(resume=True)),
        "resumed pruned": macs(follow) / macs(small),
    }


def other_version(source: Path) -> Path:
    """A checkpoint with a layer that this version of ultralytics does not have."""
    path = source.with_name("other.pt")
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith("data.pkl"):
                content = content.replace(b"C2f", b"X2f").replace(VERSION.encode(), OLD.encode())
            new.writestr(name, content)
    return path


def bad_input() -> dict[str, Any]:
    """What is refused, and how."""
    where, yolo = data("detect"), YOLO(architecture("detect"))
    yolo.save(FOLDER / "whole.pt")
    cut = FOLDER / "cut.pt"
    cut.write_bytes((FOLDER / "whole.pt").read_bytes()[:1000])
    small = yolo.slim(0.3, imgsz=64)
    three = Path(where).with_name("three.yaml")
    three.write_text(Path(where).read_text().replace("disc]", "disc, star]"))
    options = {**OPTIONS, "epochs": 1}

    def sparse_with(**more: Any) -> str:
        model = YOLO(FOLDER / "whole.pt")
        SparsityCallback(0.5).add_to(model)
        return refused(lambda: model.train(**{**options, **more}, data=where))

    return {
        "old": OLD,
        "other version": refused(lambda: YOLO(other_version(FOLDER / "whole.pt"))),
        "cut": refused(lambda: YOLO(cut)),
        "head": refused(lambda: YOLO("yolov8n-world.yaml")),
        "no task": refused(lambda: YOLO("rtdetr-l.yaml")),
        "fused": refused(lambda: YOLO(YOLO(FOLDER / "whole.pt").fuse())),
        "classes": refused(lambda: small.train(**options, data=str(three))),
        "pretrained": refused(lambda: small.train(**options, data=where, pretrained=False)),
        "data": refused(lambda: yolo.slim(0.3, imgsz=64, data=str(FOLDER / "none.yaml"))),
        "not pruned": refused(lambda: yolo.plan),
        "no report": refused(lambda: YOLO(FOLDER / "whole.pt").report),
        "too early": refused(lambda: SparsityCallback(0.5).prune()),
        "time": sparse_with(time=0.1, nbs=8),
        "steps": sparse_with(epochs=3),
        "freeze": sparse_with(freeze=2, nbs=8),
        "unit": refused(lambda: SparsityCallback(2.0)),
    }


def calibrated() -> dict[str, Any]:
    """Pruning with calibration images from the YAML of a data set, and from batches."""
    where, yolo = data("detect", 12), used(YOLO(architecture("detect")))
    options: dict[str, Any] = {"imgsz": 64, "images": 8, "fast": True}
    named = yolo.slim(0.3, data=where, **options)
    images = list(yolo._training_images(where, 64, 8))
    given = yolo.slim(0.3, data=images, **options)
    report = named.report
    return {
        "left": macs(named) / macs(yolo),
        "shapes": [list(batch.shape) for batch in images],
        "range": [float(images[0].min()), float(images[0].max())],
        "same": all(map(torch.equal, named.model.parameters(), given.model.parameters())),
        "as cut": report.as_cut,
        "rebuilt": report.rebuilt,
    }


def main() -> None:
    offline()
    step, *rest = sys.argv[1].split(":")
    facts = globals()[step](*rest)
    sys.stdout.write(json.dumps({**facts, "tried": tried}) + "\n")


if __name__ == "__main__":
    main()
