"""``topic-probe train --out DIR``: the paper's toy transformer."""

import argparse
from typing import Any

from topic_probe.cli.console import plain
from topic_probe.cli.options import Call, Parser, add_command, add_options, add_out

_SAME = "what the model is for"
WORLD = Call(
    "topic_probe.toy.world:World", without={"word_probabilities": "a table, which only Python can pass"}
)
MASKING = Call("topic_probe.toy.world:Masking")
TOY = Call("topic_probe.toy.model:ToyConfig", filled=("world", "masking"))
BUILD = Call(
    "topic_probe.toy.model:build_toy",
    filled=("config",),
    without={"tensors": "arrays"},
    help={"seed": "of the initialisation, the documents and the masks (default: 0)"},
)
TRAINING = Call(
    "topic_probe.train.history:TrainConfig",
    without={
        "world": _SAME,
        "masking": _SAME,
        "measure_every": "the command measures the trained model",
        "schedule": "phases of tensors, which only Python can pass",
    },
)
TRAIN = Call(
    "topic_probe.train.toy:train_toy",
    filled=("model", "config", "progress"),
    without={"measure": "a function"},
)
_EPILOG = """example (a second; then look into it like into any model):
  topic-probe train --optimizer adam --steps 400 --out toy
  topic-probe measure weights toy --topics toy"""


def add_to(parser: Parser) -> None:
    """What the command takes."""
    add_command(parser, run, usage="train --out DIR", epilog=_EPILOG)
    add_out(parser, "a new folder for the history, the trained tensors and what they show", required=True)
    headings = {"model": (TOY, BUILD), "documents": (WORLD, MASKING), "training": (TRAINING, TRAIN)}
    add_options(parser, headings)


def run(parsed: argparse.Namespace) -> int:
    """Train a toy, look at its stages and weights, save everything."""
    from topic_probe import storage

    console = parsed.console
    world = WORLD.call(parsed)
    toy = TOY.call(parsed, world=world, masking=MASKING.call(parsed))
    training = TRAINING.call(parsed)
    with storage.draft(parsed.out, overwrite=parsed.overwrite) as draft:
        model = BUILD.call(parsed, toy)
        history = TRAIN.call(parsed, model, training, progress=console.progress)
        topics = world.topics
        history.save(draft / "history")
        topics.save(draft / "topics")
        reports = _reports(history, model, topics) if history.stopped == "finished" else {}
        for name, report in reports.items():
            report.save(draft / name)
    about = {"stopped": history.stopped, "last_step": history.last_step, "loss": history.loss[-1:].tolist()}
    text = "\n\n".join((str(history), *map(str, reports.values())))
    console.answer(f"{text}\nsaved in {parsed.out}", {**about, **plain(reports), "saved": parsed.out})
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
