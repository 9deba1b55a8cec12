"""Figure 5: two stages in a BERT of four layers that learns real text, from keys, queries and values near zero.

A BERT of 4 layers with 4 heads each learns to predict masked words; after every step the norms of W_K, W_Q and W_V of
every layer are recorded, and how far W_V has turned in ten steps. The paper says what must be seen in the first 400
steps, *approximately*: in stage 1, roughly the first 100, W_K and W_Q stay close to 0 while W_V grows and turns fast;
then, much later than W_V, W_K and W_Q grow too. Claims are about the worst layer, and stage 1 is the first quarter of
the steps, also in the quick variant, which has fewer. Unlike in Figure 4, W_V is not said to become flat; that it does
by the rule of Figure 4 is claimed all the same, since that is what a stage is there. The approximate rule beside it:

* a tensor *starts* when its norm is 20 % above its smallest and above 5 % of its largest, and stays so;
* W_K and W_Q start at more than twice the step at which W_V does;
* where the first of the two starts, W_V has made more than a quarter of its growth.

The paper does not say which hyperparameters its curves have. Its picture appears with Adam from tiny noise: the
gradient of W_K has the factors W_Q and W_V (4e-15 per entry from noise of 1e-6, against 3e-4 for W_V), and Adam, which
otherwise moves every tensor at the same speed, moves slowly what is below its epsilon of 1e-8. The rate only sets the
time: at a width of 128 stage 1 takes 75 steps at a rate of 3e-5 (roughly 100 in the paper) and 40 at 1e-4. From noise
of 1e-3 the gradient of W_K begins near that epsilon and W_V has made only a tenth of its growth when W_K starts; from
BERT's usual initialisation no layer has stages, which is one of the two controls. With plain SGD only stage 1 was seen:
at a rate of 0.5 W_V grows fivefold in a thousand steps while W_K and W_Q stay where they are, and at 1 training
diverges.

The other control is the same text with its words dealt anew over all documents, so that nothing is left of it but how
often every word is. What is seen there too is no evidence about text: it is what the optimizer makes of the
initialisation.

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
from topic_probe.paper import listed
from topic_probe.paper.claims import Claim
from topic_probe.paper.pretrained import NO_WIKIPEDIA, hub_is_reachable, plain_values
from topic_probe.paper.recipe import Recipe, RecipeResult, Run, Subject
from topic_probe.paper.toys import judged, number, trained_settings
from topic_probe.paper.training import NAMES, Control, Setting, train_all
from topic_probe.text.corpus import Corpus
from topic_probe.text.word_tokenizer import word_tokenizer
from topic_probe.topics.lookup import vocabulary_size
from topic_probe.train.bert import TextConfig
from topic_probe.train.history import History, OptimizerName, TrainConfig
from topic_probe.train.stages import DynamicsReport, measure_dynamics
from topic_probe.train.tasks import TrainingText
from topic_probe.uncertainty import divide

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIRST_STEPS = 400
"""Steps that the paper describes, and all that is checked."""

STAGE_1 = 0.25
"""The share of these steps that stage 1 takes: roughly 100 of 400."""

LEAST, LATER, SHARE = 0.05, 2.0, 0.25
"""The 5 %, the twice and the quarter of the rules."""

CLOSE = 0.1
"""W_K and W_Q are close to 0 below this share of the norm that they have in the end."""

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
    noise: float,
    batch_size: int = 32,
    seconds: float,
    **sizes: int,
) -> Setting:
    return Setting(
        name=f"{NAMES[optimizer]}, rate {rate:g}, noise {noise:g}",
        # The vocabulary is known once there is a tokenizer.
        toy=TextConfig(vocabulary_size=1, noise=noise, **sizes),  # type: ignore[arg-type]
        train=TrainConfig(optimizer=optimizer, learning_rate=rate, batch_size=batch_size, steps=steps),
        seconds=seconds,
    )


FULL_SIZE = {"d_model": 128, "max_length": 64}
QUICK_SIZE = {"d_model": 32, "max_length": 32}

SETTINGS: tuple[Setting, ...] = (
    _setting("adam", 3e-5, 500, noise=TINY, seconds=100.0, **FULL_SIZE),
    _setting("adam", 1e-4, 500, noise=1e-3, seconds=100.0, **FULL_SIZE),
    _setting("sgd", 0.5, 500, noise=1e-3, seconds=100.0, **FULL_SIZE),
)
QUICK_SETTINGS: tuple[Setting, ...] = (
    _setting("adam", 5e-4, 80, noise=TINY, batch_size=16, seconds=1.0, **QUICK_SIZE),
)


def _is_papers(setting: Setting) -> bool:
    """Whether a setting is meant to show the paper's picture."""
    assert isinstance(setting.toy, TextConfig)
    return setting.train.optimizer == "adam" and setting.toy.noise <= TINY


def _usual(setting: Setting) -> Setting | None:
    assert isinstance(setting.toy, TextConfig)
    return replace(setting, toy=replace(setting.toy, init="usual")) if _is_papers(setting) else None


USUAL = Control("usual initialisation", train=_usual)
WORD_BY_WORD = Control(
    "text shuffled word by word", train=lambda setting: setting if _is_papers(setting) else None
)


def shuffled_text(text: TrainingText, *, seed: int) -> TrainingText:
    """The same words as often and documents as long, but every word dealt to any place; special tokens stay."""
    ids, words = text.ids.copy(), ~np.isin(text.ids, text.tokenizer.all_special_ids)
    ids[words] = np.random.default_rng(seed).permutation(ids[words])
    return replace(text, ids=ids)


def measure(run: Run, *, corpus: Corpus | None = None, tokenizer: Any = None) -> RecipeResult:
    """Train every setting on text, and measure when its tensors start to grow.

    Args:
        run: the options that all recipes have.
        corpus: the texts; None: a sample of Wikipedia, or if ``quick`` the articles that come with gensim.
        tokenizer: a Hugging Face tokenizer, its folder, or its name; None: the most frequent words of the corpus.
            The 30,000 word pieces of a pretrained model make every step several times slower.
    """
    if corpus is None and not run.quick and not hub_is_reachable():
        return run.result(subjects={"": Subject(missing=NO_WIKIPEDIA)})
    if corpus is None:
        corpus = Corpus.bundled() if run.quick else Corpus.wikipedia(N_ARTICLES, seed=run.seed)
    text = _read(run, corpus, _tokenizer(run, corpus, tokenizer))
    texts = {WORD_BY_WORD.name: shuffled_text(text, seed=run.seed)}
    size = vocabulary_size(text.tokenizer)
    runs = tuple(
        trained
        for setting in run.trainings
        for trained in train_all(
            [_with_vocabulary(setting, size)], text=texts.get(setting.control, text), folder=run.folder,
            progress=run.progress,
        )
    )  # fmt: skip
    layers: list[dict[str, Any]] = []
    numbers: list[dict[str, Any]] = []
    reports: dict[str, DynamicsReport] = {}
    for one in runs:
        setting, report = one.setting, measure_dynamics(one.history, until=FIRST_STEPS, least=LEAST)
        rows = layer_rows(one.history, report)
        about = {"setting": setting.name, "control": setting.control, "seed": setting.seed}
        layers += [about | plain_values(row) | {"layer": row["layer"]} for row in rows]
        numbers.append(about | plain_values(worst_layer(rows)))
        reports.setdefault(", ".join(filter(None, (setting.name, setting.control))), report)
    return run.result(reports.items(), runs=runs, tables={"numbers": numbers, "layers": layers})


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
    stream = corpus.documents(
        tokenizer, max_length=length, long="chunk", min_length=length // 2, progress=run.progress
    )
    return TrainingText.read(stream)


def _with_vocabulary(setting: Setting, size: int) -> Setting:
    assert isinstance(setting.toy, TextConfig)
    return replace(setting, toy=replace(setting.toy, vocabulary_size=size))


def layer_rows(history: History, report: DynamicsReport) -> list[dict[str, Any]]:
    """What the claims look at, a row for every layer: when each tensor starts, and what the others did by then."""
    return [_layer_row(history, report, number) for number in range(len(report.layer))]


def _layer_row(history: History, report: DynamicsReport, layer: int) -> dict[str, Any]:
    rows = history.steps.numpy() <= FIRST_STEPS
    steps, suffix = history.steps.numpy()[rows], f".{layer}" if len(report.layer) > 1 else ""
    value, key, query = (history.norms[f"W_{letter}{suffix}"].numpy()[rows] for letter in "VKQ")
    turned = history.rotations[f"W_V{suffix}"].numpy()[rows]
    second = float(report.attention_start[layer])
    first = steps <= STAGE_1 * steps[-1]
    end = int(first.sum()) - 1
    row = {
        "layer": report.layer[layer],
        "value_start": float(report.value_start[layer]),
        "value_flat": float(report.value_flat[layer]),
        "key_start": float(report.key_start[layer]),
        "query_start": float(report.query_start[layer]),
        "later": second / float(report.value_start[layer]),
        "value_share": _share(value, int(np.argmax(steps >= second))) if np.isfinite(second) else np.nan,
        "attention_in_stage_1": max(float(divide(norm[first].max(), norm[-1])) for norm in (key, query)),
        "value_in_stage_1": _share(value, end),
        "turning": float(divide(*(np.float64(_mean(turned[part])) for part in (first, ~first)))),
        "attention_size": float(divide(min(key[-1], query[-1]), value[-1])),
        "value_in_stage_2": float(divide(value[-1], value[end])),
        "flat_first": bool(report.two_stage[layer]),
    }
    return {**row, "two_stages": bool(row["later"] > LATER and row["value_share"] > SHARE)}


def worst_layer(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What claims are about: every number of the layer in which it is worst, and the share of layers with stages.

    A number that is undefined in one layer is undefined.
    """
    lowest = ("later", "value_in_stage_1", "turning", "attention_size", "value_in_stage_2")
    shares = ("flat_first", "two_stages")
    return {
        **{name: float(np.min([row[name] for row in rows])) for name in lowest},
        "attention_in_stage_1": float(np.max([row["attention_in_stage_1"] for row in rows])),
        **{name: float(np.mean([row[name] for row in rows])) for name in shares},
    }


def _share(curve: Float64[np.ndarray, " row"], row: int) -> float:
    """How much of its growth a norm has made at a row; NaN if it never grows."""
    growth = float(curve.max() - curve[0])
    return float(curve[row] - curve[0]) / growth if growth > 0 else np.nan


def _mean(values: Float64[np.ndarray, " row"]) -> float:
    kept = values[np.isfinite(values)]
    return float(kept.mean()) if len(kept) else np.nan


# --- claims -----------------------------------------------------------------------------------------

_FLAT_FIRST = Claim(
    text="Two stages by the rule of Figure 4: W_V is flat before W_K and W_Q start (share of layers)",
    paper="an approximately two-stage phenomenon, for all 4 layers",
    above=0.9,
    reason="W_V goes on growing after W_K and W_Q have started, which the paper does not exclude here",
)
_CLAIMS = (
    ("flat_first", _FLAT_FIRST),
    (
        "value_in_stage_2",
        Claim(
            text="In place of being flat W_V goes on growing in stage 2 (norm at its end ÷ at the end of stage 1, "
            "smallest over the layers)",
            above=1.25,
            ours=True,
        ),
    ),
    (
        "attention_in_stage_1",
        Claim(
            text="In stage 1 the norms of W_K and W_Q stay close to 0 (largest in the first quarter of the steps ÷ in "
            "the end, largest over the layers)",
            paper="stay close to 0, roughly steps 0–100",
            below=CLOSE,
            reason="they start a little before the first quarter of the steps ends, which is only roughly stage 1; "
            "until then they are below 5 % of what they become",
        ),
    ),
    (
        "value_in_stage_1",
        Claim(
            text="In stage 1 the norm of W_V increases significantly (share of its growth that it has made in the "
            "first quarter of the steps, smallest over the layers)",
            paper="increases significantly",
            above=SHARE,
        ),
    ),
    (
        "turning",
        Claim(
            text="In stage 1 the orientation of W_V changes rapidly (mean rotation in ten steps, stage 1 ÷ stage 2, "
            "smallest over the layers)",
            paper="changes rapidly",
            above=2.0,
        ),
    ),
    (
        "later",
        Claim(
            text="W_K and W_Q start to grow much later than W_V (step ÷ step, smallest over the layers)",
            paper="much later",
            above=LATER,
        ),
    ),
    (
        "attention_size",
        Claim(
            text=f"In stage 2 W_K and W_Q increase significantly (their norm ÷ that of W_V by step {FIRST_STEPS}, "
            "smallest over the layers)",
            paper="increase significantly",
            above=SHARE,
        ),
    ),
)


def _stages(result: RecipeResult) -> Iterator[Claim]:
    """What must be seen in the settings that are meant to show the paper's picture."""
    for missing in result.subjects.values():
        yield replace(_FLAT_FIRST, not_checked=missing.missing)
    for name, setting in trained_settings(result).items():
        if _is_papers(setting):
            for quantity, statement in _CLAIMS:
                yield judged(
                    statement, result, name, quantity, (USUAL.name, WORD_BY_WORD.name), detail=_starts(result, name)
                    if quantity in ("flat_first", "later") else "",
                )  # fmt: skip


def _starts(result: RecipeResult, name: str) -> str:
    """When the tensors of every layer start, with the first seed."""
    rows = [row for row in result.tables["layers"] if (row["setting"], row["control"]) == (name, "")]
    return "; ".join(
        f"layer {row['layer']}: W_V grows {_when(row['value_start'])} and is flat {_when(row['value_flat'])}, "
        f"W_K grows {_when(row['key_start'])}, W_Q {_when(row['query_start'])}"
        for row in rows
        if row["seed"] == rows[0]["seed"]
    )


def _when(step: float | None) -> str:
    return "never" if step is None else f"from step {step:.0f} on"


def _sensitivity(result: RecipeResult) -> Iterator[Claim]:
    """Stages in the settings like the paper's, and not in others."""
    known = trained_settings(result)
    papers = next((name for name, setting in known.items() if _is_papers(setting)), None)
    if papers is None:
        return
    others = {name: number(result, name, "two_stages") for name in known if not _is_papers(known[name])}
    others[USUAL.name] = number(result, papers, "two_stages", USUAL.name)
    fewest = min(others.values(), key=lambda share: share.value)
    yield Claim(
        text="Whether there are two stages depends on the hyperparameters (share of layers that have them by the "
        "approximate rule, in the setting in which fewest have)",
        source="Section 8.1",
        paper="sensitive to initialization and learning rate",
        measured=fewest,
        below=0.5,
        controls={papers: number(result, papers, "two_stages")},
        setting="all others",
        detail="; ".join(f"{name}: {share.value:.3g}" for name, share in others.items()),
    )


# --- figures ----------------------------------------------------------------------------------------


def _figures(result: RecipeResult) -> "dict[str, Figure]":
    """Norms and rotation against steps, a column per layer and a curve per seed: of every setting and its controls."""
    from topic_probe.show.curves import training_panels

    groups: dict[str, list[History]] = {}
    for one in result.runs:
        name = ", ".join(filter(None, (one.setting.name, one.setting.control)))
        groups.setdefault(name, []).append(one.history)
    return {
        f"figure5 {name}": training_panels({"": histories}, stages=False, title=f"{result.title}: {name}")
        for name, histories in groups.items()
    }


RECIPE = Recipe(
    *listed("figure5"),
    source="Figure 5, Section 8.1",
    settings=SETTINGS,
    quick_settings=QUICK_SETTINGS,
    controls=(USUAL, WORD_BY_WORD),
    seeds=3,
    measure=measure,
    claims=(_stages, _sensitivity),
    figures=_figures,
)
