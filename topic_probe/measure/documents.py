"""The one way of documents through a measurement: cut, batched, added up; with a folder, part by part."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import length_hint
from pathlib import Path
from typing import Any

from topic_probe.lens.host import Host
from topic_probe.measure.folder import MEASURED, Folder, Progress, Sum, clear, model_facts
from topic_probe.measure.options import Reading, Run
from topic_probe.measure.pairs import NO_WORD
from topic_probe.measure.parts import Worker, facts_of_documents, parts_to_measure
from topic_probe.options import progress_bar
from topic_probe.text.batches import TokenBatch, token_batches
from topic_probe.text.corpus import DocumentStream
from topic_probe.text.documents import Counts, Document, cut_documents, read_documents


def add_documents(
    add: Callable[[TokenBatch], Counter[str]],
    sums: Mapping[str, Sum],
    documents: Any,
    view: Host,
    *,
    reading: Reading,
    run: Run,
    facts: Mapping[str, Any] | None = None,
    report: Mapping[str, Any] | None = None,
    keep: Callable[[Document], bool] = lambda document: True,
    fits: Callable[[TokenBatch], int] = len,
) -> Progress:
    """What is known of documents that have been added to sums, batch by batch.

    With a folder, those of the parts that are not there are added, and then the sums are those of all parts that are.
    Interrupting it (Ctrl-C) without a folder ends it, and what was added stays.

    Args:
        add: adds a batch to the sums, and returns what was left out of it by reason, and under `MEASURED` how many
            documents were not. It raises before it has added anything: where memory is out, halves are tried.
        sums: by name.
        documents: as in `ask`.
        view: the model.
        reading: how they are read.
        run: where sums are kept, and what is shown.
        facts: what sums in a folder depend on besides model, documents and how these are read.
        report: of a folder, the "kind" of the report and the "parts" that make one of sums.
        keep: which documents are added; others are counted as without words.
        fits: how many documents of a batch to add at once.

    Raises:
        ValueError: for a folder of another measurement or of other texts, and ids that the model does not know.
    """

    def add_all(given: Any, shown: bool | None) -> Progress:
        return _add_all(add, given, view, reading, keep, fits, shown)

    if run.folder is None:
        return add_all(documents, run.progress)
    if view.is_changed():
        raise ValueError(
            "hooks or edits are on the model, and a folder knows a model by its weights: take them off, or measure "
            "without folder="
        )
    facts = {**(facts or {}), **facts_of_run(view, documents, reading, run)}
    folder = Folder(Path(run.folder), facts)
    folder.look()
    parts = parts_to_measure(
        documents, run.part_size, Worker.of(run.part), folder.place, pad_id=view.facts.pad_id
    )
    try:
        for part in progress_bar(parts, unit=" parts", shown=run.progress):
            folder.look()
            progress = add_all(part.documents, False)
            if progress.stopped is not None:
                raise KeyboardInterrupt
            folder.add(part.number, part.place, sums, progress, report or {})
            clear(sums)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"stopped: {len(folder.places)} parts are in {folder.path}. The same call goes on from there, and "
            "tp.load_report gives the report of these"
        ) from None
    return folder.total(sums)


def facts_of_run(view: Host, documents: Any, reading: Reading, run: Run) -> dict[str, Any]:
    """What sums of any measurement depend on: the model, and how documents are read; nothing without a folder."""
    if run.folder is None:
        return {}
    read_as = {name: value for name, value in vars(reading).items() if name != "batch_size"}
    if not view.is_causal:  # what stands first is nothing special
        del read_as["first_position"]
    return {**read_as, **model_facts(view.model), **facts_of_documents(documents), "part_size": run.part_size}


def _add_all(
    add: Callable[[TokenBatch], Counter[str]],
    documents: Any,
    view: Host,
    reading: Reading,
    keep: Callable[[Document], bool],
    fits: Callable[[TokenBatch], int],
    shown: bool | None,
) -> Progress:
    """Adds documents until they end or somebody interrupts."""
    progress = Progress()
    counts = progress.counts

    def kept(document: Document) -> bool:
        wanted = keep(document)
        counts.left_out[NO_WORD] += not wanted
        return wanted

    n_documents = length_hint(documents, 0) if isinstance(documents, DocumentStream) else 0
    with progress_bar(unit=" documents", shown=shown) as bar:
        try:
            for batch in read_batches(documents, view, reading, keep=kept, counts=counts):
                progress.left_out.update(_add_halves(add, batch, view.sharing, fits))
                if n_documents:
                    n_kept = counts.documents - counts.left_out[NO_WORD]
                    bar.total = round(max(n_documents / counts.documents, 1) * n_kept)
                bar.update(len(batch))
        except KeyboardInterrupt:
            progress.stopped = f"interrupted after {progress.left_out[MEASURED]} documents"
    progress.measured = progress.left_out.pop(MEASURED, 0)
    progress.corpus = getattr(documents, "provenance", None)
    return progress


def _add_halves(
    add: Callable[[TokenBatch], Counter[str]],
    batch: TokenBatch,
    sharing: Any,
    fits: Callable[[TokenBatch], int],
) -> Counter[str]:
    """Adds a batch, in halves where memory or the model want it so; what was left out."""
    lengths = batch.mask.sum(1)
    together = sharing.batches and (sharing.lengths or bool((lengths == lengths[0]).all()))
    if len(batch) == 1 or (together and len(batch) <= fits(batch)):
        try:
            return add(batch)
        except RuntimeError as error:
            if len(batch) == 1 or "memory" not in str(error):
                raise
    found: Counter[str] = Counter()
    for half in batch.halves():
        found.update(_add_halves(add, half, sharing, fits))
    return found


def read_batches(
    documents: Any,
    view: Host,
    reading: Reading,
    *,
    keep: Callable[[Document], bool] | None = None,
    counts: Counts | None = None,
) -> Iterator[TokenBatch]:
    """Documents in batches as a model takes them."""
    specials = reading.special_ids or ()
    pieces: Iterable[Document] = cut_documents(
        read_documents(documents, pad_id=view.facts.pad_id), view.facts.vocabulary_size, reading.max_length,
        reading.long, Counts() if counts is None else counts, specials,
    )  # fmt: skip
    return token_batches(
        pieces if keep is None else filter(keep, pieces),
        batch_size=reading.batch_size,
        pad_id=view.facts.pad_id,
        special_ids=specials,
        first_is_sink=view.is_causal and reading.first_position == "sink",
    )


def why_nothing(progress: Progress) -> str:
    """Why no document could be measured, and what to look at."""
    if n := progress.left_out[NO_WORD] + progress.counts.left_out[NO_WORD]:
        return (
            f"none of the {n} documents holds a word of any topic, so there is nothing to compare: were topics and "
            "documents made with the same tokenizer?"
        )
    return "no document is left to measure: there were none, or all were empty"
