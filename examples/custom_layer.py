"""A layer that tracing does not know, described by rules=: python examples/custom_layer.py"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import dafp
import dafp.data


class Spectrum(nn.Module):
    """Smooths every channel in frequency space; each channel has its own strength."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.strength = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        fall = torch.linspace(0, 1, x.shape[-1] // 2 + 1, device=x.device)
        weight = torch.exp(-fall * self.strength.abs().view(-1, 1, 1))
        return torch.fft.irfft2(torch.fft.rfft2(x) * weight, x.shape[-2:])


def channelwise(call: dafp.Call) -> None:
    """The output has the channels of the input; `strength` is sliced with them."""
    (x,) = call.args
    call.follow(call.channels(x, 1), call.module.strength)
    call.same(x)


def network() -> nn.Module:
    layers: list[nn.Module] = []
    for a, b in (3, 16), (16, 32), (32, 64):
        layers += [nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(), Spectrum(b)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def main() -> None:
    torch.manual_seed(0)
    data, example, model = dafp.data.load("digits"), torch.zeros(1, 3, 32, 32), network()
    print(f"without the rule {dafp.trace(model, example).filters} filters can be pruned")
    graph = dafp.trace(model, example, rules={Spectrum: channelwise})
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    sparse = dafp.SparseTraining(model, graph, optimizer, target=0.5, epochs=8)
    for epoch in range(8):
        for x, y in data.batches("train", batch_size=32, epoch=epoch, augment=False):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
        sparse.end_epoch()
    plan, (x, y) = sparse.plan(), next(data.batches("test", batch_size=data.sizes["test"]))
    small, kept = dafp.prune(model, graph, plan), sum(map(len, plan.keep.values()))
    for name, net, filters in ("before", model, graph.filters), ("after", small, kept):
        accuracy = float((net.eval()(x).argmax(1) == y).float().mean())
        print(f"{name}: accuracy {accuracy:.3f}, {filters} filters, {dafp.cost(net, example)}")


if __name__ == "__main__":
    main()
