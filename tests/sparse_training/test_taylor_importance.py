"""How much the loss feels a channel: by hand."""

import pytest
import torch
from torch import nn

from dafp.errors import TrainingError
from dafp.sparse_training.taylor_importance import TaylorImportance
from dafp.sparse_training.training import SparseTraining
from support.training import OPTIMIZERS, graph_of, tiny_net, train


def scale(values, gradients):
    weight = nn.Parameter(torch.tensor(values))
    weight.grad = torch.tensor(gradients)
    return weight


def test_it_is_the_first_order_change_of_the_loss_in_every_layer():
    first, second = scale([2.0, -1.0], [0.5, 3.0]), scale([4.0], [0.25])
    shift = scale([1.0, 1.0], [-2.0, 1.0])
    importance = TaylorImportance([first, second], [shift, None])
    importance.add(window=10)
    # |2·0.5 + 1·(−2)|, |−1·3 + 1·1|; no shift: |4·0.25|
    assert [part.tolist() for part in importance.by_scale()] == [[1.0, 2.0], [1.0]]


def test_it_is_a_mean_at_first_and_forgets_beyond_the_window():
    weight = scale([1.0], [1.0])
    importance = TaylorImportance([weight], [None])
    for gradient, wanted in ((1.0, 1.0), (3.0, 2.0), (6.0, 4.0), (0.0, 2.0)):
        weight.grad.fill_(gradient)
        importance.add(window=2)
        assert importance.mean.item() == pytest.approx(wanted)


def test_infinite_gradients_and_steps_that_were_skipped_leave_it_alone():
    weight = scale([1.0, 1.0], [2.0, 2.0])
    importance = TaylorImportance([weight], [None])
    importance.add(window=4)
    weight.grad = torch.tensor([torch.inf, torch.nan])
    importance.add(4, skipped=torch.tensor(1.0))
    assert importance.mean.tolist() == [2.0, 2.0]


def test_a_parameter_without_gradient_has_no_importance():
    weight = nn.Parameter(torch.ones(3))
    importance = TaylorImportance([weight], [None])
    importance.add(window=4)
    assert importance.mean.tolist() == [0.0, 0.0, 0.0]


def test_the_state_of_another_model_is_refused():
    importance = TaylorImportance([scale([1.0], [1.0])], [None])
    with pytest.raises(TrainingError, match="another model"):
        importance.load_state_dict({"mean": torch.zeros(2), "steps": 1})


def test_the_loss_says_how_many_go_of_which_layer():
    """The second layer is made deaf for the loss: all that goes, goes there."""
    net = tiny_net(widths=(12, 12))
    optimizer = OPTIMIZERS["sgd"](net)
    sparse = SparseTraining(net, graph_of(net), optimizer, target=0.25, epochs=8)
    net[4].weight.register_hook(lambda gradient: 1e-3 * gradient)
    net[4].bias.register_hook(lambda gradient: 1e-3 * gradient)
    train(net, optimizer, sparse, 8)
    kept = {name: len(channels) for name, channels in sparse.plan().keep.items()}
    assert kept == {"0": 12, "3": 6}


def test_inside_a_layer_the_score_decides():
    """Criterion and loss disagree on purpose: the six of lowest score go."""

    def by_number(model, graph):
        return {group.name: torch.arange(1.0, group.size + 1) for group in graph.groups}

    net = tiny_net(widths=(12, 12))
    optimizer = OPTIMIZERS["sgd"](net)
    sparse = SparseTraining(
        net, graph_of(net), optimizer, target=0.5, epochs=8, criterion=by_number
    )
    train(net, optimizer, sparse, 8)
    gone = [(norm.weight == 0).nonzero().flatten().tolist() for norm in (net[1], net[4])]
    assert sum(map(len, gone)) == 12
    assert gone == [list(range(len(part))) for part in gone]
