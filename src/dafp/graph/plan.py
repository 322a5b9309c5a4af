"""The pruning plan: which channels of each group are kept. Can be printed, saved and compared."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import index
from reprlib import repr as shortened
from typing import Any

from ..errors import PlanError
from ..network.cost import Cost
from .printing import at_most, html_table
from .printing import shortened as short_list


@dataclass(frozen=True)
class PruningPlan:
    """The kept channels of each group. A group that is not named is kept whole.

    Rules of `dafp.selection` return plans; `dafp.prune` and `dafp.mask` apply them.

    Args:
        keep: For each group name, the indices of the kept channels in ascending order.
        sizes: The number of channels of each group before pruning.
        spare: The removed channels of each group, most important first. `ChannelGraph.resolve`
            adds channels back in this order where the network needs equal widths.
        before: Predicted cost of the original model, if known.
        after: Predicted cost of the pruned model, if known.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3))
        >>> graph = dafp.trace(model, torch.zeros(1, 3, 8, 8))
        >>> plan = dafp.PruningPlan({"0": (0, 2, 3)})
        >>> print(graph.resolve(plan))
        0: 4 → 3
        parameters 186 → 140
        multiply-adds 5,040 → 3,780
        >>> dafp.PruningPlan.from_json(plan.to_json()) == plan
        True
    """

    keep: Mapping[str, tuple[int, ...]]
    sizes: Mapping[str, int] = field(default_factory=dict)
    spare: Mapping[str, tuple[int, ...]] = field(default_factory=dict, compare=False)
    before: Cost | None = None
    after: Cost | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.keep, Mapping):
            raise PlanError(
                f"keep is a {type(self.keep).__name__}; give the kept channels by the name of "
                'their group, e.g. PruningPlan({"conv1": (0, 2)})'
            )
        clean = {name: _channels(name, kept) for name, kept in self.keep.items()}
        for name, kept in clean.items():
            if list(kept) != sorted(set(kept)) or (kept and kept[0] < 0):
                raise PlanError(
                    f"plan for {name!r} keeps {short_list(kept, '[]')}; kept channels are "
                    "distinct, not negative and in ascending order"
                )
            if name in self.sizes and kept and kept[-1] >= self.sizes[name]:
                raise PlanError(
                    f"plan keeps channel {kept[-1]} of {name!r}, which has "
                    f"{self.sizes[name]} channels"
                )
        object.__setattr__(self, "keep", clean)

    def to_json(self) -> str:
        """Return the plan as JSON text. Equal plans give equal text."""
        value = {
            "keep": {name: list(kept) for name, kept in self.keep.items()},
            "sizes": dict(self.sizes),
            "spare": {name: list(gone) for name, gone in self.spare.items()},
        }
        if self.before and self.after:
            value["before"] = vars(self.before)
            value["after"] = vars(self.after)
        return json.dumps({"dafp_plan": 1, **value}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "PruningPlan":
        """Return the plan that `to_json` wrote.

        Args:
            text: What `to_json` returned.

        Returns:
            An equal plan.

        Raises:
            PlanError: The text is not a plan.
        """
        try:
            value = json.loads(text)
            if value["dafp_plan"] != 1:
                raise PlanError(
                    f"plan has format {value['dafp_plan']!r}; this version reads format 1"
                )
            costs = [Cost(**value[key]) if key in value else None for key in ("before", "after")]
            return cls(
                {str(name): _whole(kept) for name, kept in value["keep"].items()},
                {str(name): _whole([size])[0] for name, size in value["sizes"].items()},
                {str(name): _whole(gone) for name, gone in value["spare"].items()},
                before=costs[0],
                after=costs[1],
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise PlanError(
                f"this is not a pruning plan: {error!r}; expected what to_json() writes"
            ) from error

    def __str__(self) -> str:
        rows = self._widths()
        if self.before and self.after:
            rows.append(f"parameters {self.before.params:,} → {self.after.params:,}")
            rows.append(f"multiply-adds {self.before.macs:,} → {self.after.macs:,}")
        return "\n".join(rows) if rows else "keeps everything"

    def __repr__(self) -> str:
        lines = [f"PruningPlan of {len(self.keep)} groups", *(f"  {w}" for w in self._widths())]
        return at_most(lines)

    def _repr_html_(self) -> str:
        rows: list[tuple[str, Any, Any]] = [
            (name, self.sizes.get(name, "?"), len(kept)) for name, kept in self.keep.items()
        ]
        if self.before and self.after:
            rows.append(("parameters", f"{self.before.params:,}", f"{self.after.params:,}"))
            rows.append(("multiply-adds", f"{self.before.macs:,}", f"{self.after.macs:,}"))
        return html_table("Pruning plan", ("group", "channels", "kept"), rows)

    def _widths(self) -> list[str]:
        return [
            f"{name}: {self.sizes.get(name, '?')} → {len(kept)}" for name, kept in self.keep.items()
        ]


def _channels(name: str, kept: Any) -> tuple[int, ...]:
    """The indices of the kept channels, from any sequence or tensor of integers."""
    try:
        values = kept.tolist() if hasattr(kept, "tolist") else list(kept)
        if bool in map(type, values):
            raise TypeError("True and False are no numbers of channels")
        return tuple(map(index, values))
    except TypeError as error:
        raise PlanError(
            f"plan for {name!r} keeps {shortened(kept)}: {error}; kept channels are "
            "whole numbers from 0, e.g. (0, 2, 5)"
        ) from error


def _whole(values: list[int]) -> tuple[int, ...]:
    if not isinstance(values, list) or any(type(v) is not int for v in values):
        raise TypeError(f"expected a list of whole numbers, not {values!r}")
    return tuple(values)
