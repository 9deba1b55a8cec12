"""Documents through a model, for everything that is asked of it.

`ask` reads the attention of words for questions: each keeps sums, and adds to them what every batch brings. What it
adds is pending until the whole batch is through. So a batch that does not fit into memory can be halved, and of one
with NaN in a document the others can be asked again.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from topic_probe.lens.host import Host
from topic_probe.lens.running import exact_products
from topic_probe.lens.sites import SIDES
from topic_probe.measure.documents import add_documents
from topic_probe.measure.folder import MEASURED, Progress, Sum
from topic_probe.measure.options import Reading, Run
from topic_probe.measure.pairs import NO_WORD, Level, Side, Words, all_positions, one_later
from topic_probe.sums import SourceSums
from topic_probe.text.batches import TokenBatch
from topic_probe.topics import Topics

BROKEN = "documents with NaN or infinity in their attention"
# A model is not measured where more of the documents than this have NaN or infinity in their attention.
MAX_BROKEN_SHARE = 0.01
# Numbers in the rows of a layer that are read at once: what a processor's caches keep, and what other devices hold.
_IN_CACHE, _ON_DEVICE = 2**21, 2**26
# Cells × sources whose sums are kept apart for the intervals (48 bytes each); beyond it sources share a row.
_SOURCE_CELLS = 2**22


class Question:
    """What is asked of attention: sums over documents, and what every batch adds to them.

    Attributes:
        topics: which words are looked at.
        sums: by name: float64 arrays, which are added to, and `SourceSums`, where intervals are wanted.
        level: whether words of several tokens are words, too.
        include_self: whether a position and itself are a pair.
        facts: what the sums depend on besides model, topics and documents, as JSON content; a folder asks for it.
    """

    topics: Topics
    sums: Mapping[str, Sum]
    level: Level = "token"
    include_self: bool = True
    facts: Mapping[str, Any] = {}

    def prepare(self, words: Words) -> None:
        """Looks up what it needs of words, on the host, before the model runs; tensors on ``words`` move with them."""

    def read(
        self,
        heads: Int64[Tensor, " head"],
        rows: Float[Tensor, "batch head token position"],
        visible: Bool[Tensor, "batch token position"],
        words: Words,
    ) -> None:
        """Takes the rows of attention of a layer, at the tokens of words, and adds to ``words`` what it wants of them.

        ``visible`` says which keys a row may see: the same object for layers where these are the same. The rows are
        gone afterwards.
        """
        raise NotImplementedError

    def finish(self, words: Words) -> None:
        """Adds what needs all heads, once they have been read."""


def source_limit(n_cells: int) -> int:
    """How many sources to keep apart for intervals, with so many cells each: a power of two."""
    return 1 << min(max((_SOURCE_CELLS // n_cells).bit_length() - 1, 8), 12)


# ---------------------------------------------------------------------------- attention


def ask(
    view: Host,
    questions: Sequence[Question],
    documents: Any,
    *,
    reading: Reading,
    run: Run,
    report: Mapping[str, Any] | None = None,
) -> list[Progress]:
    """What is known of the documents for every question, whose sums then hold what these say.

    Documents without a word of any question are counted and left out before the model runs.

    Args:
        view: the model.
        questions: what is asked; rows that several want are read once.
        documents: token ids in any shape that `topic_probe.text.documents.read_documents` takes.
        reading: how they are read, with nothing left open (`Reading.of`).
        run: where sums are kept, and what is shown.
        report: of a folder, the "kind" of the report and the "parts" that make one of the sums of the first question.

    Raises:
        ValueError: as `add_documents`, and where so many documents have NaN that the model must be at fault.
    """
    if run.folder is not None and len({question.topics.fingerprint for question in questions}) > 1:
        raise ValueError(
            "a folder is for one report: measure several topics one after the other, or without it"
        )
    left_out: list[Counter[str]] = [Counter() for _ in questions]

    def add(batch: TokenBatch) -> Counter[str]:
        found = ask_batch(view, questions, batch)
        for total, own in zip(left_out, found, strict=True):
            total.update(own)
        return found[0]

    named = enumerate(questions)
    sums = {f"{n} {name}" if n else name: part for n, own in named for name, part in own.sums.items()}
    first = questions[0]
    facts = {"topics": first.topics.fingerprint, "level": first.level, "include_self": first.include_self}
    facts |= first.facts
    if len(questions) > 1:
        facts["questions"] = [[type(own).__name__, dict(own.facts)] for own in questions[1:]]
    progress = add_documents(
        add, sums, documents, view, reading=reading, run=run, facts=facts, report=report,
        keep=lambda document: any(bool(_labelled(own.topics, document.ids)) for own in questions),
        fits=lambda batch: _rows_that_fit(view, questions, batch),
    )  # fmt: skip
    known = [progress]
    if len(questions) > 1 and run.folder is None:
        known = [replace(progress, measured=own.pop(MEASURED, 0), left_out=own) for own in left_out]
    known *= len(questions) // len(known)
    for own in known:
        _check_broken(own)
    return known


@torch.no_grad()
def ask_batch(view: Host, questions: Sequence[Question], batch: TokenBatch) -> list[Counter[str]]:
    """Adds to all sums what a batch says; what was left out, for every question."""
    labelled = [_labelled(question.topics, batch.ids.where(batch.mask, -1)) for question in questions]
    sides = [_sides(view, question, batch) for question in questions]
    every = [_words(view, *own, batch) for own in zip(questions, sides, strict=True)]
    _read(view, questions, every, batch)
    whole = torch.stack(
        [_finite(question, words) for question, words in zip(questions, every, strict=True)]
    ).all(0)
    if not whole.all():
        # Nothing has been added yet: once more without these documents.
        found = [Counter[str]() for _ in questions]
        if whole.any():
            found = ask_batch(view, questions, batch.rows(whole.nonzero()[:, 0]))
        for left_out, own in zip(found, labelled, strict=True):
            left_out.update({BROKEN: int((own & ~whole).sum()), NO_WORD: int((~own & ~whole).sum())})
        return found
    for question, words, measured in zip(questions, every, labelled, strict=True):
        for of_stack in words.values():
            _commit(question, of_stack, measured)
    counted = zip(sides, labelled, strict=True)
    return [
        Counter(
            {name: int(n.sum()) for name, n in own["source"].left_out.items()}
            | {MEASURED: int(measured.sum())}
        )
        for own, measured in counted
    ]


def _labelled(topics: Topics, ids: Int64[Tensor, "*batch position"]) -> Bool[Tensor, "*batch"]:
    """Whether documents may have a word of a topic."""
    return (topics.places(ids) >= 0).any(-1) | bool(topics.compounds)


def _sides(view: Host, question: Question, batch: TokenBatch) -> dict[str, Side]:
    """The words of a question in a batch; a decoder reads it one position later."""
    sides = {"source": Side(batch, question.topics, question.level)}
    if view.hooked.has_decoder:
        sides["target"] = Side(one_later(batch), question.topics, question.level)
    return sides


def _heads(view: Host) -> list[Int64[Tensor, " head"]]:
    """The heads of every site, numbered through all of them."""
    return list(torch.split(torch.arange(sum(view.n_heads)), list(view.n_heads)))


def _words(
    view: Host, question: Question, sides: Mapping[str, Side], batch: TokenBatch
) -> dict[tuple[str, str], Words]:
    """The words of queries and keys, for every kind of stack that the model has; what a question prepares of them."""
    found = {}
    for kind in dict.fromkeys(SIDES[site.stack] for site in view.sites):
        query, key = (sides[name] for name in kind)
        found[kind] = Words(
            query, key, question.topics, batch, question.sums, include_self=question.include_self
        )
        question.prepare(found[kind])
    return found


def _read(
    view: Host,
    questions: Sequence[Question],
    every: Sequence[Mapping[tuple[str, str], Words]],
    batch: TokenBatch,
) -> None:
    """Runs a batch through the model, and has all questions read the rows of every site."""
    inputs, heads, moved = view.inputs(batch.ids, batch.mask), _heads(view), dict[Tensor, Tensor]()
    device = inputs.ids.device
    index = {}
    for kind in every[0]:
        index[kind[0]] = all_positions([words[kind].query.index for words in every])
        for words in every:
            words[kind].to(device, index[kind[0]])

    def read(site: int, rows: Tensor, visible: Tensor) -> None:
        kind = SIDES[view.sites[site].stack]
        if visible not in moved:  # layers may be on several devices, and share what their rows see
            moved[visible] = visible.to(device)
        exact = rows.dtype if rows.dtype == torch.float64 else torch.float32
        rows = rows.to(device, exact)
        with exact_products(view.model):
            for question, words in zip(questions, every, strict=True):
                question.read(heads[site], *words[kind].own(rows, moved[visible]), words[kind])

    view.attention_rows(inputs, {name: own.to(device) for name, own in index.items()}, read)
    with exact_products(view.model):
        for question, words in zip(questions, every, strict=True):
            for own in words.values():
                question.finish(own)


def _finite(question: Question, words: Mapping[Any, Words]) -> Bool[Tensor, " batch"]:
    """Which documents have neither NaN nor infinity in what is added to sums by source."""
    by_source = [name for name, sums in question.sums.items() if isinstance(sums, SourceSums)]
    pending = [own.pending[name] for own in words.values() for name in by_source if name in own.pending]
    n = len(next(iter(words.values())).sources)
    found = torch.ones(n, dtype=torch.bool)
    for part in pending:
        found &= part.flatten(1).isfinite().all(1).cpu()
    return found


def _commit(question: Question, words: Words, measured: Bool[Tensor, " batch"]) -> None:
    """Adds what is pending to the sums; by source, that of documents which may have a word."""
    for name, values in words.pending.items():
        sums, found = question.sums[name], values.cpu().double().numpy()
        if isinstance(sums, SourceSums):
            sums.add(words.sources.cpu()[measured].numpy(), found[measured.numpy()])
        else:
            sums += found


def _rows_that_fit(view: Host, questions: Sequence[Question], batch: TokenBatch) -> int:
    """How many documents of a batch to read at once, as so many rows of attention fit."""
    chosen = torch.stack([own.topics.places(batch.ids) >= 0 for own in questions]).any(0) & batch.mask
    numbers = max(1, int(chosen.sum(1).max())) * batch.ids.shape[1] * max(view.n_heads)
    on_cpu = next(view.model.parameters()).device.type == "cpu"
    return max(1, (_IN_CACHE if on_cpu else _ON_DEVICE) // numbers)


def _check_broken(progress: Progress) -> None:
    """ValueError where so many documents have NaN that the model must be at fault."""
    broken = progress.left_out[BROKEN]
    seen = progress.measured + broken
    if progress.whole and broken > MAX_BROKEN_SHARE * seen:
        raise ValueError(
            f"{broken} of {seen} documents have NaN or infinity in their attention; this is usually overflow in "
            "half precision: load the model in float32"
        )
