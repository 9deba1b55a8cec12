"""The one way of documents through a model into accumulators.

Documents are cut and batched; a reader runs a batch through the model, in parts where memory or the host want it so,
and scores its words where the model is; every accumulator says there what it wants of these scores, and adds what comes
of it to its sums on the host.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, repeat
from operator import length_hint
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from topic_probe.lens import capture
from topic_probe.lens.running import exact_products
from topic_probe.measure.accumulators import BatchSums, OfDocuments, check_accumulator
from topic_probe.measure.folder import Folder, model_facts
from topic_probe.measure.options import Reading, Run
from topic_probe.measure.parts import Worker, facts_of_documents, parts_to_measure
from topic_probe.measure.scores import BatchScores, Pairs
from topic_probe.measure.sums import ByTopics, Parts, Progress, Sum, clear_sums
from topic_probe.options import progress_bar
from topic_probe.sums import SourceSums
from topic_probe.text.batches import TokenBatch, token_batches
from topic_probe.text.corpus import DocumentStream
from topic_probe.text.documents import Counts, Document, cut_documents, read_documents
from topic_probe.topics import Topics

# What a reader keeps of a batch until its documents are scored; a batch with more is split.
MAX_KEPT_NUMBERS = 2**27

# Cells × sources whose sums are kept apart for the intervals (48 bytes each); beyond it sources share a row.
MAX_SOURCE_CELLS = 2**22

# A model is not measured where more of the documents than this have NaN or infinity in their attention.
MAX_BROKEN_SHARE = 0.01

NO_WORD = "documents without a word of any topic"
PIECES = "pieces of split words"
FIRST = "words at the first position, where a causal model parks attention"
BROKEN = "documents with NaN or infinity in their attention"


# What makes pairs ready to be scored: moved to a device, with what accumulators look up there.
Prepare = Callable[[Pairs, torch.device], Pairs]

R = TypeVar("R", bound="Reader")


@dataclass(frozen=True)
class Part:
    """What a reader says of some documents of a batch, where the model has run.

    Attributes:
        scores: the scores of all cells.
        seen: what else is to come to the host.
        judge: says of that, when it is there, which documents are measured and what is left out. A ValueError of it is
            that of the measurement.
    """

    scores: Sequence[BatchScores]
    seen: Mapping[str, Tensor]
    judge: Callable[[Mapping[str, np.ndarray]], tuple[Bool[np.ndarray, " document"], Mapping[str, int]]]


@runtime_checkable
class Reader(Protocol):
    """Runs batches through a model and scores the pairs of words in their documents."""

    @property
    def view(self) -> capture.View:
        """The model."""

    @property
    def topics(self) -> Topics:
        """Which words are looked at."""

    def units(self, batch: TokenBatch) -> Any:
        """The words of every document."""

    def n_kept(self, units: Any) -> int:
        """How many numbers are kept of a batch with these words until its documents are scored."""

    def read(self, batch: TokenBatch, units: Any, prepare: Prepare) -> Iterable[Part]:
        """Runs a batch through the model at once, and scores its documents, some at a time as they are asked for."""


class Several(Generic[R]):
    """Readers of several topics, for all of whom a batch is run through the model once.

    Attributes:
        readers: a reader for each of the topics.
        read_all: reads a batch with all of them, and gives what each says of some documents one after the other.
    """

    def __init__(
        self,
        readers: Sequence[R],
        read_all: Callable[[Sequence[R], TokenBatch, Any, Sequence[Prepare]], Iterable[Part]],
    ) -> None:
        self.readers, self.read_all = readers, read_all

    def units(self, batch: TokenBatch) -> list[Any]:
        """The words of every document, for each of the readers."""
        return [reader.units(batch) for reader in self.readers]

    def n_kept(self, units: list[Any]) -> int:
        """How many numbers are kept of a batch until its documents are scored."""
        return sum(reader.n_kept(own) for reader, own in zip(self.readers, units, strict=True))


def every_topics(topics: Any) -> list[Topics]:
    """Each of the topics that are to be measured at once.

    Raises:
        ValueError: where there are none.
        TypeError: for what are no topics.
    """
    every = [topics] if isinstance(topics, Topics) else list(topics)
    if not every:
        raise ValueError("needed topics, or a list of at least one, got an empty list")
    for each in every:
        if not isinstance(each, Topics):
            raise TypeError(f"a list of topics needs Topics, got {each!r:.100}")
    return every


def topics_and_accumulators(
    topics: Topics | Sequence[Topics], accumulators: Sequence[Any]
) -> tuple[list[Topics], list[Any]]:
    """Every one of the topics, with what is added up for it.

    Raises:
        ValueError: for no topics, and other numbers of accumulators than of topics.
        TypeError: for what are no topics, and what cannot be added to.
    """
    every, own = every_topics(topics), [accumulators]
    if not isinstance(topics, Topics):
        own = list(accumulators) or [()] * len(every)
        if len(own) != len(every) or not all(isinstance(part, list | tuple) for part in own):
            raise ValueError(
                f"of {len(every)} topics at once, accumulators needs {len(every)} lists of accumulators, one for each, "
                f"got {accumulators!r:.100}"
            )
    for accumulator in chain.from_iterable(own):
        check_accumulator(accumulator)
    return every, own


ACCUMULATORS_IN_FOLDER = (
    "the sums of your own accumulators= are in no report, so a folder cannot keep them: measure with them without "
    "folder="
)


def source_limit(n_cells: int) -> int:
    """How many sources to keep apart for intervals, with so many cells each: a power of two."""
    return 1 << min(max((MAX_SOURCE_CELLS // n_cells).bit_length() - 1, 8), 12)


def check_broken(progress: Progress) -> None:
    """ValueError where so many documents have NaN that the model must be at fault."""
    broken = progress.left_out[BROKEN]
    seen = progress.measured + broken
    if broken > MAX_BROKEN_SHARE * seen:
        raise ValueError(
            f"{broken} of {seen} documents have NaN or infinity in their attention; this is usually overflow in "
            "half precision: load the model in float32"
        )


def facts_of_run(view: capture.View, documents: Any, reading: Reading, run: Run) -> dict[str, Any]:
    """What sums of any measurement depend on: the model, and how documents are read; nothing without a folder."""
    if run.folder is None:
        return {}
    read_as = {name: value for name, value in vars(reading).items() if name != "batch_size"}
    if not view.is_causal:  # what stands first is nothing special
        del read_as["first_position"]
    return {**read_as, **model_facts(view.model), **facts_of_documents(documents), "part_size": run.part_size}


def about_documents(sums: Mapping[str, Sum], progress: Progress, parts: Parts) -> dict[str, Any]:
    """What a report says of its documents: what was read and left out, how many sources, and "read" of its parts."""
    by_source = sums["by_source"]
    assert isinstance(by_source, SourceSums)
    return {**progress.record(), **by_source.record, **parts["read"]}


def why_nothing(progress: Progress) -> str:
    """Why no document could be measured, and what to look at."""
    if n := progress.left_out[NO_WORD] + progress.counts.left_out[NO_WORD]:
        return (
            f"none of the {n} documents holds a word of any topic, so there is nothing to compare: were topics and "
            "documents made with the same tokenizer?"
        )
    return "no document is left to measure: there were none, or all were empty"


class Engine:
    """Takes documents through a model into accumulators.

    Attributes:
        progress: what was read, left out and measured.
        sums: the sums of all accumulators by name.
    """

    def __init__(
        self, reader: Reader | Several[Any], accumulators: Sequence[Any], *, only_labelled: bool = False
    ) -> None:
        """An engine of a reader and its accumulators; of several readers, with those of each in a list of its own.

        Args:
            reader: what scores batches.
            accumulators: what is added up.
            only_labelled: whether documents without a word of any topic are counted and left out before they are in a
                batch; otherwise they are sources without pairs.
        """
        self.only_labelled = only_labelled
        self.reader = reader if isinstance(reader, Several) else Several([reader], _read_alone)
        groups = accumulators if isinstance(reader, Several) else [accumulators]
        self._batch_sums = [
            [own if isinstance(own, BatchSums) else OfDocuments(own) for own in group] for group in groups
        ]
        self.by_topics = [_named_sums(group) for group in self._batch_sums]
        self.sums: dict[str, Sum] = self.by_topics[0]
        self.progress = ByTopics()
        if len(groups) > 1:
            named = enumerate(self.by_topics)
            self.sums = {f"topics {n} {name}": values for n, own in named for name, values in own.items()}
            self.progress.by_topics = [Counter() for _ in groups]

    @property
    def view(self) -> capture.View:
        """The model; of an engine that only adds up what others have measured there is none."""
        view: capture.View = self.reader.readers[0].view
        return view

    def run(
        self,
        documents: Any,
        *,
        reading: Reading,
        run: Run,
        facts: Mapping[str, Any] | None = None,
        report: Mapping[str, Any] | None = None,
    ) -> Progress:
        """Adds documents to the sums; with a folder, those of the parts that are not there, and then all that are.

        Args:
            documents: token ids in any shape that `topic_probe.text.documents.read_documents` takes.
            reading: how they are read, with nothing left open (`Reading.of`).
            run: where sums are kept, which parts are measured here, and what is shown.
            facts: what sums in a folder depend on beside model, topics, documents and how these are read.
            report: of a folder, the "kind" of the report and the "parts" that make one of sums.

        Raises:
            ValueError: for a folder of another measurement or of other texts, ids that the model does not know, and
                where so many documents have NaN that the model must be at fault.
        """
        if run.folder is None:
            self._add_all(documents, reading, shown=run.progress)
        else:
            self._add_parts(documents, reading, run, facts or {}, report or {})
        if self.progress.whole:
            for number in range(len(self.by_topics)):
                check_broken(self.progress.of_topics(number))
        return self.progress

    def _add_parts(
        self, documents: Any, reading: Reading, run: Run, facts: Mapping[str, Any], report: Mapping[str, Any]
    ) -> None:
        """Measures the parts of this worker that are not in the folder, and adds up all that are."""
        assert run.folder is not None
        if len(self.by_topics) > 1:
            raise ValueError(
                "a folder is for one report: measure several topics one after the other, or without it"
            )
        if self.view.is_changed():
            raise ValueError(
                "hooks or edits are on the model, and a folder knows a model by its weights: take them off, or measure "
                "without folder="
            )
        topics = self.reader.readers[0].topics
        facts = {
            **facts, **facts_of_run(self.view, documents, reading, run), "topics": topics.fingerprint,
        }  # fmt: skip
        folder, worker = Folder(Path(run.folder), facts), Worker.of(run.part)
        folder.look()
        parts = parts_to_measure(
            documents, run.part_size, worker, folder.place, pad_id=self.view.facts.pad_id
        )
        try:
            for part in progress_bar(parts, unit=" parts", shown=run.progress):
                folder.look()
                self._add_all(part.documents, reading, shown=False)
                if self.progress.stopped is not None:
                    raise KeyboardInterrupt
                folder.add(part.number, part.place, self.sums, self.progress, report)
                self._forget()
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"stopped: {len(folder.places)} parts are in {folder.path}. The same call goes on from there, and "
                "tp.load_report gives the report of these"
            ) from None
        self.progress = ByTopics.like(folder.total(self.sums))

    def _forget(self) -> None:
        """Begins anew."""
        clear_sums(self.sums)
        self.progress = ByTopics()

    def _has_word(self, document: Document) -> bool:
        """Whether a document may have a word of a topic; others need no forward pass, but are counted."""
        has_word = any(bool(_labelled(reader.topics, document.ids)) for reader in self.reader.readers)
        self.progress.counts.left_out[NO_WORD] += not has_word
        return has_word

    def _add_all(self, documents: Any, reading: Reading, *, shown: bool | None) -> None:
        """Adds documents until they end or somebody interrupts."""
        counts = self.progress.counts
        keep = self._has_word if self.only_labelled else None
        n_documents = length_hint(documents, 0) if isinstance(documents, DocumentStream) else 0
        with progress_bar(unit=" documents", shown=shown) as bar:
            try:
                for batch in read_batches(documents, self.view, reading, keep=keep, counts=counts):
                    self.add(batch)
                    if n_documents:
                        n_kept = counts.documents - counts.left_out[NO_WORD]
                        bar.total = round(max(n_documents / counts.documents, 1) * n_kept)
                    bar.update(len(batch))
            except KeyboardInterrupt:
                self.progress.stopped = f"interrupted after {self.progress.measured} documents"
        self.progress.corpus = getattr(documents, "provenance", None)

    def add(self, batch: TokenBatch) -> None:
        """Adds a batch, in halves where memory or the host want it so."""
        lengths, units = batch.mask.sum(1), self.reader.units(batch)
        sharing = self.view.sharing
        apart = not (sharing.batches and (sharing.lengths or bool((lengths == lengths[0]).all())))
        if len(batch) == 1 or not (apart or self.reader.n_kept(units) > MAX_KEPT_NUMBERS):
            n_added = 0
            try:
                prepare = [partial(self._prepare, number) for number in range(len(units))]
                every = self._measured(batch)
                for part in self.reader.read_all(self.reader.readers, batch, units, prepare):
                    number = n_added % len(units)
                    self._add_part(number, part, every[number])
                    n_added += 1
                return
            except RuntimeError as error:
                # What is in the sums must not come again.
                if len(batch) == 1 or n_added or "memory" not in str(error):
                    raise
        for half in batch.halves():
            self.add(half)

    def _measured(self, batch: TokenBatch) -> list[Iterator[bool]]:
        """Which documents are measured, for each of the topics: of several, some have words in a document."""
        topics = [reader.topics for reader in self.reader.readers]
        if not self.only_labelled or len(topics) == 1:
            return [repeat(True) for _ in topics]
        return [iter(_labelled(own, batch.ids.where(batch.mask, -1)).tolist()) for own in topics]

    def _prepare(self, number: int, pairs: Pairs, device: torch.device) -> Pairs:
        return pairs.to(device, [own.prepare(pairs, device) for own in self._batch_sums[number]])

    def _score(self, number: int, part: Part) -> list[list[Mapping[str, Tensor]]]:
        """What accumulators want of some documents, where the model is."""
        own = self._batch_sums[number]
        with exact_products(self.view.model):
            return [
                [sums.score(scores, index) for sums, index in zip(own, _index(scores), strict=True)]
                for scores in part.scores
            ]

    def _add_part(self, number: int, part: Part, measured: Iterator[bool]) -> None:
        """Adds some documents: all is scored where the model is before anything comes to the host."""
        found = self._score(number, part)
        whole, left_out = part.judge(to_host(part.seen))
        wanted = np.fromiter(islice(measured, len(whole)), dtype=bool)
        kept = whole & wanted
        self.progress.add(number, int(kept.sum()), {**left_out, BROKEN: int((wanted & ~whole).sum())})
        on_host = [[to_host(sums) for sums in of_scores] for of_scores in found]
        for scores, of_scores in zip(part.scores, on_host, strict=True):
            for own, index, sums in zip(self._batch_sums[number], _index(scores), of_scores, strict=True):
                known = {name: numbers for name, numbers in index.items() if isinstance(numbers, np.ndarray)}
                own.add(scores, known | sums, kept)


def _read_alone(
    readers: Sequence[Reader], batch: TokenBatch, units: Any, prepare: Sequence[Prepare]
) -> Iterable[Part]:
    return readers[0].read(batch, units[0], prepare[0])


def _named_sums(accumulators: Sequence[BatchSums]) -> dict[str, Sum]:
    sums: dict[str, Sum] = {}
    for number, accumulator in enumerate(accumulators):
        for name, values in accumulator.sums.items():
            sums[f"{number} {name}" if name in sums else name] = values
    return sums


def _labelled(topics: Topics, ids: Int64[Tensor, "*batch position"]) -> Bool[Tensor, "*batch"]:
    """Whether documents may have a word of a topic."""
    return (topics.places(ids) >= 0).any(-1) | bool(topics.compounds)


def _index(scores: BatchScores) -> Sequence[Mapping[str, Any]]:
    assert scores.pairs.index is not None, "a reader prepares its pairs"
    return scores.pairs.index


def to_host(found: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """What was found where the model runs, on the host; nothing else of a batch comes there."""
    return {name: values.cpu().numpy() for name, values in found.items()}


def read_batches(
    documents: Any,
    view: capture.View,
    reading: Reading,
    *,
    keep: Callable[[Document], bool] | None = None,
    counts: Counts | None = None,
) -> Iterator[TokenBatch]:
    """Documents in batches as a model takes them."""
    pieces = cut_documents(
        read_documents(documents, pad_id=view.facts.pad_id),
        view.facts.vocabulary_size,
        reading.max_length,
        reading.long,
        Counts() if counts is None else counts,
        reading.special_ids or (),
    )
    return token_batches(
        pieces if keep is None else filter(keep, pieces),
        batch_size=reading.batch_size,
        pad_id=view.facts.pad_id,
        special_ids=reading.special_ids or (),
        first_is_sink=view.is_causal and reading.first_position == "sink",
    )
