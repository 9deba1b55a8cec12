"""Figures 1, 2 and 10, Table 3, the theorems and robustness: what a trained toy has learned.

Quick settings and bounds were chosen on other seeds than those that recipes have by default. W_E begins with a
standard deviation of 0.02, the default of the implementation that the paper cites: from 0.1 on, embeddings trained
with squared loss end at a diagonal, which Theorem 1 allows, too. Of SGD only the rate times the number of steps counts:
the quick variant goes the same way in larger steps.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64

from topic_probe.paper.claims import Bound, Claim, over_seeds
from topic_probe.paper.recipe import Measured, Recipe, RecipeResult, Rows, Run, array_name
from topic_probe.paper.trainings import (
    NAMES,
    Case,
    attention,
    blocks,
    embedding_products,
    loss_on_fresh_documents,
    toys,
    training,
)
from topic_probe.toy import theory
from topic_probe.toy.landscape import attention_weights
from topic_probe.toy.world import World, overlapping_words, zipf_words

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


BLOCKS = (Bound("own topic first", above=0.9),)
LITTLE = (Bound("share of the gain", above=0.8),)
WORDS, GAIN = "{:.0%} of words", "{:.0%} of the gain"
BOTH_LOSSES = ("cross_entropy", "cross-entropy"), ("squared", "squared loss")
NEAR_ZERO = {"init": "near-zero", "noise": 0.001}
LATER = {"init": "near-zero", "noise": 0.01}


def shares_of_gain(limited: str, free: str) -> "Callable[[pd.DataFrame], Rows]":
    """Numbers of two trainings together: the gain over guessing of one regime ÷ that of a freer one, seed by seed."""

    def derive(numbers: "pd.DataFrame") -> Rows:
        pair, freer = ["loss", "optimizer", "seed"], numbers[numbers["regime"] == free]
        freer = freer[freer["control"] == ""]
        both = numbers[numbers["regime"] == limited].merge(freer, on=pair, suffixes=("", " freer"))
        both["share of the gain"] = both["gain over guessing"] / both["gain over guessing freer"]
        both["times the loss"] = both["loss on fresh documents"] / both["loss on fresh documents freer"]
        columns = ["training", "regime", *pair, "control", "share of the gain", "times the loss"]
        return both[columns].to_dict("records")

    return derive


def first_matrix(
    matrix: Callable[[Case], Float64[np.ndarray, "row column"]],
) -> Callable[[Case], dict[str, np.ndarray]]:
    """The matrix of the first seed, without anything broken, as it is kept for pictures."""
    return lambda case: {"matrix": matrix(case).astype(np.float32)} if case.first else {}


def matrices(result: RecipeResult, regime: str, what: str, *, chosen: str = "") -> "dict[str, Figure]":
    """The matrix of the first seed of every training of a regime, side by side; [MASK] is left out.

    With cross-entropy the mean of every column of W_V means nothing (Remark 1) and is taken off.
    """
    from topic_probe.show.figures import matrix_map, panels

    parts: dict[str, Any] = {}
    for name in dict.fromkeys(row["training"] for row in result.numbers if row["control"] == ""):
        kept = array_name(name, "", result.provenance["seed"], "matrix")
        if name.startswith(f"{regime},") and chosen in name and kept in result.arrays:
            matrix = result.arrays[kept][1:, 1:].astype(np.float64)
            if "cross-entropy" in name and regime != "full":
                matrix = matrix - matrix.mean(axis=0)
            parts[textwrap.fill(name.removeprefix(f"{regime}, "), 26)] = matrix
    return {what: panels(parts, matrix_map, size=(2.6, 2.8))} if parts else {}


# --- Figure 1 -------------------------------------------------------------------------------------

FIGURE1 = (
    training("full", "cross_entropy", "sgd", steps=3_000, learning_rate=0.3, quick={"steps": 300, "learning_rate": 3}),
    training("full", "cross_entropy", "adam", steps=1_000, quick={"steps": 150}),
    training("full", "squared", "sgd", steps=5_000, learning_rate=0.05, quick={"steps": 500, "learning_rate": 0.5}),
    training("full", "squared", "adam", steps=1_000, quick={"steps": 200}),
    training("embedding", "cross_entropy", "adam", steps=1_000, quick={"steps": 150}),
    training("embedding", "squared", "adam", steps=1_000, quick={"steps": 200}),
)  # fmt: skip
FIGURE1_CLAIMS = (
    Claim(
        "F1", "Section 6.1, Figure 1",
        "The inner products of trained word embeddings form a block for every topic, with either loss and either "
        "optimizer, even when the other layers are trained.",
        BLOCKS, of="regime == 'full'", controls=("no topics",),
        line="Fig 1   a block per topic in W_EᵀW_E", shown=WORDS,
    ),
    Claim(
        "F1b", "Section 4", "They do so, too, where only the embedding layer is trained.",
        BLOCKS, of="regime == 'embedding'", controls=("no topics",),
        line="§4      W_E alone", shown=WORDS,
    ),
    *(
        Claim(
            name, f"Section 4 ({said})", "The loss of training the embedding layer alone is only slightly worse.",
            LITTLE, of=f"regime == 'embedding' and loss == '{loss}'", controls=("only a bias trained",),
            line="§4      W_E alone loses little", shown=GAIN,
        )
        for name, (loss, said) in zip(("F1c", "F1d"), BOTH_LOSSES, strict=True)
    ),
)  # fmt: skip

RECIPE_FIGURE1 = Recipe(
    "figure1", "topics in trained word embeddings", "Figure 1, Section 6.1",
    measure=toys(
        FIGURE1, FIGURE1_CLAIMS,
        lambda case: blocks(embedding_products(case), case.topics) | loss_on_fresh_documents(case),
        arrays=first_matrix(embedding_products), derived=shares_of_gain("embedding", "full"),
    ),
    claims=FIGURE1_CLAIMS,
    figures=lambda result: matrices(result, "full", "W_EᵀW_E of trained word embeddings"),
)  # fmt: skip

# --- Figure 2 -------------------------------------------------------------------------------------

# W_V alone, from near zero; SGD with a tenth of the quick variant's rate in ten times the steps.
FIGURE2 = tuple(
    training(
        "value", loss, optimizer, name=f"L2 {l2:g}" if l2 else "", l2=l2, toy=NEAR_ZERO, steps=10 * steps,
        learning_rate=rate, quick={"steps": steps, "learning_rate": 10 * rate if optimizer == "sgd" else rate},
    )
    for regularised in (True, False)
    for loss, optimizer, l2, steps, rate in (
        ("cross_entropy", "sgd", 1e-3 * regularised, 150, 1.0),
        ("cross_entropy", "adam", 1e-3 * regularised, 100, 0.01),
        ("squared", "sgd", 1e-4 * regularised, 100, 1.0),
        ("squared", "adam", 1e-4 * regularised, 100, 0.01),
    )
)  # fmt: skip
FIGURE2_CLAIMS = (
    Claim(
        "F2", "Section 6.1, Figure 2",
        "With uniform attention and L2 regularisation the trained W_V has a block for every topic.",
        BLOCKS, of="l2 > 0", controls=("no topics",),
        line="Fig 2   a block per topic in W_V", shown=WORDS,
    ),
    Claim(
        "F2b", "Figure 2", "Without L2 regularisation the results are qualitatively similar.",
        BLOCKS, of="l2 == 0", controls=("no topics",),
        line="Fig 2   a block per topic in W_V", shown=WORDS,
    ),
    Claim(
        "F2c", "Section 2.2",
        "The optima of the theory closely track the points of convergence: blocks are as high as in Theorem 2.",
        (Bound("height of the blocks", above=0.9, below=1.1),),
        of="l2 > 0 and loss == 'squared'", controls=("no topics",),
        line="§2.2    height of its blocks ÷ Theorem 2", shown="{:.2f}",
    ),
)  # fmt: skip


def _value_numbers(case: Case) -> dict[str, float]:
    """The blocks of W_V, and their height in units of Theorem 2's 1/(a v)."""
    found, world = blocks(case.matrix("W_V"), case.topics), case.row.toy.world
    v = world.words_per_topic
    within = ((v - 1) * found["same topic"] + found["same word"]) / v
    height = (within - found["different topics"]) * case.row.toy.masking.genuine_share * v
    return {**found, "height of the blocks": height, **loss_on_fresh_documents(case)}


RECIPE_FIGURE2 = Recipe(
    "figure2", "blocks in W_V under uniform attention", "Figure 2, Section 6.1",
    measure=toys(
        FIGURE2, FIGURE2_CLAIMS, _value_numbers, arrays=first_matrix(lambda case: case.matrix("W_V"))
    ),
    claims=FIGURE2_CLAIMS,
    figures=lambda result: matrices(result, "value", "W_V under uniform attention, with L2", chosen="L2"),
)  # fmt: skip

# --- Figure 10 and Table 3 -------------------------------------------------------------------------

_SLOWLY = {"steps": 300, "learning_rate": 0.5}
FIGURE10 = (
    training("attention", "cross_entropy", "sgd", toy=LATER, steps=3_000, learning_rate=50.0, quick={"steps": 1_500}),
    training("attention", "cross_entropy", "adam", toy=LATER, steps=1_000, quick={"steps": 250}),
    training("attention", "squared", "sgd", toy=LATER, steps=3_000, learning_rate=0.05, quick=_SLOWLY),
    training("attention", "squared", "adam", toy=LATER, steps=1_000, quick={"steps": 250}),
    training("value", "cross_entropy", "adam", toy=LATER, steps=1_000),
    training("value", "squared", "adam", toy=LATER, steps=1_000),
)  # fmt: skip
FIGURE10_CLAIMS = (
    Claim(
        "F10", "Section 6.1, Figure 10",
        "W_V has a block for every topic even when W_K and W_Q are trained with it.",
        BLOCKS, of="regime == 'attention'", controls=("no topics",),
        line="Fig 10  blocks when attention is trained", shown=WORDS,
    ),
    *(
        Claim(
            name, f"Section 5.2 ({said})",
            "The loss of training W_V alone is only slightly greater than of training all jointly.",
            LITTLE, of=f"regime == 'value' and loss == '{loss}'", controls=("W_V frozen",),
            whole_only="needs 1,000 steps of both regimes", line="§5.2    W_V alone loses little", shown=GAIN,
        )
        for name, (loss, said) in zip(("F10b", "F10c"), BOTH_LOSSES, strict=True)
    ),
)  # fmt: skip
TO_THE_TOPIC = (Bound("attention to the topic", above=1.1),)
TABLE3_CLAIMS = (
    Claim(
        "Tab3a", "Section 6.1, Table 3",
        "Each word pays more attention to words of the same topic (÷ to words of other topics), with Adam.",
        TO_THE_TOPIC, of="regime == 'attention' and optimizer == 'adam'", controls=("no topics",),
        line="Tab 3   attention to its own topic", shown="×{:.2f}",
    ),
    Claim(
        "Tab3b", "Section 6.1, Table 3", "The same with SGD and cross-entropy.",
        TO_THE_TOPIC, of="regime == 'attention' and optimizer == 'sgd' and loss == 'cross_entropy'",
        controls=("no topics",),
        whole_only="needs more steps: three of 20 sets of seeds are undecided after 1,500",
        line="        the same with SGD, cross-entropy", shown="×{:.2f}",
    ),
    Claim(
        "Tab3c", "Section 6.1, Table 3", "The same with SGD and squared loss.",
        TO_THE_TOPIC, of="regime == 'attention' and optimizer == 'sgd' and loss == 'squared'",
        never="not reached: the gradients of W_K and W_Q are so small that attention stays uniform for 60,000 steps",
    ),
)  # fmt: skip


def _joint_numbers(case: Case) -> dict[str, float]:
    return _value_numbers(case) | (attention(case) if case.row.toy.regime == "attention" else {})


_JOINT = toys(
    FIGURE10,
    (*FIGURE10_CLAIMS, *TABLE3_CLAIMS),
    _joint_numbers,
    arrays=first_matrix(lambda case: case.matrix("W_V")),
    derived=shares_of_gain("value", "attention"),
)
RELATIONS = {
    "attention to same word": "the word itself",
    "attention to same topic": "other words of its topic",
    "attention to different topic": "words of other topics",
}


def measure_table3(run: Run) -> Measured:
    """What Figure 10 trains, and mean attention by what is attended to (uniform: 1), over seeds."""
    import pandas as pd

    found = _JOINT(run)
    numbers = pd.DataFrame(found.numbers)
    rows = numbers[numbers["regime"] == "attention"].groupby(["training", "control"], sort=False)
    means = rows[[*RELATIONS, "attention to the topic"]].mean().reset_index()
    return replace(found, tables={"attention (uniform = 1)": means.to_dict("records")})


def attention_bars(result: RecipeResult) -> "dict[str, Figure]":
    """Mean attention to the same word, to other words of the topic, to other topics; an interval over seeds."""
    import pandas as pd

    from topic_probe.show.figures import ratio_bars

    frame = result.numbers_table().query("control == '' and regime == 'attention'")
    rows = [
        (str(name).removeprefix("attention, "), label, *over_seeds(part[column].to_numpy()))
        for name, part in frame.groupby("training", sort=False)
        for column, label in RELATIONS.items()
    ]
    table = pd.DataFrame(rows, columns=["name", "to", "attention", "low", "high"])
    ax = ratio_bars(table, "attention", by="to", label="attention (uniform = 1)")
    return {"Attention of a word, uniform attention being 1": ax.figure}  # type: ignore[dict-item]


RECIPE_FIGURE10 = Recipe(
    "figure10", "blocks in W_V when attention is trained too", "Figure 10, Section 6.1",
    measure=_JOINT, claims=FIGURE10_CLAIMS,
    figures=lambda result: matrices(result, "attention", "W_V trained with attention"),
)  # fmt: skip
RECIPE_TABLE3 = Recipe(
    "table3", "attention between words of one topic", "Table 3, Section 6.1",
    measure=measure_table3, claims=TABLE3_CLAIMS, figures=attention_bars,
)  # fmt: skip

# --- theorems -------------------------------------------------------------------------------------


def _long(topics_per_document: int) -> World:
    return World(topics_per_document=topics_per_document, min_length=1000, max_length=1000)


THEOREMS = (
    *(
        training(
            "embedding", "squared", "sgd", steps=steps, learning_rate=1.0, quick={},
            name=f"long documents, σ {scale:g}", toy={"world": _long(2), "embedding_scale": scale},
        )
        for scale, steps in ((0.1, 200), (0.02, 300))
    ),
    training(
        "value", "squared", "sgd", steps=200, learning_rate=5.0, quick={}, name="long documents", l2=1e-6,
        toy={"world": _long(2), **NEAR_ZERO},
    ),
    *(
        training(
            "keys", "squared", "adam", steps=150, quick={}, name=f"long documents, τ = {tau}", toy={"world": _long(tau)}
        )
        for tau in (2, 3, 4)
    ),
)  # fmt: skip
ANOTHER_TAU = "best attention of another τ"
THEOREM_CLAIMS = (
    Claim(
        "T1", "Theorem 1", "With only W_E trained, W_EᵀW_E is at one of the optima of Theorem 1.",
        (Bound("distance to the optima", below=0.05),), of="regime == 'embedding'", controls=("no topics",),
        line="Thm 1   W_E reaches the optimum", shown="{:.0%} away",
    ),
    Claim(
        "T2", "Theorem 2", "With L2 regularisation W_V goes to the one optimum of the smallest norm.",
        (Bound("distance to the one optimum", below=0.1),),
        of="regime == 'value'", controls=("no L2, usual beginning",),
        line="Thm 2   L2 makes it unique", shown="{:.0%} away",
    ),
    Claim(
        "T3", "Theorem 3, Section 5.3",
        "Under the optimal W_V, trained attention gives words of the topic what Theorem 3's loss asks for (its "
        "weighted mean ÷ that of the best attention, for 2 and 4 topics a document).",
        (Bound("attention ÷ the best", above=0.9, below=1.1),),
        of="regime == 'keys' and training != 'keys, squared, Adam, long documents, τ = 3'",
        controls=("W_V of other topics", "no topics", ANOTHER_TAU),
        line="Thm 3   attention ÷ the best, τ = 2, 4", shown="{:.2f}",
    ),
)  # fmt: skip


def _theorem_numbers(case: Case) -> dict[str, float]:
    if case.row.toy.regime != "keys":
        found = loss_on_fresh_documents(case)
        return {name: found[name] for name in ("distance to the optima", "distance to the one optimum")}
    world = case.row.toy.world
    same_topic, same_word = attention_weights(case.model)
    mean = float(theory.weighted_mean(world, alpha=same_topic, beta=same_word))
    best = float(theory.optimal_attention(world, case.row.toy.masking).weighted_mean)
    return {"weighted mean": mean, "best weighted mean": best, "attention ÷ the best": mean / best}


def _another_optimum(numbers: "pd.DataFrame") -> Rows:
    """Attention trained with τ = 2 beside the best with τ = 4, and the other way round, where it must not be."""
    keys = numbers.query("regime == 'keys' and control == ''")
    best = keys.groupby("training")["best weighted mean"].first().iloc[[0, -1]]
    other = dict(zip(best.index, reversed(best.tolist()), strict=True))
    return [
        {
            "training": row["training"],
            "control": ANOTHER_TAU,
            "seed": row["seed"],
            "attention ÷ the best": row["weighted mean"] / other[row["training"]],
        }
        for row in keys.to_dict("records")
        if row["training"] in other
    ]


def _theorem_matrix(case: Case) -> dict[str, np.ndarray]:
    if case.row.toy.regime == "keys":
        return {}
    own = embedding_products(case) if case.row.toy.regime == "embedding" else case.matrix("W_V")
    return first_matrix(lambda case: own)(case)


def theorem_figures(result: RecipeResult) -> "dict[str, Figure]":
    """Where training arrives under Theorems 1 and 2, as matrices; and trained attention beside the best."""
    import pandas as pd

    from topic_probe.show.figures import forest

    rows = [
        (
            str(name).rpartition(", ")[2],
            *over_seeds(part["weighted mean"].to_numpy()),
            part["best weighted mean"].iloc[0],
        )
        for name, part in result.numbers_table()
        .query("regime == 'keys' and control == ''")
        .groupby("training", sort=False)
    ]
    table = pd.DataFrame(rows, columns=["name", "trained", "low", "high", "best"])
    label, best = "attention to the topic (others = 1)", {"best, by theory": "best"}
    ax = forest(table, "trained", middle=1.0, beside=best, label=label)
    beginnings = "Theorem 1: W_EᵀW_E trained alone, from a larger and a smaller beginning"
    return {
        **matrices(result, "embedding", beginnings),
        **matrices(result, "value", "Theorem 2: W_V with L2 regularisation"),
        "Theorem 3: trained attention and the best": ax.figure,  # type: ignore[dict-item]
    }


RECIPE_THEOREMS = Recipe(
    "theorems", "what the theorems say is optimal, and where training arrives", "Theorems 1, 2 and 3",
    measure=toys(
        THEOREMS, THEOREM_CLAIMS, _theorem_numbers, arrays=_theorem_matrix, derived=_another_optimum
    ),
    claims=THEOREM_CLAIMS, figures=theorem_figures,
)  # fmt: skip

# --- robustness -----------------------------------------------------------------------------------


def _overlapping(overlap: float) -> World:
    """Two uniform topics a document, which lend each other words."""
    world = World(topics_per_document=2)
    words = overlapping_words(world.n_topics, world.words_per_topic, overlap=overlap)
    return replace(world, word_probabilities=words) if overlap else world


def _zipf(exponent: float) -> World:
    words = zipf_words(World().n_topics, World().words_per_topic, exponent=exponent)
    return World(word_probabilities=words) if exponent else World()


# What is changed -> how a world is made of it, the places of the whole variant, those of the quick one.
AXES: Mapping[str, tuple[Callable[[Any], World], Sequence[float], Sequence[float]]] = {
    "topics per document τ": (lambda x: World(topics_per_document=x), (1, 2, 3, 5, 9), (2, 9)),
    "overlap of topics": (_overlapping, (0.0, 0.1, 0.2, 0.3, 0.4, 0.5), (0.0, 0.5)),
    "Zipf exponent": (_zipf, (0.0, 0.5, 1.0, 1.5), (0.0, 1.5)),
    "Dirichlet α": (lambda x: World(alpha=x), (0.03, 0.1, 0.3, 1.0, 3.0), (0.1, 3.0)),
    "words per document": (lambda x: World(min_length=x, max_length=x), (10, 20, 50, 125, 250), (20, 125)),
    "number of topics T": (lambda x: World(n_topics=x), (3, 5, 10, 20), (5, 10)),
    "words per topic v": (lambda x: World(words_per_topic=x), (2, 5, 10, 20), (5, 10)),
}
# W_V alone under squared loss, and with attention under cross-entropy.
ROBUSTNESS = tuple(
    training(
        regime, loss, "adam", steps=600, quick={"steps": 200} if place in few else None,
        name=f"{axis} = {place:g}", toy={"world": world_of(place), **toy},
    )
    for axis, (world_of, places, few) in AXES.items()
    for place in places
    for regime, loss, toy in (("value", "squared", NEAR_ZERO), ("attention", "cross_entropy", {}))
)  # fmt: skip


def _robust_numbers(case: Case) -> dict[str, float]:
    found = {"own topic first": blocks(case.matrix("W_V"), case.topics)["own topic first"]}
    return found | (attention(case) if case.row.toy.regime == "attention" else {})


def robustness_figure(result: RecipeResult) -> "dict[str, Figure]":
    """The share of words with a block, along every axis."""
    from topic_probe.show.figures import curves, panels

    frame = result.numbers_table()
    frame["training of"] = frame["regime"] + ", " + frame["loss"].map(NAMES)
    parts = {}
    for axis in AXES:
        points = frame[frame["training"].str.contains(f", {axis} = ", regex=False)]
        if len(points):
            places = points["training"].str.rpartition(" = ")[2].astype(float)
            by_place = points.assign(**{axis: places}).groupby(["training of", axis], as_index=False)
            parts[axis] = by_place["own topic first"].mean()
    what = "share of words with a block"

    def draw(points: Any, *, ax: Any, title: str) -> Any:
        return curves(points, title, "own topic first", by="training of", ax=ax, label=what)

    figure = panels(parts, draw, size=(2.8, 2.6))
    for place, ax in enumerate(figure.axes[: len(parts)]):
        ax.set(ylim=(-0.03, 1.05), ylabel="" if place else what)
    return {"Blocks in W_V, one thing changed at a time": figure}


RECIPE_ROBUSTNESS = Recipe(
    "robustness", "how far blocks and attention go outside the assumptions", "Section 2.3",
    measure=toys(ROBUSTNESS, (), _robust_numbers), claims=(), figures=robustness_figure,
)  # fmt: skip
