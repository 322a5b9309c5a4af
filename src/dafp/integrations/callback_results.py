"""What every sparsity callback offers once its trainer has started."""

from ..errors import TrainingError
from ..graph.channel_graph import ChannelGraph
from ..graph.plan import PruningPlan
from ..sparse_training.training import Record, SparseTraining


class CallbackResults:
    """The results of a callback; a subclass sets `_sparse` when the training starts."""

    _started_by: str  # the call of the trainer that starts the training, for the error message
    _sparse: SparseTraining | None = None

    @property
    def sparse(self) -> SparseTraining:
        """The sparse training, which exists once the training has started."""
        if self._sparse is None:
            raise TrainingError(f"SparsityCallback has no results before {self._started_by}")
        return self._sparse

    @property
    def graph(self) -> ChannelGraph:
        """The channel graph of the network."""
        return self.sparse.graph

    @property
    def records(self) -> list[Record]:
        """One record for each epoch."""
        return self.sparse.records

    def plan(self) -> PruningPlan:
        """The pruning plan for the current weights."""
        return self.sparse.plan()
