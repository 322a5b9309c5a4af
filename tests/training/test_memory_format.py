"""Memory in which a network can be trained: what oneDNN computes wrongly is kept from it."""

import dataclasses
import subprocess
import sys

import pytest
import torch
from torch import nn

from dafp.training.config import Config, Schedule
from dafp.training.devices import make_accelerator
from dafp.training.loop import NoProgress, TrainingContext, train_stage
from dafp.training.memory_format import set_memory_format, supports_channels_last
from support.training import tiny_data

LAST = torch.channels_last


def shortcut(channels: int, *, kernel: int = 1, stride: int = 2, groups: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1),
        nn.Conv2d(channels, 16, kernel, stride, kernel // 2, groups=groups),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("model", "supported"),
    [(shortcut(15), False), (shortcut(16), True), (shortcut(16, groups=2), False),
     (shortcut(4, stride=1), True), (shortcut(4, kernel=3), True)],
)  # fmt: skip
def test_only_a_thin_1x1_convolution_with_a_stride_forbids_channels_last(model, supported):
    assert supports_channels_last(model) is supported
    assert set_memory_format(model, channels_last=True) is supported
    assert model[0].weight.is_contiguous(memory_format=LAST) is supported
    assert set_memory_format(model, channels_last=False) is False
    assert model[0].weight.is_contiguous()


def test_weights_that_are_in_both_formats_get_the_strides_of_the_plain_one():
    model = shortcut(4).to(memory_format=LAST)
    before = model(torch.ones(1, 3, 8, 8))
    assert model[1].weight.stride() == (4, 1, 4, 4)
    set_memory_format(model, channels_last=True)
    assert model[1].weight.stride() == (4, 1, 1, 1)
    torch.testing.assert_close(model(torch.ones(1, 3, 8, 8)), before)


@pytest.mark.parametrize(("channels", "last"), [(4, False), (16, True)])
def test_training_gives_such_a_network_plain_batches_and_others_channels_last(
    tmp_path, channels, last
):
    seen = []
    model = shortcut(channels).to(memory_format=LAST)
    model[0].register_forward_pre_hook(
        lambda module, args: seen.append(args[0].is_contiguous()) if module.training else None
    )
    config = Config(batch_size=16, threads=1)
    context = TrainingContext(config, tiny_data(), make_accelerator("fp32", "", "."), NoProgress())
    train_stage(model, context, "baseline", Schedule(1, 0.05), tmp_path / "checkpoint")
    assert seen
    assert set(seen) == {not last}
    plain = dataclasses.replace(context, config=dataclasses.replace(config, channels_last=False))
    seen.clear()
    train_stage(model, plain, "baseline", Schedule(1, 0.05), tmp_path / "plain")
    assert set(seen) == {True}


def test_a_resnet_of_few_channels_can_be_trained():
    # in a process of its own: where it goes wrong, it takes the process with it
    done = subprocess.run(
        [sys.executable, "-c",
         "import torch\n"
         "from dafp.training.memory_format import set_memory_format\n"
         "from dafp.models import build\n"
         "torch.set_num_threads(1)\n"
         "model = build('resnet8', width=0.25)\n"
         "set_memory_format(model, channels_last=True)\n"
         "for _ in range(30):\n"
         "    model(torch.randn(32, 3, 32, 32)).sum().backward()\n"],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
