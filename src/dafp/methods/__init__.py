"""The methods by name, those of the paper's tables and others; each has a page in docs/methods."""

import difflib

from ..errors import TrainingError
from . import (
    bayes,
    bn_ista,
    dafp,
    evolution,
    fixed,
    lasso,
    magnitude,
    morphnet,
    reconstruct,
    slm,
    soft,
    ssl,
    ssr,
    taylor,
    thinet,
)
from .method import Method, Task

__all__ = ["METHODS", "Method", "Task", "find"]

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        dafp.METHOD,
        slm.METHOD,
        slm.METHOD_DA,
        fixed.METHOD,
        magnitude.L1_NORM,
        soft.SFP,
        soft.ASFP,
        soft.FPGM,
        taylor.METHOD,
        thinet.METHOD,
        lasso.METHOD,
        magnitude.ACTIVATION_NORM,
        magnitude.LOSS_BY_REMOVAL,
        ssl.METHOD,
        ssr.L21,
        ssr.L20,
        bn_ista.METHOD,
        bayes.METHOD,
        morphnet.METHOD,
        evolution.METHOD,
        magnitude.ONE_SHOT,
        reconstruct.METHOD,
        magnitude.RANDOM,
    )
}


def find(name: str) -> Method:
    """The method of this name."""
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, 1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise TrainingError(f"there is no method {name!r}{hint} There are {', '.join(METHODS)}")
    return METHODS[name]
