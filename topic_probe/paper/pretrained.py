"""What the recipes on real text share: the paper's models, and for each the documents and topics of its own tokenizer.

A model, its tokenizer's documents and an LDA of their token ids are prepared together, because topics are sets of
token ids and mean nothing to another tokenizer. What needs files that are not there is reported as a `Subject` that is
missing, so that one model without files does not stop the others.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import islice
from math import nan
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float64

from topic_probe.contrast import Contrast, PairSums
from topic_probe.lens import capture
from topic_probe.lens.opening import open_model, random_init
from topic_probe.measure.pair_sums import group_sums, pair_sums
from topic_probe.measure.words import labelled_words
from topic_probe.options import Group
from topic_probe.paper.claims import Number
from topic_probe.paper.recipe import Run, Subject
from topic_probe.paper.training import digest
from topic_probe.text.corpus import Corpus, DocumentStream
from topic_probe.text.documents import Document
from topic_probe.text.lda import TopicFit, fit_topics
from topic_probe.topics import Topics
from topic_probe.topics.lookup import tokenizer_identity
from topic_probe.uncertainty import divide, permutation_p_value

HUB = {
    "bert": "google-bert/bert-base-uncased",
    "albert": "albert/albert-base-v2",
    "bart": "facebook/bart-base",
    # ELECTRA trains two models; the discriminator is the one that is kept and used, the generator only helps it.
    "electra": "google/electra-base-discriminator",
    "roberta": "FacebookAI/roberta-base",
}
"""The paper's pretrained models and their names on the Hugging Face hub, the base size of each."""

RANDOM = " random"
"""A name that ends so is the untrained twin of the model before it."""

SHUFFLED, UNTRAINED = "shuffled labels", "untrained"
"""The controls of claims about pretrained models."""

NO_DIFFERENCE = 0.01
"""A ratio may be so far from 1, and a difference so far from 0, where topics make no difference."""

EMBEDDING_SHUFFLES = 100
"""So many shuffles of the labels tell the mean ratio of embeddings to less than `NO_DIFFERENCE`."""

PAPER_MODELS = (*HUB, "bert" + RANDOM)
THRESHOLDS = (0.0005, 0.001, 0.002)
"""Words per topic ÷ vocabulary size; the paper calls it the ambiguity threshold."""


@dataclass(frozen=True)
class TextSettings:
    """How articles become topics, and which documents are measured.

    Attributes:
        n_articles: Articles of the Wikipedia sample, where no corpus is given.
        n_topics: Topics of LDA, which is fitted on whole articles.
        passes: Passes of LDA over them.
        length: Tokens that a measured document is cut to, at word borders and special ones included (fewer for a model
            that takes fewer): the common length of all documents that reach it.
        n_documents: Measured documents at most, spread evenly over the corpus; None: all.
    """

    n_articles: int = 10_000
    n_topics: int = 100
    passes: int = 10
    length: int = 128
    n_documents: int | None = 2_000

    def __post_init__(self) -> None:
        for name in ("n_articles", "n_topics", "passes", "length", "n_documents"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")


QUICK = TextSettings(n_topics=12, length=64, n_documents=60)


@dataclass(frozen=True)
class OnText(Group):
    """What recipes measure that compare pretrained models on the topics of a corpus."""

    models: Annotated[
        Any,
        "names of the paper's models, names on the hub or folders; or label → one of these or a model; None: those "
        "that the paper has there",
    ] = None
    corpus: Annotated[
        Corpus | None,
        "texts; None: a sample of Wikipedia, or if ``quick`` the articles that come with gensim",
    ] = None
    settings: Annotated[
        TextSettings | None,
        "how texts become topics and documents; None: as in the paper, or if ``quick`` small",
    ] = None

    def settings_of(self, run: Run) -> TextSettings:
        """How texts become topics and documents in a run."""
        return self.settings or (QUICK if run.quick else TextSettings())


"""For the articles that come with gensim."""


def check_thresholds(thresholds: Sequence[float]) -> None:
    """Refuse thresholds that are no shares, before topics are fitted."""
    if not thresholds or not all(0 < threshold <= 1 for threshold in thresholds):
        raise ValueError(
            f"thresholds are shares of the vocabulary, above 0 and at most 1, got {list(thresholds)}"
        )


# --- which models -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Wanted:
    """A model that a recipe is to measure.

    Attributes:
        label: What it is called in tables.
        source: A name of ``HUB``, a name on the hub, a folder, or a model.
        random: Whether its untrained twin is meant.
        named: Whether the user named it, so that it is an error if it is not there.
        added: Whether it is only there because every model gets its twin.
    """

    label: str
    source: Any
    random: bool = False
    named: bool = True
    added: bool = False


def wanted_models(
    models: Any = None,
    *,
    default: Sequence[str] = PAPER_MODELS,
    twins: bool = False,
    only: Iterable[str] | None = None,
) -> list[Wanted]:
    """The models that are meant, each followed by its untrained twin if ``twins``.

    Args:
        models: None: ``default``; a name, hub name or folder; several of them; or label → one of these or a model.
        default: Names of the paper's models.
        twins: Whether to add the untrained twin of every model.
        only: Labels to keep.
    """
    given: dict[str, Wanted] = {}
    for label, source in _labelled(default if models is None else models).items():
        random = isinstance(source, str) and source.endswith(RANDOM)
        name = source.removesuffix(RANDOM) if random else source
        given[label] = Wanted(label, name, random=random, named=models is not None)
    wanted: dict[str, Wanted] = {}
    for label, one in given.items():
        wanted.setdefault(label, one)
        if twins and not one.random:
            twin = replace(one, label=label + RANDOM, random=True, added=True)
            wanted.setdefault(twin.label, given.get(twin.label, twin))
    for label in sorted(set(only or ()) - set(wanted)):
        raise ValueError(f"no model {label!r} in this recipe; there are: {', '.join(wanted)}")
    return [one for label, one in wanted.items() if only is None or label in only]


def _labelled(models: Any) -> dict[str, Any]:
    """Models by what they are called in tables."""
    if isinstance(models, str | Path):
        models = [models]
    if not isinstance(models, Iterable):
        kind = type(models).__name__
        raise TypeError(f"models must be names, folders, or a mapping label → model, got {kind}")
    pairs = models.items() if isinstance(models, Mapping) else ((_label(source), source) for source in models)
    labelled = {str(label): source for label, source in pairs}
    if not labelled:
        raise ValueError("models is empty: name at least one, or leave it out for the paper's")
    return labelled


def _label(source: Any) -> str:
    if not isinstance(source, str | Path):
        kind = type(source).__name__
        raise TypeError(f"an opened model needs a label: pass models={{'NAME': model}}, got {kind}")
    path = Path(source).expanduser()
    name = path.name if isinstance(source, Path) or path.is_dir() else source
    return next((label for label, hub_name in HUB.items() if hub_name == name), name)


# --- opening ----------------------------------------------------------------------------------------


def hub_is_reachable() -> bool:
    """Whether the Hugging Face hub answers, asked once and without retries."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=5)
    except Exception:  # whatever the HTTP client of this version raises
        return False
    return True


def open_named(source: Any, *, reachable: Callable[[], bool] = hub_is_reachable) -> Any:
    """A hooked model by one of the paper's names, or by anything that `open_model` takes.

    Raises:
        OSError: where files are missing; at once where the hub cannot be reached.
    """
    if not isinstance(source, str):
        return open_model(source)
    name = HUB.get(source, source)
    local = name.startswith((".", "~", "/")) or name.count("/") > 1
    if local or Path(name).is_dir() or Path(name).is_absolute() or reachable():
        return open_model(name)
    folder = _downloaded(name)
    if folder is None:
        label = source if source in HUB else "NAME"
        raise OSError(
            f"{name} is not on this machine and the Hugging Face hub cannot be reached: fetch it elsewhere with `hf "
            f'download {name} --local-dir FOLDER`, copy the folder here, and pass models={{"{label}": FOLDER}}'
            f" (in a shell: --models {label}=FOLDER)"
        )
    return open_model(folder)


def _downloaded(name: str) -> str | None:
    """The folder in which an earlier download has left a model."""
    from huggingface_hub import snapshot_download

    try:
        return str(snapshot_download(name, local_files_only=True))
    except (OSError, ValueError):  # not there, or no name that the hub could have
        return None


@dataclass(frozen=True, eq=False, kw_only=True)
class Opened(Subject):
    """A model that is there.

    Attributes:
        model: Hooked.
        tokenizer: The model's own, None if it has none; that of the model it is the twin of, because building a
            hooked model around another one may change what its tokenizer adds to a text.
        added: Whether it is only there because every model gets its twin.
    """

    model: Any
    tokenizer: Any
    added: bool = False

    def subject(self, threshold: float = nan) -> Subject:
        """What stays in a result, the model itself not among it."""
        return Subject(label=self.label, random=self.random, threshold=threshold)


def open_all(
    run: Run,
    models: Any = None,
    *,
    default: Sequence[str] = PAPER_MODELS,
    twins: bool = False,
    reachable: Callable[[], bool] | None = None,
) -> Iterator[Opened | Subject]:
    """Every model that is meant (see `wanted_models`), opened when its turn comes; one that is missing is no `Opened`.

    Raises:
        OSError: where the user named a model that is not there.
    """
    reachable = reachable or cache(hub_is_reachable)
    source, model = None, None
    for one in wanted_models(models, default=default, twins=twins, only=run.only):
        try:
            if model is None or one.source != source:
                source, model = one.source, open_named(one.source, reachable=reachable)
        except OSError as error:
            if one.named:
                raise
            # Its model has been reported already.
            if not one.added:
                yield Subject(label=one.label, random=one.random, missing=str(error))
            continue
        yield Opened(
            label=one.label,
            random=one.random,
            model=random_init(model, seed=run.seed) if one.random else model,
            tokenizer=getattr(model, "tokenizer", None),
            added=one.added,
        )


def tokenizer_of(opened: Opened) -> Any:
    """The tokenizer of a model; ValueError where it has none."""
    if opened.tokenizer is None:
        raise ValueError(
            f"{opened.label!r} has no tokenizer, and without it no word has a token id: open it with "
            "topic_probe.open_model(model, tokenizer=...) and pass that"
        )
    return opened.tokenizer


# --- preparing --------------------------------------------------------------------------------------


class Sample(Sequence[Document]):
    """Documents in memory that know where they come from, for the provenance of what is measured on them."""

    def __init__(self, documents: Iterable[Document], provenance: Mapping[str, Any]) -> None:
        self._documents = tuple(documents)
        self.provenance = provenance

    def __len__(self) -> int:
        return len(self._documents)

    def __getitem__(self, index: Any) -> Any:
        return self._documents[index]


Articles = DocumentStream | Sample


@dataclass(frozen=True, eq=False, kw_only=True)
class Prepared(Opened):
    """A model with everything that is measured on it.

    Attributes:
        articles: The whole texts as documents of its tokenizer, to be read as a stream; the few of a quick variant are
            in memory.
        documents: The cut documents that are measured.
        fit: LDA of the articles.
        settings: How they were made.
    """

    articles: Articles
    documents: Sequence[Document]
    fit: TopicFit
    settings: TextSettings

    def topics(self, threshold: float, *, one_topic_per_word: bool = True) -> Topics:
        """The likeliest words of every topic, ``threshold`` times the vocabulary of them."""
        return self.fit.topics(fraction=threshold, one_topic_per_word=one_topic_per_word)


def prepare_all(
    run: Run,
    given: OnText,
    *,
    default: Sequence[str] = PAPER_MODELS,
    twins: bool = False,
) -> Iterator[Prepared | Subject]:
    """Every model (see `wanted_models`), ready to be measured, one at a time; one that is missing is not `Prepared`.

    The folder of a run keeps token ids and fits for the next time; a fit is found again only for the same texts,
    tokenizer and options. Without a corpus it is a sample of Wikipedia, or if the run is quick the articles of gensim.

    Raises:
        OSError: where the user named a model, or gave a corpus, that is not there.
    """
    reachable, settings = cache(hub_is_reachable), given.settings_of(run)
    texts = Texts(run, given.corpus, settings, reachable)
    for one in open_all(run, given.models, default=default, twins=twins, reachable=reachable):
        if not isinstance(one, Opened):
            yield one
            continue
        try:
            articles, documents, fit = texts.of(one)
        except ConnectionError as error:
            if given.corpus is not None:
                raise
            if not one.added:
                yield replace(one.subject(), missing=str(error))
            continue
        yield Prepared(**vars(one), articles=articles, documents=documents, fit=fit, settings=settings)


NO_WIKIPEDIA = (
    "the Wikipedia sample cannot be streamed, because the Hugging Face hub cannot be reached: pass "
    "corpus=topic_probe.Corpus.bundled() for the real articles that come with gensim, or Corpus.from_files for your own"
)


class Texts:
    """The documents and the fit of every tokenizer, each made once."""

    def __init__(
        self, run: Run, corpus: Corpus | None, settings: TextSettings, reachable: Callable[[], bool]
    ) -> None:
        self._needs_hub, self._few = corpus is None and not run.quick, corpus is None and run.quick
        if corpus is None:
            corpus = Corpus.bundled() if run.quick else Corpus.wikipedia(settings.n_articles, seed=run.seed)
        self._run, self._corpus, self._settings, self._reachable = run, corpus, settings, reachable
        self._done: dict[str, tuple[Articles, Sequence[Document], TopicFit]] = {}

    def of(self, opened: Opened) -> tuple[Articles, Sequence[Document], TopicFit]:
        """Whole articles, cut documents and the fit for the tokenizer of a model."""
        tokenizer, length = tokenizer_of(opened), self._settings.length
        length = min(length, capture.facts(opened.model).context_length or length)
        key = digest([tokenizer_identity(tokenizer), length])
        if key not in self._done:
            if self._needs_hub and self._run.folder is None and not self._reachable():
                raise ConnectionError(NO_WIKIPEDIA)
            articles: Articles = self._corpus.documents(tokenizer, progress=self._run.progress)
            if self._few:  # are read several times, and reading them takes longer than anything else
                articles = Sample(articles, articles.provenance)
            fit = self._fit(articles, tokenizer)
            cut = self._corpus.documents(tokenizer, max_length=length, progress=self._run.progress)
            wanted = self._settings.n_documents
            step = 1 if wanted is None else max(1, int(fit.provenance["documents"]) // wanted)
            documents = islice(islice(cut, 0, None, step), wanted)
            sample = Sample(documents, {**cut.provenance, "every": step, "at_most": wanted})
            self._done[key] = articles, sample, fit
        return self._done[key]

    def _fit(self, articles: Articles, tokenizer: Any) -> TopicFit:
        """LDA; kept where there is a folder."""
        run, settings, path = self._run, self._settings, None
        if run.folder is not None:
            facts = {
                "texts": self._corpus.identity(),
                "tokenizer": tokenizer_identity(tokenizer),
                "options": [settings.n_topics, settings.passes, run.seed],
            }
            path = run.folder / "fits" / digest(facts)
            if path.exists():
                return TopicFit.load(path)
        fit = fit_topics(
            articles, tokenizer, n_topics=settings.n_topics, passes=settings.passes, seed=run.seed,
            progress=run.progress,
        )  # fmt: skip
        if path is not None:
            fit.save(path)
        return fit


# --- shuffled labels --------------------------------------------------------------------------------


def embeddings_of_shuffles(
    model: Any, topics: Topics, *, seed: int, n: int = EMBEDDING_SHUFFLES
) -> Iterator[tuple[PairSums, PairSums]]:
    """Sums over pairs of word embeddings as `pair_sums` has them, under one shuffle of the labels after the other."""
    table = capture.word_embeddings(model)
    for number in range(n):
        words = labelled_words(table, topics.shuffled(n * seed + number))
        yield pair_sums(group_sums(words, squares=False), words)


def beside_shuffles(
    contrast: Contrast, same: Float64[np.ndarray, " shuffle"], n_same: Float64[np.ndarray, " shuffle"]
) -> dict[str, float]:
    """What a contrast is under shuffled labels, by name; NaN where no shuffle has pairs of both kinds.

    * ``shuffled``: the mean same-topic score of all shuffles ÷ their mean different-topic score.
    * ``shuffled_low``, ``shuffled_high``: between these lies the ratio of 95 % of them.
    * ``reached``: the share of shuffles with at least the ratio that was measured, which counts as one of them; with at
      least the difference where the contrast's interval is about that.

    Args:
        contrast: what was measured, of a single cell.
        same: sums over the pairs that share a topic after a shuffle; what it does not put into one topic is of
            different ones.
        n_same: the numbers of these pairs.
    """
    parts = [
        (contrast.same_topic, contrast.n_same_topic),
        (contrast.different_topic, contrast.n_different_topic),
    ]
    whole, n_whole = sum(float(mean * n) for mean, n in parts if n > 0), sum(float(n) for _, n in parts)
    above, below = divide(same, n_same), divide(whole - same, n_whole - n_same)
    known = np.isfinite(above) & np.isfinite(below)
    above, below = above[known], below[known]
    names = ("shuffled", "shuffled_low", "shuffled_high", "reached")
    if not known.any():
        return dict.fromkeys(names, nan)
    ratios = divide(above, below)
    middle = divide(above.mean(), below.mean())
    compared = (
        (contrast.difference, above - below)
        if contrast.statistic == "difference"
        else (contrast.ratio, ratios)
    )
    reached = permutation_p_value(*compared, alternative="greater")
    numbers = (middle, *np.quantile(ratios, (0.025, 0.975)), reached)
    return dict(zip(names, map(float, numbers), strict=True))


# --- tables -----------------------------------------------------------------------------------------


def settings_table(settings: TextSettings, **more: Any) -> list[dict[str, Any]]:
    """The settings as rows of a table."""
    return [{"setting": name, "value": str(value)} for name, value in {**asdict(settings), **more}.items()]


def plain(value: Any) -> Any:
    """A plain value for a table; None in place of a number that is missing."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.generic | np.ndarray):
        return value
    number = float(value)
    return number if np.isfinite(number) else None


def plain_values(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Plain values by their names."""
    return {str(name): plain(value) for name, value in values.items()}


def number_of(value: float | None, low: float | None, high: float | None, of: str) -> Number:
    """A number of a table with the interval over what it has one of; it decides nothing where that is missing."""
    value, low, high = (nan if number is None else number for number in (value, low, high))
    return Number(value, low, high, of)


def exact_number(value: float | None) -> Number:
    """A number of a table that has no interval."""
    return Number(nan if value is None else value)


def short(value: float | None) -> str:
    """A number of a table as text."""
    return "none" if value is None else f"{value:.4g}"
