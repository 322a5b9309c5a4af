"""DDP with bfloat16 autocast: torchrun --standalone --nproc-per-node 2 examples/ddp_amp.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import dafp
import dafp.data
import dafp.models

EPOCHS = 8


@torch.no_grad()
def accuracy(model: nn.Module, data: dafp.data.DataSet) -> float:
    model.eval()
    right = [(model(x).argmax(1) == y).float() for x, y in data.batches("test", batch_size=128)]
    return float(torch.cat(right).mean())


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data, model = dafp.data.load("digits"), dafp.models.build("vgg11", classes=10, width=0.125)
    example = torch.zeros(1, 3, 32, 32)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    graph = dafp.trace(model, example)  # trace the model, not the DDP wrapper
    sparse = dafp.SparseTraining(model, graph, optimizer, target=0.5, epochs=EPOCHS)
    wrapped = DistributedDataParallel(model)
    for epoch in range(EPOCHS):
        wrapped.train()
        for x, y in data.batches(
            "train", batch_size=32, epoch=epoch, rank=rank, world=world, augment=False
        ):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = cross_entropy(wrapped(x), y)
            loss.backward()
            optimizer.step()
        sparse.end_epoch()

    plan, plans = sparse.plan(), [""] * world
    dist.all_gather_object(plans, plan.to_json())
    if rank == 0:
        print(f"{world} processes, {len(set(plans))} plan")
        small, kept = dafp.prune(model, graph, plan), sum(map(len, plan.keep.values()))
        for name, net, filters in ("before", model, graph.filters), ("after", small, kept):
            print(f"{name}: accuracy {accuracy(net, data):.3f}, {filters} filters, "
                  f"{dafp.cost(net, example)}")  # fmt: skip
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
