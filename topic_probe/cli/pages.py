"""``topic-probe show``, ``report`` and ``check``: what there is to look at."""

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from topic_probe.cli.compare import open_series
from topic_probe.cli.console import Output, WrongUsageError, plain
from topic_probe.cli.inputs import (
    Choice,
    Model,
    Opening,
    TopicsName,
    look_for_topics,
    open_model,
    open_topics,
)
from topic_probe.cli.options import command


@command(
    "Attention in a text, coloured by topic, as a page that needs no network.",
    shown=("text", "file", "heads", "order", "tokenizer", "language", "out", "overwrite", "json"),
    epilogue="""Examples:
  topic-probe show google-bert/bert-base-uncased --topics empath --text "The army and the band" --out page.html
  topic-probe show MODEL --topics words.json --file text.txt --heads 0.8 3.3 --out page.html""",
)
def show(
    model: Model,
    /,
    *,
    topics: TopicsName,
    text: Annotated[str | None, "the text"] = None,
    file: Annotated[str | None, "a file with the text; - reads standard input"] = None,
    heads: Annotated[
        list[str] | None, "heads such as 0.8 or L0H8; by default those that attend most by topic in this text"
    ] = None,
    order: Annotated[Literal["topic", "position"], "how words are sorted at first"] = "topic",
    words: Choice,
    opening: Opening,
    output: Output,
) -> int:
    """Writes the page of a text."""
    import topic_probe as tp

    if (text is None) == (file is None):
        raise WrongUsageError("show needs a text: --text TEXT or --file FILE")
    if output.out is None:
        raise WrongUsageError("show needs the page to write: --out page.html")
    look_for_topics(topics, words)
    opened = open_model(model, opening, bars=output.progress)
    listed = open_topics(topics, opened, words)
    if file == "-":
        text = sys.stdin.read()
    elif file is not None:
        text = Path(file).expanduser().read_text(encoding="utf-8", errors="replace")
    page = tp.show_attention(opened, listed, text, heads=heads, order=order)
    return _write(page, Path(output.out), output)


@command(
    "Saved results as one page.",
    shown=("out", "overwrite", "json"),
    epilogue="""Example:
  topic-probe report reproduced""",
)
def report(
    folder: Annotated[str, "a folder that other commands have written, or one with such folders in it"],
    /,
    *,
    output: Output,
) -> int:
    """Writes the page of saved results."""
    import topic_probe as tp

    place = Path(folder).expanduser()
    if not place.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    return _write(tp.report_page(place), Path(output.out or place / "index.html"), output)


def _write(page: Any, path: Path, output: Output) -> int:
    out = path.expanduser().resolve()
    page.save(out, overwrite=output.overwrite)
    size = out.stat().st_size
    output.answer(f"open {out} in a browser ({size / 1e6:.1f} MB)", {"page": str(out), "bytes": size})
    return 0


@command(
    "What can be measured of a model; with --steps or a folder of checkpoints, whether these are what they say.",
    shown=("checkpoints", "steps", "pattern", "tokenizer", "dtype", "out", "overwrite", "json"),
    epilogue="""Examples:
  topic-probe check google-bert/bert-base-uncased
  topic-probe check output --checkpoints""",
)
def check(
    model: Model,
    /,
    *,
    checkpoints: Annotated[bool, "MODEL is a folder of checkpoints: check all of them"] = False,
    steps: Annotated[list[int] | None, "the steps of a repository on the hub, each a revision"] = None,
    pattern: Annotated[str, "how its revisions are called"] = "step{step}",
    opening: Opening,
    output: Output,
) -> int:
    """Prints it; 1 where attention cannot be measured, or something is wrong with a checkpoint."""
    import topic_probe as tp

    if checkpoints or steps:
        series = open_series(model, steps, pattern)
        flagged = tp.check_checkpoints(series, progress=output.progress)
        text = "\n".join(f"step {step}: {reason}" for step, reason in flagged.items())
        output.answer(text or f"{len(series)} checkpoints, none of them flagged", {"flagged": flagged})
        return 1 if flagged else 0
    result = tp.check_model(open_model(model, opening, bars=output.progress))
    measurable = result.attention and result.rows_sum_to_one
    output.answer(str(result), {**plain(result), "attention_can_be_measured": measurable})
    return 0 if measurable else 1
