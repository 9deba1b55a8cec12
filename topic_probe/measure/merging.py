"""The report of a measurement whose shards have saved their sums."""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

from topic_probe import storage
from topic_probe.measure.engine import check_broken
from topic_probe.notices import warn
from topic_probe.options import checked
from topic_probe.report import Report, decode, report_class
from topic_probe.text.documents import Seen
from topic_probe.text.shares import BLOCKS
from topic_probe.text.sums import (
    OF_BLOCK,
    PARTS,
    SUMS,
    Progress,
    Sum,
    add_sums,
    differing_facts,
    empty_sums,
    from_arrays,
    load_part,
    name_of,
)


@checked
def merge_sums(folders: str | os.PathLike[str] | Collection[str | os.PathLike[str]]) -> Report:
    """The report of a measurement whose shards have saved their sums: ``measure_…(…, shard=(i, n), sums=FOLDER)``.

    It needs neither model nor documents, and is the same to the last bit for any number of shards on one machine.

    Args:
        folders: the folder that the shards were given for their sums, or several such folders, or those of single
            shards in them.

    Raises:
        ValueError: for sums of different measurements (other models, topics, options or documents), sources that are in
            several of them or in none, what is damaged or no sums, and where so many documents have NaN that the model
            must be at fault.

    Example:
        >>> import tempfile
        >>> import torch
        >>> world = tp.World(n_topics=4, words_per_topic=5, topics_per_document=2)
        >>> toy = tp.build_toy(tp.ToyConfig(regime="value", world=world))  # its attention is uniform
        >>> documents = world.documents(9, generator=torch.Generator().manual_seed(0)).ids
        >>> with tempfile.TemporaryDirectory() as sums:
        ...     for i in range(2):
        ...         _ = tp.measure_attention(toy, world.topics, documents, shard=(i, 2), sums=sums)
        ...     report = tp.merge_sums(sums)
        >>> report.provenance["documents"], round(float(report.overall.ratio), 5)
        (9, 1.0)
    """
    shards = sorted(map(_Shard.at, _places(folders)), key=lambda shard: (shard.index, shard.n))
    first, owners = shards[0], _owners(shards)
    _check_same(shards)
    total = first.empty()
    for block in range(BLOCKS):
        owners[block].add_block(block, total)
    progress = reduce(add, (shard.progress for shard in shards))
    # All shards were given all documents, so what these say of themselves is the same in each.
    progress.corpus, progress.seen = first.progress.corpus, first.progress.seen
    check_broken(progress)
    measured: Any = report_class(first.content["report"], f"{first.place} is of")
    report: Report = measured.of_sums(total, progress, first.parts())
    return report


@dataclass(frozen=True)
class _Shard:
    """The saved sums of a shard."""

    place: Path
    content: Mapping[str, Any]

    @classmethod
    def at(cls, place: Path) -> "_Shard":
        """Those in a folder, if they are whole."""
        saved = storage.load(place, SUMS)
        if damaged := storage.damaged_files(place):
            raise ValueError(
                f"{place} is not whole: {damaged[0]} is gone or was changed since it was saved. Measure this shard "
                "again"
            )
        return cls(place, saved.content)

    @property
    def index(self) -> int:
        return int(self.content["shard"][0])

    @property
    def n(self) -> int:
        return int(self.content["shard"][1])

    @property
    def blocks(self) -> range:
        return range(self.index, BLOCKS, self.n)

    @property
    def progress(self) -> Progress:
        return Progress.of(self.content["progress"])

    def empty(self) -> dict[str, Sum]:
        """Sums as they are in the beginning."""
        return empty_sums(self.content["sums"])

    def add_block(self, block: int, total: Mapping[str, Sum]) -> None:
        """Adds the sums of a block, if it has any."""
        place = self.place / name_of(block)
        if storage.kind_of(place) is not None:
            saved, sums = storage.load(place, OF_BLOCK), self.empty()
            from_arrays(sums, saved.arrays, saved.content["folded"])
            add_sums(total, sums)

    def parts(self) -> dict[str, Any]:
        """What makes a report of sums."""
        saved = storage.load(self.place / "parts", PARTS)
        parts: dict[str, Any] = decode(saved.content["parts"], saved.arrays)
        for name in self.content["saved"]:
            parts[name] = load_part(self.place / name)
        return parts


def _places(folders: Any) -> list[Path]:
    """The folders of single shards."""
    found: dict[Path, None] = {}
    for folder in [folders] if isinstance(folders, str | os.PathLike) else folders:
        place = Path(folder).expanduser().resolve()
        entries = sorted(place.iterdir()) if place.is_dir() else []
        inside = [entry for entry in entries if re.fullmatch(r"shard-\d+-of-\d+", entry.name)] or [place]
        for each in inside:
            if (kind := storage.kind_of(each)) != SUMS:
                what = "holds no sums" if kind is None else f"holds {kind!r}, which is no sums of a shard"
                raise ValueError(
                    f"{each} {what}: needed is a folder that was named as sums= (--sums) of a measurement, whose "
                    "shards have come to their end"
                )
            found[each] = None
    if not found:
        raise ValueError("no folder was named: needed are those that shards were given as sums= (--sums)")
    return list(found)


def _owners(shards: Sequence[_Shard]) -> dict[int, _Shard]:
    """Who has the sums of every block."""
    owners: dict[int, _Shard] = {}
    for shard in shards:
        for block in shard.blocks:
            if (other := owners.setdefault(block, shard)) is not shard:
                raise ValueError(
                    f"{other.place} and {shard.place} hold sums of the same sources, which must be added up only "
                    "once: leave one of them out"
                )
    n = shards[0].n if len({shard.n for shard in shards}) == 1 else BLOCKS
    missing = sorted({block % n for block in range(BLOCKS)} - {block % n for block in owners})
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ValueError(
            f"the sums of shard {missing[0]} of {n}{more} are missing, so this would be no report of all sources: "
            f"measure with shard=({missing[0]}, {n}) (--shard {missing[0]} {n}) and the same options, and name its "
            "folder too"
        )
    return owners


def _check_same(shards: Sequence[_Shard]) -> None:
    """ValueError for sums of different measurements, a warning for those whose bits may differ."""
    first, *others = shards
    for other in others:
        places = f"{first.place} and {other.place}"
        if names := differing_facts(first.content["facts"], other.content["facts"]):
            raise ValueError(
                f"{places} hold sums of different measurements, which differ in {', '.join(names)}: give all shards "
                "the same model, topics and options, and measure those again that had others"
            )
        one, two = (Seen(**shard.content["progress"]["seen"]) for shard in (first, other))
        if (how := two.other_than(one)) and (one.n, one.hashes) != (two.n, two.hashes):
            raise ValueError(
                f"the shards of {places} were given different documents (the second one {how}): give every shard all "
                "documents, of which it takes its own, and measure again"
            )
        if how:
            warn(
                f"the shards of {places} were given {how}, so the report is that of one process to rounding, and not "
                "to the last bit",
                stacklevel=3,
            )
