"""Settings for all tests: one thread per worker, and a reason for every slow test."""

import pytest
import torch

torch.set_num_threads(1)  # several workers would compete for the cores


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
