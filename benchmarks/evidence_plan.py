"""The plan of evidence.py as data: parts, arms, seeds, and the configuration of every run."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch

import dafp
from dafp.methods.schedules import own_schedule
from dafp.models import build
from dafp.sweeps import Sweep
from dafp.sweeps.results_store import ResultRow
from dafp.training.config import Config, Schedule, make_config

EPOCHS = 30  # of every arm, in all
PENALTIES = (1e-4, 3e-4, 1e-3)  # λ of slm; the first is that of its released code
STEPS = (3e-5, 1e-4, 3e-4)  # Δ of Algorithm 1; the paper's 1e-5 needs its 160 epochs
STRONG = (1e-3, 3e-3)  # λ of slm that may reach a sparsity of 80 %
BASE = (
    "images=0", "val_share=0.1", "precision=bf16", "threads=1", "batch_size=64", "unit=macs",
)  # fmt: skip


@dataclass(frozen=True)
class Arm:
    """One line of a table: a method with its settings, and the epochs of its stages."""

    name: str
    method: str
    epochs: tuple[int, int, int]  # baseline, sparse training, fine-tuning
    settings: tuple[tuple[str, object], ...] = ()
    candidates: tuple[float, ...] = ()  # values of `step`; the best is chosen on validation images
    stage: str = ""  # the stage that is reported; "": the last
    narrow: bool = False  # a network of fewer channels in every layer, with the target's macs


@dataclass(frozen=True)
class Part:
    """One table of the page."""

    name: str
    title: str
    model: str
    width: float
    target: float  # share of the multiply-adds to remove
    seeds: tuple[int, ...]
    arms: tuple[Arm, ...]


@dataclass(frozen=True)
class Job:
    """One run of an arm; without a configuration while the choice of its `step` is not made."""

    part: Part
    arm: Arm
    seed: int
    config: Config | None


# a run of one-shot trains a baseline; its pruning and the single epoch afterwards are not reported
UNPRUNED = Arm("unpruned", "one-shot", (EPOCHS, 0, 1), stage="baseline")
NARROW = dataclasses.replace(UNPRUNED, name="narrow", narrow=True)
DAFP = Arm("dafp", "dafp", (0, 15, 15))
SLM = Arm("slm", "slm", (0, 15, 15), candidates=PENALTIES)
L1_NORM = Arm("l1-norm", "l1-norm", (15, 0, 15))
TAYLOR = Arm("taylor", "taylor", (10, 10, 10))
RECONSTRUCT = Arm("reconstruct", "reconstruct", (15, 0, 15))
RELATED = (  # other systems that the paper names
    *(Arm(name, name, (15, 0, 15))
      for name in ("random", "activation-norm", "loss-by-removal", "lasso", "evolution")),
    *(Arm(name, name, (10, 10, 10)) for name in ("ssl", "bayes")),
    Arm("morphnet", "morphnet", (0, 15, 15)),
)  # fmt: skip
SCORES = {"γ": "bn_scale", "γ·‖W‖": "dependency_aware"}  # no bars: they would end a cell
RULES = {"global": "global_ranking", "in each layer": "own"}


def _factorial() -> tuple[Arm, ...]:
    """λ × score × rule; sparse trainings that do not depend on score or rule are shared."""
    arms = []
    for score, criterion in SCORES.items():
        for rule, setting in RULES.items():
            chosen = (("criterion", criterion),)
            if rule == "global":
                method = "slm" if criterion == "bn_scale" else "slm+da"
                chosen = ()
            else:
                method = "slm+da+local"
            fixed = dataclasses.replace(SLM, method=method, settings=chosen)
            steered = (("criterion", criterion), ("rule", setting))
            auto = dataclasses.replace(DAFP, settings=steered)
            first = dataclasses.replace(auto, candidates=STEPS)
            for name, arm in (("fixed", fixed), ("Algorithm 1", first), ("auto", auto)):
                arms.append(dataclasses.replace(arm, name=f"{name}, {score}, {rule}"))
    return tuple(arms)


def _scratch(arm: Arm) -> Arm:
    """The widths that an arm finds, trained from new weights for all epochs."""
    first, sparse, _ = arm.epochs
    return dataclasses.replace(
        arm,
        name=f"{arm.name}, from scratch",
        epochs=(first, sparse, EPOCHS),
        settings=(*arm.settings, ("after", "scratch-E")),
    )


PLAN = (
    Part(
        "vgg-50", "VGG-16 ×0.25, half of the multiply-adds removed", "vgg16", 0.25, 0.5, (0, 1, 2),
        (UNPRUNED, NARROW, DAFP, SLM, L1_NORM, TAYLOR, RECONSTRUCT),
    ),
    Part(
        "vgg-75", "VGG-16 ×0.25, three quarters removed", "vgg16", 0.25, 0.75, (0, 1),
        (NARROW, DAFP, SLM, L1_NORM, RECONSTRUCT),
    ),
    Part(
        "factorial", "λ × score × rule, VGG-16 ×0.25, half removed", "vgg16", 0.25, 0.5, (0, 1),
        _factorial(),
    ),
    Part(
        "preresnet-50", "PreResNet-20, half of the multiply-adds removed", "preresnet20", 1.0, 0.5,
        (0,), (UNPRUNED, NARROW, DAFP, SLM),
    ),
    Part(
        "scratch", "The widths that were found, from new weights", "vgg16", 0.25, 0.5, (0, 1),
        (_scratch(DAFP), _scratch(SLM)),
    ),
    Part(
        "stability", "slm with 80 % of the filters removed", "vgg16", 0.25, 0.8, (0, 1),
        tuple(
            Arm(f"slm, λ = {value:g}", "slm", (0, 15, 15), (("unit", "filters"), ("step", value)))
            for value in STRONG
        ),
    ),
    Part(
        "related", "Other systems that the paper names, VGG-16 ×0.25, half removed", "vgg16", 0.25,
        0.5, (0,), RELATED,
    ),
    Part(
        "preresnet-50, seed 1", "PreResNet-20 again", "preresnet20", 1.0, 0.5, (1,),
        (UNPRUNED, NARROW, DAFP, SLM),
    ),
)  # fmt: skip


def jobs(part: Part, done: Sweep, shrink: Callable[[Config], Config] = lambda c: c) -> list[Job]:
    """The runs of a part, seed by seed. Candidates are compared with the first seed of PLAN, 0."""
    found = []
    for seed in part.seeds:
        for arm in part.arms:
            if not arm.candidates:
                found.append(Job(part, arm, seed, shrink(config(part, arm, seed))))
            elif seed == 0 and same(arm, reference(arm)):
                found += [
                    Job(part, arm, seed, shrink(config(part, arm, seed, value)))
                    for value in arm.candidates
                ]
            else:
                value = chosen(part, arm, done, shrink)
                each = None if value is None else shrink(config(part, arm, seed, value))
                found.append(Job(part, arm, seed, each))
    return found


def config(part: Part, arm: Arm, seed: int, step: float | None = None) -> Config:
    """The configuration of a run."""
    whole = make_config("cifar10-lite", None, list(BASE))
    width = part.width
    if arm.narrow:
        width = width_for(part.model, part.width, 1 - part.target)
    values = {
        "model": part.model,
        "width": width,
        "method": arm.method,
        "target": part.target,
        "seed": seed,
        "baseline": Schedule(arm.epochs[0]),
        "sparse": Schedule(arm.epochs[1] or 1, 0.1, ()),
        "finetune": Schedule(arm.epochs[2]),
        **({} if step is None else {"step": step}),
        **dict(arm.settings),
    }
    return own_schedule(dataclasses.replace(whole, **values))


def chosen(
    part: Part, arm: Arm, done: Sweep, shrink: Callable[[Config], Config] = lambda c: c
) -> float | None:
    """The candidate with the best validation accuracy after seed 0; None if one is missing."""
    reached: dict[float, float] = {}
    for value in arm.candidates:
        record = done.of(shrink(config(part, reference(arm), 0, value)))
        if record is None:
            return None
        reached[value] = validated(record)
    return max(reached, key=lambda value: reached[value])


def reference(arm: Arm) -> Arm:
    """The arm that chooses the candidate for this one, too.

    Algorithm 1 is tuned with the score and the rule of the paper, a fixed λ as slm uses it; other
    scores and rules, and training from scratch, take over that value.
    """
    if arm.method != "dafp":
        return SLM
    paper = (("criterion", "dependency_aware"), ("rule", "own"))
    return dataclasses.replace(arm, settings=paper, epochs=DAFP.epochs)


def same(arm: Arm, other: Arm) -> bool:
    """Whether two arms have the same configurations; their names may differ."""
    return dataclasses.replace(arm, name="") == dataclasses.replace(other, name="")


def validated(record: ResultRow) -> float:
    """Validation accuracy after the last epoch; below all others if the run collapsed."""
    last = record["curves"].get("finetune") or record["curves"].get("scratch") or {}
    values = last.get("val_accuracy") or [-1.0]
    return float(values[-1])


@lru_cache
def width_for(model: str, width: float, share: float) -> float:
    """The factor on the channels whose network has this share of the multiply-adds, the nearest."""
    example = torch.zeros(1, 3, 32, 32)

    def macs(factor: float) -> int:
        with torch.no_grad():
            return dafp.cost(build(model, width=factor), example).macs

    wanted, steps = share * macs(width), range(1, 401)
    low, high = 0, len(steps) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if macs(width * steps[middle] / 400) < wanted else (low, middle)
    ends = [round(width * steps[n] / 400, 6) for n in (low, high)]
    return min(ends, key=lambda factor: abs(macs(factor) - wanted))
