"""Figure 5: two stages in a BERT of four layers that learns real text, from keys, queries and values near zero.

A BERT of 4 layers with 4 heads each learns to predict masked words; after every step the norms of W_K, W_Q and W_V of
every layer are recorded, and how far W_V has turned in ten steps. The paper says what must be seen in the first 400
steps, *approximately*: at first W_V grows and turns fast while W_K and W_Q stay close to 0, and much later W_K and W_Q
grow too. Unlike in Figure 4, W_V is not said to become flat. The rules that are checked, for every layer:

* a tensor *starts* when its norm is 20 % above its smallest and above 5 % of its largest, and stays so;
* W_K and W_Q start at more than twice the step at which W_V does;
* where the first of the two starts, W_V has made more than a quarter of its growth.

The paper does not say which hyperparameters its curves have. Its picture appears with Adam from tiny noise: the
gradient of W_K has the factors W_Q and W_V (4e-15 per entry from noise of 1e-6, against 3e-4 for W_V), and Adam, which
otherwise moves every tensor at the same speed, moves slowly what is below its epsilon of 1e-8. The rate only sets the
time: at a width of 128 stage 1 takes 75 steps at a rate of 3e-5 (roughly 100 in the paper) and 40 at 1e-4, at the
width of 64 of the quick variant 110 at 3e-5 and 30 at 3e-4. From noise of 1e-3 the gradient of W_K begins near that
epsilon and W_V has made only a tenth of its growth when W_K starts; from BERT's usual initialisation no layer has
stages. With plain SGD only stage 1 was seen: at a rate of 0.5 W_V grows fivefold in a thousand steps while W_K and W_Q
stay where they are, and at 1 training diverges.

The text is a sample of Wikipedia, in the quick variant the articles that come with gensim, and the vocabulary is the
most frequent words of these texts (`word_tokenizer`), so that nothing else is needed and a step is affordable.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64

from topic_probe.lens.opening import load_tokenizer
from topic_probe.paper.claims import Claim
from topic_probe.paper.pretrained import NO_WIKIPEDIA, hub_is_reachable
from topic_probe.paper.recipe import Recipe, RecipeResult, Run, Subject
from topic_probe.paper.training import NAMES, Setting, Trained, train_all
from topic_probe.text.corpus import Corpus
from topic_probe.text.word_tokenizer import word_tokenizer
from topic_probe.topics.vocabulary import vocabulary_size
from topic_probe.train.bert import TextConfig
from topic_probe.train.history import History, OptimizerName, TrainConfig
from topic_probe.train.stages import DynamicsReport, measure_dynamics
from topic_probe.train.tasks import TrainingText
from topic_probe.uncertainty import divide

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = "Figure 5, Section 8.1"
FIRST_STEPS = 400
"""Steps that the paper describes, and all that is checked."""

LEAST, LATER, SHARE = 0.05, 2.0, 0.25
"""The 5 %, the twice and the quarter of the rules."""

TINY = 1e-6
"""Noise from which Adam shows the stages; settings with more, or with SGD, are there to show that they depend on it."""

N_ARTICLES = 5_000
N_WORDS = {False: 10_000, True: 4_000}
"""Words of the vocabulary, by whether the variant is quick."""


def _setting(
    optimizer: OptimizerName,
    rate: float,
    steps: int,
    *,
    noise: float | None,
    seed: int = 0,
    seconds: float,
    **sizes: int,
) -> Setting:
    start = "usual initialisation" if noise is None else f"noise {noise:g}"
    init = {"init": "usual"} if noise is None else {"noise": noise}
    return Setting(
        name=f"{NAMES[optimizer]}, rate {rate:g}, {start}, seed {seed}",
        # The vocabulary is known once there is a tokenizer.
        toy=TextConfig(vocabulary_size=1, **init, **sizes),  # type: ignore[arg-type]
        train=TrainConfig(optimizer=optimizer, learning_rate=rate, batch_size=32, steps=steps, seed=seed),
        seed=seed,
        seconds=seconds,
    )


FULL_SIZE = {"d_model": 128, "max_length": 64}
QUICK_SIZE = {"d_model": 64, "max_length": 32}

SETTINGS: tuple[Setting, ...] = (
    _setting("adam", 3e-5, 1_000, noise=TINY, seconds=200.0, **FULL_SIZE),
    _setting("adam", 1e-4, 1_000, noise=TINY, seconds=200.0, **FULL_SIZE),
    _setting("adam", 1e-4, 1_000, noise=TINY, seed=1, seconds=200.0, **FULL_SIZE),
    _setting("adam", 3e-4, 1_000, noise=TINY, seconds=200.0, **FULL_SIZE),
    _setting("adam", 1e-4, 1_000, noise=1e-3, seconds=200.0, **FULL_SIZE),
    _setting("adam", 1e-4, 1_000, noise=None, seconds=200.0, **FULL_SIZE),
    _setting("sgd", 0.5, 1_000, noise=1e-3, seconds=200.0, **FULL_SIZE),
)
QUICK_SETTINGS: tuple[Setting, ...] = (
    _setting("adam", 3e-4, 150, noise=TINY, seconds=6.0, **QUICK_SIZE),
    _setting("adam", 1e-3, 60, noise=None, seconds=2.0, **QUICK_SIZE),
)


def measure(run: Run, *, corpus: Corpus | None = None, tokenizer: Any = None) -> RecipeResult:
    """Train every setting on text, and measure when its tensors start to grow.

    Args:
        run: the options that all recipes have.
        corpus: the texts; None: a sample of Wikipedia, or if ``quick`` the articles that come with gensim.
        tokenizer: a Hugging Face tokenizer, its folder, or its name; None: the most frequent words of the corpus.
            The 30,000 word pieces of a pretrained model make every step several times slower.
    """
    settings = run.settings
    if corpus is None and not run.quick and not hub_is_reachable():
        return run.result(subjects={"": Subject(missing=NO_WIKIPEDIA)})
    if corpus is None:
        corpus = Corpus.bundled() if run.quick else Corpus.wikipedia(N_ARTICLES, seed=run.seed)
    text = _read(run, corpus, _tokenizer(run, corpus, tokenizer))
    size = vocabulary_size(text.tokenizer)
    runs = train_all(
        (_with_vocabulary(setting, size) for setting in settings),
        text=text, folder=run.folder, progress=run.progress,
    )  # fmt: skip
    reports = [
        (one.setting.name, measure_dynamics(one.history, until=FIRST_STEPS, least=LEAST)) for one in runs
    ]
    result = run.result(reports, runs=runs)
    layers = [{"setting": name, **row} for name, rows in _layers(result).items() for row in rows]
    return replace(result, tables={"layers": layers})


def _tokenizer(run: Run, corpus: Corpus, given: Any) -> Any:
    if given is None:
        return word_tokenizer(corpus, n_words=N_WORDS[run.quick])
    if not isinstance(given, str | Path):
        return given
    tokenizer = load_tokenizer(str(Path(given).expanduser()))
    if tokenizer is None:
        raise OSError(
            f"no tokenizer can be loaded from {str(given)!r}: give a folder that save_pretrained has written, or leave "
            "tokenizer out for the words of the corpus"
        )
    return tokenizer


def _read(run: Run, corpus: Corpus, tokenizer: Any) -> TrainingText:
    """The corpus in pieces as long as the model takes them; the last piece of an article only if it is half as long."""
    length = (QUICK_SIZE if run.quick else FULL_SIZE)["max_length"]
    cache = None if run.folder is None else run.folder / "tokens"
    stream = corpus.documents(
        tokenizer, max_length=length, long="chunk", min_length=length // 2, cache=cache, progress=run.progress
    )
    return TrainingText.read(stream)


def _with_vocabulary(setting: Setting, size: int) -> Setting:
    assert isinstance(setting.toy, TextConfig)
    return replace(setting, toy=replace(setting.toy, vocabulary_size=size))


def _is_papers(trained: Trained) -> bool:
    """Whether a setting is meant to show the paper's picture."""
    toy, train = trained.setting.toy, trained.setting.train
    assert isinstance(toy, TextConfig)
    return train.optimizer == "adam" and toy.init == "near-zero" and toy.noise <= TINY


def _layers(result: RecipeResult) -> dict[str, list[dict[str, Any]]]:
    """The rows of every setting."""
    reports = result.of(DynamicsReport)
    return {one.setting.name: layer_rows(one.history, reports[one.setting.name]) for one in result.runs}


def layer_rows(history: History, report: DynamicsReport) -> list[dict[str, Any]]:
    """What the claims look at, a row for every layer: when each tensor starts, and what the others did by then."""
    return [_layer_row(history, report, number) for number in range(len(report.layer))]


def _layer_row(history: History, report: DynamicsReport, number: int) -> dict[str, Any]:
    rows = history.steps.numpy() <= FIRST_STEPS
    steps, suffix = history.steps.numpy()[rows], f".{number}" if len(report.layer) > 1 else ""
    value, key, query = (history.norms[f"W_{letter}{suffix}"].numpy()[rows] for letter in "VKQ")
    turned = history.rotations[f"W_V{suffix}"].numpy()[rows]
    starts = report.key_start[number], report.query_start[number]
    second = np.nan if np.isnan(starts).all() else float(np.nanmin(starts))
    row = {
        "layer": report.layer[number],
        "value_start": float(report.value_start[number]),
        "key_start": float(starts[0]),
        "query_start": float(starts[1]),
        "later": second / float(report.value_start[number]),
        "value_share": _share(value, int(np.argmax(steps >= second))) if np.isfinite(second) else np.nan,
        "attention_size": float(divide(min(key[-1], query[-1]), value[-1])),
        "first_rotation": _mean(turned[steps <= second]),
        "second_rotation": _mean(turned[steps > second]),
    }
    return {**row, "two_stages": bool(row["later"] > LATER and row["value_share"] > SHARE)}


def _share(curve: Float64[np.ndarray, " row"], row: int) -> float:
    """How much of its growth a norm has made at a row; NaN if it never grows."""
    growth = float(curve.max() - curve[0])
    return float(curve[row] - curve[0]) / growth if growth > 0 else np.nan


def _mean(values: Float64[np.ndarray, " row"]) -> float:
    kept = values[np.isfinite(values)]
    return float(kept.mean()) if len(kept) else np.nan


_LATER = Claim(
    text="In every layer W_K and W_Q start to grow much later than W_V (step ÷ step, smallest over the layers)",
    source=SOURCE,
    paper="much later",
)


def _stages(result: RecipeResult) -> Iterator[Claim]:
    """What must be seen in the settings that are meant to show the paper's picture."""
    for missing in result.subjects.values():
        yield replace(_LATER, not_checked=missing.missing)
    layers, reports = _layers(result), result.of(DynamicsReport)
    for one in result.runs:
        if _is_papers(one):
            yield from _claims(one.setting.name, layers[one.setting.name], reports[one.setting.name])


def _sensitivity(result: RecipeResult) -> Iterator[Claim]:
    layers = _layers(result)
    others = {one.setting.name: layers[one.setting.name] for one in result.runs if not _is_papers(one)}
    counts = {name: sum(row["two_stages"] for row in rows) for name, rows in others.items()}
    if others:
        yield Claim(
            text="Whether there are two stages depends on the hyperparameters (number of other settings in which not "
            "every layer has them)",
            source="Section 8.1",
            paper="sensitive to initialization and learning rate",
            measured=float(sum(counts[name] < len(rows) for name, rows in others.items())),
            above=0.0,
            setting="all others",
            detail="; ".join(
                f"{name}: {count} of {len(others[name])} layers" for name, count in counts.items()
            ),
        )


def _claims(name: str, rows: Sequence[Mapping[str, Any]], report: DynamicsReport) -> list[Claim]:
    starts = "; ".join(
        f"layer {row['layer']}: W_V at step {row['value_start']:.0f}, W_K {row['key_start']:.0f}, "
        f"W_Q {row['query_start']:.0f}"
        for row in rows
    )
    turning = divide(*(np.array([row[f"{stage}_rotation"] for row in rows]) for stage in ("first", "second")))
    return [
        replace(
            _LATER,
            measured=float(np.min([row["later"] for row in rows])),
            above=LATER,
            setting=name,
            detail=f"{starts}. By the stricter rule of Figure 4, that W_V is flat by then: {report.pattern}",
        ),
        Claim(
            text="The norm of W_V increases significantly while W_K and W_Q stay close to 0 (share of its growth that "
            "it has made where W_K or W_Q starts, smallest over the layers)",
            source=SOURCE,
            paper="increases significantly",
            measured=float(np.min([row["value_share"] for row in rows])),
            above=SHARE,
            setting=name,
        ),
        Claim(
            text="In stage 1 the orientation of W_V changes rapidly (mean rotation in ten steps, stage 1 ÷ stage 2, "
            "smallest over the layers)",
            source=SOURCE,
            paper="changes rapidly",
            measured=float(np.min(turning)),
            above=2.0,
            setting=name,
        ),
        Claim(
            text=f"In stage 2 W_K and W_Q increase significantly (their norm ÷ that of W_V by step {FIRST_STEPS}, "
            "smallest over the layers)",
            source=SOURCE,
            paper="increase significantly",
            measured=float(np.min([row["attention_size"] for row in rows])),
            above=SHARE,
            setting=name,
        ),
    ]


def _figures(result: RecipeResult) -> "dict[str, Figure]":
    """Norms and rotation against steps, a column per layer: the settings like the paper's, and each of the others."""
    from topic_probe.show.curves import training_panels

    like_the_paper = [one.history for one in result.runs if _is_papers(one)]
    groups = {"figure5": (result.title, like_the_paper)} if like_the_paper else {}
    for one in result.runs:
        if not _is_papers(one):
            groups[f"figure5 {one.setting.name}"] = (f"{result.title}: {one.setting.name}", [one.history])
    return {
        name: training_panels({"": histories}, stages=False, title=title)
        for name, (title, histories) in groups.items()
    }


RECIPE = Recipe(
    name="figure5",
    title="two stages of training in a BERT on real text",
    source=SOURCE,
    settings=SETTINGS,
    quick_settings=QUICK_SETTINGS,
    measure=measure,
    claims=(_stages, _sensitivity),
    figures=_figures,
)
