"""Documents in parts: runs of consecutive texts, the same ones for every worker, whatever their number.

A part is a run of texts of a list, of files, of a sample, or of one file of a data set of the hub; never of documents,
because into how many of these a text is cut is known only when it has been tokenized. Of a data set of several files,
part ``n`` is the run ``n // files`` of the file ``n % files``: so parts have numbers before anybody knows how many
there are.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import count, islice
from operator import attrgetter
from typing import Any, Literal, TypeVar

from topic_probe.options import check_whole
from topic_probe.text.corpus import DocumentStream, Section, content_of
from topic_probe.text.documents import can_be_read_again, hash_of, read_documents
from topic_probe.topics.lookup import tokenizer_identity

_Entry = TypeVar("_Entry")

# What is said of the texts of a part: plain JSON, which stands in the header of its file.
Place = Mapping[str, Any]


@dataclass(frozen=True)
class Worker:
    """Which parts a process measures: those from ``index`` on, every ``n``-th."""

    index: int = 0
    n: int = 1

    @classmethod
    def of(cls, part: Sequence[int | Literal["env"]] | Literal["env"] | None) -> "Worker":
        """The worker that ``part=`` names; ValueError for one that there cannot be."""
        if part is None:
            return cls()
        if "env" in part:
            return cls(*_from_environment(os.environ))
        if len(part) != 2:
            raise ValueError(f"part must be (i, n), which worker of how many, or 'env', got {part!r}")
        index, n = (check_whole("part", number, 0) for number in part)
        if index >= n:
            raise ValueError(
                f"part must be (i, n) with i from 0 to n - 1, got ({index}, {n}): job arrays that count from 1 need "
                "i - 1"
            )
        return cls(index, n)

    def does(self, number: int) -> bool:
        """Whether a part is one of its own."""
        return number % self.n == self.index


def _from_environment(known: Mapping[str, str]) -> tuple[int, int]:
    """Which process of how many this is, by the variables of torchrun, of a slurm array, or of one within the other."""
    names = "RANK", "WORLD_SIZE", "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_MAX"
    rank, world, task, first, last = (int(known[name]) if name in known else None for name in names)
    index, n = (0, 1) if rank is None or world is None else (rank, world)
    if task is None or first is None or last is None:
        if rank is None or world is None:
            raise ValueError(
                "part='env' found neither RANK and WORLD_SIZE (torchrun) nor SLURM_ARRAY_TASK_ID (a slurm array): give "
                "part=(i, n)"
            )
        return index, n
    step, tasks = int(known.get("SLURM_ARRAY_TASK_STEP", 1)), int(known["SLURM_ARRAY_TASK_COUNT"])
    if (last - first) // step + 1 != tasks:
        raise ValueError(
            f"part='env' found a slurm array with gaps: {tasks} tasks from {first} to {last}. Give part=(i, n), or "
            "leave part= out to do all that is missing"
        )
    return (task - first) // step * n + index, tasks * n


@dataclass(frozen=True)
class Part:
    """A part that is to be measured.

    Attributes:
        number: its number.
        place: what its texts are known by: which run of which file, how many texts, and their hash or the name of the
            file; of its file whether it is the last run, and how many runs are expected.
        documents: these texts as documents, or as a stream of them.
    """

    number: int
    place: Place
    documents: Any


def parts_to_measure(
    documents: Any,
    size: int,
    worker: Worker,
    there: Callable[[int], Place | None],
    *,
    pad_id: int | None = None,
) -> Iterator[Part]:
    """The parts of a worker that are not there, one after the other.

    Args:
        documents: what a measurement takes.
        size: how many texts are a part.
        worker: whose parts they are.
        there: what is known of a part that was measured; None where it was not.
        pad_id: what padding holds in plain documents.

    Raises:
        ValueError: where a part that is there is of other texts, and for several workers at documents that can be read
            only once.
    """
    if isinstance(documents, DocumentStream):
        files = [_File(texts, documents.of_entries, content_of) for texts in documents.corpus.sections]
    else:
        if worker.n > 1 and not can_be_read_again(documents):
            raise ValueError(
                "documents that can be read only once are for one worker: give a list, or what Corpus.documents gives"
            )
        n = sum(1 for _ in read_documents(documents, pad_id=pad_id)) if isinstance(documents, Sized) else None
        files = [_File(Section(lambda: read_documents(documents, pad_id=pad_id), n))]
    for number, file in enumerate(files):
        yield from _parts_of_file(file, number, len(files), size, worker, there)


def facts_of_documents(documents: Any) -> dict[str, Any]:
    """What documents depend on beside their texts."""
    if not isinstance(documents, DocumentStream):
        return {}
    return {"documents": documents.options, "tokenizer": tokenizer_identity(documents.tokenizer)}


@dataclass(frozen=True)
class _File:
    """Texts that follow each other.

    Attributes:
        texts: what gives the entries.
        as_documents: makes documents of entries.
        content: an entry for a hash.
    """

    texts: Section
    as_documents: Callable[[list[Any]], Any] = list
    content: Callable[[Any], bytes] = attrgetter("content")


def _parts_of_file(
    file: _File, number: int, n_files: int, size: int, worker: Worker, there: Callable[[int], Place | None]
) -> Iterator[Part]:
    name, n_entries = file.texts.name, file.texts.n_entries
    first = 0
    if name is not None:  # these texts are known without being read, so what is there can be passed over
        own = (run for run in count() if worker.does(run * n_files + number))
        first = next(run for run in own if there(run * n_files + number) is None)
        before = {run: place for run in range(first) if (place := there(run * n_files + number)) is not None}
        for run, place in before.items():
            _check_same(place, {"file": number, "run": run, **name})
        if any(place["last"] for place in before.values()):
            return
    for run, entries, last in _runs(islice(file.texts.read(), first * size, None), size, first):
        at = run * n_files + number
        if last and there(at + n_files) is not None:
            raise ValueError(
                f"file {number} ends with run {run}, and more of it was measured: choose another folder"
            )
        if not worker.does(at):
            continue
        known: dict[str, Any] = {"file": number, "run": run, "texts": len(entries)}
        known |= name or {"sha256": hash_of(map(file.content, entries))}
        place = there(at)
        if place is not None:
            n = place["texts"]
            begins = {"texts": n, "sha256": hash_of(map(file.content, entries[:n]))}
            grown = name is None and place["last"] and n < len(entries)
            _check_same(place, known | begins if grown else known)
            if not grown:
                continue
        of_file = {"files": n_files, "last": last, "runs": n_entries and -(-n_entries // size)}
        yield Part(at, known | of_file, file.as_documents(entries))


def _runs(entries: Iterator[_Entry], size: int, first: int) -> Iterator[tuple[int, list[_Entry], bool]]:
    """Runs of so many entries with their numbers, and whether each is the last one; of no entries one that is empty."""
    following = list(islice(entries, size))
    for run in count(first):
        own, following = following, list(islice(entries, size))
        if own or run == 0:
            yield run, own, not following
        if not following:
            return


def _check_same(place: Place, known: Mapping[str, Any]) -> None:
    if differing := [name for name, value in known.items() if place.get(name) != value]:
        raise ValueError(
            f"run {known['run']} of file {known['file']} was measured of other texts (they differ in "
            f"{', '.join(differing)}): choose another folder, or give the texts as they were"
        )


def n_parts(places: Collection[Place]) -> int | None:
    """How many parts there are, by what is known of those that were measured; None where nobody knows."""
    total = 0
    for file in range(max((place["files"] for place in places), default=1)):
        own = [place for place in places if place["file"] == file]
        reached = max((place["run"] + 1 for place in own), default=0)
        ends = [place["run"] + 1 for place in own if place["last"]]
        expected = max((place["runs"] or 0 for place in own), default=0)
        if reached and reached in ends:
            total += reached
        elif expected > reached:  # had it been reached, its last run would be known
            total += expected
        else:
            return None
    return total
