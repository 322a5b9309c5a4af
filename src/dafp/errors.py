"""Everything dafp raises on purpose.

DafpError
├── TraceError         the model or the example cannot be followed
├── PlanError          a plan, ratio or score that does not fit the graph
│   └── TargetError    the target asked for cannot be reached
├── VerificationError  the pruned model does not compute what the masked model computes
├── FileError          a file that is damaged, foreign or made for another model
├── ModelError         a model name that cannot be built
├── DataError          a data set that is unknown, missing, damaged or too small
├── TrainingError      a training that cannot start or go on as asked
├── ExportError        a model that cannot be written for, or computes something else in, a runtime
├── BenchError         something that cannot be measured as asked
└── ExtraError         a package or tool that is needed for this is not installed
"""


class DafpError(Exception):
    """Base of all errors raised by dafp."""


class TraceError(DafpError):
    """The model or the example cannot be followed."""


class PlanError(DafpError):
    """A plan, ratio or score does not fit the graph."""


class TargetError(PlanError):
    """The target asked for cannot be reached."""


class VerificationError(DafpError):
    """The pruned model does not compute what the masked model computes."""


class FileError(DafpError):
    """A file is damaged, foreign or made for another model."""


class ModelError(DafpError):
    """A model name cannot be built."""


class DataError(DafpError):
    """A data set is unknown, missing, damaged or too small for what is asked."""


class TrainingError(DafpError):
    """A training cannot start, or cannot go on, as asked."""


class ExportError(DafpError):
    """A model cannot be written for a runtime, or computes something else there."""


class BenchError(DafpError):
    """Something cannot be measured as asked."""


class ExtraError(DafpError):
    """A package or tool that is needed for this is not installed."""
