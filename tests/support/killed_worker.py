"""A network whose training kills its process, once: how a lost worker looks to the others."""

import os
import signal
from pathlib import Path

from torch import Tensor, nn

from support.training import users_net

FOLDER = "DAFP_TEST_KILL_ONCE"  # environment variable: the folder of a sweep


class DiesOnce(nn.Sequential):
    """Kills its process in the first training step after the sparse stage has a checkpoint.

    The file `killed` in the folder holds the process's number and prevents a second time.
    """

    def forward(self, x: Tensor) -> Tensor:
        folder = os.environ.get(FOLDER)
        if self.training and folder and any(Path(folder).glob("stages/sparse-*.checkpoint")):
            kill_once(Path(folder, "killed"))
        return super().forward(x)


def kill_once(note: Path) -> None:
    try:
        with note.open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def net(num_classes: int) -> nn.Module:
    """The model "support.killed_worker:net" of a run."""
    return DiesOnce(*users_net(num_classes))
