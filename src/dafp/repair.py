"""Old import path of the reconstruction in `dafp.recovery`; using it warns."""

from .recovery import reconstruction as _reconstruction
from .recovery.old_paths import forward_to as _forward_to

__getattr__ = _forward_to(_reconstruction, "dafp.repair")
