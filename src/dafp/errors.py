"""The errors that dafp raises.

DafpError
├── TraceError         the model cannot be traced with this example
├── PlanError          a plan, ratio or score that does not fit the graph
│   └── TargetError    the target cannot be reached
├── VerificationError  the pruned model does not compute what the masked model computes
├── FileError          a file that is damaged, not written by dafp, or of another model
├── ModelError         a model that cannot be built as requested
├── DataError          a data set that is unknown, missing, damaged or too small
├── TrainingError      a training that cannot start or continue as requested
├── ExportError        a model that cannot be exported, or whose export computes something else
├── BenchError         something that cannot be measured as requested
└── ExtraError         a package or tool that is needed for this is not installed
"""


class DafpError(Exception):
    """Base of all errors raised by dafp."""


class TraceError(DafpError):
    """The model cannot be traced with this example."""


class PlanError(DafpError):
    """A plan, ratio or score does not fit the graph."""


class TargetError(PlanError):
    """The target cannot be reached."""


class VerificationError(DafpError):
    """The pruned model does not compute what the masked model computes.

    Attributes:
        groups: The groups because of which it fails, where some are: pruning the others works.
        graph: The channel graph in which those groups are kept, to make another plan from; else
            None.
    """

    groups: tuple[str, ...] = ()
    graph: object = None  # a ChannelGraph


class FileError(DafpError):
    """A file is damaged, not written by dafp, or of another model."""


class ModelError(DafpError):
    """A model cannot be built as requested."""


class DataError(DafpError):
    """A data set is unknown, missing, damaged or too small for the request."""


class TrainingError(DafpError):
    """A training cannot start or continue as requested."""


class ExportError(DafpError):
    """A model cannot be exported, or its exported file computes something else."""


class BenchError(DafpError):
    """Something cannot be measured as requested."""


class ExtraError(DafpError):
    """A package or tool that is needed for this is not installed."""
