"""Models side by side: the same words of the same texts, differences with paired intervals, how likely each rank is."""

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from jaxtyping import Float64, Int64

from topic_probe.contrast import Contrast, PairSums, estimate_of_sources, no_interval_reason, side_by_side
from topic_probe.estimate import (
    Ends,
    Estimate,
    Factor,
    benjamini_hochberg,
    divide,
    over_words,
    permutation_p_value,
    ranks,
    split_halves,
)
from topic_probe.lens.host import facts_of
from topic_probe.lens.opening import open_model
from topic_probe.lens.weights import word_embeddings
from topic_probe.measure.attention import AttentionReport, attention_of, permuted_sums
from topic_probe.measure.embeddings import EmbeddingReport
from topic_probe.measure.heads import layer_starts, layers_of
from topic_probe.measure.options import Reading, Run, Statistics, recorded
from topic_probe.measure.permuted import null_means
from topic_probe.measure.same_words import SameDocuments, Side, documents_of_each, topics_of_each
from topic_probe.measure.words import Cosines, LabelledWords, cosines_of_words, labelled_words
from topic_probe.options import check_value, checked, shares
from topic_probe.report import Report, provenance
from topic_probe.sums import Rows, aligned
from topic_probe.text.documents import Long
from topic_probe.text.same_texts import Level
from topic_probe.topics import Topics
from topic_probe.words import form, without_marks

if TYPE_CHECKING:
    import pandas as pd

Measured = Literal["embeddings", "attention"]
Chosen = Literal["ratio", "difference", "effect_size"]
By = Literal["model", "pair", "rank", "layer", "head", "topic"]

# What is compared where nothing is chosen: cosines are of either sign, so their ratios need not mean anything.
_BY_DEFAULT: dict[str, Chosen] = {"cosine": "effect_size", "attention": "ratio"}
_OF_PAIRS = ("number", "low", "high", "p_value", "q_value", "p_permuted")


@dataclass(frozen=True, eq=False, repr=False)
class ComparisonReport(Report, kind="comparison"):
    """Models side by side: what each has, what one has more than another, and how likely each rank is.

    Attributes:
        models: their names, in the order given.
        statistics: of "cosine" (of word embeddings) and "attention", as far as they were measured, what is compared:
            "ratio", "difference" or "effect_size".
        numbers: by these names, a cell for every model, with intervals of the model by itself.
        differences: by these names, and where all models have the same heads also by "layers" and "heads" (of
            attention), a row for every two models (and layer, and head): ``number`` is what ``first`` has more than
            ``second``, with its interval: the quotient of two ratios of attention, the difference of all other numbers.
            ``p_value`` is how likely so much would be, were there no difference; ``q_value`` that among all layers or
            heads. ``p_permuted`` is the share of permuted topic labels, the same for both models, under which
            they differ as much: whether the difference is one of topics at all.
        ranks: by the same names, how likely a model has the highest number, the second highest, and so on [model, rank,
            layer or head]. How sure differences and ranks are is told by the sources, or words, that all share.
        layers: by model, its attention by stack and layer.
        heads: by model, its attention by head.
        paired: whether intervals of differences leave out what sources and words do to all models at once; of reports
            without sums there are none.
        provenance: models, topics, words that are left of them, options, and how much of the texts each model saw.
    """

    models: tuple[str, ...]
    statistics: Mapping[str, str]
    numbers: Mapping[str, Contrast]
    differences: Mapping[str, Mapping[str, Any]]
    ranks: Mapping[str, np.ndarray]
    layers: Mapping[str, Contrast]
    heads: Mapping[str, Contrast]
    paired: bool
    provenance: Mapping[str, Any]

    def to_dataframe(self, by: By = "model") -> "pd.DataFrame":
        """A row for every model and measure; by "pair": for every two models; by "rank": how likely each rank is.

        By "layer" or "head": attention of every layer or head of every model; by "topic": words listed, and left.
        """
        import pandas as pd

        check_value("by", by, By)
        if by == "topic":
            return pd.DataFrame(self.provenance["words"]["topics"], columns=["topic", "listed", "kept"])
        if by in ("layer", "head"):
            each = {"layer": self.layers, "head": self.heads}[by]
            tables = [table.to_dataframe().assign(model=name) for name, table in each.items()]
            joined = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame({"model": []})
            return joined[["model", *(name for name in joined if name != "model")]]
        rows = {"model": self._of_models, "pair": self._of_pairs, "rank": self._of_ranks}[by]
        return pd.DataFrame([row for name in self.numbers for row in rows(name)])

    def _of_models(self, name: str) -> Iterator[dict[str, Any]]:
        contrast, statistic = self.numbers[name], self.statistics[name]
        values, limits = getattr(contrast, statistic), contrast.interval_of(statistic)
        for number, model in enumerate(self.models):
            cell = contrast[number].row()
            row = {"measure": name, "model": model, "statistic": statistic, "number": values[number]}
            row |= {"low": limits[number, 0], "high": limits[number, 1]}
            row |= {"p_value": cell["p_value"]} if "p_value" in cell else {}
            columns = ("same_topic", "different_topic", "n_same_topic", "n_different_topic")
            yield row | {column: cell[column] for column in columns}

    def _of_pairs(self, name: str) -> Iterator[dict[str, Any]]:
        table = self.differences[name]
        for number, (first, second) in enumerate(zip(table["first"], table["second"], strict=True)):
            cells = {column: table[column][number] for column in _OF_PAIRS if column in table}
            what = "÷" if self.is_quotient(name) else "−"
            yield {"measure": name, "what": f"{first} {what} {second}", **cells}

    def _of_ranks(self, name: str) -> Iterator[dict[str, Any]]:
        for model, of_ranks in zip(self.models, self.ranks[name], strict=True):
            places = {f"rank {place}": share for place, share in enumerate(of_ranks, 1)}
            yield {"measure": name, "model": model, **places}

    def is_quotient(self, name: str) -> bool:
        """Whether differences of this name are quotients of ratios, of which 1 is no difference."""
        return bool(self.differences[name]["quotient"])

    def _tables(self) -> "dict[str, pd.DataFrame]":
        tables = {
            type(self).__name__: self.to_dataframe(),
            "what one has more than another": self.to_dataframe("pair"),
        }
        return tables | ({"how likely each rank is": self.to_dataframe("rank")} if self.ranks else {})

    def _notes(self) -> list[str]:
        reasons = dict.fromkeys(part.reason for part in self.numbers.values() if part.reason)
        words, documents = self.provenance.get("words"), self.provenance.get("documents")
        notes = list(reasons)
        if words is not None:
            notes.append(_about_words(words))
        if documents is not None:
            notes += _about_documents(documents)
        if not self.paired:
            return [
                *notes,
                "reports of embeddings keep no sums of words: tp.compare has intervals of differences",
            ]
        return [
            *notes,
            "low, high and p_value ask whether models differ on other texts (of cosines: with other words), p_permuted "
            "whether that is about topics, or as much where words are dealt to topics at random",
        ]


def _about_words(words: Mapping[str, Any]) -> str:
    told = f"{words['kept']:,} of {words['listed']:,} words, which all models have"
    missing = ", ".join(f"{name} lacks {n:,}" for name, n in words["missing"].items() if n)
    empty = [topic for topic, _, kept in words["topics"] if not kept]
    told += f" ({missing})" if missing else ""
    return told + (f"; no word is left of {', '.join(empty)}" if empty else "")


def _about_documents(documents: Mapping[str, Any]) -> list[str]:
    tokens = ", ".join(f"{n:,} tokens of {name}" for name, n in documents["tokens"].items())
    told = f"{documents['sources']:,} sources; {tokens}"
    notes = [told]
    if read := documents.get("read"):
        notes.append(
            f"every model saw the same {read['words']:,} words of {read['texts']:,} texts, of which "
            f"{read['measurable']:,} can be measured in all"
            + (f"; {read['cut_off']:,} words were cut off for all" if read["cut_off"] else "")
        )
    return notes


# ---------------------------------------------------------------------------- measuring


@shares
def compare(
    models: Mapping[str, Any],
    topics: Any,
    documents: Any = None,
    *,
    measure: Collection[Measured] | None = None,
    statistic: Chosen | None = None,
    level: Level = "token",
    center: bool = False,
    language: str = "en",
    batch_size: int = 32,
    max_length: int | None = None,
    long: Long = "cut",
    sources: Collection[Hashable] | None = None,
    statistics: Statistics,
    run: Run,
) -> ComparisonReport:
    """Which model treats words of a topic more alike, by how much, and how sure that is.

    Models are asked about the same words of the same texts. Topics are lists of words, which every model's tokenizer
    looks up and which are restricted to words that all of them have; texts are read by every tokenizer, cut at the same
    word for all, and a word counts where all can measure it. So the sources, the draws of words and the permutations of
    topics are the same for all models, and what an article or a word does to all of them drops out of the differences:
    their intervals are paired.

    Args:
        models: by their names, anything that `open_model` takes. Checkpoints of one model are models, too.
        topics: a mapping topic → words; the name of word lists that come along (`builtin_topics`); or `Topics`, which
            are taken as they are where all models share their tokenizer, and otherwise by their words.
        documents: a list of texts, or a `Corpus`; token ids in any shape that `token_batches` takes where all models
            share a tokenizer. None compares the word embeddings only.
        measure: "embeddings" (cosines of the word embedding table), "attention" (of all heads, which needs documents);
            by default both, or the first where there are no documents.
        statistic: what is compared: "ratio", "difference" or "effect_size"; by default the ratio of attention and the
            effect size of cosines. Ratios of attention are compared by their quotient, whose intervals are about other
            texts, whatever ``resample`` says of those of each model by itself.
        level: "token" measures words that are one token for all models, "word" also those that are several, in
            attention; word embeddings are of single tokens.
        center: subtract the mean of all rows of an embedding table before cosines are taken.
        language: of word lists that come along.
        batch_size: documents in one forward pass; changes nothing but speed and memory.
        max_length: texts are cut at so many tokens of any model; by default where the first model can take no more.
        long: "cut" drops the rest of longer texts, "chunk" makes documents of it, parted at the same words for all.
        sources: for every text a label of what it is from; by default every text is a source of its own.

    Raises:
        ValueError: where no word is left, where models share no vocabulary and ids or documents of one came, and for
            what the measurements refuse.
        TypeError: where words or texts need a tokenizer that a model lacks.

    Example:
        >>> world = tp.World(n_topics=4, words_per_topic=5, topics_per_document=2)
        >>> toys = {name: tp.build_toy(tp.ToyConfig(world=world), seed=n) for n, name in enumerate("ab")}
        >>> report = tp.compare(toys, world.topics)
        >>> report.models, report.statistics["cosine"]
        (('a', 'b'), 'effect_size')
    """
    chosen, opened = _measured(measure, documents), _opened(models)
    each, words = topics_of_each(opened, topics, level, language)
    sides = [Side(name, model, of) for (name, model), of in zip(opened.items(), each, strict=True)]
    compared: dict[str, _Compared] = {}
    about: dict[str, Any] | None = None
    reports: dict[str, AttentionReport] = {}
    if "embeddings" in chosen:
        compared["cosine"] = _embeddings(sides, statistic or _BY_DEFAULT["cosine"], center, statistics)
    if run.folder is not None and "attention" not in chosen:
        raise ValueError("parts are of documents, in which attention is measured: leave folder= out")
    if "attention" in chosen:
        read = documents_of_each(sides, documents, max_length, long, level, sources)
        options = {"level": level, "batch_size": batch_size, "long": long}
        reports = _attention_reports(sides, read, statistics, options, run)
        about = _read(reports, read)
        same_words = len({tuple(sorted(_names_of(side.topics))) for side in sides}) == 1
        compared |= _attention(reports, statistic or _BY_DEFAULT["attention"], same_words=same_words)
    record = provenance(
        options={
            "measure": chosen, "statistic": statistic, "level": level, "center": center, "max_length": max_length,
            "long": long, **recorded(statistics),
        },
        seed=statistics.seed,
    )  # fmt: skip
    record |= {
        "models": {side.name: dict(facts_of(side.model).description) for side in sides},
        "words": words,
        "documents": about,
    }
    return _report(tuple(opened), compared, reports, record, statistics.confidence)


def _report(
    models: tuple[str, ...],
    compared: "Mapping[str, _Compared]",
    attention: Mapping[str, AttentionReport],
    record: Mapping[str, Any],
    confidence: float,
) -> ComparisonReport:
    numbers = {name: part.numbers for name, part in compared.items() if part.numbers is not None}
    places = {name: ranks(part.estimates, seed=record["seed"]) for name, part in compared.items()}
    return ComparisonReport(
        models,
        {name: compared[name].statistic for name in numbers},
        numbers,
        {name: _differences(models, part, confidence) for name, part in compared.items()},
        {name: shares[..., 0] if name in numbers else shares for name, shares in places.items()},
        {name: report.layers for name, report in attention.items()},
        {name: report.heads for name, report in attention.items()},
        paired=True,
        provenance=record,
    )


@dataclass(frozen=True)
class _Compared:
    """What is compared of all models: of each as a whole, or cell by cell.

    Attributes:
        statistic: by what.
        estimates: of every model, a cell for each that is compared.
        index: names of the cells; none where there is one.
        numbers: of models as a whole, a cell for each.
        permuted: what is compared, under permuted topic labels [model, cell, permutation].
    """

    statistic: Chosen
    estimates: Sequence[Estimate]
    index: Mapping[str, tuple[Any, ...]]
    numbers: Contrast | None = None
    permuted: np.ndarray | None = None

    @property
    def quotient(self) -> bool:
        """Whether logarithms of ratios are compared, so that their differences are quotients."""
        return any(bool(np.any(one.log)) for one in self.estimates)


def _differences(models: tuple[str, ...], part: _Compared, confidence: float) -> dict[str, Any]:
    """A row for every two models and cell."""
    pairs, n_cells = list(combinations(range(len(models)), 2)), part.estimates[0].value.size
    moved = [part.estimates[a] - part.estimates[b] for a, b in pairs]
    columns: dict[str, np.ndarray] = {name: np.zeros(0) for name in ("number", "low", "high", "p_value")}
    if pairs:
        values = np.concatenate([one.value for one in moved])
        is_log = np.concatenate([np.broadcast_to(one.log, one.value.shape) for one in moved])
        low, high = np.concatenate([one.interval(confidence) for one in moved]).T
        number = np.where(is_log, np.exp(values), np.nan) if part.quotient else values
        p_value = np.concatenate([one.p_value() for one in moved])
        columns = {"number": number, "low": low, "high": high, "p_value": p_value}
    if part.index:
        columns["q_value"] = benjamini_hochberg(columns["p_value"])
    if part.permuted is not None:
        null = [part.permuted[a] - part.permuted[b] for a, b in pairs]
        shares = [permutation_p_value(one.value, other) for one, other in zip(moved, null, strict=True)]
        columns["p_permuted"] = np.concatenate(shares or [np.zeros(0)])
    names = [tuple(models[pair[side]] for pair in pairs for _ in range(n_cells)) for side in (0, 1)]
    index = {axis: tuple(cells) * len(pairs) for axis, cells in part.index.items()}
    return {"first": names[0], "second": names[1], "quotient": part.quotient, **index, **columns}


def _measured(measure: Collection[Measured] | None, documents: Any) -> list[str]:
    """What is to be measured, in one order."""
    if measure is None:
        return ["embeddings"] if documents is None else ["embeddings", "attention"]
    wanted = [measure] if isinstance(measure, str) else list(measure)
    for name in wanted:
        check_value("measure", name, Measured)
    if not wanted:
        raise ValueError("measure needs 'embeddings', 'attention' or both, got nothing")
    if "attention" in wanted and documents is None:
        raise ValueError("attention is measured in documents: pass texts, or measure=['embeddings']")
    return [name for name in ("embeddings", "attention") if name in wanted]


def _opened(models: Mapping[str, Any]) -> dict[str, Any]:
    if not models:
        raise ValueError("models needs at least one model by its name, such as {'MiniLM': model}, got none")
    return {str(name): open_model(model) for name, model in models.items()}


# ---------------------------------------------------------------------------- attention


def _attention_reports(
    sides: Sequence[Side], read: SameDocuments, statistics: Statistics, options: Mapping[str, Any], run: Run
) -> dict[str, AttentionReport]:
    """Every model's attention, with the same permutations of words."""
    reports = {}
    for side, documents in zip(sides, read.each, strict=True):
        (reports[side.name],) = attention_of(
            side.model, [side.topics], documents, level=options["level"], include_self=True,
            reading=Reading(batch_size=options["batch_size"], max_length=read.max_length, long=options["long"]),
            statistics=statistics, run=run.beside(side.name), names=_names_of(side.topics),
            facts={"compared": read.facts},
        )  # fmt: skip
    return reports


def _attention(
    reports: Mapping[str, AttentionReport], statistic: Chosen, *, same_words: bool
) -> dict[str, _Compared]:
    """Attention of models that were measured on the same texts, paired source by source: as a whole, layers, heads.

    Only of the same words permutations are the same.
    """
    every, of_sources = list(reports.values()), aligned([report.by_source for report in reports.values()])
    indices = [report.heads.index or {} for report in every]
    permutations = [report.provenance["options"]["n_permutations"] for report in every]

    def compared(starts: Sequence[Int64[np.ndarray, " group"]], index: Mapping[str, Any]) -> _Compared:
        pooled = [_pooled(part, at) for part, at in zip(of_sources, starts, strict=True)]
        # Ratios are compared by their logarithms where no score of any model is negative.
        positive = all(bool((sums[..., 1:] >= 0).all()) for sums, _, _ in pooled)
        estimates = [estimate_of_sources(*rows, statistic=statistic, positive=positive) for rows in pooled]
        found = _Compared(statistic, estimates, index)
        if not same_words or not min(permutations) == max(permutations) > 0:
            return found
        sums = [
            permuted_sums(own.sums, layers_of(i), at)
            for own, i, at in zip(every, indices, starts, strict=True)
        ]
        parts = zip(pooled, sums, strict=True)
        return replace(
            found, permuted=np.stack([_permuted(*part, found.quotient, statistic) for part in parts])
        )

    numbers = side_by_side([report.overall for report in every], {"model": tuple(reports)})
    found = {"attention": replace(compared([np.zeros(1, np.int64)] * len(every), {}), numbers=numbers)}
    if len(every) > 1 and all(index == indices[0] for index in indices):
        layers = dict(every[0].layers.index or {})
        found["layers"] = compared([np.array(layer_starts(index)) for index in indices], layers)
        found["heads"] = compared([np.arange(len(report.heads)) for report in every], dict(indices[0]))
    return found


def _pooled(rows: Rows, starts: Int64[np.ndarray, " group"]) -> Rows:
    sums, counts, squares = (np.add.reduceat(part, starts, axis=1) for part in rows)
    return sums, counts, squares


def _every(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Sums and numbers of the pairs of different words [group, 1]."""
    total, n = (part.sum(0)[:, 1:].sum(1, keepdims=True) for part in rows[:2])
    return total, n


def _permuted(
    rows: Rows, null: tuple[np.ndarray, np.ndarray], logarithm: bool, statistic: Chosen
) -> Float64[np.ndarray, "group permutation"]:
    """What is compared, under permuted topic labels: the scores are the same, so their spread is as well."""
    same, different = null_means(_every(rows), null)
    if statistic == "effect_size":
        spread = PairSums(rows[0].sum(0), rows[1].sum(0), rows[2].sum(0)).contrast().spread
        return divide(same - different, np.asarray(spread)[:, None])
    if statistic == "difference":
        return np.asarray(same - different)
    ratio = divide(same, different)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(ratio)) if logarithm else ratio


def _read(reports: Mapping[str, AttentionReport], read: SameDocuments) -> dict[str, Any]:
    """How much of the documents every model saw."""
    records = {name: report.provenance for name, report in reports.items()}
    told = read.same.read if read.same is not None else None
    return {
        "sources": max(record["sources"] for record in records.values()),
        "documents": {name: record["documents"] for name, record in records.items()},
        "tokens": {name: record["tokens"] for name, record in records.items()},
        "left_out": {name: record["left_out"] for name, record in records.items()},
        "parts": {name: record["parts"] for name, record in records.items() if "parts" in record},
        "stopped": "; ".join(filter(None, (record["options"]["stopped"] for record in records.values()))) or None,
        "read": None if told is None else {
            "texts": told.texts, "words": told.words, "cut_off": told.cut_off, "measurable": told.measurable,
            "left_out": dict(told.left_out),
        },
    }  # fmt: skip


# ---------------------------------------------------------------------------- embeddings


def _names_of(topics: Topics) -> list[str]:
    return _names(LabelledWords(topics, torch.arange(len(topics.words))))


def _names(words: LabelledWords) -> list[str]:
    """What every word is called in any vocabulary, in the order of `LabelledWords.form`.

    Tokenizers that strip accents write a word otherwise, so it goes by its letters where these tell all words apart.
    """
    texts: list[str] = [""] * words.n_forms
    known = words.topics.texts
    for place, number in reversed(list(zip(words.places.tolist(), words.form.tolist(), strict=True))):
        texts[number] = known[place] if known else str(int(words.topics.words[place]))
    letters = [without_marks(text) for text in texts]
    return letters if len({*letters}) == len(letters) else [form(text) for text in texts]


def _embeddings(sides: Sequence[Side], statistic: Chosen, center: bool, asked: Statistics) -> _Compared:
    """Cosines of the word embeddings of every model, by itself and beside the others."""
    every = [labelled_words(word_embeddings(side.model), side.topics, center=center) for side in sides]
    names = [_names(words) for words in every]
    together = sorted({name for own in names for name in own})
    places = [np.searchsorted(together, own) for own in names]
    strata = np.full(len(together), -1)
    for words, at in zip(every, places, strict=True):
        strata[at] = words.strata
    half = split_halves(strata, seed=asked.seed)
    parts = [
        _placed(cosines_of_words(words, half[at]), at, len(together))
        for words, at in zip(every, places, strict=True)
    ]
    kind: Literal["ratio", "difference"] = "difference" if statistic == "difference" else "ratio"
    cells = [_with_intervals(part, strata, kind, asked.confidence) for part in parts]
    estimates = [over_words(part.ends, part.squares, strata, statistic=statistic) for part in parts]
    models = tuple(side.name for side in sides)
    return _Compared(statistic, estimates, {}, side_by_side(cells, {"model": models}))


def _placed(part: Cosines, places: Int64[np.ndarray, " form"], n: int) -> Cosines:
    """The same with words at their places among those of all models; others are in no pair."""
    ends = Ends(*(np.zeros((2, n, *values.shape[2:])) for values in part.ends))
    for whole, values in zip(ends, part.ends, strict=True):
        whole[:, places] = values
    squares = np.zeros((n, 1))
    squares[places] = part.squares
    return Cosines(part.sums, ends, squares)


def _with_intervals(
    part: Cosines,
    strata: Int64[np.ndarray, " word"],
    statistic: Literal["ratio", "difference"],
    confidence: float,
) -> Contrast:
    """The contrast of one model with its intervals, as `measure_embeddings` has it."""
    interval = over_words(part.ends, None, strata, statistic=statistic).interval(confidence)[0]
    effect = over_words(part.ends, part.squares, strata, statistic="effect_size").interval(confidence)[0]
    note = no_interval_reason(interval, len(strata), "words")
    return part.sums.contrast(statistic=statistic, interval=interval, effect_size_interval=effect, note=note)


# ---------------------------------------------------------------------------- saved reports


# What of a report's options decides about its numbers; seeds, permutations and batches do not.
_DECIDING = (
    "level", "include_self", "first_position", "long", "max_length", "groups", "center", "remove_components", "exclude",
)  # fmt: skip


@checked
def compare_reports(
    reports: Mapping[str, Report], *, statistic: Chosen | None = None, confidence: float = 0.95
) -> ComparisonReport:
    """Saved reports of several models side by side, as `compare` has them, without models and texts.

    Reports of attention keep their sums by source, so what an article does to all models drops out of the differences.
    Those of embeddings keep no sums of words: of their differences there are the numbers alone.

    Args:
        reports: by the names of their models: all of `measure_attention`, or all of `measure_embeddings`.
        statistic: what is compared: "ratio", "difference" or "effect_size"; by default as in `compare`.
        confidence: of intervals of differences.

    Raises:
        ValueError: where reports are not of one kind, or of other topics, documents or options, which are named.

    Example:
        >>> world = tp.World(n_topics=4, words_per_topic=5, topics_per_document=2)
        >>> toys = [tp.build_toy(tp.ToyConfig(world=world), seed=seed) for seed in (0, 1)]
        >>> found = {str(n): tp.measure_embeddings(toy, world.topics) for n, toy in enumerate(toys)}
        >>> tp.compare_reports(found).paired
        False
    """
    kinds = {type(report) for report in reports.values()}
    if kinds not in ({AttentionReport}, {EmbeddingReport}):
        raise ValueError(
            "reports side by side must all be of measure_attention, or all of measure_embeddings, got "
            f"{', '.join(sorted(kind.__name__ for kind in kinds))}"
        )
    _check_comparable(reports)
    named: dict[str, Any] = {str(name): report for name, report in reports.items()}
    record = provenance(options={"statistic": statistic}, seed=0) | {
        "models": {name: report.provenance["model"] for name, report in named.items()},
        "topics": next(iter(named.values())).provenance["topics"], "words": None, "documents": None,
    }  # fmt: skip
    if kinds == {AttentionReport}:
        found = _attention(named, statistic or _BY_DEFAULT["attention"], same_words=True)
        return _report(tuple(named), found, named, record, confidence)
    wanted = statistic or _BY_DEFAULT["cosine"]
    numbers = side_by_side([report.cosine for report in named.values()], {"model": tuple(named)})
    values = np.asarray(getattr(numbers, wanted))[:, None]
    unknown = Factor("words", np.zeros((1, 1)), np.full(1, np.nan))
    estimates = [Estimate(value, (unknown,)) for value in values]
    found = {"cosine": _Compared(wanted, estimates, {}, numbers)}
    return replace(_report(tuple(named), found, {}, record, confidence), paired=False)


def _check_comparable(reports: Mapping[str, Report]) -> None:
    """ValueError where numbers of reports are about different things."""
    facts = {str(name): _facts(report) for name, report in reports.items()}
    (first, told), *others = facts.items()
    for name, other in others:
        differ = [what for what in told if told[what] != other[what]]
        if differ:
            raise ValueError(
                f"the reports of {first} and {name} cannot be compared, because they differ in {', '.join(differ)}: "
                "tp.compare measures models on the same words and texts"
            )


def _facts(report: Report) -> dict[str, Any]:
    record, options = report.provenance, report.provenance["options"]
    documents = record.get("documents")
    facts: dict[str, Any] = {
        "topics": (record["topics"] or {}).get("fingerprint"), "seed": record["seed"],
    }  # fmt: skip
    if isinstance(report, AttentionReport):
        facts |= {"documents": documents, "tokens": record.get("tokens"), "sources": record.get("sources")}
    return facts | {option: options.get(option) for option in _DECIDING}
