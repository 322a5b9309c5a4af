"""Where timm, torchvision and ultralytics lie: apart from all others, see the Makefile."""

import importlib.util
import sys
from pathlib import Path

VISION = Path(sys.prefix) / "vision"


def vision_paths(package: str = "timm") -> list[str]:
    """What a process needs on its path to import them; nothing, where they are installed."""
    if importlib.util.find_spec(package) is not None:
        return []
    assert VISION.is_dir(), f"{package} is not there: `make test` installs it"
    return [str(Path(__file__).parent / "cpu_torchvision"), str(VISION)]
