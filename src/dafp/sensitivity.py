"""Old import path of the layer sensitivity in `dafp.recovery`; using it warns."""

from .recovery import sensitivity as _sensitivity
from .recovery.old_paths import forward_to as _forward_to

__getattr__ = _forward_to(_sensitivity, "dafp.sensitivity")
