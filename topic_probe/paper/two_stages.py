"""Figures 4 and 5: W_V grows first, and only then W_K and W_Q; of a toy, and of a BERT on real text.

The paper explains the order by how training begins: the gradient of W_K contains W_Q, which is close to 0 (Section
8.1). So what must break it is W_Q at its usual size, everything else as it was. Documents without topics are a control
of what is said of attention alone.

Whether attention may see masked positions decides what the second stage is. The paper's text allows it; the authors'
public code hides them while training. Hidden (``attend="unmasked"``), words come to attend to their topic.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64

from topic_probe.paper.claims import Bound, Claim
from topic_probe.paper.recipe import Measured, Recipe, RecipeResult, Rows, Run, array_name
from topic_probe.paper.trainings import Case, toys, training
from topic_probe.text.corpus import Corpus
from topic_probe.toy.word_attention import word_attention
from topic_probe.train.history import History, TrainConfig
from topic_probe.train.stages import measure_dynamics

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

LARGE_QUERY, BOTH_LARGE = "W_Q at its usual size", "W_K, W_Q at their usual size"
PLACEBO = "W_V in place of W_K"
NOT_STAGED = "the setting with two stages"
FIRST_STAGE, SECOND_STAGE = 400, 1_000
"""The steps of the paper's Figure 4 at which attention is looked at."""


def _begin(noise: float) -> dict[str, Any]:
    return {"init": "near-zero", "noise": noise}


FIGURE4 = (
    training("two-stage", "squared", "sgd", steps=700, learning_rate=30.0, quick={}, toy=_begin(0.001)),
    training(
        "two-stage", "squared", "adam", steps=1_000, learning_rate=3e-4, quick={}, name="masked positions hidden",
        toy={**_begin(1e-8), "attend": "unmasked"}, measure_every=100,
    ),
    training("two-stage", "cross_entropy", "adam", steps=300, quick={}, toy=_begin(0.01)),
    *(
        training(
            "two-stage", loss, "sgd", steps=0, quick={}, name=f"noise {noise:g}", toy=_begin(noise),
            record_gradients=True,
        )
        for loss in ("squared", "cross_entropy")
        for noise in (1e-4, 1e-3, 1e-2)
    ),
)  # fmt: skip
STAGED, COMMON = (
    "loss == 'squared' and optimizer == 'adam'",
    "loss == 'cross_entropy' and optimizer == 'adam'",
)
OF_SGD = "loss == 'squared' and optimizer == 'sgd' and steps > 0"
FIGURE4_CLAIMS = (
    Claim(
        "F4a", "Section 5.1, Figure 4",
        "W_V already plateaus, and only after that W_K and W_Q start to move (step from which W_V is flat ÷ step "
        "at which W_K or W_Q starts).",
        (Bound("flat ÷ start", below=0.5),), of=OF_SGD, controls=(LARGE_QUERY, BOTH_LARGE),
        line="Fig 4   W_V is flat before W_K, W_Q start", shown="{:.2f} of the way",
    ),
    Claim(
        "F4b", "Figure 4",
        "In stage 1 W_K and W_Q stay close to 0, in stage 2 they increase significantly (change until W_V is "
        "flat; norm at the end ÷ at the beginning).",
        (Bound("change in stage 1", below=0.05), Bound("growth of W_K, W_Q", above=2.0)),
        of=OF_SGD, controls=(LARGE_QUERY,),
        line="        W_K, W_Q stay, then grow", shown="{:.4f} change",
    ),
    Claim(
        "F4c", "Figure 4",
        "In stage 2 the norm of W_V stays relatively flat (at the end ÷ where stage 2 begins).",
        (Bound("W_V in stage 2", above=0.75, below=1.25),), of=OF_SGD, shown="×{:.2f}",
    ),
    Claim(
        "F4d", "Figure 4",
        "In the paper's own steps W_V has made most of its growth when W_K or W_Q begins (its share then).",
        (Bound("W_V's share", above=0.6),), of=STAGED, controls=(LARGE_QUERY, BOTH_LARGE),
        line="Fig 4   W_V's growth when W_K, W_Q begin", shown="{:.0%}",
    ),
    Claim(
        "F4e", "Section 5.1, Section 2.2.2",
        "In stage 1 attention is near uniform, in stage 2 it turns to words of the topic (÷ other topics at step "
        f"{FIRST_STAGE} and at {SECOND_STAGE:,}).",
        (
            Bound(f"attention to the topic at step {FIRST_STAGE}", above=0.95, below=1.05),
            Bound(f"attention to the topic at step {SECOND_STAGE}", above=1.1),
        ),
        of=STAGED, controls=("no topics",),
        line="        attention turns to the topic after", shown="×{:.2f} at step 400",
    ),
    Claim(
        "F4f", "Section 8.1",
        "The gradient of W_K contains the term W_Q, which is close to 0 (step at which W_K starts ÷ the step with "
        "W_Q at its usual size).",
        (Bound("start ÷ start with a large W_Q", above=5.0),), of=OF_SGD, controls=(PLACEBO, LARGE_QUERY),
        line="§8.1    W_K waits for W_Q", shown="{:.0f} times longer",
    ),
    Claim(
        "F4g", "Section 8.1",
        "The two stages are not usually visible with common hyperparameters (W_V's share of its growth when W_K "
        "or W_Q begins, cross-entropy with Adam).",
        (Bound("W_V's share", below=0.5),), of=COMMON, controls=(NOT_STAGED,),
        line="§8.1    not with common settings", shown="{:.0%}",
    ),
    Claim(
        "G", "Section 8.1",
        "Where training begins, the gradient of W_K is to that of W_V as the square of the noise (slope of the "
        "logarithms).",
        (Bound("slope", above=1.8, below=2.2),), of="steps == 0", controls=(LARGE_QUERY,),
        line="§8.1    gradient of W_K ~ W_Q", shown="{:.2f} slope",
    ),
)  # fmt: skip


def _norms_of(history: History) -> dict[str, Float64[np.ndarray, " row"]]:
    """The norms of W_V, W_K and W_Q, in a BERT of every layer."""
    return {name: norm.numpy() for name, norm in history.norms.items() if name[:3] in ("W_V", "W_K", "W_Q")}


def _curves_of(history: History) -> dict[str, np.ndarray]:
    norms = {name: norm.astype(np.float32) for name, norm in _norms_of(history).items()}
    return {"steps": history.steps.numpy(), **norms}


def _stages(case: Case) -> dict[str, float]:
    """When W_V is flat and W_K or W_Q starts, and by how much they grow; of no training its first gradients."""
    history = case.history
    if not case.row.train.steps:
        sizes = history.gradients
        return {"gradient of W_K ÷ W_V": float(sizes["W_K"][0]) / float(sizes["W_V"][0])}
    if history.stopped != "finished":
        return {}
    stage, norms = measure_dynamics(history).to_dataframe().iloc[0], _norms_of(history)
    # Where none is flat or starts, it is so at the end, and none is after the other.
    flat = float(stage["value_flat"]) if stage["value_flat"] >= 0 else history.last_step
    start = stage[["key_start", "query_start"]].min()
    grown = [norms[name] / norms[name][0] for name in ("W_K", "W_Q")]
    first = history.steps.numpy() <= flat
    return {
        "W_V is flat from": flat,
        "W_V starts at": float(stage["value_start"]),
        "W_K starts at": float(stage["key_start"]),
        "flat ÷ start": float(flat / start) if start >= 0 else 1.0,
        "change in stage 1": max(float(np.abs(curve[first] - 1).max()) for curve in grown),
        "growth of W_K, W_Q": min(float(curve[-1]) for curve in grown),
        "W_V in stage 2": float(stage["late_value_growth"]),
        "W_V's share": share_of_growth(norms),
        **_attention_at(history),
    }


def share_of_growth(norms: Mapping[str, Float64[np.ndarray, " row"]]) -> float:
    """The share of its growth that W_V has made when the first of W_K and W_Q has made 5 % of its own.

    NaN where W_V never grows.
    """
    growth = {name: (curve.max() - curve[0]) or np.nan for name, curve in norms.items()}
    made = {name: (curve - curve[0]) / growth[name] for name, curve in norms.items()}
    first = min(int(np.argmax(made[name] >= 0.05)) for name in ("W_K", "W_Q"))
    return float(made["W_V"][first])


def _attention_at(history: History) -> dict[str, float]:
    """Attention to the topic at the steps that the paper names."""
    curve = dict(zip(*_attention_curve(history), strict=True))
    return {
        f"attention to the topic at step {at}": float(curve[at])
        for at in (FIRST_STAGE, SECOND_STAGE)
        if at in curve
    }


def _attention_curve(history: History) -> tuple[np.ndarray, Float64[np.ndarray, " step"]]:
    """Steps, and attention to other words of the topic ÷ to other topics."""
    same, different = (history.measured[f"attention.{name}_topic"] for name in ("same", "different"))
    return same.steps.numpy(), np.asarray(same.values.numpy() / different.values.numpy())


def _of_several(numbers: "pd.DataFrame") -> Rows:
    """Slopes over the noise, steps with W_Q small and large, and what the setting with two stages has beside others."""
    common = numbers.query(COMMON)["training"].iloc[0]
    staged = numbers.query(f"{STAGED} and control == ''")[["seed", "W_V's share"]]
    shares = staged.assign(training=common, control=NOT_STAGED).to_dict("records")
    return [*slopes(numbers), *delays(numbers), *shares]


def slopes(numbers: "pd.DataFrame") -> Rows:
    """The slope of the first gradients of W_K ÷ W_V over the noise, both as logarithms."""
    rows = []
    for (loss, control, seed), group in numbers.query("steps == 0").groupby(["loss", "control", "seed"]):
        slope = np.polyfit(np.log(group["noise"]), np.log(group["gradient of W_K ÷ W_V"]), 1)[0]
        about = {"training": group["training"].iloc[0], "loss": loss, "steps": 0}
        rows.append({**about, "control": control, "seed": seed, "slope": float(slope)})
    return rows


def delays(numbers: "pd.DataFrame") -> Rows:
    """The step at which W_K starts with W_Q small ÷ large; of W_V, whose gradient has no W_Q, as the placebo."""
    own = numbers.query(OF_SGD)
    large = own[own["control"] == LARGE_QUERY]
    both = own[own["control"] == ""].merge(large, on="seed", suffixes=("", " large"))
    rows: list[Any] = []
    for control, tensor in (("", "W_K"), (PLACEBO, "W_V")):
        delay = both[f"{tensor} starts at"] / both[f"{tensor} starts at large"]
        about = both[["training", "loss", "optimizer", "steps", "seed"]].assign(control=control)
        rows += about.assign(**{"start ÷ start with a large W_Q": delay}).to_dict("records")
    return rows


def _curves(case: Case) -> dict[str, np.ndarray]:
    """Norms and attention at every recorded step."""
    if not case.row.train.steps:
        return {}
    steps, ratio = _attention_curve(case.history)
    return {**_curves_of(case.history), "attention steps": steps, "attention": ratio}


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
    label = "its topic ÷ other topics"
    attention = curves(
        pd.concat(turned), "step", "value", by="documents", runs="seed", middle=1.0, label=label
    )
    what = "Norms ÷ their largest: W_V first, then W_K and W_Q; not where W_Q begins large"
    return {
        what: panels(parts, _norm_curves, size=(3.4, 3.0)),
        "Attention to words of the topic ÷ to other topics, squared loss and Adam": attention.figure,  # type: ignore[dict-item]
    }


def _kept(
    result: RecipeResult, name: str, control: str, what: str, *, steps: str = "steps"
) -> "pd.DataFrame":
    """A curve of a training as a table, with a row for every seed and step."""
    import pandas as pd

    tables = []
    for seed in result.provenance["options"]["seeds"]:
        at, values = (result.arrays[array_name(name, control, seed, part)] for part in (steps, what))
        tables.append(pd.DataFrame({"step": at, "value": values, "seed": seed}))
    return pd.concat(tables)


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


RECIPE_FIGURE4 = Recipe(
    "figure4", "two stages of training", "Figure 4, Section 5.1",
    measure=toys(
        FIGURE4, FIGURE4_CLAIMS, _stages,
        arrays=_curves, derived=_of_several, watch={"attention": word_attention},
    ),
    claims=FIGURE4_CLAIMS, figures=stage_figures,
)  # fmt: skip

# --- Figure 5: a BERT on real text ----------------------------------------------------------------

USUAL = "usual beginning"
STEPS_SHOWN, STAGE_1 = 400, 0.25
"""The steps of the paper's figure, and the share of them that stage 1 takes there: roughly 100."""

WHOLE_TEXT = {
    "d_model": 128, "length": 64, "n_words": 10_000, "learning_rate": 3e-5, "batch_size": 32, "steps": 500,
}  # fmt: skip
QUICK_TEXT = {
    "d_model": 32, "length": 32, "n_words": 4_000, "learning_rate": 5e-4, "batch_size": 16, "steps": 80,
}  # fmt: skip
NOISE = 1e-6
"""From which Adam shows the stages."""

FIGURE5_CLAIMS = (
    Claim(
        "F5a", "Figure 5, Section 8.1",
        "W_K and W_Q start to grow much later than W_V (step ÷ step, in the layer in which it is smallest).",
        (Bound("start ÷ start of W_V", above=2.0),), controls=(USUAL,),
        line="Fig 5   the same in a BERT on text", shown="{:.0f} × later",
    ),
    Claim(
        "F5b", "Figure 5",
        "In stage 1 W_K and W_Q stay close to 0, and then increase significantly (largest norm in stage 1 ÷ at "
        "the end, in the layer in which it is largest).",
        (Bound("norm in stage 1 ÷ at the end", below=0.1),), controls=(USUAL,),
        line="        W_K, W_Q stay close to 0", shown="{:.3f} of the end",
    ),
)  # fmt: skip


def measure_figure5(run: Run, *, corpus: Corpus | None = None, tokenizer: Any = None) -> Measured:
    """Train a BERT on text from near zero, and from its usual beginning as the control.

    Args:
        run: how the recipe is run.
        corpus: the texts; None: a sample of Wikipedia, or in the quick variant the articles that come with gensim.
        tokenizer: a Hugging Face tokenizer, its folder or its name; None: the most frequent words of the corpus, whose
            steps are several times faster than with 30,000 word pieces.
    """
    from topic_probe.paper.pretrained import texts_of
    from topic_probe.text.word_tokenizer import word_tokenizer
    from topic_probe.topics.lookup import vocabulary_size
    from topic_probe.train.bert import TextConfig, build_bert
    from topic_probe.train.text import train_text

    missing: dict[str, str] = {}
    corpus = texts_of(run, corpus, 5_000, missing)
    if corpus is None:
        return Measured(missing=missing)
    how: dict[str, Any] = dict(QUICK_TEXT if run.quick else WHOLE_TEXT)
    d_model, length, n_words = how.pop("d_model"), how.pop("length"), how.pop("n_words")
    if tokenizer is None:
        tokenizer = word_tokenizer(corpus, n_words=n_words)
    stream = corpus.documents(
        tokenizer, max_length=length, long="chunk", min_length=length // 2, progress=run.progress
    )
    text = [document.ids for document in stream]
    size = vocabulary_size(stream.tokenizer)
    near_zero = TextConfig(vocabulary_size=size, noise=NOISE, d_model=d_model, max_length=length)
    numbers, arrays = [], {}
    for seed in run.seeds:
        for control, config in (("", near_zero), (USUAL, replace(near_zero, init="usual"))):
            model, train = build_bert(config, seed=seed), TrainConfig(optimizer="adam", seed=seed, **how)
            history = train_text(model, text, train, tokenizer=stream.tokenizer, progress=run.progress)
            numbers.append({"training": "BERT", "control": control, "seed": seed, **_worst_layer(history)})
            for what, curve in _curves_of(history).items():
                arrays[array_name("BERT", control, seed, what)] = curve
    return Measured(numbers, arrays)


def _worst_layer(history: History) -> dict[str, float]:
    """The delay of W_K and W_Q where it is smallest, and their norms in stage 1 where they are largest."""
    stages = measure_dynamics(history, until=STEPS_SHOWN, least=0.05).to_dataframe()
    first = stages[["key_start", "query_start"]].min(axis=1).fillna(history.last_step)
    delays = first / stages["value_start"].fillna(history.last_step)
    rows = history.steps.numpy() <= STEPS_SHOWN
    steps = history.steps.numpy()[rows]
    curves = [norm[rows] for name, norm in _norms_of(history).items() if not name.startswith("W_V")]
    early = steps <= STAGE_1 * steps[-1]
    largest = max(float(curve[early].max() / curve[-1]) for curve in curves)
    return {"start ÷ start of W_V": float(delays.min()), "norm in stage 1 ÷ at the end": largest}


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
    return {what: panels(parts, _norm_curves, columns=n_layers, size=(2.6, 2.4))}


RECIPE_FIGURE5 = Recipe(
    "figure5", "two stages of training in a BERT on real text", "Figure 5, Section 8.1",
    measure=measure_figure5, claims=FIGURE5_CLAIMS, figures=bert_figure,
)  # fmt: skip
