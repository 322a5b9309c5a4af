"""`python -m dafp` is `dafp`, for launchers that take a module: `torchrun -m dafp run …`."""

from .cli import main

main()
