"""Same-topic against different-topic attention: of every head, in one streamed pass over any documents."""

import os
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from topic_probe.contrast import (
    NO_RELATION,
    SAME_WORD,
    Contrast,
    DocumentSums,
    PairSums,
    bootstrap_interval,
    relations,
)
from topic_probe.data.batches import Document, TokenBatch
from topic_probe.lens import capture
from topic_probe.lens.huggingface import Site
from topic_probe.measure.positions import Level, Units, between_units, labelled_units, padded_positions
from topic_probe.measure.processes import joined
from topic_probe.measure.report import Report, provenance
from topic_probe.measure.stream import Reading, Saving, run, take_in
from topic_probe.measure.totals import Totals
from topic_probe.topics import Topics
from topic_probe.uncertainty import (
    Alternative,
    benjamini_hochberg,
    check_interval,
    divide,
    no_interval_reason,
    permutation_p_value,
)

if TYPE_CHECKING:
    import pandas as pd

# Pairs are compared within these distances |i − j|: each number is the first distance of the next bin.
DISTANCE_BINS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)

# Blocks of the patterns of one batch are kept until its documents are scored; more than this and a batch is split.
MAX_BLOCK_NUMBERS = 2**26

# Heads × documents whose sums are kept apart for the intervals (48 bytes each); beyond it documents share a row.
MAX_DOCUMENT_SUMS = 2**22

# A model is not measured where more of the documents than this have NaN or infinity in their attention.
MAX_BROKEN_SHARE = 0.01

# How far a row of attention may be from summing to one, by precision.
_ROW_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}


@dataclass(frozen=True, eq=False, repr=False)
class AttentionReport(Report, kind="attention"):
    """How much more a model attends to words of the same topic.

    Attention is relative to uniform attention: 1 is what a row gives to every key it may see if it makes no difference.
    Numbers for several heads pool their pairs (each head counts all its pairs); ``n_…`` then counts pair scores.

    Attributes:
        overall: all heads of all stacks pooled.
        stacks: by stack (one of "self", or of "encoder", "decoder" and "cross").
        layers: by stack and layer.
        heads: by stack, layer and head; ``heads.top(5)`` lists the highest ratios.
        matched: by head, with pairs compared at equal distance: both means weigh the distance bins by their number of
            same-topic pairs, so that words of a topic that merely stand closer do not count as an effect.
        overall_matched: the same, all heads pooled.
        without_sinks: by head, after taking special tokens out of every row and renormalising it.
        sink_mass: by head, the share of attention that goes to special tokens.
        provenance: model, topics, options and everything left out.
    """

    overall: Contrast
    stacks: Contrast
    layers: Contrast
    heads: Contrast
    matched: Contrast
    overall_matched: Contrast
    without_sinks: Contrast
    sink_mass: Float64[np.ndarray, " head"]
    provenance: Mapping[str, Any]

    def to_dataframe(self) -> "pd.DataFrame":
        """A row for every head."""
        table = self.heads.to_dataframe()
        table["matched_ratio"] = self.matched.ratio
        table["without_sinks_ratio"] = self.without_sinks.ratio
        table["sink_mass"] = self.sink_mass
        return table

    def _notes(self) -> list[str]:
        ratio = f"overall ratio {self.overall.ratio:.4g}"
        if self.overall.interval is not None and np.isfinite(self.overall.interval).all():
            ratio += f" [{self.overall.interval[0]:.4g}, {self.overall.interval[1]:.4g}]"
        return [ratio, *super()._notes()]


def measure_attention(
    model: Any,
    topics: Topics,
    documents: Any,
    *,
    level: Level = "token",
    include_self: bool = True,
    batch_size: int = 32,
    max_length: int | None = None,
    long: Literal["cut", "chunk"] = "cut",
    special_ids: Collection[int] | None = None,
    n_resamples: int = 1000,
    confidence: float = 0.95,
    n_permutations: int = 200,
    alternative: Alternative = "two-sided",
    seed: int = 0,
    through: capture.Through = "auto",
    check_rows: bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: float = 300.0,
    distributed: bool = False,
    progress: bool = False,
) -> AttentionReport:
    """How much more a model attends to words of the same topic, by stack, layer and head.

    Documents are streamed once; only sums are kept. Everything that a report holds, the permutation null included,
    comes out of that pass. Interrupting it (Ctrl-C) reports what has been measured until then and says so.

    Args:
        model: anything that `open_model` takes. It comes back as it was.
        topics: which vocabulary entries belong to which topic.
        documents: token ids in any shape that `topic_probe.data.batches.token_batches` takes; texts go through
            `encode_texts` first.
        level: "token" measures between tokens and leaves the pieces of split words out; "word" also measures split
            words that the topics know, attention to a word being summed over its pieces and from a word averaged. Both
            need documents with word numbers (`encode_texts`) to know what is a piece.
        include_self: whether the pair of a position with itself is a same-word pair, as in the paper.
        batch_size: documents in one forward pass; changes nothing but speed and memory.
        max_length: documents are cut at so many tokens, by default at what the model can take.
        long: "cut" drops the rest of longer documents, "chunk" makes documents of it.
        special_ids: ids of special tokens, which have no topic and are the sinks; by default what the model's tokenizer
            or configuration names.
        n_resamples: resampled sets of documents behind the intervals; 0 leaves them out.
        confidence: what share of intervals is to hold the true number.
        n_permutations: permuted topic labels behind the p-values; 0 leaves them out.
        alternative: what counts as extreme in the p-values.
        seed: seed of resampling and permutations.
        through: how attention is read, see `topic_probe.lens.capture.View.attention_rows`.
        check_rows: whether rows that do not sum to one are an error; False for models whose heads may attend to nothing
            and for patterns that you edit.
        checkpoint: a folder in which sums are saved on the way. The same call takes them up after an interruption,
            whatever stopped it, and gives the report that it would have given; once it is through, a further call has
            the sums at once. Documents in them are read again (from a corpus's cache, if it has one) but not measured.
        checkpoint_every: seconds between two saves: what is lost at most, and one batch.
        distributed: whether this is one of several processes (of ``torchrun``, or of an initialised
            ``torch.distributed``) that share out the documents between them. All are given the same arguments, all
            return the same report, and an error in one is an error in all.
        progress: whether to show a progress bar.

    Raises:
        ValueError: for topics of another vocabulary, rows that do not sum to one, too many documents with NaN, or a
            checkpoint of another measurement.
        OSError: where the checkpoint cannot be written.
        RuntimeError: where another process failed, or ``distributed`` finds no processes.
    """
    from topic_probe.lens.hosts import open_model

    if level not in ("token", "word"):
        raise ValueError(f"level must be 'token' or 'word', not {level!r}")
    check_interval(n_resamples, confidence)
    if n_permutations < 0:
        raise ValueError(f"n_permutations must be at least 0 (no p-values), got {n_permutations}")
    if alternative not in get_args(Alternative):
        raise ValueError(f"alternative must be one of {get_args(Alternative)}, got {alternative!r}")
    with joined(distributed) as processes:
        model = open_model(model)
        capture.check_topics(model, topics)
        specials = capture.special_ids(model) if special_ids is None else set(special_ids)
        reading = Reading(batch_size, max_length, specials, long)
        meter = _Meter(
            capture.view(model),
            topics,
            _Null(topics, n_permutations, seed),
            level=level,
            include_self=include_self,
            through=through,
            check_rows=check_rows,
        )
        of_sums = {
            "measurement": "attention", "level": level, "include_self": include_self, "through": through,
            "n_permutations": n_permutations, "seed": seed, "limit": meter.totals.by_document.limit,
        }  # fmt: skip
        told = take_in(
            meter,
            model,
            topics,
            documents,
            reading,
            keep=meter.has_topics,
            options=of_sums,
            saving=Saving(checkpoint, checkpoint_every),
            processes=processes,
            progress=progress,
        )
        totals = meter.totals
        meter.check_broken()
    options = {
        "level": level, "include_self": include_self, "max_length": reading.longest(model), "long": long,
        "n_resamples": n_resamples, "confidence": confidence, "n_permutations": n_permutations,
        "alternative": alternative, "distance_bins": DISTANCE_BINS, "special_ids": specials, "stopped": told.stopped,
    }  # fmt: skip
    record = provenance(
        topics,
        model=capture.describe(model),
        options=options,
        seed=seed,
        left_out=totals.intake.left_out + totals.left_out,
    ) | {
        "documents": totals.intake.documents,
        "tokens": totals.intake.tokens,
        "documents_measured": totals.measured,
        "corpus": told.corpus,
        "processes": processes.size,
    }
    if meter.sums.n_rows.sum() == 0:
        warnings.warn(
            f"none of the {totals.intake.documents} documents holds a word of any topic, so there is nothing to "
            "compare; were topics and documents made with the same tokenizer?",
            stacklevel=2,
        )
    return meter.report(
        record, n_resamples=n_resamples, confidence=confidence, alternative=alternative, seed=seed
    )


class _Null:
    """Permuted topic labels: for every permutation and labelled word, a group of words with the same topics."""

    def __init__(self, topics: Topics, n_permutations: int, seed: int) -> None:
        generator = np.random.default_rng(seed)
        groups = topics.group_of_word.numpy().astype(np.int32)[:, None]
        permuted = generator.permuted(np.tile(groups, (1, n_permutations)), axis=0)
        self.groups = torch.from_numpy(permuted)  # [word, permutation]
        self.words = topics.words
        self.shared = topics.shared
        self.disjoint = bool((topics.shared == torch.eye(len(topics.shared), dtype=torch.bool)).all())

    def __len__(self) -> int:
        return self.groups.shape[1]

    def same_topic(
        self, first: Int64[Tensor, " pair"], second: Int64[Tensor, " pair"], part: slice
    ) -> Bool[Tensor, "pair permutation"]:
        """Which pairs of entries share a topic under some of the permutations."""
        one = self.groups[torch.searchsorted(self.words, first), part]
        other = self.groups[torch.searchsorted(self.words, second), part]
        return one == other if self.disjoint else self.shared[one.long(), other.long()]


@dataclass
class _Sums:
    """Everything that is kept of the documents so far; parts add up."""

    binned: Float64[np.ndarray, "head bin 3"]
    n_binned: Float64[np.ndarray, "head bin 3"]
    without_sinks: Float64[np.ndarray, "head 3"]
    n_without_sinks: Float64[np.ndarray, "head 3"]
    sink_mass: Float64[np.ndarray, " head"]
    n_rows: Float64[np.ndarray, " head"]
    null: Float64[np.ndarray, "head permutation"]
    n_null: Float64[np.ndarray, "head permutation"]

    @classmethod
    def zeros(cls, n_heads: int, n_permutations: int) -> "_Sums":
        """No documents yet."""
        bins = (n_heads, len(DISTANCE_BINS) + 1, 3)
        shapes = (bins, bins, (n_heads, 3), (n_heads, 3), (n_heads,), (n_heads,))
        null = (n_heads, n_permutations)
        return cls(*(np.zeros(shape) for shape in (*shapes, null, null)))


@dataclass(frozen=True)
class _Block:
    """What is kept of one site for one batch until its documents are scored: rows and columns of units only."""

    scores: Float[Tensor, "batch head row column"]
    visible: Bool[Tensor, "batch row column"]
    n_visible: Float[Tensor, "batch row"]
    n_visible_sinks: Float[Tensor, "batch row"]
    sink_mass: Float[Tensor, "batch head row"]
    broken: Bool[Tensor, " batch"]


class _Meter:
    """Runs batches through a model and adds up what their attention says."""

    def __init__(
        self,
        view: capture.View,
        topics: Topics,
        null: _Null,
        *,
        level: Level,
        include_self: bool,
        through: capture.Through,
        check_rows: bool,
    ) -> None:
        self.view, self.topics, self.null = view, topics, null
        self.level, self.include_self, self.through, self.check_rows = (
            level,
            include_self,
            through,
            check_rows,
        )
        starts = np.cumsum([0, *view.n_heads])
        self.heads = [slice(int(a), int(b)) for a, b in pairwise(starts)]
        self.total_heads = int(starts[-1])
        self.sums = _Sums.zeros(self.total_heads, len(null))
        limit = int(np.clip(MAX_DOCUMENT_SUMS // self.total_heads, 256, 4096))
        self.totals = Totals(DocumentSums(limit), vars(self.sums))

    @property
    def left_out(self) -> Counter[str]:
        """What was left out of measuring, by reason."""
        return self.totals.left_out

    @property
    def measured(self) -> int:
        """Documents that were measured."""
        return self.totals.measured

    @measured.setter
    def measured(self, number: int) -> None:
        self.totals.measured = number

    def run(self, batches: Iterator[TokenBatch], *, progress: bool) -> str | None:
        """Takes in all batches; says why it stopped early, if it did."""
        stopped, _ = run(self, batches, progress=progress)
        self.check_broken()
        return stopped

    def check_broken(self) -> None:
        """ValueError where so many documents have NaN that the model must be at fault."""
        broken = self.left_out[_BROKEN]
        seen = self.measured + broken
        if broken > MAX_BROKEN_SHARE * seen:
            raise ValueError(
                f"{broken} of {seen} documents have NaN or infinity in their attention; this is usually overflow in "
                "half precision: load the model in float32"
            )

    def has_topics(self, document: Document) -> bool:
        """Whether a document may have a word of a topic; others need no forward pass, but are counted."""
        found = bool(self.topics.compounds) or bool((self.topics.labels(document.ids) >= 0).any())
        self.totals.intake.left_out[_NO_WORD] += not found
        return found

    def add(self, batch: TokenBatch) -> None:
        """Takes in a batch, in parts where memory or the host want it so."""
        if self.level == "word" and batch.word_index is None:
            raise ValueError(
                "level='word' needs documents that say which tokens form a word: make them with "
                "topic_probe.encode_texts(texts, tokenizer) and a fast tokenizer"
            )
        lengths = batch.mask.sum(1)
        mixed = not self.view.honours_padding and bool((lengths != lengths[0]).any())
        units = self._units(batch)
        largest = max(len(one.positions) for one in units["source"])
        too_much = self.total_heads * len(batch) * largest**2 > MAX_BLOCK_NUMBERS
        if len(batch) > 1 and (mixed or too_much):
            self._add_halves(batch)
            return
        if largest == 0:
            self._count(units)
            self._add_documents(batch.keys, *np.zeros((2, len(batch), self.total_heads, 3)))
            return
        try:
            blocks = self._read(batch, units)
        except RuntimeError as error:
            if len(batch) == 1 or "memory" not in str(error):
                raise
            self._add_halves(batch)
            return
        self._count(units)
        self._score(batch, units, blocks)

    def _add_halves(self, batch: TokenBatch) -> None:
        for half in batch.halves():
            self.add(half)

    def _count(self, units: Mapping[str, list[Units]]) -> None:
        for one in units["source"]:
            self.left_out[_NO_WORD] += not len(one)
            self.left_out["pieces of split words"] += one.n_pieces_left_out

    def _units(self, batch: TokenBatch) -> dict[str, list[Units]]:
        """The units of every document, on the source side and in the decoder, which reads one position later."""
        sides = {"source": (batch.ids, batch.special, batch.word_index)}
        if self.view.has_decoder:
            start = torch.full_like(batch.ids[:, :1], -1)  # an id without a topic
            later = torch.cat([start, batch.ids[:, :-1]], 1)
            special = torch.cat([start >= 0, batch.special[:, :-1]], 1)
            words = None if batch.word_index is None else torch.cat([start, batch.word_index[:, :-1]], 1)
            sides["target"] = (later, special, words)
        lengths = batch.mask.sum(1).tolist()
        return {
            side: [
                labelled_units(
                    ids[row, :length],
                    special[row, :length],
                    None if words is None else words[row, :length],
                    self.topics,
                    level=self.level,
                )
                for row, length in enumerate(lengths)
            ]
            for side, (ids, special, words) in sides.items()
        }

    def _read(self, batch: TokenBatch, units: Mapping[str, list[Units]]) -> list[_Block]:
        """The rows and columns of units of every site's pattern."""
        inputs = self.view.inputs(batch.ids, batch.mask)
        padded = {side: padded_positions(found) for side, found in units.items()}
        specials = {"source": batch.special.to(self.view.device)}
        if "target" in units:
            specials["target"] = torch.nn.functional.pad(specials["source"][:, :-1], (1, 0), value=True)
        blocks: dict[int, _Block] = {}

        def take(number: int, rows: Tensor, visible: Tensor) -> None:
            site = self.view.sites[number]
            real = padded[capture.query_side(site)][1].to(rows.device)
            columns = padded[capture.key_side(site)][0].to(rows.device)
            blocks[number] = self._block(rows, visible, real, columns, specials[capture.key_side(site)], site)

        index = {side: positions for side, (positions, _) in padded.items()}
        self.view.attention_rows(inputs, index, take, through=self.through)
        return [blocks[number] for number in range(len(self.view.sites))]

    def _block(
        self,
        rows: Float[Tensor, "batch head row key"],
        visible: Bool[Tensor, "batch row key"],
        real: Bool[Tensor, "batch row"],
        columns: Int64[Tensor, "batch column"],
        special: Bool[Tensor, "batch key"],
        site: Site,
    ) -> _Block:
        tolerance = _ROW_TOLERANCE.get(rows.dtype, 5e-2)
        rows = rows if rows.dtype in (torch.float32, torch.float64) else rows.float()
        total = rows.sum(-1)
        finite = torch.isfinite(total) | ~real[:, None, :]
        off = ((total - 1).abs() > tolerance) & real[:, None, :] & torch.isfinite(total)
        if self.check_rows and bool(off.any()):
            raise ValueError(
                f"a row of attention at {site.hook_name} sums to {float(total[off][0]):.4g} instead of 1. If hooks on "
                "the model edit its patterns, or its heads may attend to nothing, say check_rows=False"
            )
        at = columns[:, None, None, :].expand(-1, rows.shape[1], rows.shape[2], -1)
        return _Block(
            scores=rows.gather(3, at).cpu(),
            visible=visible.gather(2, at[:, 0]).cpu(),
            n_visible=visible.sum(-1).to("cpu", torch.float64),
            n_visible_sinks=(visible & special[:, None, :]).sum(-1).to("cpu", torch.float64),
            sink_mass=(rows.flatten(1, 2) @ special[:, :, None].to(rows.dtype))
            .view(total.shape)
            .to("cpu", torch.float64),
            broken=(~finite).any(-1).any(-1).cpu(),
        )

    def _score(self, batch: TokenBatch, units: Mapping[str, list[Units]], blocks: list[_Block]) -> None:
        broken = torch.stack([block.broken for block in blocks]).any(0)
        self.left_out[_BROKEN] += int(broken.sum())
        groups = self._alike(blocks)
        kept = (~broken).nonzero().flatten().tolist()
        sums, counts = (np.zeros((len(kept), self.total_heads, 3)) for _ in range(2))
        for place, row in enumerate(kept):
            for numbers in groups:
                site = self.view.sites[numbers[0]]
                asking = units[capture.query_side(site)][row]
                asked = units[capture.key_side(site)][row]
                if len(asking) and len(asked):
                    heads = np.concatenate(
                        [np.arange(self.total_heads)[self.heads[number]] for number in numbers]
                    )
                    parts = [blocks[number] for number in numbers]
                    found = self._score_document(
                        parts, row, asking, asked, heads, cross=site.stack == "cross"
                    )
                    sums[place, heads], counts[place, heads] = found
        self._add_documents(batch.keys[kept], sums, counts)

    def _add_documents(
        self,
        keys: Int64[Tensor, " document"],
        sums: Float64[np.ndarray, "document head 3"],
        counts: Float64[np.ndarray, "document head 3"],
    ) -> None:
        self.totals.by_document.add(keys.numpy(), sums, counts)
        self.measured += len(keys)

    def _alike(self, blocks: list[_Block]) -> list[list[int]]:
        """Sites with the same pairs (one stack, the same mask), which are scored together."""
        groups: list[list[int]] = []
        for number, block in enumerate(blocks):
            for group in groups:
                first = group[0]
                same_stack = self.view.sites[first].stack == self.view.sites[number].stack
                same_keys = torch.equal(blocks[first].visible, block.visible)
                if same_stack and same_keys and torch.equal(blocks[first].n_visible, block.n_visible):
                    group.append(number)
                    break
            else:
                groups.append([number])
        return groups

    def _score_document(
        self,
        blocks: list[_Block],
        row: int,
        asking: Units,
        asked: Units,
        heads: Int64[np.ndarray, " head"],
        *,
        cross: bool,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Adds one document's attention at sites that are alike; its sums and counts by head and relation."""
        n, m = len(asking.positions), len(asked.positions)
        one = blocks[0]
        raw = torch.cat([block.scores[row, :, :n, :m] for block in blocks])
        mass = torch.cat([block.sink_mass[row, :, :n] for block in blocks])
        visible, n_visible = one.visible[row, :n, :m], one.n_visible[row, :n]
        scores, pairs = between_units(raw, visible, n_visible, asking, asked)
        codes = relations(asking.entries, asked.entries, self.topics).long() * pairs
        if not self.include_self and not cross:
            codes.fill_diagonal_(NO_RELATION)
        by_row = _by_relation(scores, codes)
        self.sums.sink_mass[heads] += mass.sum(1).numpy()
        self.sums.n_rows[heads] += n
        self._add_without_sinks(
            by_row, raw, mass, visible, n_visible - one.n_visible_sinks[row, :n], codes, asking, asked, heads
        )
        self._add_pairs(scores, codes, asking, asked, heads)
        counts = torch.bincount(codes.flatten(), minlength=4)[1:].double().numpy()
        return by_row.sum(0).T.numpy(), np.broadcast_to(counts, (len(heads), 3))

    def _add_without_sinks(
        self,
        by_row: Float64[Tensor, "unit 3 head"],
        raw: Float[Tensor, "head piece other"],
        mass: Float[Tensor, "head piece"],
        visible: Bool[Tensor, "piece other"],
        n_visible: Float[Tensor, " piece"],
        codes: Int64[Tensor, "unit other_unit"],
        asking: Units,
        asked: Units,
        heads: Int64[np.ndarray, " head"],
    ) -> None:
        """The same sums after renormalising every row over what is no sink; rows with nothing left drop out."""
        rest = 1 - mass
        left = rest > 1e-6
        renormalised = torch.where(left, 1 / rest.clamp(min=1e-6), 0)
        if bool((mass > 0).any()):
            changed = (raw * renormalised[:, :, None]).to(raw.dtype)
            by_row = _by_relation(between_units(changed, visible, n_visible, asking, asked)[0], codes)
        first_piece = torch.searchsorted(asking.unit_of, torch.arange(len(asking)))
        rows_left = left[:, first_piece].double()
        counts = torch.nn.functional.one_hot(codes, 4)[:, :, 1:].sum(1).double()
        self.sums.without_sinks[heads] += torch.einsum("urh,hu->hr", by_row, rows_left).numpy()
        self.sums.n_without_sinks[heads] += (rows_left @ counts).numpy()

    def _add_pairs(
        self,
        scores: Float[Tensor, "head unit other"],
        codes: Int64[Tensor, "unit other"],
        asking: Units,
        asked: Units,
        heads: Int64[np.ndarray, " head"],
    ) -> None:
        """The sums by distance, and what the same-topic sums would be had other words formed the topics."""
        by_pair = scores.permute(1, 2, 0).flatten(0, 1)  # [unit · other, head]
        n_pairs = (codes != NO_RELATION).flatten().to(by_pair.dtype)
        by_pair = by_pair * n_pairs[:, None]
        if asking is asked:
            # A pair and its reverse share distance and topics, so both directions are one row.
            first, second = torch.triu_indices(len(asking), len(asking))
            there, back = first * len(asking) + second, second * len(asking) + first
            twice = (first != second).to(by_pair.dtype)
            by_pair = by_pair[there].addcmul_(by_pair[back], twice[:, None])
            n_pairs = n_pairs[there] + n_pairs[back] * twice
            codes = torch.maximum(codes.flatten()[there], codes.flatten()[back])
        else:
            first, second = torch.cartesian_prod(
                torch.arange(len(asking)), torch.arange(len(asked))
            ).T.contiguous()
            codes = codes.flatten()
        distance = (asking.first[first] - asked.first[second]).abs()
        related = codes != NO_RELATION
        cells = (torch.bucketize(distance, torch.tensor(DISTANCE_BINS), right=True) * 3 + codes - 1)[related]
        binned = torch.zeros(3 * (len(DISTANCE_BINS) + 1), len(scores), dtype=torch.float64)
        binned.index_add_(0, cells, by_pair[related].double())
        n_binned = torch.bincount(cells, n_pairs[related].double(), minlength=len(binned))
        self.sums.binned[heads] += binned.T.reshape(len(scores), -1, 3).numpy()
        self.sums.n_binned[heads] += n_binned.reshape(-1, 3).numpy()
        between = codes > SAME_WORD
        if len(self.null) and bool(between.any()):
            table = torch.cat([by_pair, n_pairs[:, None]], 1)[between].float()  # precise enough for a null
            self._add_null(table, asking.entries[first[between]], asked.entries[second[between]], heads)

    def _add_null(
        self,
        table: Float[Tensor, "pair column"],
        first: Int64[Tensor, " pair"],
        second: Int64[Tensor, " pair"],
        heads: Int64[np.ndarray, " head"],
    ) -> None:
        """Adds, for every permutation, the sums of the pairs that would share a topic; the last column counts them."""
        step = max(1, 2**24 // len(table))
        for start in range(0, len(self.null), step):
            part = slice(start, min(start + step, len(self.null)))
            same = self.null.same_topic(first, second, part)
            found = (table.T @ same.float()).double().numpy()
            place = np.ix_(heads, np.arange(part.start, part.stop))
            self.sums.null[place] += found[:-1]
            self.sums.n_null[place] += found[-1]

    def report(
        self,
        record: Mapping[str, Any],
        *,
        n_resamples: int,
        confidence: float,
        alternative: Alternative,
        seed: int,
    ) -> AttentionReport:
        """What the sums say."""
        sites = self.view.sites
        site_of = np.repeat(np.arange(len(sites)), self.view.n_heads)
        head_of = np.concatenate([np.arange(n) for n in self.view.n_heads])
        stacks = list(dict.fromkeys(site.stack for site in sites))
        stack_of = np.array([stacks.index(sites[site].stack) for site in site_of])
        index = {
            "stack": tuple(sites[site].stack for site in site_of),
            "layer": tuple(sites[site].layer for site in site_of),
            "head": tuple(int(head) for head in head_of),
        }
        rows = (
            self.totals.by_document.rows()
            if len(self.totals.by_document)
            else (None, *2 * (np.zeros((0, self.total_heads, 3)),))
        )

        def pooled(groups: Int64[np.ndarray, " head"], index: Mapping[str, Any] | None) -> Contrast:
            starts = np.flatnonzero(np.diff(groups, prepend=-1))
            sums, counts = (np.add.reduceat(part, starts, axis=1) for part in rows[1:])
            null = None
            if len(self.null):
                null = np.add.reduceat(self.sums.null, starts), np.add.reduceat(self.sums.n_null, starts)
            found = _contrast(sums, counts, null, n_resamples, confidence, alternative, seed)
            return replace(found, index=index) if index is not None else found[0]

        by_site = {"stack": tuple(site.stack for site in sites), "layer": tuple(site.layer for site in sites)}
        return AttentionReport(
            overall=pooled(np.zeros_like(site_of), None),
            stacks=pooled(stack_of, {"stack": tuple(stacks)}),
            layers=pooled(site_of, by_site),
            heads=pooled(np.arange(self.total_heads), index),
            matched=replace(_matched(self.sums.binned, self.sums.n_binned), index=index),
            overall_matched=_matched(
                self.sums.binned.sum(0, keepdims=True), self.sums.n_binned.sum(0, keepdims=True)
            )[0],
            without_sinks=PairSums(self.sums.without_sinks, self.sums.n_without_sinks).contrast(index=index),
            sink_mass=divide(self.sums.sink_mass, self.sums.n_rows),
            provenance=record,
        )


_NO_WORD = "documents without a word of any topic"
_BROKEN = "documents with NaN or infinity in their attention"


def _by_relation(
    scores: Float[Tensor, "head unit other"], codes: Int64[Tensor, "unit other"]
) -> Float64[Tensor, "unit 3 head"]:
    """Every row's sums of scores by relation."""
    chosen = torch.nn.functional.one_hot(codes, 4)[:, :, 1:].transpose(1, 2).to(scores.dtype)
    return torch.bmm(chosen, scores.permute(1, 2, 0)).double()


def _contrast(
    sums: Float64[np.ndarray, "document group 3"],
    counts: Float64[np.ndarray, "document group 3"],
    null: tuple[np.ndarray, np.ndarray] | None,
    n_resamples: int,
    confidence: float,
    alternative: Alternative,
    seed: int,
) -> Contrast:
    total = PairSums(sums.sum(0), counts.sum(0))
    found = total.contrast()
    if n_resamples:
        interval = bootstrap_interval((sums, counts), n_resamples=n_resamples, level=confidence, seed=seed)
        found = replace(found, interval=interval, reason=no_interval_reason(interval, len(sums), "documents"))
    if null is not None:
        same, n_same = null
        different = total.sums[:, 1:].sum(1, keepdims=True) - same
        n_different = total.counts[:, 1:].sum(1, keepdims=True) - n_same
        ratios = divide(divide(same, n_same), divide(different, n_different))
        p_value = permutation_p_value(found.ratio, ratios, alternative=alternative)
        found = replace(found, p_value=p_value, q_value=benjamini_hochberg(p_value))
    return found


def _matched(sums: Float64[np.ndarray, "head bin 3"], counts: Float64[np.ndarray, "head bin 3"]) -> Contrast:
    """Means of bin means, the bins weighed by their number of same-topic pairs, where both kinds of pairs exist."""
    both = (counts[..., 1] > 0) & (counts[..., 2] > 0)
    weights = np.where(both, counts[..., 1], 0.0)
    means = np.nan_to_num(divide(sums, counts))
    same, different = ((weights * means[..., relation]).sum(1) for relation in (1, 2))
    n_same, n_different = weights.sum(1), np.where(both, counts[..., 2], 0.0).sum(1)
    return Contrast(
        divide(sums[..., 0].sum(1), counts[..., 0].sum(1)), divide(same, n_same), divide(different, n_same),
        counts[..., 0].sum(1), n_same, n_different,
    )  # fmt: skip
