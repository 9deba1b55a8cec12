"""``topic-probe compare`` and ``topic-probe series``: several models on the same words of the same texts."""

from pathlib import Path
from typing import Annotated, Any, Literal

from topic_probe.cli.console import WrongUsageError
from topic_probe.cli.inputs import (
    BUILTIN_TOPICS,
    TopicsName,
    are_word_lists,
    documents_of,
    look_for_topics,
    open_corpus,
    open_model,
    open_topics,
    opening_options,
    read_word_lists,
)
from topic_probe.cli.measure import ALWAYS, OF_PROGRAMS, Level, Shared, answer, options_of
from topic_probe.cli.options import command, mapping

NOT_COMPARED = ("first_position", "resample")


@command(
    "Models side by side: the same words of the same texts, differences with paired intervals.",
    shown=("corpus", "measure", "statistic", "level", "n_permutations", *ALWAYS),
    epilogue="""Examples:
  topic-probe compare MiniLM=sentence-transformers/all-MiniLM-L6-v2 bge=BAAI/bge-small-en-v1.5 \\
      --topics wordnet-nouns --corpus bundled --max-length 256
  topic-probe compare A B --topics words.json""",
    without=(*OF_PROGRAMS, *NOT_COMPARED),
)
def compare(
    *models: Annotated[str, "NAME=MODEL, or a model under its own name: a folder, or a name on the hub"],
    topics: TopicsName,
    measure: Annotated[
        list[Literal["embeddings", "attention"]] | None,
        "what is measured; by default both where there are texts",
    ] = None,
    statistic: Annotated[
        Literal["ratio", "difference", "effect_size"] | None,
        "what is compared; by default the ratio of attention and the effect size of cosines",
    ] = None,
    level: Level = "token",
    center: Annotated[bool, "subtract the mean embedding first"] = False,
    shared: Shared,
) -> int:
    """Compares, saves the report if that is wanted, and prints it."""
    import topic_probe as tp

    if not models:
        raise WrongUsageError("compare needs models: topic-probe compare A=MODEL B=MODEL --topics TOPICS")
    named = mapping([model if "=" in model else f"{Path(model).name}={model}" for model in models], "MODEL")
    shared.output.check_free()
    look_for_topics(topics, shared.words)
    corpus = open_corpus(shared.documents)
    opened = {
        name: open_model(model, shared.opening, bars=shared.output.progress) for name, model in named.items()
    }
    report = tp.compare(
        opened, _topics(topics, opened, shared.words), corpus, measure=measure, statistic=statistic, level=level,
        center=center, language=shared.words.language,
        **options_of(shared, tp.compare),
    )  # fmt: skip
    return answer(report, shared.output)


def _topics(name: str, models: dict[str, Any], words: Any) -> Any:
    """The name of word lists, lists of words, or topics that were saved or fitted."""
    if name in BUILTIN_TOPICS:
        return name
    return (
        read_word_lists(name)
        if are_word_lists(name)
        else open_topics(name, next(iter(models.values())), words)
    )


@command(
    "The same measurement at every checkpoint of a training, and from which step on topics are learned.",
    shown=("corpus", "steps", "pattern", "measure", *ALWAYS),
    epilogue="""Examples:
  topic-probe series output --topics wordnet-nouns --corpus bundled --max-length 128 --out learned
  topic-probe series EleutherAI/pythia-160m --steps 0 512 1000 2000 4000 --topics wordnet-nouns --corpus bundled""",
    without=OF_PROGRAMS,
)
def series(
    checkpoints: Annotated[
        str,
        "a folder of folders of checkpoints (checkpoint-500, step20), or with --steps a repository on the hub",
    ],
    /,
    *,
    topics: TopicsName,
    steps: Annotated[list[int] | None, "the steps of a repository on the hub, each a revision"] = None,
    pattern: Annotated[str, "how its revisions are called"] = "step{step}",
    measure: Annotated[
        list[Literal["embeddings", "attention", "states"]] | None, "what is measured; by default all of it"
    ] = None,
    level: Level = "token",
    shared: Shared,
) -> int:
    """Measures, saves the report if that is wanted, and prints it."""
    import topic_probe as tp

    shared.output.check_free()
    look_for_topics(topics, shared.words)
    every = open_series(checkpoints, steps, pattern)
    corpus = open_corpus(shared.documents)
    first, opening = next(iter(every.values())), opening_options(shared.opening)
    name, revision = first if isinstance(first, tuple) else (first, None)
    model = tp.open_model(name, **(opening if revision is None else opening | {"revision": revision}))
    read = None if corpus is None else documents_of(corpus, shared.documents, model, shared.reading)
    options = options_of(shared, tp.measure_series) | ({} if measure is None else {"measure": measure})
    listed = open_topics(topics, model, shared.words)
    report = tp.measure_series(every, listed, read, level=level, opening=opening, **options)
    if report is None:
        shared.output.answer("there are fewer checkpoints than parts, and none for this one", {})
        return 0
    return answer(report, shared.output)


def open_series(name: str, steps: list[int] | None, pattern: str) -> dict[int, Any]:
    """Step → checkpoint, of the checkpoints that a command names."""
    import topic_probe as tp

    if Path(name).expanduser().is_dir():
        if steps is not None:
            raise WrongUsageError(
                "--steps is for a repository on the hub: a folder has the steps in its names"
            )
        return tp.checkpoints_in(Path(name).expanduser())
    if steps is None:
        raise WrongUsageError(
            f"there is no folder {name}; for a repository on the hub say which --steps there are"
        )
    return tp.revisions(name, steps, pattern=pattern)
