"""Figures 4 and 5: W_V grows first, and only then W_K and W_Q; of a toy, and of a BERT on real text.

The paper explains the order by how training begins: the gradient of W_K contains W_Q, which is close to 0 (Section
8.1). So what must break it is W_Q at its usual size, everything else as it was. Documents without topics are a control
of what is said of attention alone.

Whether attention may see masked positions decides what the second stage is. The paper's text allows it; the authors'
public code hides them while training. Hidden (``attend="unmasked"``), words come to attend to their topic.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isnan
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64

from topic_probe.paper.claims import Bound, Claim
from topic_probe.paper.recipe import Measured, Recipe, RecipeResult, Run, array_name
from topic_probe.paper.trainings import Case, Rows, toys, training
from topic_probe.text.corpus import Corpus
from topic_probe.toy.word_attention import word_attention
from topic_probe.train.history import History, TrainConfig
from topic_probe.train.stages import MIN_ROWS, measure_dynamics

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

LARGE_QUERY = "W_Q at its usual size"
PLACEBO = "W_V in place of W_K"
NOT_STAGED = "the setting with two stages"
FIRST_STAGE, SECOND_STAGE = 400, 1_000
"""The steps of the paper's Figure 4 at which attention is looked at."""

NOISES = (1e-4, 1e-3, 1e-2)


def _begin(noise: float) -> dict[str, Any]:
    return {"init": "near-zero", "noise": noise}


FIGURE4 = (
    training(
        "two-stage", "squared", "sgd", steps=700, rate=30.0, quick={}, toy=_begin(0.001), record_every=1
    ),
    training(
        "two-stage", "squared", "adam", steps=1_000, rate=3e-4, quick={}, name="masked positions hidden",
        toy={**_begin(1e-8), "attend": "unmasked"}, record_every=1, measure_every=100,
    ),
    training(
        "two-stage", "cross_entropy", "adam", steps=300, rate=0.01, quick={}, toy=_begin(0.01), record_every=1
    ),
    *(
        training(
            "two-stage", loss, "sgd", steps=0, quick={}, name=f"noise {noise:g}", toy=_begin(noise),
            record_gradients=True,
        )
        for loss in ("squared", "cross_entropy")
        for noise in NOISES
    ),
)  # fmt: skip
_OF_SGD = "loss == 'squared' and optimizer == 'sgd' and steps > 0"
_OF_ADAM = "loss == 'squared' and optimizer == 'adam'"
FIGURE4_CLAIMS = (
    Claim(
        id="F4a",
        says="W_V already plateaus, and only after that W_K and W_Q start to move (step from which W_V is flat ÷ step "
        "at which W_K or W_Q starts).",
        source="Section 5.1, Figure 4",
        bounds=(Bound("flat ÷ start", below=0.5),),
        of=_OF_SGD,
        controls=(LARGE_QUERY, "W_K, W_Q at their usual size"),
        line="Fig 4   W_V is flat before W_K, W_Q start",
        shown="{:.2f} of the way",
    ),
    Claim(
        id="F4b",
        says="In stage 1 W_K and W_Q stay close to 0, in stage 2 they increase significantly (change until W_V is "
        "flat; norm at the end ÷ at the beginning).",
        source="Figure 4",
        bounds=(Bound("change in stage 1", below=0.05), Bound("growth of W_K, W_Q", above=2.0)),
        of=_OF_SGD,
        controls=(LARGE_QUERY,),
        line="        W_K, W_Q stay, then grow",
        shown="{:.4f} change",
    ),
    Claim(
        id="F4c",
        says="In stage 2 the norm of W_V stays relatively flat (at the end ÷ where stage 2 begins).",
        source="Figure 4",
        bounds=(Bound("W_V in stage 2", above=0.75, below=1.25),),
        of=_OF_SGD,
        shown="×{:.2f}",
    ),
    Claim(
        id="F4d",
        says="In the paper's own steps W_V has made most of its growth when W_K or W_Q begins (its share then).",
        source="Figure 4",
        bounds=(Bound("W_V's share", above=0.6),),
        of=_OF_ADAM,
        controls=(LARGE_QUERY, "W_K, W_Q at their usual size"),
        line="Fig 4   W_V's growth when W_K, W_Q begin",
        shown="{:.0%}",
    ),
    Claim(
        id="F4e",
        says="In stage 1 attention is near uniform, in stage 2 it turns to words of the topic (÷ other topics at step "
        f"{FIRST_STAGE} and at {SECOND_STAGE:,}).",
        source="Section 5.1, Section 2.2.2",
        bounds=(
            Bound(f"attention to the topic at step {FIRST_STAGE}", above=0.95, below=1.05),
            Bound(f"attention to the topic at step {SECOND_STAGE}", above=1.1),
        ),
        of=_OF_ADAM,
        controls=("no topics",),
        line="        attention turns to the topic after",
        shown="×{:.2f} at step 400",
    ),
    Claim(
        id="F4f",
        says="The gradient of W_K contains the term W_Q, which is close to 0 (step at which W_K starts ÷ the step with "
        "W_Q at its usual size).",
        source="Section 8.1",
        bounds=(Bound("start ÷ start with a large W_Q", above=5.0),),
        of=_OF_SGD,
        controls=(PLACEBO, LARGE_QUERY),
        line="§8.1    W_K waits for W_Q",
        shown="{:.0f} times longer",
    ),
    Claim(
        id="F4g",
        says="The two stages are not usually visible with common hyperparameters (W_V's share of its growth when W_K "
        "or W_Q begins, cross-entropy with Adam).",
        source="Section 8.1",
        bounds=(Bound("W_V's share", below=0.5),),
        of="loss == 'cross_entropy' and optimizer == 'adam'",
        controls=(NOT_STAGED,),
        line="§8.1    not with common settings",
        shown="{:.0%}",
    ),
    Claim(
        id="G",
        says="Where training begins, the gradient of W_K is to that of W_V as the square of the noise (slope of the "
        "logarithms).",
        source="Section 8.1",
        bounds=(Bound("slope", above=1.8, below=2.2),),
        of="steps == 0",
        controls=(LARGE_QUERY,),
        line="§8.1    gradient of W_K ~ W_Q",
        shown="{:.2f} slope",
    ),
)


def _stages(case: Case) -> dict[str, float]:
    """When W_V is flat and W_K or W_Q starts, and by how much they grow."""
    history = case.history
    if len(history) < MIN_ROWS or history.stopped != "finished":
        return {}
    stage = measure_dynamics(history).to_dataframe().iloc[0]
    norms = {name: history.norms[name].numpy() for name in ("W_V", "W_K", "W_Q")}
    starts = [step for step in (stage["key_start"], stage["query_start"]) if not isnan(step)]
    flat = history.last_step if isnan(stage["value_flat"]) else float(stage["value_flat"])
    grown = [float(norms[name][-1] / norms[name][0]) for name in ("W_K", "W_Q")]
    first = history.steps.numpy() <= flat
    moved = [float(np.abs(norms[name][first] / norms[name][0] - 1).max()) for name in ("W_K", "W_Q")]
    return {
        "W_V is flat from": flat,
        "W_V starts at": float(stage["value_start"]),
        "W_K starts at": float(stage["key_start"]),
        # Where none starts, none is after the other.
        "flat ÷ start": flat / min(starts) if starts else 1.0,
        "change in stage 1": max(moved),
        "growth of W_K, W_Q": min(grown),
        "W_V in stage 2": float(stage["late_value_growth"]),
        "W_V's share": _share_of_growth(norms),
    }


def _share_of_growth(norms: Mapping[str, Float64[np.ndarray, " row"]]) -> float:
    """The share of its growth that W_V has made when the first of W_K and W_Q has made 5 % of its own."""
    made = {name: _made(curve) for name, curve in norms.items()}
    first = min(int(np.argmax(made[name] >= 0.05)) for name in ("W_K", "W_Q"))
    return float(made["W_V"][first])


def _made(curve: Float64[np.ndarray, " row"]) -> Float64[np.ndarray, " row"]:
    """The share of its growth that a norm has made in every row; NaN for one that never grows."""
    growth = float(curve.max() - curve[0])
    return np.asarray((curve - curve[0]) / (growth if growth > 0 else np.nan))


def _attention_at(case: Case) -> dict[str, float]:
    """Attention to the topic at the steps that the paper names."""
    if "attention.same_topic" not in case.history.measured:
        return {}
    steps, ratio = _attention_curve(case.history)
    return {
        f"attention to the topic at step {at}": float(ratio[steps == at][0])
        for at in (FIRST_STAGE, SECOND_STAGE)
        if at in steps
    }


def _attention_curve(history: History) -> tuple[np.ndarray, Float64[np.ndarray, " step"]]:
    """Steps, and attention to other words of the topic ÷ to other topics."""
    same, different = (history.measured[f"attention.{name}_topic"] for name in ("same", "different"))
    return same.steps.numpy(), np.asarray(same.values.numpy() / different.values.numpy())


def _first_gradients(case: Case) -> dict[str, float]:
    sizes = case.history.gradients
    if case.row.train.steps or "W_K" not in sizes:
        return {}
    return {"gradient of W_K ÷ W_V": float(sizes["W_K"][0]) / float(sizes["W_V"][0])}


def _of_several(numbers: "pd.DataFrame") -> Rows:
    """Numbers of several trainings of one seed: slopes over the noise, and steps with W_Q small and large."""
    return [*_slopes(numbers), *_delays(numbers), *_as_control(numbers)]


def _slopes(numbers: "pd.DataFrame") -> Rows:
    beginnings = numbers[numbers["steps"] == 0]
    rows = []
    for (loss, control, seed), group in beginnings.groupby(["loss", "control", "seed"]):
        logs = np.log(group["noise"]), np.log(group["gradient of W_K ÷ W_V"])
        first = group.iloc[0]
        about = {"training": first["training"], "loss": loss, "steps": 0, "control": control, "seed": seed}
        rows.append({**about, "slope": float(np.polyfit(*logs, 1)[0])})
    return rows


def _delays(numbers: "pd.DataFrame") -> Rows:
    own = numbers[(numbers["optimizer"] == "sgd") & (numbers["steps"] > 0)]
    rows = []
    for (name, seed), group in own.groupby(["training", "seed"]):
        by_control = {row["control"]: row for row in group.to_dict("records")}
        if not {"", LARGE_QUERY} <= set(by_control):
            continue
        small, large = by_control[""], by_control[LARGE_QUERY]
        for control, tensor in (("", "W_K"), (PLACEBO, "W_V")):
            about = {column: small[column] for column in ("loss", "optimizer", "steps")}
            delay = small[f"{tensor} starts at"] / large[f"{tensor} starts at"]
            rows.append(
                {
                    "training": name,
                    **about,
                    "control": control,
                    "seed": seed,
                    "start ÷ start with a large W_Q": delay,
                }
            )
    return rows


def _as_control(numbers: "pd.DataFrame") -> Rows:
    """What the setting with two stages has, beside one that must not show them."""
    common = numbers[(numbers["loss"] == "cross_entropy") & (numbers["optimizer"] == "adam")]
    staged = numbers[
        (numbers["optimizer"] == "adam") & (numbers["loss"] == "squared") & (numbers["control"] == "")
    ]
    return [
        {"training": name, "control": NOT_STAGED, "seed": row["seed"], "W_V's share": row["W_V's share"]}
        for name in common["training"].unique()
        for row in staged.to_dict("records")
    ]


def _curves(case: Case) -> dict[str, np.ndarray]:
    """Norms and attention at every recorded step."""
    history = case.history
    if len(history) < MIN_ROWS:
        return {}
    found = {name: history.norms[name].numpy().astype(np.float32) for name in ("W_V", "W_K", "W_Q")}
    found["steps"] = history.steps.numpy()
    if "attention.same_topic" in history.measured:
        found["attention steps"], found["attention"] = _attention_curve(history)
    return found


RECIPE_FIGURE4 = Recipe(
    "figure4",
    "two stages of training",
    "Figure 4, Section 5.1",
    measure=toys(
        FIGURE4,
        FIGURE4_CLAIMS,
        [_stages, _attention_at, _first_gradients],
        arrays=_curves,
        derived=_of_several,
        watch={"attention": word_attention},
    ),
    claims=FIGURE4_CLAIMS,
    figures=lambda result: stage_figures(result),
)


def stage_figures(result: RecipeResult) -> "dict[str, Figure]":
    """Norms against steps with a curve for every seed, of the settings and of their control; attention beside."""
    import pandas as pd

    from topic_probe.show.figures import curves, panels

    sgd, adam = (row.name for row in FIGURE4[:2])
    parts = {
        "squared, Adam, the paper's steps\n(masked positions hidden)": _norms(result, adam, ""),
        "squared, SGD": _norms(result, sgd, ""),
        f"control: SGD, {LARGE_QUERY}": _norms(result, sgd, LARGE_QUERY),
    }
    turned = [
        _kept(result, adam, control, "attention", steps="attention steps").assign(documents=label)
        for control, label in (("", "as they are"), ("no topics", "without topics"))
    ]
    attention = curves(
        pd.concat(turned),
        "step",
        "value",
        by="documents",
        runs="seed",
        middle=1.0,
        label="its topic ÷ other topics",
    )
    return {
        "Norms ÷ their largest: W_V first, then W_K and W_Q; not where W_Q begins large": panels(
            parts, _norm_curves, size=(3.4, 3.0)
        ),
        "Attention to words of the topic ÷ to other topics, squared loss and Adam": attention.figure,  # type: ignore[dict-item]
    }


def _kept(
    result: RecipeResult, name: str, control: str, what: str, *, steps: str = "steps"
) -> "pd.DataFrame":
    """A curve of a training as a table, with a row for every seed and step."""
    import pandas as pd

    beginning = " · ".join(part for part in (name, control) if part)
    tables = []
    for key, values in result.arrays.items():
        (of, _, seed), own = key.rpartition(" · ")[0].rpartition(" · "), key.rpartition(" · ")[2]
        if (of, own) == (beginning, what):
            at = result.array(f"{of} · {seed} · {steps}")
            tables.append(pd.DataFrame({"step": at, "value": values, "seed": seed}))
    return pd.concat(tables) if tables else pd.DataFrame({"step": [], "value": [], "seed": []})


def _norms(result: RecipeResult, name: str, control: str, layer: str = "") -> "pd.DataFrame":
    """The norms of a training ÷ their largest, of every seed."""
    import pandas as pd

    tables = []
    for tensor in ("W_V", "W_K", "W_Q"):
        table = _kept(result, name, control, f"{tensor}{layer}")
        table["norm ÷ largest"] = table["value"] / table.groupby("seed")["value"].transform("max")
        tables.append(table.assign(tensor=tensor))
    return pd.concat(tables)


def _norm_curves(table: "pd.DataFrame", **on: Any) -> Any:
    from topic_probe.show.figures import curves

    return curves(table, "step", "norm ÷ largest", by="tensor", runs="seed", **on)


# --- Figure 5: a BERT on real text ----------------------------------------------------------------

USUAL = "usual beginning"
STEPS_SHOWN = 400
STAGE_1 = 0.25
"""The share of its steps that stage 1 takes in the paper's figure: roughly 100 of 400."""

N_ARTICLES = 5_000


@dataclass(frozen=True)
class TextTraining:
    """How the BERT is trained: whole as in the paper, quick in a few seconds."""

    d_model: int
    max_length: int
    train: TrainConfig
    n_words: int


WHOLE_TEXT = TextTraining(
    128,
    64,
    TrainConfig(optimizer="adam", learning_rate=3e-5, batch_size=32, steps=500),
    n_words=10_000,
)
QUICK_TEXT = TextTraining(
    32,
    32,
    TrainConfig(optimizer="adam", learning_rate=5e-4, batch_size=16, steps=80),
    n_words=4_000,
)
NOISE = 1e-6
"""From which Adam shows the stages."""

FIGURE5_CLAIMS = (
    Claim(
        id="F5a",
        says="W_K and W_Q start to grow much later than W_V (step ÷ step, in the layer in which it is smallest).",
        source="Figure 5, Section 8.1",
        bounds=(Bound("start ÷ start of W_V", above=2.0),),
        controls=(USUAL,),
        line="Fig 5   the same in a BERT on text",
        shown="{:.0f} × later",
    ),
    Claim(
        id="F5b",
        says="In stage 1 W_K and W_Q stay close to 0, and then increase significantly (largest norm in stage 1 ÷ at "
        "the end, in the layer in which it is largest).",
        source="Figure 5",
        bounds=(Bound("norm in stage 1 ÷ at the end", below=0.1),),
        controls=(USUAL,),
        line="        W_K, W_Q stay close to 0",
        shown="{:.3f} of the end",
    ),
)


def measure_figure5(run: Run, *, corpus: Corpus | None = None, tokenizer: Any = None) -> Measured:
    """Train a BERT on text from near zero, and from its usual beginning as the control.

    Args:
        run: how the recipe is run.
        corpus: the texts; None: a sample of Wikipedia, or in the quick variant the articles that come with gensim.
        tokenizer: a Hugging Face tokenizer, its folder or its name; None: the most frequent words of the corpus, whose
            steps are several times faster than with 30,000 word pieces.
    """
    from topic_probe.paper.pretrained import NO_WIKIPEDIA, hub_is_reachable
    from topic_probe.text.word_tokenizer import word_tokenizer
    from topic_probe.topics.lookup import vocabulary_size
    from topic_probe.train.bert import TextConfig, build_bert
    from topic_probe.train.text import train_text

    if corpus is None and not run.quick and not hub_is_reachable():
        return Measured(missing={"text": NO_WIKIPEDIA})
    if corpus is None:
        corpus = Corpus.bundled() if run.quick else Corpus.wikipedia(N_ARTICLES, seed=run.seed)
    how = QUICK_TEXT if run.quick else WHOLE_TEXT
    if tokenizer is None:
        tokenizer = word_tokenizer(corpus, n_words=how.n_words)
    length = how.max_length
    stream = corpus.documents(
        tokenizer, max_length=length, long="chunk", min_length=length // 2, progress=run.progress
    )
    text = [document.ids for document in stream]
    near_zero = TextConfig(
        vocabulary_size=vocabulary_size(stream.tokenizer), noise=NOISE, d_model=how.d_model, max_length=length
    )
    beginnings = {"": near_zero, USUAL: replace(near_zero, init="usual")}
    numbers: list[dict[str, Any]] = []
    arrays: dict[str, np.ndarray] = {}
    for seed in run.seeds:
        for control, config in beginnings.items():
            model, train = build_bert(config, seed=seed), replace(how.train, seed=seed)
            history = train_text(model, text, train, tokenizer=stream.tokenizer, progress=run.progress)
            about = {"training": "BERT", "control": control, "seed": seed}
            numbers.append({**about, **_worst_layer(history)})
            curves = _layer_curves(history)
            arrays |= {array_name("BERT", control, seed, what): curve for what, curve in curves.items()}
    return Measured(numbers, arrays)


def _layers(history: History) -> range:
    return range(history.toy.n_layers)


def _worst_layer(history: History) -> dict[str, float]:
    """The delay of W_K and W_Q where it is smallest, and their norms in stage 1 where they are largest."""
    stages = measure_dynamics(history, until=STEPS_SHOWN, least=0.05).to_dataframe()
    first = stages[["key_start", "query_start"]].min(axis=1).fillna(history.last_step)
    delays = first / stages["value_start"].fillna(history.last_step)
    rows = history.steps.numpy() <= STEPS_SHOWN
    steps = history.steps.numpy()[rows]
    early = steps <= STAGE_1 * steps[-1]
    shares = [
        curve[early].max() / curve[-1]
        for layer in _layers(history)
        for curve in (history.norms[f"W_{letter}.{layer}"].numpy()[rows] for letter in "KQ")
    ]
    return {"start ÷ start of W_V": float(delays.min()), "norm in stage 1 ÷ at the end": float(max(shares))}


def _layer_curves(history: History) -> dict[str, np.ndarray]:
    """The norms of every layer."""
    names = [f"W_{letter}.{layer}" for layer in _layers(history) for letter in "VKQ"]
    curves = {name: history.norms[name].numpy().astype(np.float32) for name in names}
    return {"steps": history.steps.numpy(), **curves}


def bert_figure(result: RecipeResult) -> "dict[str, Figure]":
    """Norms ÷ their largest against steps, a column for every layer, a row for each beginning."""
    from topic_probe.show.figures import panels

    n_layers = len({key.rpartition(".")[2] for key in result.arrays if "W_V." in key})
    parts = {
        f"layer {layer}" + (f", {control}" if control else ""): _norms(result, "BERT", control, f".{layer}")
        for control in ("", USUAL)
        for layer in range(n_layers)
    }
    what = "Norms ÷ their largest in a BERT trained on text, from near zero and from its usual beginning"
    return {what: panels(parts, _norm_curves, columns=n_layers, size=(2.6, 2.4))} if parts else {}


RECIPE_FIGURE5 = Recipe(
    "figure5",
    "two stages of training in a BERT on real text",
    "Figure 5, Section 8.1",
    measure=measure_figure5,
    claims=FIGURE5_CLAIMS,
    figures=bert_figure,
)
