"""The options that measurements share, in groups: what a function takes of them is what its signature shows.

A group that decides what is in the numbers goes into the provenance of a report whole, by `recorded`.
"""

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from topic_probe.contrast import RESAMPLED
from topic_probe.estimate import Alternative, check_interval
from topic_probe.lens.host import Facts
from topic_probe.options import Group, check_value, check_whole
from topic_probe.topics.lists import token_id_array

Long = Literal["cut", "chunk"]
FirstPosition = Literal["sink", "word"]
Resampled = Literal["sources", "words", "fits"]
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

    def of(self, model: Facts) -> "Reading":
        """The same with what the model says in place of what was left open, and no document longer than it can take."""
        limit = model.context_length
        longest = limit if self.max_length is None else min(self.max_length, limit or self.max_length)
        specials = model.special_ids if self.special_ids is None else self.special_ids
        return replace(
            self,
            max_length=longest,
            special_ids=sorted(set(token_id_array(specials, "special_ids").tolist())),
        )


@dataclass(frozen=True)
class Statistics(Group):
    """What numbers are compared with, and what their intervals are about."""

    n_permutations: Annotated[
        int, "permuted words behind the p-values; 0 leaves these out, 10,000 take a larger part of the time"
    ] = 2000
    confidence: Annotated[float, "what share of intervals is to hold the true number"] = 0.95
    seed: Annotated[int, "seed of permutations"] = 0
    resample: Annotated[
        Collection[Unit],
        'what intervals are about: other "sources" (articles), or other "sources" and "words" of the same topics; '
        "those of single heads are about sources alone",
    ] = _SOURCES

    def __post_init__(self) -> None:
        check_interval(0, self.confidence)
        check_whole("n_permutations", self.n_permutations, 0)
        check_whole("seed", self.seed, 0)
        named = [check_value("resample", name, Unit) for name in self.resample]
        if "sources" not in named:
            raise ValueError(
                f"resample must name 'sources', which these numbers vary with first, got {tuple(named)}"
            )
        # In one order, which provenances then have.
        object.__setattr__(self, "resample", tuple(name for name in get_args(Unit) if name in named))


@dataclass(frozen=True)
class Patterns(Group):
    """How attention is read."""

    check_rows: Annotated[
        bool,
        "whether rows that do not sum to one are an error; False for models whose heads may attend to nothing and for "
        "patterns that you edit",
    ] = True


@dataclass(frozen=True)
class Confidence(Group):
    """How sure a number is said to be whose intervals need no draws and are always there."""

    confidence: Annotated[float, "what share of intervals is to hold the true number"] = 0.95
    seed: Annotated[int, "seed of everything that is drawn"] = 0

    def __post_init__(self) -> None:
        check_interval(0, self.confidence)
        check_whole("seed", self.seed, 0)


@dataclass(frozen=True)
class Intervals(Confidence):
    """How sure a number is said to be."""

    n_resamples: Annotated[
        int,
        "resampled sets of words behind intervals over words; those over sources leave out each source once and need "
        "no draws; 0 leaves all intervals out",
    ] = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_interval(self.n_resamples, self.confidence)

    @property
    def over_sources(self) -> float | None:
        """The confidence of intervals over sources; None where all intervals are left out."""
        return self.confidence if self.n_resamples else None


@dataclass(frozen=True)
class Resampling(Group):
    """What a number may vary with."""

    resample: Annotated[
        Collection[str] | None,
        'what intervals include: other "sources" (articles), other "words" of the same topics, other "fits" of topics. '
        "For the last, topics are a list of at least three fits of one kind, which are reported together. Intervals of "
        "single heads include sources alone. By default attention and states resample sources, tables of embeddings "
        "words",
    ] = None

    def __post_init__(self) -> None:
        if self.resample is None:
            return
        named = [check_value("resample", name, Resampled) for name in self.resample]
        if not named:
            raise ValueError(
                f"resample names some of {', '.join(RESAMPLED)}, and n_resamples=0 leaves intervals out: got none"
            )
        # In one order, which provenances then have.
        object.__setattr__(self, "resample", tuple(name for name in RESAMPLED if name in named))

    def of(self, default: Resampled) -> tuple[str, ...]:
        """What is resampled, of a measurement that resamples one thing where nothing was asked for.

        Raises:
            ValueError: where this is not among what was named: what is left would be too narrow for any question.
        """
        if self.resample is None:
            return (default,)
        if default not in self.resample:
            raise ValueError(
                f"resample must name {default!r}, which these numbers vary with first, got {tuple(self.resample)}"
            )
        return tuple(self.resample)


@dataclass(frozen=True)
class Permutations(Group):
    """What a number is compared with."""

    n_permutations: Annotated[int, "permuted topic labels behind the p-values; 0 leaves them out"] = 200
    alternative: Annotated[Alternative, "what counts as extreme in the p-values"] = "two-sided"

    def __post_init__(self) -> None:
        if self.n_permutations < 0:
            raise ValueError(f"n_permutations must be at least 0 (no p-values), got {self.n_permutations}")


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


def recorded(*groups: Reading | Statistics | Patterns | Confidence | Permutations) -> dict[str, Any]:
    """The options of groups for the provenance of a report, which has a place of its own for the seed."""
    return {name: value for group in groups for name, value in vars(group).items() if name != "seed"}
