"""The other half of the λ ablation: λ is fixed, and p is searched until the target is met."""

from torch.optim import Optimizer

from .. import criteria
from .dafp import plan
from .method import Method, Task
from .slm import Slimming


def train(task: Task, optimizer: Optimizer) -> Slimming:
    return Slimming(task, optimizer, criteria.dependency_aware)


METHOD = Method("slm+da+local", plan, train, training="slm", falls=True)
