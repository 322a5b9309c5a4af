"""Where each method comes from: its family, its paper, the year, and a link."""

from dataclasses import dataclass

FAMILIES = (
    "weights of a trained network",
    "activations and loss of a trained network",
    "reconstruction of the next layer",
    "sparsity of scales during training",
    "sparsity of filters during training",
    "search of widths",
)


@dataclass(frozen=True)
class Origin:
    """The family of a method, and the paper that it is from."""

    family: str  # one of FAMILIES
    description: str
    authors: str = ""  # "": there is no paper
    year: int = 0
    link: str = ""

    @property
    def paper(self) -> str:
        return f"{self.authors}, {self.year}" if self.authors else "–"


_WEIGHTS, _ACTIVATIONS, _NEXT, _SCALES, _FILTERS, _SEARCH = FAMILIES
_DAFP = ("Zhao et al.", 2020, "https://arxiv.org/abs/2005.02634")

ORIGINS = {
    "l1-norm": Origin(
        _WEIGHTS,
        "filters with the smallest L1 norm of a trained network",
        "Li et al.",
        2017,
        "https://arxiv.org/abs/1608.08710",
    ),
    "one-shot": Origin(_WEIGHTS, "any criterion, on a trained network"),
    "random": Origin(_WEIGHTS, "random channels, as a reference"),
    "activation-norm": Origin(
        _ACTIVATIONS,
        "channels with the smallest activations on training images",
        "Polyak and Wolf",
        2015,
        "https://doi.org/10.1109/ACCESS.2015.2494536",
    ),
    "loss-by-removal": Origin(
        _ACTIVATIONS,
        "channels without which the loss is smallest, each tried alone",
        "Anwar et al.",
        2017,
        "https://arxiv.org/abs/1512.08571",
    ),
    "taylor": Origin(
        _ACTIVATIONS,
        "gates scored by first-order Taylor importance, closed during training",
        "Molchanov et al.",
        2019,
        "https://arxiv.org/abs/1906.10771",
    ),
    "thinet": Origin(
        _NEXT,
        "smallest error in the next layer, then least squares",
        "Luo et al.",
        2017,
        "https://arxiv.org/abs/1707.06342",
    ),
    "lasso": Origin(
        _NEXT,
        "LASSO regression on the outputs of the next layer, then least squares",
        "He et al.",
        2017,
        "https://arxiv.org/abs/1707.06168",
    ),
    "reconstruct": Origin(_NEXT, "elimination, widths by measured damage, then least squares"),
    "dafp": Origin(
        _SCALES,
        "dependency-aware score of two layers, threshold inside each layer, automatic λ",
        *_DAFP,
    ),
    "slm": Origin(
        _SCALES,
        "Network Slimming: fixed λ, one ranking of |γ| over all layers",
        "Liu et al.",
        2017,
        "https://arxiv.org/abs/1708.06519",
    ),
    "slm+da": Origin(_SCALES, "slm with the dependency-aware score", *_DAFP),
    "slm+da+local": Origin(_SCALES, "slm+da with a threshold inside each layer", *_DAFP),
    "bn-ista": Origin(
        _SCALES,
        "soft thresholding of γ, weighted by memory cost",
        "Ye et al.",
        2018,
        "https://arxiv.org/abs/1802.00124",
    ),
    "bayes": Origin(
        _SCALES,
        "posterior of multiplicative noise per channel, pruned by signal-to-noise layer by layer",
        "Zhou et al.",
        2018,
        "https://arxiv.org/abs/1812.00353",
    ),
    "sfp": Origin(
        _FILTERS,
        "filters with the smallest L2 norm set to zero after every epoch",
        "He et al.",
        2018,
        "https://arxiv.org/abs/1808.06866",
    ),
    "asfp": Origin(
        _FILTERS,
        "sfp with an increasing ratio",
        "He et al.",
        2019,
        "https://arxiv.org/abs/1808.07471",
    ),
    "fpgm": Origin(
        _FILTERS,
        "filters nearest to the geometric median set to zero and kept at zero",
        "He et al.",
        2019,
        "https://arxiv.org/abs/1811.00250",
    ),
    "ssl": Origin(
        _FILTERS,
        "group lasso on the filters, by proximal steps",
        "Wen et al.",
        2016,
        "https://arxiv.org/abs/1608.03665",
    ),
    "ssr-l21": Origin(
        _FILTERS,
        "filters pulled towards a row-sparse copy, L2,1 norm",
        "Lin et al.",
        2019,
        "https://arxiv.org/abs/1901.07827",
    ),
    "ssr-l20": Origin(
        _FILTERS,
        "filters pulled towards a row-sparse copy, L2,0 norm",
        "Lin et al.",
        2019,
        "https://arxiv.org/abs/1901.07827",
    ),
    "morphnet": Origin(
        _SEARCH,
        "scales penalised by the cost of their channels, then all widths expanded to the budget",
        "Gordon et al.",
        2018,
        "https://arxiv.org/abs/1711.06798",
    ),
    "evolution": Origin(
        _SEARCH,
        "a population of width vectors, two objectives, the knee chosen",
        "Zhou et al.",
        2019,
        "https://doi.org/10.1109/TCYB.2019.2928174",
    ),
}
