"""``topic-probe train --out DIR``: the paper's toy transformer."""

import argparse
from typing import Any

from topic_probe.cli.console import plain
from topic_probe.cli.options import Call, Option, add_command, add_options, add_out, mapping

_SEED = Option("seed", "of the initialisation, the documents and the masks", int, 0)
_SAME = "what the model is for"
WORLD = Call(
    "topic_probe.toy.world:World",
    (
        Option("n_topics", "number of topics", int, 10),
        Option("words_per_topic", "words of a topic", int, 10),
        Option("alpha", "of the Dirichlet prior over the topics of a document", float, shown="0.1"),
        Option("topics_per_document", "so many topics in equal shares, in place of a prior", int),
        Option("min_length", "shortest document", int, 100),
        Option("max_length", "longest document", int, 150),
    ),
    without={"word_probabilities": "a table, which only Python can pass"},
)
MASKING = Call(
    "topic_probe.toy.masking:Masking",
    (
        Option("p_mask", "share of the words to be predicted", float, 0.15),
        Option("p_keep", "share of these that are shown as they are", float, 0.1),
        Option("p_random", "share of these that are shown as any word", float, 0.1),
    ),
)
TOY = Call(
    "topic_probe.toy.model:ToyConfig",
    (
        Option(
            "regime",
            "what is trained",
            default="full",
            choices=("full", "embedding", "value", "attention", "keys", "two-stage"),
        ),
        Option("d_model", "width", int, shown="the size of the vocabulary"),
        Option("d_attention", "width of keys and queries", int, shown="that of the model"),
        Option("n_layers", "layers", int, 1),
        Option("n_heads", "heads of a layer", int, 1),
        Option("residual", "add the input of a layer to its output", bool, False),
        Option("init", "initialisation", choices=("usual", "near-zero"), shown="that of the regime"),
        Option("noise", "standard deviation of the near-zero initialisation", float, 0.01),
        Option("embedding_scale", "standard deviation of W_E", float, 0.1),
        Option("trained", "trained tensors, such as W_K W_Q", many=True, shown="those of the regime"),
        Option("frozen", "frozen tensors with their rules, such as W_V=theorem2", default={}, many=True),
        Option("dtype", "of the tensors", default="float32", choices=("float32", "float64")),
    ),
    filled=("world", "masking"),
)
BUILD = Call("topic_probe.toy.model:build_toy", (_SEED,), filled=("config",), without={"tensors": "arrays"})
TRAINING = Call(
    "topic_probe.train.history:TrainConfig",
    (
        Option("loss", "loss", default="cross_entropy", choices=("cross_entropy", "squared")),
        Option("optimizer", "optimizer", default="sgd", choices=("sgd", "adam")),
        Option("learning_rate", "step size", float, 0.01),
        Option("l2", "weight of the squared norm of all trained tensors", float, 0.0),
        Option("batch_size", "documents per step", int, 40),
        Option("steps", "number of updates", int, 1000),
        _SEED,
        Option("n_documents", "a fixed set of so many documents", int, shown="fresh ones at every step"),
        Option("remask", "mask a fixed set anew at every step", bool, True),
        Option("record_every", "steps between two rows of the history", int, 1),
        Option("forward", "form of the forward pass", default="auto", choices=("auto", "lean", "hooked")),
    ),
    without={
        "world": _SAME,
        "masking": _SAME,
        "measure_every": "the command measures the trained model",
        "measure_steps": "the same",
    },
)
TRAIN = Call(
    "topic_probe.train.loop:train_toy",
    (
        Option("checkpoint", "a file to write to, and to go on from where it exists"),
        Option("checkpoint_every", "steps between two writings", int, 5000),
    ),
    filled=("model", "config", "progress"),
    without={"measure": "a function", "log": "a function"},
)
_EPILOG = """example (a second; then look into it like into any model):
  topic-probe train --optimizer adam --steps 400 --out toy
  topic-probe measure weights toy --topics toy"""


def add_to(commands: Any) -> None:
    """The command."""
    parser = add_command(
        commands,
        "train",
        run,
        "train the toy transformer of the paper",
        usage="train --out DIR",
        epilog=_EPILOG,
    )
    add_out(parser, "a new folder for the history, the trained tensors and what they show", required=True)
    add_options(
        parser,
        {
            "model": (TOY, BUILD),
            "documents": (WORLD, MASKING),
            "training": (TRAINING, TRAIN),
        },
    )


def run(parsed: argparse.Namespace) -> int:
    """Train a toy, look at its stages and weights, save everything."""
    from topic_probe import storage
    from topic_probe.toy.agreement import world_topics
    from topic_probe.toy.masking import Masking
    from topic_probe.toy.model import ToyConfig, build_toy
    from topic_probe.toy.world import World
    from topic_probe.train.history import TrainConfig
    from topic_probe.train.loop import train_toy

    console = parsed.console
    options = TOY.arguments(parsed)
    if "frozen" in options:
        options["frozen"] = mapping(options["frozen"], "--frozen")
    world = World(**WORLD.arguments(parsed))
    toy = ToyConfig(world=world, masking=Masking(**MASKING.arguments(parsed)), **options)
    training = TrainConfig(**TRAINING.arguments(parsed))
    with storage.draft(parsed.out, overwrite=parsed.overwrite) as draft:
        model = build_toy(toy, **BUILD.arguments(parsed))
        history = train_toy(model, training, progress=console.progress, **TRAIN.arguments(parsed))
        topics = world_topics(world)
        history.save(draft / "history")
        topics.save(draft / "topics")
        reports = _reports(history, model, topics)
        for name, report in reports.items():
            report.save(draft / name)
    about = {"stopped": history.stopped, "last_step": history.last_step, "loss": history.loss[-1:].tolist()}
    told = "\n\n".join(map(str, (history, *reports.values())))
    console.answer(f"{told}\nsaved in {parsed.out}", {**about, **plain(reports), "saved": parsed.out})
    if history.stopped.startswith("interrupted"):
        raise KeyboardInterrupt(
            f"{history.stopped}; the history until then is in {parsed.out}{_resume(parsed)}"
        )
    if history.stopped != "finished":
        raise ValueError(f"{history.stopped}; what was trained until then is in {parsed.out}")
    return 0


def _reports(history: Any, model: Any, topics: Any) -> dict[str, Any]:
    """What the training shows: stages where enough was recorded, weights, and embeddings that were trained."""
    from topic_probe.measure.embeddings import measure_embeddings
    from topic_probe.measure.weights import measure_weights
    from topic_probe.train.stages import MIN_ROWS, measure_dynamics

    reports: dict[str, Any] = {}
    if len(history) >= MIN_ROWS:
        reports["dynamics"] = measure_dynamics(history)
    reports["weights"] = measure_weights(model, topics)
    if "W_E" in history.toy.trained_tensors:
        reports["embeddings"] = measure_embeddings(model, topics, statistic="difference")
    return reports


def _resume(parsed: argparse.Namespace) -> str:
    given = TRAIN.arguments(parsed).get("checkpoint")
    return (
        "; give --checkpoint FILE to go on next time"
        if given is None
        else f", and {given} goes on from there"
    )
