"""``topic-probe measure attention|embeddings|weights|ablation|knockout MODEL --topics T``."""

from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, Literal

from topic_probe.cli.console import Output, WrongUsageError, plain
from topic_probe.cli.inputs import (
    Choice,
    Model,
    Opening,
    Texts,
    TopicsName,
    documents_of,
    look_for_topics,
    open_corpus,
    open_model,
    open_topics,
)
from topic_probe.cli.options import command, mapping
from topic_probe.measure.options import Reading, Run, Statistics

ALWAYS = ("n_documents", "max_length", "tokenizer", "seed", "folder", "part", "out", "overwrite", "json")
OF_PROGRAMS = ("special_ids", "part_size", "progress")
NO_P = ("n_permutations", "resample")
Level = Annotated[Literal["token", "word"], '"word" also measures words that the tokenizer splits']
Statistic = Annotated[Literal["ratio", "difference"], "what the interval is of"]
Outcome = Annotated[
    Literal["states", "loss"],
    '"states": how much closer words of a topic lie than others later on; "loss": how badly words are predicted',
]
LayerOfStates = Annotated[int | None, 'the layer of "states"; by default what leaves the last']
MaskShare = Annotated[float, 'the share of tokens that "loss" masks']


@dataclass(frozen=True)
class Shared:
    """What measurements share: texts and how they are read, statistics, parts, topics, the model, the answer."""

    documents: Texts
    reading: Reading
    statistics: Statistics
    run: Run
    words: Choice
    opening: Opening
    output: Output


def _examples(kind: str, corpus: str = " --corpus texts", more: str = "") -> str:
    return f"""Examples:
  topic-probe measure {kind} google-bert/bert-base-uncased --topics words.json{corpus}
  topic-probe measure {kind} MODEL --topics wordnet-nouns{corpus and " --corpus bundled"} --out report{more}"""


@command(
    "Attention between words of a topic, head by head.",
    shown=("corpus", "level", "n_permutations", "resample", "quick", *ALWAYS),
    epilogue=_examples("attention"),
    without=OF_PROGRAMS,
)
def attention(
    model: Model,
    /,
    *,
    topics: TopicsName,
    level: Level = "token",
    include_self: Annotated[bool, "whether a position and itself are a same-word pair"] = True,
    quick: Annotated[bool, "a trial: 24 texts and 20 permutations at most"] = False,
    shared: Shared,
) -> int:
    """Measures, saves the report if that is wanted, and prints it."""
    import topic_probe as tp

    if quick:
        fewer = replace(shared.documents, n_documents=min(shared.documents.n_documents or 24, 24))
        statistics = replace(shared.statistics, n_permutations=min(shared.statistics.n_permutations, 20))
        shared = replace(shared, documents=fewer, statistics=statistics)
    inputs = open_inputs(model, topics, shared)
    report = tp.measure_attention(
        *inputs, level=level, include_self=include_self, **options_of(shared, tp.measure_attention)
    )
    return answer(report, shared.output)


@command(
    "Embeddings of words of a topic; with --corpus also the hidden states of every layer.",
    shown=("corpus", "center", "statistic", "resample", *ALWAYS),
    epilogue=_examples("embeddings", ""),
    without=(*OF_PROGRAMS, "n_permutations"),
)
def embeddings(
    model: Model,
    /,
    *,
    topics: TopicsName,
    center: Annotated[bool, "subtract the mean embedding first"] = False,
    remove_components: Annotated[int, "so many principal components are taken out first"] = 0,
    statistic: Statistic = "ratio",
    shared: Shared,
) -> int:
    """Measures, saves the report if that is wanted, and prints it."""
    import topic_probe as tp

    inputs = open_inputs(model, topics, shared, needs_texts=False)
    report = tp.measure_embeddings(
        *inputs, center=center, remove_components=remove_components, statistic=statistic,
        **options_of(shared, tp.measure_embeddings),
    )  # fmt: skip
    return answer(report, shared.output)


@command(
    "What the weights of every head do between words of a topic: query-key and value-output circuits.",
    shown=("circuits", "statistic", "confidence", "tokenizer", "out", "overwrite", "json"),
    epilogue=_examples("weights", ""),
)
def weights(
    model: Model,
    /,
    *,
    topics: TopicsName,
    circuits: Annotated[list[Literal["qk", "ov"]] | None, "which; by default both"] = None,
    statistic: Statistic = "difference",
    confidence: Annotated[float, "what share of intervals is to hold the true number"] = 0.95,
    words: Choice,
    opening: Opening,
    output: Output,
) -> int:
    """Measures, saves the report if that is wanted, and prints it."""
    import topic_probe as tp

    output.check_free()
    look_for_topics(topics, words)
    opened = open_model(model, opening, bars=output.progress)
    listed = open_topics(topics, opened, words)
    report = tp.measure_weights(opened, listed, circuits=circuits, statistic=statistic, confidence=confidence)
    return answer(report, output)


@command(
    "What is lost of an outcome when heads are taken out: each by itself, or the sets that are named.",
    shown=("corpus", "sets", "kind", "outcome", *ALWAYS),
    epilogue=_examples("ablation", more=' --sets "early=0.8,3.3"'),
    without=(*OF_PROGRAMS, *NO_P),
)
def ablation(
    model: Model,
    /,
    *,
    topics: TopicsName,
    sets: Annotated[list[str] | None, 'heads to take out together, as NAME=HEADS: "early=0.8,3.3"'] = None,
    kind: Annotated[Literal["mean", "zero"], "what is put in their place"] = "mean",
    n_matched: Annotated[int, "random sets that each set is compared with"] = 100,
    outcome: Outcome = "states",
    layer: LayerOfStates = None,
    mask_share: MaskShare = 0.15,
    shared: Shared,
) -> int:
    """Measures, saves the report if that is wanted, and prints it."""
    import topic_probe as tp

    named = None if sets is None else mapping(sets, "--sets")
    inputs = open_inputs(model, topics, shared)
    report = tp.measure_ablation(
        *inputs, sets=named, kind=kind, n_matched=n_matched, outcome=outcome, layer=layer,
        mask_share=mask_share, **options_of(shared, tp.measure_ablation),
    )  # fmt: skip
    return answer(report, shared.output)


@command(
    "What is lost of an outcome when words of a topic cannot read each other.",
    shown=("corpus", "relation", "heads", "layers", "outcome", *ALWAYS),
    epilogue=_examples("knockout"),
    without=(*OF_PROGRAMS, *NO_P),
)
def knockout(
    model: Model,
    /,
    *,
    topics: TopicsName,
    relation: Annotated[
        Literal["same_topic", "different_topic", "same_word", "own_topic"],
        "which words no longer read each other",
    ] = "same_topic",
    how: Annotated[Literal["scores", "weights"], "before or after the softmax"] = "scores",
    heads: Annotated[str | None, 'in these heads alone: "0.8,3.3"'] = None,
    layers: Annotated[list[int] | None, "in these layers alone"] = None,
    n_matched: Annotated[int, "how often other edges at the same distance are cut"] = 20,
    outcome: Outcome = "states",
    layer: LayerOfStates = None,
    mask_share: MaskShare = 0.15,
    shared: Shared,
) -> int:
    """Measures, saves the report if that is wanted, and prints it."""
    import topic_probe as tp

    inputs = open_inputs(model, topics, shared)
    report = tp.measure_knockout(
        *inputs, relation=relation, how=how, heads=heads, layers=layers, n_matched=n_matched, outcome=outcome,
        layer=layer, mask_share=mask_share, **options_of(shared, tp.measure_knockout),
    )  # fmt: skip
    return answer(report, shared.output)


# ---------------------------------------------------------------------------- what all of them do


def open_inputs(model: str, topics: str, shared: Shared, *, needs_texts: bool = True) -> tuple[Any, ...]:
    """Model, topics, and documents where texts were named; what is missing is noticed before the model is opened."""
    shared.output.check_free()
    look_for_topics(topics, shared.words)
    corpus = open_corpus(shared.documents)
    if needs_texts and corpus is None:
        raise WrongUsageError("this is measured in texts: name them with --corpus (bundled, a folder, …)")
    opened = open_model(model, shared.opening, bars=shared.output.progress)
    found = opened, open_topics(topics, opened, shared.words)
    if corpus is None:
        return found
    return *found, documents_of(corpus, shared.documents, opened, shared.reading)


def options_of(shared: Shared, function: Any) -> dict[str, Any]:
    """The options that a measurement takes, by their names."""
    groups = (shared.reading, shared.statistics, shared.run)
    options = {name: value for group in groups for name, value in vars(group).items()}
    options["progress"] = shared.output.progress
    return {name: value for name, value in options.items() if name in signature(function).parameters}


def answer(report: Any, output: Output) -> int:
    """Saves a report where that is wanted, with its table and its figure, and prints it in a screen."""
    from topic_probe.cli.screens import screen

    text, document = screen(report, wide=output.wide), plain(report)
    if output.writes:
        _save(report, Path(str(output.out)), overwrite=output.overwrite)
        text += f"\nsaved in {output.out}: the report, table.csv, figure.png"
        document["saved"] = output.out
    output.answer(text, document)
    of_run = (report.provenance.get("options"), report.provenance.get("documents"))
    stopped = [part["stopped"] for part in of_run if isinstance(part, dict) and part.get("stopped")]
    if stopped:
        kept = f"; the report of these is in {output.out}" if output.out else ""
        raise KeyboardInterrupt(f"{stopped[0]}{kept}")
    return 0


def _save(report: Any, folder: Path, *, overwrite: bool) -> None:
    """A report in a folder, with its table and its figure for who has no Python at hand."""
    report.save(folder, overwrite=overwrite)
    report.to_dataframe().to_csv(folder / "table.csv", index=False)
    report.plot().figure.savefig(folder / "figure.png", dpi=150, bbox_inches="tight")
