"""What a model makes of the topics of a text when words of one topic give way to words of another."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from topic_probe.lens import capture
from topic_probe.lens.opening import open_model
from topic_probe.lens.sites import Inputs
from topic_probe.measure.effects import Numbers, add_up, effects, parts_of, record_of, share_of_effects
from topic_probe.measure.engine import read_batches
from topic_probe.measure.exchanges import Exchanges, word_classes
from topic_probe.measure.heads import Heads
from topic_probe.measure.log_odds import ShiftReader
from topic_probe.measure.options import Intervals, Reading, Run
from topic_probe.measure.outcomes import check_one_stack, mask_id_of
from topic_probe.measure.patterns import units_of
from topic_probe.options import check_share, check_whole, shares
from topic_probe.processes import joined
from topic_probe.report import Report
from topic_probe.text.documents import check_read_again, content_hash
from topic_probe.text.shares import Shards
from topic_probe.text.sums import Parts, Progress, Sums
from topic_probe.topics import Topics
from topic_probe.toy.masking import MASK_ID, Masking
from topic_probe.toy.world import World
from topic_probe.uncertainty import Alternative, divide, source_interval

if TYPE_CHECKING:
    import pandas as pd

_READOUT = (0, 1, 0)


@dataclass(frozen=True, eq=False, repr=False)
class ShiftReport(Report, kind="shift"):
    """What replacing words of a document's topic by words of another does to the topics that are predicted.

    The log-odds are the logarithm of the summed probability of the words of the document's topic − that of the words of
    the other topic, so that words of the other topic make them smaller.

    Attributes:
        log_odds: before anything is replaced.
        log_odds_interval: its interval, over sources.
        shift: the log-odds after − before.
        interval: of the shift, over sources.
        detectable: the shift that would be found with probability 0.8: whose interval at 5 % would not hold 0.
        p_value: how often as much comes of the same texts where words are put into topics at random.
        null: the shifts that come of that.
        own_words: the shifts that come of replacing the same words by others of their own topic.
        beyond: the shift − the mean of these.
        beyond_interval: its interval, over sources.
        expected: how far the exact posterior of the world moves, or else the share of words
            (``provenance["options"]["reference"]``).
        slope: shift ÷ expected; with an exact posterior 1 for a model that predicts as well as can be.
        slope_interval: its interval, over sources.
        index: "stack", "layer" and "head" of the heads that were looked at.
        share: how much of the shift each carries: the change of the log-odds where it alone puts out what it does on
            the text with replaced words ÷ shift. Shares need not add up to 1.
        share_interval: their intervals, over sources.
        provenance: model, topics, options, everything left out, and how many words were replaced.
    """

    figure: ClassVar[str] = "effects:shift_forest"
    log_odds: float
    log_odds_interval: Float64[np.ndarray, "2"]
    shift: float
    interval: Float64[np.ndarray, "2"]
    detectable: float
    p_value: float
    null: Float64[np.ndarray, " draw"]
    own_words: Float64[np.ndarray, " times"]
    beyond: float
    beyond_interval: Float64[np.ndarray, "2"]
    expected: float
    slope: float
    slope_interval: Float64[np.ndarray, "2"]
    index: Mapping[str, tuple[Any, ...]]
    share: Float64[np.ndarray, " head"]
    share_interval: Float64[np.ndarray, "head 2"]
    provenance: Mapping[str, Any]

    @classmethod
    def of_sums(cls, sums: Sums, progress: Progress, parts: Parts) -> "ShiftReport":
        """The report of what accumulators have added up.

        Args:
            sums: "by_source" of the cells of `ShiftReader`, and numbers of "words".
            progress: what is known of the documents beside them.
            parts: those of `parts_of`; "index" of the heads; "first_own" and "first_permuted", the first cells with
                words of the document's own topic and with permuted labels.

        Raises:
            ValueError: where no document is left to measure.
        """
        record, numbers = record_of(sums, progress, parts), Numbers.of(sums["by_source"])
        options, confidence = record["options"], Intervals(**parts["intervals"]).over_sources
        first_own, first_permuted = parts["first_own"], parts["first_permuted"]
        own = range(first_own, first_permuted)
        permuted = range(first_permuted, first_permuted + options["n_permutations"])
        found = effects(
            numbers, {"log-odds": _READOUT}, [1], [permuted], confidence=confidence, alternative=options["alternative"]
        )  # fmt: skip
        beyond, beyond_interval = np.nan, np.full(2, np.nan)
        if own:
            rest = numbers.beyond(1, own)
            beyond = rest.value(_READOUT).item()
            beyond_interval = (
                beyond_interval if confidence is None else rest.interval(_READOUT, confidence)[0]
            )
        slope, slope_interval = _quotients(numbers, [1], 2, confidence)
        share, share_interval = _quotients(numbers, range(3, first_own), 1, confidence)
        n_chosen, n_replaced, n_null = map(int, sums["words"])
        matched = n_null / max(n_replaced * len(own), 1) if own else None
        return cls(
            log_odds=found["outcome"].item(), log_odds_interval=found["outcome_interval"][0],
            shift=found["effect"].item(), null=found["null"][0, 0], interval=found["interval"][0, 0],
            own_words=numbers.value(_READOUT)[list(own)], beyond=beyond, beyond_interval=beyond_interval,
            detectable=found["detectable"].item(), p_value=found["p_value"].item(),
            expected=numbers.value(_READOUT)[2].item(), slope=slope.item(), slope_interval=slope_interval[0],
            index=parts["index"], share=share, share_interval=share_interval,
            provenance=record | {"words": {"chosen": n_chosen, "replaced": n_replaced, "matched": matched}},
        )  # fmt: skip

    def to_dataframe(self) -> "pd.DataFrame":
        """The log-odds, their shift, its slope, and a row for every head with its share."""
        import pandas as pd

        rows: list[dict[str, Any]] = [
            {"quantity": "log-odds", "value": self.log_odds, "ends": self.log_odds_interval},
            {"quantity": "shift", "value": self.shift, "ends": self.interval, "p_value": self.p_value},
            {"quantity": "beyond own words", "value": self.beyond, "ends": self.beyond_interval},
            {"quantity": "slope", "value": self.slope, "ends": self.slope_interval},
        ]
        heads = zip(*self.index.values(), strict=True)
        for (stack, layer, head), share, ends in zip(heads, self.share, self.share_interval, strict=True):
            place = {"stack": stack, "layer": layer, "head": head}
            rows.append({"quantity": "share of head", **place, "value": share, "ends": ends})
        for row in rows:
            row["low"], row["high"] = row.pop("ends")
        columns = ["quantity", "stack", "layer", "head", "value", "low", "high", "p_value"]
        table = pd.DataFrame(rows).reindex(columns=columns).astype({"layer": "Int64", "head": "Int64"})
        return table.dropna(axis="columns", how="all")

    def _notes(self) -> list[str]:
        words = self.provenance["words"]
        alone = f"{self.provenance['options']['reference']} alone moves by {self.expected:.4g}"
        notes = [f"{words['replaced']:,} words were replaced; {alone}"]
        if rest := words["chosen"] - words["replaced"]:
            notes.append(f"{rest:,} more stayed, for want of a word of their frequency in the other topic")
        if note := self.provenance.get("no_interval"):
            notes.append(note)
        elif self.interval[0] < 0 < self.interval[1] and len(self.share):
            notes.append(
                "the shift is not told from 0, so shares of it mean little, and most have no interval"
            )
        return [*notes, *super()._notes()]


@shares
def measure_shift(
    model: Any,
    topics: Topics,
    documents: Any,
    *,
    fraction: float = 0.5,
    toward: str | None = None,
    heads: Any = "each",
    mask_share: float = 0.15,
    world: World | None = None,
    masking: Masking | None = None,
    logits: Callable[[Any, Inputs], Tensor] | None = None,
    frequency: Any = None,
    frequency_bins: int = 5,
    n_matched: int = 20,
    n_permutations: int = 200,
    alternative: Alternative = "two-sided",
    reading: Reading,
    intervals: Intervals,
    run: Run,
    shards: Shards,
) -> ShiftReport:
    """How far a model follows when words of a document's topic give way to words of another, and through which heads.

    In every document words of its most frequent topic are replaced, all that are shown of a word by the same other
    word: one of another topic, of the same class of frequency, and of one token, as what it replaces. Words in several
    tokens stay. Log-odds of the two topics (see `ShiftReport`) are read at positions that are held out: masked ones,
    which nothing replaces; of a causal model those that predict a word of some topic.

    A head's share is told by patching: the text stays as it is, and the head puts out what it does on the text with
    replaced words. Beside the shift stands what comes of replacing the same words by others of their own topic, which
    should do nothing. The p-value is that of permuted labels: log-odds of the same texts, where other words of their
    frequency stand in the places of the words of all topics. A model that merely repeats what it has read follows, too.

    The slope compares the model with the posterior of the world that the documents come from, where ``world`` names it;
    else with what the counts of words say: log((a + 1) / (b + 1)) for a shown words of the document's topic and b of
    the other (before the position, of a causal model), after − before.

    Args:
        model: anything that `open_model` takes, with a head that predicts words and one stack. It comes back as it was.
        topics: which vocabulary entries belong to which topic; words of both topics are never replaced nor counted.
        documents: token ids in any shape that `topic_probe.text.batches.token_batches` takes.
        fraction: what share of the words of the topic is replaced (of different words; at least one).
        toward: the name of the other topic. None: drawn for every document.
        heads: "each", or some, as in ``measure_ablation(sets=...)``: "5.2,5.7"; "" for none.
        mask_share: what share of tokens is masked; the same ones in every text.
        world: the distribution of the documents, of which the exact posterior is known; its mask is id 0. In one with a
            fixed number of topics per document one more is next to impossible, and the posterior moves beyond all
            models: slopes are for worlds that follow LDA.
        masking: the scheme by which a model of that world was trained; by default `Masking()`.
        logits: a function (model, inputs) that gives scores over the vocabulary at every position, in place of the
            model's own head.
        frequency: how often every token id occurs. None: counted in the documents, which are then read twice, by every
            shard all of them.
        frequency_bins: classes of frequency, of equally many words.
        n_matched: how many times the same words are replaced by others of their own topic.
        n_permutations: permuted topic labels behind the p-value, which need no forward pass; 0 leaves it out.
        alternative: what counts as extreme in the p-value.

    Raises:
        ValueError: for topics of another vocabulary, a topic or heads that there are not, a model without scores over
            the vocabulary, of two stacks or whose heads cannot be edited, documents that can be read only once, or a
            checkpoint of another measurement.

    Example:
        A model that predicts the same whatever it reads follows nothing:

        >>> import torch
        >>> world = tp.World(n_topics=4, words_per_topic=5)
        >>> toy = tp.build_toy(tp.ToyConfig(regime="value", world=world), tensors={"W_V": torch.zeros(21, 21)})
        >>> documents = world.documents(16, generator=torch.Generator().manual_seed(0))
        >>> report = tp.measure_shift(toy, world.topics, documents, world=world, n_matched=0)
        >>> report.slope, report.expected < 0
        (0.0, True)
    """
    check_share("fraction", fraction)
    check_share("mask_share", mask_share)
    check_whole("n_matched", n_matched, 0)
    check_whole("n_permutations", n_permutations, 0)
    check_whole("frequency_bins", frequency_bins, 1)
    with joined(run.distributed, run.patience) as processes:
        model = open_model(model)
        view = capture.view(model, topics)
        reading = reading.of(view.facts)
        mask_id = _mask_id(view, world)
        every = Heads.of(view)
        chosen = tuple(range(len(every))) if heads == "each" else every.named(heads)
        counts = (
            _counts(view, topics, documents, reading) if frequency is None else torch.as_tensor(frequency)
        )
        class_of = word_classes(topics, counts, frequency_bins)
        exchanges = Exchanges(
            topics, class_of, fraction, _topic(topics, toward), n_matched, n_permutations, intervals.seed
        )
        scheme = None if world is None else (world, masking or Masking())
        told = logits or (lambda model, inputs: view.host.logits(inputs))
        reader = ShiftReader(view, exchanges, told, every, chosen, mask_share, mask_id, scheme)
        options = {
            "fraction": fraction, "toward": toward, "heads": [every.name(head) for head in chosen],
            "mask_share": mask_share, "reference": "the share of words" if scheme is None else "the exact posterior",
            "logits": None if logits is None else getattr(logits, "__qualname__", type(logits).__name__),
            "frequency_bins": frequency_bins, "n_matched": n_matched, "n_permutations": n_permutations,
        }  # fmt: skip
        facts = {
            "measurement": "shift", **options, "seed": intervals.seed,
            "world": f"{content_hash(repr(scheme).encode()):016x}",
            "classes": f"{content_hash(class_of.tobytes()):016x}",
        }  # fmt: skip
        parts = parts_of(
            view, topics, options=options | {"alternative": alternative}, reading=reading, intervals=intervals,
            processes=processes, index=every.index(chosen),
            first_own=reader.first_own, first_permuted=reader.first_permuted,
        )  # fmt: skip
        sums, progress = add_up(
            reader, documents, facts=facts, reading=reading, run=run, processes=processes, counted=[reader.words],
            shard=share_of_effects(shards, ShiftReport.kind, parts),
        )  # fmt: skip
    return ShiftReport.of_sums(sums, progress, parts)


def _quotients(
    numbers: Numbers, cells: Sequence[int], whole: int, confidence: float | None
) -> tuple[Float64[np.ndarray, " cell"], Float64[np.ndarray, "cell 2"]]:
    """Cells ÷ another one, with intervals by Fieller's theorem."""
    parts = numbers.sums[:, list(cells), 1]
    total = np.repeat(numbers.sums[:, [whole], 1], len(cells), 1)
    ends = np.full((len(cells), 2), np.nan)
    if len(cells) and confidence is not None:
        sign = np.copysign(1.0, total.sum(0))  # a denominator has to be positive

        def terms(above: np.ndarray, below: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return sign * above, sign * below

        counts = numbers.counts[:, list(cells), 1]
        ends = source_interval(terms, [parts, total], [counts], confidence=confidence)
    return divide(parts.sum(0), total.sum(0)) + 0.0, ends  # not −0


def _mask_id(view: capture.View, world: World | None) -> int | None:
    """What a masked position shows; None of a causal model, which needs no mask."""
    check_one_stack(view, "measure_shift", "measure an encoder or a decoder by itself")
    if view.is_causal:
        if world is not None:
            raise ValueError(
                "the posterior of a world is that of masked words, and this model is causal: leave world out"
            )
        return None
    return MASK_ID if world is not None else mask_id_of(view, "measure_shift", "pass the world= of a toy")


def _topic(topics: Topics, name: str | None) -> int | None:
    if name is not None and name not in topics.names:
        known = ", ".join(topics.names[:5]) + (", …" if topics.n_topics > 5 else "")
        raise ValueError(f"toward must be the name of a topic ({known}), got {name!r}")
    return None if name is None else topics.names.index(name)


def _counts(
    view: capture.View, topics: Topics, documents: Any, reading: Reading
) -> Int64[Tensor, " vocabulary"]:
    """How often token ids are words of topics by themselves."""
    check_read_again(
        documents,
        "documents are read twice, to know how often words occur",
        instead="a list, or what Corpus.documents gives, or frequency=",
    )
    counts = torch.zeros(topics.vocabulary_size, dtype=torch.int64)
    for batch in read_batches(documents, view, replace(reading, groups="source")):
        for words in units_of(batch, topics):
            counts += words.entries.bincount(minlength=len(counts))
    return counts
