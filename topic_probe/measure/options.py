"""The options that measurements share, in groups: what a function takes of them is what its signature shows.

A group that decides what is in the numbers goes into the provenance of a report whole, by `recorded`. The command line
reads the groups of every measurement, so nothing heavy is loaded with them.
"""

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from topic_probe.options import Group, check_confidence, check_value, check_whole

if TYPE_CHECKING:
    from topic_probe.lens.host import Facts

Long = Literal["cut", "chunk"]
FirstPosition = Literal["sink", "word"]
Unit = Literal["sources", "words"]
_SOURCES: tuple[Unit, ...] = ("sources",)


@dataclass(frozen=True)
class Reading(Group):
    """How documents are read; all of it decides what is in the sums."""

    batch_size: Annotated[int, "documents in one forward pass; changes nothing but speed and memory"] = 32
    max_length: Annotated[
        int | None, "documents are cut at so many tokens, by default at what the model can take"
    ] = None
    long: Annotated[Long, '"cut" drops the rest of longer documents, "chunk" makes documents of it'] = "cut"
    special_ids: Annotated[
        Collection[int] | None,
        "ids of special tokens, which have no topic and are the sinks of attention; by default what the model's "
        "tokenizer or configuration names",
    ] = None
    first_position: Annotated[
        FirstPosition,
        'what stands at the beginning of a document to a causal model: "sink" is no word but one of the sinks of '
        'attention, because models attend to it whatever stands there; "word" takes it as any other position',
    ] = "sink"

    def __post_init__(self) -> None:
        if self.batch_size < 1 or (self.max_length is not None and self.max_length < 1):
            raise ValueError(
                f"batch_size and max_length must be at least 1, not {self.batch_size} and {self.max_length}"
            )

    def of(self, model: "Facts") -> "Reading":
        """The same with what the model says in place of what was left open, and no document longer than it can take."""
        from topic_probe.topics.lists import token_id_array

        limit = model.context_length
        longest = limit if self.max_length is None else min(self.max_length, limit or self.max_length)
        specials = model.special_ids if self.special_ids is None else self.special_ids
        return replace(
            self,
            max_length=longest,
            special_ids=sorted(set(token_id_array(specials, "special_ids").tolist())),
        )


@dataclass(frozen=True)
class Confidence(Group):
    """How sure a number is said to be."""

    confidence: Annotated[float, "what share of intervals is to hold the true number"] = 0.95
    seed: Annotated[int, "seed of everything that is drawn"] = 0

    def __post_init__(self) -> None:
        check_confidence(self.confidence)
        check_whole("seed", self.seed, 0)


@dataclass(frozen=True)
class Statistics(Confidence):
    """What numbers are compared with, and what their intervals are about."""

    n_permutations: Annotated[
        int, "permuted words behind the p-values; 0 leaves these out, 10,000 take a larger part of the time"
    ] = 2000
    resample: Annotated[
        Collection[Unit],
        'what intervals of attention are about: other "sources" (articles), or other "sources" and "words" of the same '
        "topics; those of single heads are about sources alone",
    ] = _SOURCES

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("n_permutations", self.n_permutations, 0)
        named = [check_value("resample", name, Unit) for name in self.resample]
        if "sources" not in named:
            raise ValueError(
                f"resample must name 'sources', which these numbers vary with first, got {tuple(named)}"
            )
        # In one order, which provenances then have.
        object.__setattr__(self, "resample", tuple(name for name in get_args(Unit) if name in named))


@dataclass(frozen=True)
class Shown(Group):
    """What is shown of a run over documents."""

    progress: Annotated[
        bool | None,
        "whether to show a progress bar, with the time left; by default in a terminal or a notebook",
    ] = None


@dataclass(frozen=True)
class Run(Shown):
    """How a run over documents is kept, shared out and shown; none of it changes a number beyond rounding."""

    folder: Annotated[
        str | os.PathLike[str] | None,
        "where the sums of every part of the documents are kept as soon as it is measured. The same call goes on where "
        "it was stopped, several processes share one folder, and the report is made of what is there "
        "(`topic_probe.load_report`)",
    ] = None
    part: Annotated[
        Sequence[int | Literal["env"]] | Literal["env"] | None,
        '(i, n): measure the parts i, i + n, i + 2n … that are not in the folder; "env" takes i and n from the '
        "variables of torchrun or of a slurm array. By default all that are not there",
    ] = None
    part_size: Annotated[int, "texts of a part: what is lost at most when a process is stopped"] = 256

    def __post_init__(self) -> None:
        check_whole("part_size", self.part_size)
        if self.folder is None and self.part is not None:
            raise ValueError("part= came without folder=, in which all workers keep what they measure")

    def beside(self, name: str) -> "Run":
        """The same for a further run that belongs to this one, with a folder of its own."""
        return self if self.folder is None else replace(self, folder=Path(self.folder) / name)


def recorded(*groups: Reading | Confidence) -> dict[str, Any]:
    """The options of groups for the provenance of a report, which has a place of its own for the seed."""
    return {name: value for group in groups for name, value in vars(group).items() if name != "seed"}
