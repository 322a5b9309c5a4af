"""Values that command-line options can take; imports nothing, so help texts need no torch.

Where a name selects code, another module has a table with the same names. A test compares them.
"""

METHODS = (
    "dafp",
    "slm",
    "slm+da",
    "slm+da+local",
    "l1-norm",
    "sfp",
    "asfp",
    "fpgm",
    "taylor",
    "thinet",
    "lasso",
    "activation-norm",
    "loss-by-removal",
    "ssl",
    "ssr-l21",
    "ssr-l20",
    "bn-ista",
    "bayes",
    "morphnet",
    "evolution",
    "one-shot",
    "reconstruct",
    "random",
)
CRITERIA = (  # those that need no data
    "dependency_aware",
    "shift_aware",
    "bn_scale",
    "l1_norm",
    "l2_norm",
    "geometric_median",
    "random",
)
CRITERIA_WITH_DATA = (
    "taylor",
    "reconstruction_error",
    "activation_norm",
    "loss_by_removal",
    "lasso",
)
# methods that take another rule of selection than their own
TAKE_RULE = ("dafp", "l1-norm", "activation-norm", "loss-by-removal", "one-shot", "random")
# methods whose plan is made in training, channel by channel
NOT_FOR_LATENCY = ("sfp", "asfp", "fpgm", "taylor", "bayes", "morphnet")
RULES = ("local_threshold", "global_ranking", "uniform")
PRESETS = ("digits", "cifar10-lite", "cifar10", "cifar100", "svhn", "imagenet")
DATA_SETS = ("digits", "cifar10", "cifar100", "svhn", "folder", "imagenet")
NAMED_SETS = tuple(name for name in DATA_SETS if name != "folder")  # that one is folder:DIR
RUNTIMES = ("eager", "compile", "onnx")
CALIBRATIONS = ("minmax", "percentile", "entropy")
TARGET_UNITS = ("filters", "params", "macs", "latency")
TABLES = (
    "cifar10",
    "cifar100",
    "svhn",
    "imagenet",
    "ablation-importance",
    "ablation-lambda",
    "ablation-scratch",
    "ablation-stability",
)
FIGURES = ("sensitivity", "dynamics", "architecture")
DISTILL = 0.7  # share of the teacher in the loss, unless --set distill= gives another
