"""One pass of documents through a meter: shared out over processes, interrupted, and taken up again."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import length_hint
from typing import Any, Literal, Protocol, runtime_checkable

from topic_probe.lens import capture
from topic_probe.measure.checkpoint import Checkpoint, Past, key_sum, model_facts
from topic_probe.measure.processes import Processes
from topic_probe.measure.totals import Totals, add_up
from topic_probe.text.batches import TokenBatch, token_batches
from topic_probe.text.corpus import DocumentStream
from topic_probe.text.documents import Counts, Document, read_documents
from topic_probe.topics import Topics

_NOTHING, _ALONE = Past(), Processes()


@runtime_checkable
class Meter(Protocol):
    """What adds up batches."""

    totals: Totals

    def add(self, batch: TokenBatch) -> None:
        """Takes in a batch."""


@dataclass(frozen=True)
class Reading:
    """How documents are read; all of it decides what is in the sums.

    Attributes:
        batch_size: documents in one forward pass.
        max_length: tokens of a document at most; None: what the model can take.
        long: what becomes of longer ones.
        special_ids: ids of special tokens.
    """

    batch_size: int
    max_length: int | None
    special_ids: Collection[int]
    long: Literal["cut", "chunk"] = "cut"

    def longest(self, model: Any) -> int | None:
        """How many tokens of a document a model is given."""
        limit = capture.context_length(model)
        return limit if self.max_length is None else min(self.max_length, limit or self.max_length)


@dataclass(frozen=True)
class Saving:
    """Whether sums are saved on the way: where (None: nowhere), and at most how many seconds are lost."""

    path: Any = None
    seconds: float = 300.0


@dataclass(frozen=True)
class Told:
    """What is known of a pass beside its sums: why it stopped early, if it did, and what the documents were."""

    stopped: str | None
    corpus: Mapping[str, Any] | None


def take_in(
    meter: Meter,
    model: Any,
    topics: Topics,
    documents: Any,
    reading: Reading,
    *,
    keep: Callable[[Document], bool] | None = None,
    options: Mapping[str, Any],
    saving: Saving,
    processes: Processes,
    progress: bool = False,
) -> Told:
    """Runs the documents of all processes through their meters, and makes the totals those of all.

    ``options`` are what the sums depend on beside model, topics and documents; ``keep`` says which documents need to be
    in a batch at all, as in `token_batches`, and may count the others in the intake of the totals.
    """
    share = share_of(documents, processes, capture.pad_id(model))
    facts = {
        **options,
        "batch_size": reading.batch_size,
        "max_length": reading.longest(model),
        "long": reading.long,
        "special_ids": sorted(reading.special_ids),
        "topics": topics.fingerprint,
    }
    if saving.path is not None or processes.size > 1:
        facts |= model_facts(model)
        _check_alike(facts, processes)
    checkpoint, past, documents_known = None, Past(), False
    if saving.path is not None:
        facts["documents"] = described = _described(share)
        documents_known = described is not None and described["identity"] is not None
        checkpoint = Checkpoint(saving.path, facts, seconds=saving.seconds, processes=processes)
        past = checkpoint.resume(meter.totals)
    if past.finished and documents_known:
        meter.totals.intake, stopped, corpus = _counted(past.intake or {}), None, past.corpus
    else:
        expected = _Expected(share, keep, meter.totals.intake)
        batches = token_batches(
            share,
            batch_size=reading.batch_size,
            max_length=reading.longest(model),
            long=reading.long,
            pad_id=capture.pad_id(model),
            vocabulary_size=capture.vocabulary_size(model),
            special_ids=reading.special_ids,
            keep=expected.keep,
            counts=meter.totals.intake,
        )
        stopped, past = run(
            meter,
            batches,
            checkpoint=checkpoint,
            past=past,
            processes=processes,
            progress=progress,
            total=expected.total,
        )
        corpus = getattr(share, "provenance", None)
        if checkpoint is not None and stopped is None:
            counted = {**vars(meter.totals.intake), "left_out": dict(meter.totals.intake.left_out)}
            checkpoint.try_to_save(meter.totals, replace(past, finished=True, corpus=corpus, intake=counted))
    add_up(meter.totals, processes)
    return _of_all(stopped, corpus, processes)


def run(
    meter: Meter,
    batches: Iterator[TokenBatch],
    *,
    checkpoint: Checkpoint | None = None,
    past: Past = _NOTHING,
    processes: Processes = _ALONE,
    progress: bool = False,
    total: Callable[[], int | None] = lambda: None,
) -> tuple[str | None, Past]:
    """Takes in the batches that are not in the totals yet; why it stopped early, if it did, and how far it came.

    ``total`` says how many documents are expected in all batches, which only the time left is told by.
    """
    from tqdm.auto import tqdm

    now = _NOTHING
    with tqdm(unit=" documents", disable=not progress or processes.index > 0) as bar:
        try:
            for batch in batches:
                now = Past(now.batches + 1, (now.keys + key_sum(batch.keys)) % 2**64)
                if now.batches > past.batches:
                    meter.add(batch)
                    if checkpoint is not None:
                        checkpoint.save_if_due(meter.totals, now)
                elif checkpoint is not None and now.batches == past.batches:
                    checkpoint.check_documents(past, now)
                processes.look()
                bar.total = total()
                bar.update(len(batch))
        except KeyboardInterrupt:
            return f"interrupted after {meter.totals.measured} documents", now
    if checkpoint is not None and now.batches < past.batches:
        checkpoint.check_documents(past, now)
    return None, now


class _Expected:
    """How many documents will be in batches, by how many there are and the share of them that is kept."""

    def __init__(self, documents: Any, keep: Callable[[Document], bool] | None, intake: Counts) -> None:
        stream = isinstance(documents, DocumentStream)
        self.n_documents = length_hint(documents, 0) if stream else 0
        self.wanted, self.intake, self.kept = keep, intake, 0

    def keep(self, document: Document) -> bool:
        """Whether a document is to be in a batch."""
        found = self.wanted is None or self.wanted(document)
        self.kept += found
        return found

    def total(self) -> int | None:
        """The expected number; None where nobody knows how many there are."""
        if not (self.n_documents and self.intake.documents):
            return None
        return round(max(self.n_documents / self.intake.documents, 1) * self.kept)


def share_of(documents: Any, processes: Processes, pad_id: int | None) -> Any:
    """What one process measures of the documents that all of them were given: every n-th one.

    A stream of a corpus is shared out by the corpus, which can hand out whole files. One whose corpus was split before
    is taken as the share of this process.
    """
    if processes.size == 1:
        return documents
    if not isinstance(documents, DocumentStream):
        return islice(read_documents(documents, pad_id=pad_id), processes.index, None, processes.size)
    corpus = documents.corpus
    if corpus.n_shards == 1:
        return documents.shard(processes.index, processes.size)
    if (corpus.shard_index, corpus.n_shards) != (processes.index, processes.size):
        raise ValueError(
            f"process {processes.index} of {processes.size} was given share {corpus.shard_index} of {corpus.n_shards} "
            "of the corpus: give every process the whole corpus, which is shared out here, or its own share"
        )
    return documents


def _counted(saved: Mapping[str, Any]) -> Counts:
    return Counts(**{**saved, "left_out": Counter(saved.get("left_out"))})


def _check_alike(facts: Mapping[str, Any], processes: Processes) -> None:
    """Sums of different things must not be added up."""
    for number, other in enumerate(processes.gather(facts)):
        differing = [name for name in facts if other.get(name) != facts[name]]
        if differing:
            raise ValueError(
                f"process {number} measures something else than process {processes.index}; they differ in "
                f"{', '.join(differing)}: give all processes the same model, topics and options"
            )


def _described(documents: Any) -> dict[str, Any] | None:
    """What documents say of themselves before they are read, and a hash of them where it can be known."""
    told = getattr(documents, "provenance", None)
    if not isinstance(told, Mapping):
        return None
    identity = documents.identity() if isinstance(documents, DocumentStream) else None
    return {name: value for name, value in told.items() if name != "read"} | {"identity": identity}


def _of_all(stopped: str | None, corpus: Mapping[str, Any] | None, processes: Processes) -> Told:
    """What is told of all processes: the whole corpus, and everything that was read of it."""
    if processes.size == 1:
        return Told(stopped, corpus)
    told = processes.gather((stopped, corpus))
    reasons = [f"process {number} {reason}" for number, (reason, _) in enumerate(told) if reason]
    corpora = [part for _, part in told]
    whole = corpora[0]
    if whole is not None and isinstance(whole.get("corpus"), Mapping):
        counted = [part["read"] for part in corpora]
        whole = whole | {
            "corpus": whole["corpus"] | {"shard_index": 0, "n_shards": 1},
            "read": None if None in counted else _added(counted),
        }
    return Told("; ".join(reasons) or None, whole)


def _added(counts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    left_out: Counter[str] = sum((Counter(part["left_out"]) for part in counts), Counter())
    return {
        name: dict(sorted(left_out.items())) if name == "left_out" else sum(part[name] for part in counts)
        for name in counts[0]
    }
