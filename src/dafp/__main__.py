"""`python -m dafp` is `dafp`; so launchers that take a module (`torchrun -m dafp …`) can start it."""

from .cli import main

main()
