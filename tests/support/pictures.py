"""A directory of small pictures, one directory per class."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw


def draw_shapes(folder: Path, count: int, *, spoilt: bool = True) -> None:
    """Discs, squares and crosses on noise.

    With `spoilt`, one is corrupt, one gray, one has alpha, and one is tiny.
    """
    random = np.random.default_rng(0)
    for label, name in enumerate(("cross", "disc", "square")):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            image = Image.fromarray(random.integers(0, 100, (36, 40, 3), dtype=np.uint8))
            x, y, size = (int(v) for v in random.integers(8, 16, 3))
            color = tuple(int(v) for v in random.integers(160, 256, 3))
            pen, box = ImageDraw.Draw(image), (x, y, x + size, y + size)
            if label == 0:
                pen.line(box, fill=color, width=3)
                pen.line((x + size, y, x, y + size), fill=color, width=3)
            elif label == 1:
                pen.ellipse(box, fill=color)
            else:
                pen.rectangle(box, fill=color)
            odd = {(0, 0): "L", (1, 0): "RGBA"} if spoilt else {}
            mode = odd.get((label, number), "RGB")
            image.convert(mode).save(folder / name / f"{number}.png")
    if spoilt:
        Image.new("RGB", (2, 3)).save(folder / "square/0.png")
        (folder / "disc/1.png").write_bytes(b"junk")
