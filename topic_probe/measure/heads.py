"""All heads of a model in one order, and what users call them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64

from topic_probe.contrast import Contrast
from topic_probe.lens.host import Host
from topic_probe.lens.sites import Site

_NAME = re.compile(r"[lL](\d+)\s*[hH](\d+)|(\d+)\.(\d+)")


def layer_and_head(name: str) -> tuple[int, int] | None:
    """What "L3H7" and "3.7" name; None for what is no such name."""
    if (found := _NAME.fullmatch(name.strip())) is None:
        return None
    layer, head = (int(number) for number in found.groups() if number is not None)
    return layer, head


def layer_starts(index: Mapping[str, tuple[Any, ...]]) -> list[int]:
    """Where every layer of a stack begins among heads, by the stack and layer of each."""
    names = list(zip(index["stack"], index["layer"], strict=True))
    return [place for place, name in enumerate(names) if place == 0 or name != names[place - 1]]


def layers_of(index: Mapping[str, tuple[Any, ...]]) -> Int64[np.ndarray, " head"]:
    """The number of the layer of every head, counted through stacks."""
    return np.searchsorted(layer_starts(index), np.arange(len(index["layer"])), side="right") - 1


@dataclass(frozen=True)
class Heads:
    """All heads of a model, numbered through stacks and layers.

    Attributes:
        sites: where the model attends.
        site_of: the number of the site of every head.
        head_of: its number there.
    """

    sites: tuple[Site, ...]
    site_of: tuple[int, ...]
    head_of: tuple[int, ...]

    @classmethod
    def of(cls, view: Host) -> "Heads":
        """Those of a model."""
        places = [(site, head) for site, n in enumerate(view.n_heads) for head in range(n)]
        return cls(view.sites, *map(tuple, zip(*places, strict=True)))

    def __len__(self) -> int:
        return len(self.site_of)

    def index(self, heads: Iterable[int]) -> dict[str, tuple[Any, ...]]:
        """Stack, layer and head of some."""
        some = list(heads)
        sites = [self.sites[self.site_of[head]] for head in some]
        return {
            "stack": tuple(site.stack for site in sites),
            "layer": tuple(site.layer for site in sites),
            "head": tuple(self.head_of[head] for head in some),
        }

    def layer(self, site: int) -> list[int]:
        """The heads of a site."""
        return [head for head, own in enumerate(self.site_of) if own == site]

    def name(self, head: int) -> str:
        """As users write it: "5.2", or "encoder.5.2"."""
        site, number = self.sites[self.site_of[head]], self.head_of[head]
        several = len({site.stack for site in self.sites}) > 1
        return f"{site.stack}.{site.layer}.{number}" if several else f"{site.layer}.{number}"

    def named(self, heads: Any) -> tuple[int, ...]:
        """Some heads, as users name them: one by one, by their layer, or as cells of a report.

        Raises:
            ValueError: for heads that there are not.
        """
        names = {self.name(head): [head] for head in range(len(self))}
        for site in range(len(self.sites)):
            names[self.name(self.layer(site)[0]).rpartition(".")[0]] = self.layer(site)
        found: set[int] = set()
        for name in _names(heads, several=len({site.stack for site in self.sites}) > 1):
            if name not in names:
                raise ValueError(
                    f"there is no head {name!r}: a head is named like {self.name(0)}, and the last one of this "
                    f"model is {self.name(len(self) - 1)}"
                )
            found.update(names[name])
        return tuple(sorted(found))


def _names(heads: Any, *, several: bool) -> list[str]:
    """Names as `Heads` has them, of models with one stack or several."""
    if isinstance(heads, Contrast):  # heads of a report, with their stack
        heads = [place if several else place[1:] for place in zip(*(heads.index or {}).values(), strict=True)]
    elif isinstance(heads, str):
        heads = [part for part in heads.split(",") if part.strip()]
    places = [
        head if isinstance(head, tuple | list) else layer_and_head(str(head)) or [str(head).strip()]
        for head in heads
    ]
    return [".".join(map(str, place)) for place in places]
