"""Settings for all tests: what keeps them quick, and a reason for every slow one."""

import gc
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

from dafp.cli.process import keep_freed_memory

torch.set_num_threads(1)  # several workers would compete for the cores
keep_freed_memory()  # as commands do

# by default Hypothesis fails a test that takes longer than 200 ms on a busy machine
settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")


@pytest.fixture(scope="session", autouse=True)
def few_rounds() -> Iterator[None]:
    """Measure latencies in 9 rounds instead of up to 200: no test depends on how long they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dafp.latency.timing.ROUNDS", (9, 9))
        yield


def pytest_collection_finish() -> None:
    """Exempt what is imported by now: each stage of a run collects garbage, 0.3 s every time."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a slow mark that does not say why the test is slow."""
    bare = {
        item.nodeid
        for item in items
        for mark in item.iter_markers("slow")
        if mark.args or set(mark.kwargs) != {"reason"} or not mark.kwargs["reason"]
    }
    if bare:
        lines = "\n  ".join(sorted(bare))
        raise pytest.UsageError(f'write @pytest.mark.slow(reason="…") for:\n  {lines}')
