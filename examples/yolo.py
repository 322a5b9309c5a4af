"""A YOLO trained, pruned and fine-tuned by ultralytics' own trainer: python examples/yolo.py"""

import os
import random
import tempfile
from pathlib import Path

HERE = Path(tempfile.mkdtemp())
os.environ |= {"YOLO_CONFIG_DIR": str(HERE), "YOLO_OFFLINE": "1", "YOLO_VERBOSE": "0"}

import matplotlib  # noqa: E402 - ultralytics reads its environment when it is imported
import onnxruntime  # noqa: E402
import torch  # noqa: E402
from PIL import Image, ImageDraw  # noqa: E402

import dafp  # noqa: E402
from dafp.integrations.ultralytics import YOLO  # noqa: E402


def draw(image: Path, chance: random.Random) -> None:
    """Draw one to three boxes and discs, and write their labels beside the images."""
    picture, lines = Image.effect_noise((64, 64), 80).convert("RGB"), []
    for place in chance.sample(range(4), chance.randint(1, 3)):
        kind, w, h = chance.randint(0, 1), chance.randint(14, 26), chance.randint(14, 26)
        x, y = place % 2 * 32 + chance.uniform(2, 30 - w), place // 2 * 32 + chance.uniform(0, 4)
        pen, colour = ImageDraw.Draw(picture), tuple(chance.choices(range(150, 256), k=3))
        (pen.rectangle, pen.ellipse)[kind]([x, y, x + w, y + h], colour)
        lines.append(f"{kind} {(x + w / 2) / 64} {(y + h / 2) / 64} {w / 64} {h / 64}\n")
    labels = image.parents[1] / "labels" / f"{image.stem}.txt"
    for path in image, labels:
        path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(image)
    labels.write_text("".join(lines))


def main() -> None:
    font = Path(matplotlib.get_data_path(), "fonts/ttf/DejaVuSans.ttf")  # else it downloads one
    (HERE / "Ultralytics" / "Arial.ttf").write_bytes(font.read_bytes())
    for n, chance in enumerate(map(random.Random, range(260))):
        draw(HERE / ("train" if n < 200 else "val") / "images" / f"{n}.png", chance)
    data = HERE / "shapes.yaml"
    data.write_text(f"path: {HERE}\ntrain: train/images\nval: val/images\nnames: [box, disc]\n")
    options = {"data": str(data), "imgsz": 64, "plots": False, "project": str(HERE)}
    training = {"batch": 16, "mosaic": 0, "optimizer": "AdamW", "lr0": 3e-3, "val": False}
    yolo = YOLO("yolov8n.yaml")
    yolo.train(epochs=12, **training, **options)
    small = yolo.slim(0.5, unit="filters", imgsz=64)
    kept = sum(map(len, small.plan.keep.values()))
    for name, net in ("before", yolo), ("pruned", small), ("after", small):
        if name == "after":
            net.train(epochs=8, **training, **options)
        filters, example = sum(small.plan.sizes.values()), torch.zeros(1, 3, 64, 64)
        print(f"{name}: mAP {net.val(**options).box.map:.3f}, {filters if net is yolo else kept} "
              f"filters, {dafp.cost(net.model, example)}", flush=True)  # fmt: skip
    session = onnxruntime.InferenceSession(small.export(format="onnx", simplify=False, imgsz=64))
    print(f"ONNX Runtime: {session.run(None, {'images': example.numpy()})[0].shape}")


main()
