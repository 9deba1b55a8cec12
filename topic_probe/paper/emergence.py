"""How topics are learned: small models of six architectures watched while they are trained on real text (ours).

BERT, ALBERT, ELECTRA, RoBERTa, BART and GPT-2 are trained with transformers' Trainer on one corpus, each with its own
kind of tokenizer and task, and measured at steps that are evenly spaced in the logarithm: word embeddings, attention
and states on the same documents and topics (LDA of the corpus, as in Table 1).

A model is interpreted only once its loss on articles that it was not trained on lies at least 0.5 nats a token below
the unigram entropy of these articles (`topic_probe.train.trainer.HeldOut`). Otherwise it is *not trained far enough*:
its curves are there, and every claim about it is not checked.

Of those that are, Table 1 is filled: it is one of models *trained here*, on thousands of times less text than the
paper's. Thresholds are such that topics have as many words as the paper's (16, 32 and 64 of 4,000 tokens).

Controls are models trained on the same text shuffled word by word, within the corpus (nothing is left to learn but how
often a word occurs) and within articles (topics stay, order goes); topics of shuffled labels, watched beside the
others in every training; and untrained twins. Words of a topic are alike in how often they occur, and embeddings learn
that first: what begins when is told by how far a model is beyond the one with the same seed in text without topics.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from math import isfinite, nan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int64

from topic_probe.lens.opening import open_model, random_init
from topic_probe.notices import quiet_transformers
from topic_probe.paper import listed
from topic_probe.paper.claims import Claim, Number, over_seeds
from topic_probe.paper.figure5 import shuffled_text
from topic_probe.paper.pretrained import (
    RANDOM,
    SHUFFLED,
    UNTRAINED,
    Opened,
    Prepared,
    Sample,
    Texts,
    TextSettings,
    check_thresholds,
    plain_values,
    settings_table,
)
from topic_probe.paper.recipe import CONTROL_SEEDS, Recipe, RecipeResult, Run, Subject
from topic_probe.paper.table1 import Table, fill, ratios, side_by_side
from topic_probe.paper.training import choose, digest, slug
from topic_probe.series.measured import SeriesReport, measured_by
from topic_probe.series.probe import TopicProbe
from topic_probe.storage import draft
from topic_probe.text.cache import tokenizer_identity
from topic_probe.text.corpus import Corpus
from topic_probe.text.subwords import subword_tokenizer
from topic_probe.topics import Topics
from topic_probe.train.architectures import (
    ARCHITECTURES,
    TOKENIZERS,
    Architecture,
    SmallConfig,
    build_small,
    measured_part,
)
from topic_probe.train.tasks import TrainingText
from topic_probe.train.trainer import (
    NEEDED,
    HeldOut,
    SmallTraining,
    fast_precision,
    held_out,
    train_small,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

IN_CORPUS, IN_ARTICLES = "shuffled within the corpus", "shuffled within articles"
BEYOND = f"beyond text {IN_CORPUS}"
CONTROLLED: tuple[Architecture, ...] = ("bert", "gpt2")
"""The architectures that are trained on shuffled text as well."""

HELD_OUT = 10
"""Every so manieth article is held out."""

FIRST, LIKELY, LEARNED = 128, 0.95, 0.1
"""How much earlier than the last the first measured step is; from where on an order is likely, and a topic learned."""

Articles = Int64[np.ndarray, "_"]

_TABLE = Table(
    one_topic_per_word=True, printed={}, untrained="1.000 ± 0.001 (ratio), of models trained on far more"
)


@dataclass(frozen=True)
class EmergenceSettings:
    """What is trained, and what is measured of it.

    Attributes:
        n_tokens: of every tokenizer's vocabulary.
        model: how large the models are.
        training: how long they are trained, and how; every seed is added to its own.
        texts: how articles become topics, and which documents are measured.
        thresholds: words per topic ÷ vocabulary size; at the second one models are watched.
        n_steps: at how many steps, the untrained model's included.
    """

    n_tokens: int = 4000
    model: SmallConfig = field(default_factory=lambda: SmallConfig(max_length=64))
    training: SmallTraining = field(
        default_factory=lambda: SmallTraining(
            steps=6000, batch_size=32, learning_rate=1e-3, warmup=0.2, precision=fast_precision()
        )
    )
    texts: TextSettings = field(default_factory=lambda: TextSettings(n_topics=20, length=64, n_documents=600))
    thresholds: Sequence[float] = (0.004, 0.008, 0.016)
    n_steps: int = 12

    def __post_init__(self) -> None:
        check_thresholds(self.thresholds)
        if self.n_steps < 2:
            raise ValueError(f"n_steps must be at least 2, the untrained and the last, got {self.n_steps}")

    @property
    def at(self) -> list[int]:
        """The steps that are measured: the untrained model, and from early to the last in equal ratios."""
        last = self.training.steps
        return sorted(
            {0, *np.geomspace(max(1, last / FIRST), last, self.n_steps - 1).round().astype(int).tolist()}
        )


QUICK = EmergenceSettings(
    n_tokens=2000,
    model=SmallConfig(n_layers=2, d_model=64, max_length=64),
    training=SmallTraining(steps=450, learning_rate=4e-3),
    texts=TextSettings(n_topics=12, passes=5, length=64, n_documents=120),
    n_steps=7,
)


@dataclass(frozen=True)
class Training:
    """One training of the recipe.

    Attributes:
        name: the architecture.
        seed: of the weights, the order of the documents and the masks.
        control: how its text is shuffled; empty where it is not.
    """

    name: Architecture
    seed: int = 0
    control: str = ""

    @property
    def label(self) -> str:
        """What no other training is called."""
        return ", ".join(filter(None, (self.name, self.control, f"seed {self.seed}")))


@dataclass(frozen=True)
class Learned:
    """What a training has left.

    Attributes:
        training: which.
        model: the folder of the trained model, of ELECTRA its discriminator.
        series: what was measured while it was trained.
        shuffled: the same of shuffled labels.
        reached: how far it has come.
        untrained: where it began.
    """

    training: Training
    model: Path
    series: SeriesReport
    shuffled: SeriesReport
    reached: HeldOut
    untrained: HeldOut


# --- training and measuring ---------------------------------------------------------------------------


def measure(
    run: Run, *, corpus: Corpus | None = None, settings: EmergenceSettings | None = None
) -> RecipeResult:
    """Train every architecture on a corpus, measured as it learns; then fill Table 1.

    Args:
        run: the options that all recipes have; ``only`` names architectures.
        corpus: the texts, at least ten; None: the articles that come with gensim.
        settings: what is trained, and what is measured; None: four layers of width 128, or if ``quick`` two of 64.
    """
    chosen = settings or (QUICK if run.quick else EmergenceSettings())
    with ExitStack() as stack:
        if run.folder is None:
            folder = stack.enter_context(TemporaryDirectory())
            run = replace(run, folder=Path(folder))
        stack.enter_context(quiet_transformers(progress=False))
        school = _School(run, chosen, corpus)
        learned = [school.learned(training) for training in trainings(run)]
        own = [one for one in learned if not one.training.control]
        filled = fill(_TABLE, run, (each for one in own for each in school.prepared(one)), chosen.thresholds)
    sizes = {**asdict(chosen.model), **asdict(chosen.training), "n_tokens": chosen.n_tokens}
    shown = settings_table(chosen.texts, **{**sizes, "seed": run.seed}, at=chosen.at)
    without = {
        (one.training.name, one.training.seed): one.series
        for one in learned
        if one.training.control == IN_CORPUS
    }
    tables: dict[str, Any] = {
        "trainings": [_training_row(one, chosen) for one in learned],
        "onsets": [row for one in learned for row in _of_series(one, "onsets", without)],
        "order": [row for one in learned for row in _of_series(one, "order", without)],
        "end": [row for one in learned for row in _end_rows(one)],
        "settings": shown,
    }
    if filled.rows:
        tables |= {"table1": side_by_side(filled.rows), "ratios": filled.rows, "texts": filled.texts}
    watched = [(one.training.label, one.series) for one in learned]
    return run.result([*watched, *filled.reports], subjects=filled.subjects, tables=tables)


def trainings(run: Run) -> list[Training]:
    """What is to be trained: every architecture with every seed, and two of them on shuffled text."""
    every = [Training(name) for name in (QUICK_ARCHITECTURES if run.quick else ARCHITECTURES)]
    found: list[Training] = []
    for one in choose(every, run.only):
        found += [replace(one, seed=run.seed + seed) for seed in range(run.seeds)]
        if one.name in CONTROLLED and not run.quick:
            controls = [
                (control, seed) for control in (IN_CORPUS, IN_ARTICLES) for seed in range(CONTROL_SEEDS)
            ]
            found += [replace(one, seed=run.seed + seed, control=control) for control, seed in controls]
    return found


QUICK_ARCHITECTURES: tuple[Architecture, ...] = ("bert", "gpt2")


class _School:
    """Trains models on the texts of a run, or finds those that an earlier call has trained."""

    def __init__(self, run: Run, settings: EmergenceSettings, corpus: Corpus | None) -> None:
        assert run.folder is not None
        self._run, self._settings, self._folder = run, settings, run.folder
        self._corpus = corpus or Corpus.bundled()
        # Without one, the few articles of a quick variant stay in memory.
        self._texts = Texts(run, corpus if run.quick else self._corpus, settings.texts, lambda: True)
        self._tokenizer = cache(self._make_tokenizer)
        self._all, self._pieces = cache(self._read_all), cache(self._read_pieces)

    def learned(self, training: Training) -> Learned:
        """What a training has left; it goes on from its last checkpoint."""
        place = self._place("trained", training)
        if not place.exists():
            self._train(training, place)
        facts = json.loads((place / "reached.json").read_text(encoding="utf-8"))
        reached, untrained = (_held_out(one) for one in facts)
        series, shuffled = (SeriesReport.load(place / name) for name in ("series", "shuffled"))
        return Learned(training, place / "model", series, shuffled, reached, untrained)

    def _train(self, training: Training, place: Path) -> None:
        settings, name = self._settings, training.name
        tokenizer, (text, unseen) = self._tokenizer(TOKENIZERS[name]), self._texts_of(training)
        config = replace(settings.training, seed=settings.training.seed + training.seed)
        folder = self._place("checkpoints", training)
        documents, topics = self._documents(TOKENIZERS[name]), self._topics(name)
        watched = {"series": topics, "shuffled": topics.shuffled(self._run.seed)}
        probes = {
            kept: TopicProbe(
                each, documents, at=settings.at, model=measured_part(name), tokenizer=tokenizer, folder=folder / kept,
                attention={"n_permutations": 0}, measure=_MEASURED[: 3 if kept == "series" else 2],
            )
            for kept, each in watched.items()
        }  # fmt: skip
        model = train_small(
            name, text, settings.model, config, folder=folder, callbacks=[*probes.values()],
            progress=self._run.progress,
        )  # fmt: skip
        fresh = build_small(name, tokenizer, settings.model, seed=config.seed)
        with draft(place) as new:
            for kept, probe in probes.items():
                probe.report().save(new / kept)
            part: Any = (
                model if measured_part(name) is None else model.get_submodule(str(measured_part(name)))
            )
            part.save_pretrained(new / "model")
            tokenizer.save_pretrained(new / "model")
            few = unseen.first(_OF_UNTRAINED)
            ends = [
                held_out(one, name, texts, length=settings.model.max_length)
                for one, texts in ((model, unseen), (fresh, few))
            ]
            facts = [plain_values(asdict(end)) for end in ends]
            (new / "reached.json").write_text(json.dumps(facts, allow_nan=False), encoding="utf-8")

    def prepared(self, one: Learned) -> Iterator[Prepared | Subject]:
        """A model that was trained far enough with its untrained twin; else the reason why it is not interpreted."""
        label, name = one.training.label, one.training.name
        if why := not_far_enough(one.reached):
            yield Subject(label=label, missing=why)
            return
        articles, _, fit = self._texts.of(self._opened(name))
        tokenizer = self._tokenizer(TOKENIZERS[name])
        shared: dict[str, Any] = {
            "tokenizer": tokenizer, "articles": articles, "fit": fit, "documents": self._documents(TOKENIZERS[name]),
            "settings": self._settings.texts,
        }  # fmt: skip
        model = open_model(one.model, tokenizer=tokenizer)
        yield Prepared(label=label, model=model, **shared)
        twin = random_init(model, seed=one.training.seed)
        yield Prepared(label=label + RANDOM, random=True, added=True, model=twin, **shared)

    # --- texts --------------------------------------------------------------------------------------

    def _make_tokenizer(self, kind: Any) -> Any:
        """Trained on the corpus, and kept: not every kind comes out the same a second time."""
        from transformers import PreTrainedTokenizerFast

        facts = [self._corpus.source.identity(), kind, self._settings.n_tokens]
        place = self._folder / "tokenizers" / f"{slug(kind)}-{digest(facts)}"
        if not place.exists():
            with draft(place) as new:
                subword_tokenizer(self._corpus, kind, n_tokens=self._settings.n_tokens).save_pretrained(new)
        return PreTrainedTokenizerFast.from_pretrained(place)

    def _read_all(self, kind: Any) -> Sample:
        """The corpus in pieces as long as the models take them, of a large one at most twice what a training reads."""
        length, training = self._settings.model.max_length, self._settings.training
        stream = self._corpus.documents(
            self._tokenizer(kind), max_length=length, long="chunk", min_length=self._shortest,
            progress=self._run.progress,
        )  # fmt: skip
        kept, step = _spread(stream, at_most=2 * training.steps * training.batch_size)
        return Sample(kept, {**stream.provenance, "every": step})

    @property
    def _shortest(self) -> int:
        """Tokens of the shortest piece that is read."""
        return self._settings.model.max_length // 2

    def _documents(self, kind: Any) -> Sample:
        """Those that are measured, of all articles."""
        every, wanted = self._all(kind), self._settings.texts.n_documents
        step = 1 if wanted is None else max(1, len(every) // wanted)
        facts = {**every.provenance, "every": step * every.provenance["every"], "at_most": wanted}
        return Sample(every[::step][:wanted], facts)

    def _read_pieces(self, kind: Any) -> tuple[TrainingText, TrainingText, Articles, Articles]:
        """What is trained on and what is held out, and of which article each piece of both is."""
        pieces, tokenizer = self._all(kind), self._tokenizer(kind)
        articles = {
            source: number for number, source in enumerate(dict.fromkeys(one.source for one in pieces))
        }
        if len(articles) < HELD_OUT:
            raise ValueError(
                f"every tenth article is held out, so at least {HELD_OUT} of {self._shortest} tokens or more are "
                f"needed, got {len(articles)}: pass a larger corpus"
            )
        numbers = np.array([articles[one.source] for one in pieces])
        out, kept = np.flatnonzero(numbers % HELD_OUT == 0), np.flatnonzero(numbers % HELD_OUT)
        out = out[:: max(1, len(out) // _JUDGED)]
        seen, unseen = (
            TrainingText.read([pieces[number] for number in part], tokenizer) for part in (kept, out)
        )
        return seen, unseen, numbers[kept], numbers[out]

    def _texts_of(self, training: Training) -> tuple[TrainingText, TrainingText]:
        """What a training reads and what it is judged by, shuffled as its control says."""
        seen, unseen, *articles = self._pieces(TOKENIZERS[training.name])
        if not training.control:
            return seen, unseen
        within = training.control == IN_ARTICLES
        shuffled = [
            shuffled_text(text, seed=self._run.seed, articles=numbers if within else None)
            for text, numbers in zip((seen, unseen), articles, strict=True)
        ]
        return shuffled[0], shuffled[1]

    def _opened(self, name: Architecture) -> Opened:
        """A model of an architecture, for what depends on its tokenizer and longest document."""
        tokenizer = self._tokenizer(TOKENIZERS[name])
        model: Any = build_small(name, tokenizer, self._settings.model)
        part = measured_part(name)
        whole = model if part is None else model.get_submodule(part)
        return Opened(label=name, model=open_model(whole, tokenizer=tokenizer), tokenizer=tokenizer)

    def _topics(self, name: Architecture) -> Topics:
        """Those at the second threshold."""
        settings = self._settings
        _, _, fit = self._texts.of(self._opened(name))
        threshold = settings.thresholds[min(1, len(settings.thresholds) - 1)]
        return Topics.from_lda(fit, fraction=threshold, of=settings.texts.fraction_of)

    def _place(self, kind: str, training: Training) -> Path:
        tokenizer = self._tokenizer(TOKENIZERS[training.name])
        facts = [asdict(self._settings), asdict(training), self._run.seed, tokenizer_identity(tokenizer)]
        facts += [text.fingerprint for text in self._pieces(TOKENIZERS[training.name])[:2]]
        return self._folder / kind / f"{slug(training.label)}-{digest(facts)}"


def _spread(documents: Iterable[Any], *, at_most: int) -> tuple[list[Any], int]:
    """Documents that are spread evenly over a stream of unknown length: every so manieth, and how manieth."""
    kept: list[Any] = []
    step = 1
    for number, document in enumerate(documents):
        if number % step == 0:
            kept.append(document)
        if len(kept) > at_most:
            kept, step = kept[::2], 2 * step
    return kept, step


_MEASURED = ("embeddings", "attention", "states")

# Held-out documents that models are judged by, roughly, spread evenly.
_JUDGED = 600

# So many held-out documents are enough to see that an untrained model knows nothing.
_OF_UNTRAINED = 100


def _held_out(kept: Mapping[str, Any]) -> HeldOut:
    known: dict[str, Any] = {name: nan if value is None else value for name, value in kept.items()}
    return HeldOut(**{**known, "tokens": int(known["tokens"])})


def not_far_enough(reached: HeldOut) -> str:
    """Why a model is not interpreted; empty where it is."""
    if reached.far_enough:
        return ""
    blind = f", its discriminator's {reached.found:.3f}, and guessing has {reached.guessed:.3f}"
    return f"not trained far enough: {reached}, {NEEDED} are needed{blind if isfinite(reached.found) else ''}"


# --- tables -------------------------------------------------------------------------------------------


def _about(one: Learned) -> dict[str, Any]:
    training = one.training
    return {
        "training": training.label,
        "architecture": training.name,
        "control": training.control,
        "seed": training.seed,
    }


def _training_row(one: Learned, settings: EmergenceSettings) -> dict[str, Any]:
    read = settings.training.steps * settings.training.batch_size * settings.model.max_length
    numbers = {"gain": one.reached.gain, "untrained_gain": one.untrained.gain, "measuring": one.series.share}
    return {
        **_about(one), "steps": settings.training.steps, "tokens_at_most": read,
        **plain_values({**asdict(one.reached), **numbers}), "not_far_enough": not_far_enough(one.reached),
    }  # fmt: skip


def _of_series(
    one: Learned, table: str, without: Mapping[tuple[Architecture, int], SeriesReport]
) -> list[dict[str, Any]]:
    """The rows of a table that a series makes, of topics, of shuffled labels, and beyond text without topics."""
    training = one.training
    every: list[tuple[str, SeriesReport, SeriesReport | None]]
    every = [("", one.series, None), (SHUFFLED, one.shuffled, None)]
    if not training.control and (beside := without.get((training.name, training.seed))) is not None:
        every.append((BEYOND, one.series, beside))
    return [
        {**_about(one), "labels": labels, **plain_values(row)}
        for labels, series, beyond in every
        for row in getattr(series, table)(beyond=beyond).to_dict("records")
    ]


def _end_rows(one: Learned) -> list[dict[str, Any]]:
    """Effect sizes at the last step."""
    rows = []
    for labels, series in (("", one.series), (SHUFFLED, one.shuffled)):
        for name in series.contrasts():
            value, low, high = series.curve(name)[-1]
            numbers = plain_values({"effect_size": value, "low": low, "high": high})
            rows.append({**_about(one), "labels": labels, "measured": measured_by(name), **numbers})
    return rows


# --- claims -------------------------------------------------------------------------------------------


def _far_enough(result: RecipeResult) -> Iterator[Claim]:
    """What has to be so before anything else is claimed of a model."""
    for name, rows in _by_architecture(result).items():
        yield Claim(
            text="Trained far enough to be interpreted: nats of the held-out loss below the unigram entropy",
            measured=Number(min(row["gain"] for row in rows)),
            above=NEEDED,
            controls={
                UNTRAINED: Number(max(row["untrained_gain"] for row in rows)),
                **_largest(result, name, IN_CORPUS),
            },
            setting=name,
            detail="; ".join(
                f"{row['training']}: loss {row['loss']:.3f} of {row['entropy']:.3f}" for row in rows
            ),
            reason="the corpus is small and the training short",
            ours=True,
        )


def _largest(result: RecipeResult, name: str, control: str) -> dict[str, Number]:
    gains = [
        row["gain"]
        for row in result.tables["trainings"]
        if (row["architecture"], row["control"]) == (name, control)
    ]
    return {control: Number(max(gains))} if gains else {}


def _table1(result: RecipeResult) -> Iterator[Claim]:
    """Every claim of Table 1, of those that were trained here."""
    yield from ratios(_TABLE, result)


def _thresholds(result: RecipeResult) -> Iterator[Claim]:
    """In Table 1 attention's ratio falls with the threshold, in all five models."""
    for name, rows in _by_architecture(result).items():
        if _is_missing(rows):
            yield replace(_FALLS, setting=name, not_checked=_is_missing(rows))
            continue
        labels = [row["training"] for row in rows]
        yield replace(
            _FALLS,
            setting=name,
            measured=over_seeds([_fall(result, label, "ratio") for label in labels]),
            controls={
                SHUFFLED: Number(float(np.mean([_fall(result, label, "shuffled") for label in labels]))),
                UNTRAINED: Number(
                    float(np.mean([_fall(result, label + RANDOM, "ratio") for label in labels]))
                ),
            },
        )


_FALLS = Claim(
    text="The fewer words a topic keeps, the more they attend to each other (ratio of attention at the lowest "
    "threshold ÷ at the highest)",
    paper="so in all five of Table 1, by 1.08 to 1.15",
    above=1.01,
)


def _fall(result: RecipeResult, label: str, number: str) -> float:
    rows = [row for row in result.tables["ratios"] if (row["model"], row["score"]) == (label, "attention")]
    rows.sort(key=lambda row: float(row["threshold"]))
    first, last = rows[0][number], rows[-1][number]
    return nan if first is None or last is None else float(first) / float(last)


def _first(result: RecipeResult) -> Iterator[Claim]:
    """Which comes first, in every training; the order is certain where nothing but chance would turn it."""
    for row in result.tables["trainings"]:
        if row["control"]:
            continue
        label, short = row["training"], row["not_far_enough"]
        shuffled = {SHUFFLED: Number(_before(result, label, SHUFFLED))}
        in_corpus: dict[str, Number] = {}
        without_topics = Training(row["architecture"], row["seed"], IN_CORPUS).label
        if any(one["training"] == without_topics for one in result.tables["order"]):
            in_corpus[IN_CORPUS] = Number(_before(result, without_topics, ""))
        for claim, labels, controls, why in (
            (_EMBEDDINGS_FIRST, "", shuffled | in_corpus, short),
            (_FIRST_BEYOND, BEYOND, shuffled, short or ("" if in_corpus else _NO_TEXT_WITHOUT_TOPICS)),
        ):
            if why:
                yield replace(claim, setting=label, not_checked=why)
                continue
            yield replace(
                claim,
                setting=label,
                measured=Number(_before(result, label, labels)),
                controls=controls,
                detail=_onsets(result, label, labels),
            )


_EMBEDDINGS_FIRST = Claim(
    text="Topics are in the word embeddings before they are in attention (share of draws in which their onset is "
    "earlier)",
    above=LIKELY,
    reason="what was measured earlier or together stands beside it",
    ours=True,
)

_FIRST_BEYOND = replace(
    _EMBEDDINGS_FIRST,
    text="Beyond text without topics word embeddings begin before attention (share of draws in which their onset is "
    "earlier)",
)

_NO_TEXT_WITHOUT_TOPICS = (
    "embeddings of words that are equally frequent come to resemble each other, whether or not there are topics, and "
    f"no model of this architecture was trained on text {IN_CORPUS}"
)


def _before(result: RecipeResult, label: str, labels: str) -> float:
    """How likely embeddings begin before attention; 0 where neither ever begins."""
    for row in result.tables["order"]:
        if (row["training"], row["labels"]) == (label, labels):
            if (row["first"], row["second"]) == ("embeddings", "attention"):
                return nan if row["before"] is None else float(row["before"])
            if (row["first"], row["second"]) == ("attention", "embeddings"):
                return nan if row["after"] is None else float(row["after"])
    return nan


def _onsets(result: RecipeResult, label: str, labels: str) -> str:
    rows = [row for row in result.tables["onsets"] if (row["training"], row["labels"]) == (label, labels)]
    return ", ".join(
        f"{row['measured']} {'never' if row['onset'] is None else 'from step ' + format(row['onset'], ',.0f')}"
        for row in rows
    )


def _without_order(result: RecipeResult) -> Iterator[Claim]:
    """What is learned from text that has topics and no order."""
    for name, rows in _by_architecture(result).items():
        if name not in CONTROLLED or not any(one["control"] == IN_ARTICLES for one in result.tables["end"]):
            continue
        for measured in ("embeddings", "attention"):
            claim = replace(_WITHOUT_ORDER, text=_WITHOUT_ORDER.text.format(measured), setting=name)
            if _is_missing(rows):
                yield replace(claim, not_checked=_is_missing(rows))
                continue
            ends = {
                control: _ends(result, name, control, measured) for control in (IN_ARTICLES, IN_CORPUS, "")
            }
            yield replace(
                claim,
                measured=over_seeds(ends[IN_ARTICLES]),
                controls={IN_CORPUS: Number(float(np.mean(ends[IN_CORPUS])))},
                detail=f"of text as it is {np.mean(ends['']):.3g}",
            )


_WITHOUT_ORDER = Claim(
    text="Topics are learned from text without word order (effect size of {} at the end, trained on text shuffled "
    "within articles)",
    above=LEARNED,
    ours=True,
)


def _ends(result: RecipeResult, name: str, control: str, measured: str) -> list[float]:
    return [
        nan if row["effect_size"] is None else float(row["effect_size"])
        for row in result.tables["end"]
        if (row["architecture"], row["control"], row["measured"], row["labels"])
        == (name, control, measured, "")
    ]


def _by_architecture(result: RecipeResult) -> dict[str, list[Mapping[str, Any]]]:
    """The trainings on text as it is."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in result.tables["trainings"]:
        if not row["control"]:
            found.setdefault(row["architecture"], []).append(row)
    return found


def _is_missing(rows: Sequence[Mapping[str, Any]]) -> str:
    """Why an architecture is not interpreted: of one of its trainings; empty where it is."""
    return next((row["not_far_enough"] for row in rows if row["not_far_enough"]), "")


# --- figures ------------------------------------------------------------------------------------------


def _figures(result: RecipeResult) -> "dict[str, Figure]":
    """All trainings beside their controls, curves of every one, and Table 1 of those that may be interpreted."""
    from topic_probe.show.bars import ratio_panels
    from topic_probe.show.series import series_curves, series_panels

    short = {
        row["training"] for row in result.tables["trainings"] if row["not_far_enough"] and not row["control"]
    }
    every = result.of(SeriesReport)
    groups: dict[str, dict[str, list[SeriesReport]]] = {}
    for name, rows in _by_architecture(result).items():
        kinds = groups.setdefault(name + (", not trained far enough" if _is_missing(rows) else ""), {})
        for row in result.tables["trainings"]:
            if row["architecture"] == name:
                kinds.setdefault(row["control"] or "text as it is", []).append(every[row["training"]])
    figures: dict[str, Any] = {"all of emergence": series_panels(groups)}  # the first one of a page
    for label, series in every.items():
        note = ", not trained far enough" if label in short else ""
        figures[f"emergence {label}"] = series_curves(series, title=f"{label}{note}").figure
    if filled := result.tables.get("ratios"):
        figures["emergence table 1"] = ratio_panels(list(filled), title="Table 1 of models trained here")
    return figures


RECIPE = Recipe(
    *listed("emergence"),
    source="beside Table 1 and Section 8.1, models trained here",
    measure=measure,
    claims=(_far_enough, _table1, _thresholds, _first, _without_order),
    figures=_figures,
    seeds=2,
    quick_seeds=1,
)
