"""What commands read: models, tokenizers, topics and texts, named in words that a shell can pass."""

import argparse
import sys
from pathlib import Path
from typing import Any

from topic_probe.cli.console import WrongUsageError, quiet_transformers, warn
from topic_probe.cli.options import Call, Parser, add_options, meant

MODEL_HELP = "a folder, a name on the Hugging Face hub, or a folder that `train` has written"
BUILTIN_TOPICS = ("wordnet-nouns", "wordnet-domains", "empath", "emoji")
TOPICS_HELP = (
    f"{', '.join(BUILTIN_TOPICS)} (word lists that come along), a folder of topics or of a fit, what fit-topics has "
    "written, a JSON file {topic: [word, …]}, or - for such JSON on standard input"
)
CORPUS_HELP = (
    "bundled (Wikipedia articles that come along), wikipedia, a file or folder of .txt or .jsonl, or the name of a "
    "data set on the Hugging Face hub"
)
BUNDLED, WIKIPEDIA = "bundled", "wikipedia"
STDIN = "-"
PAGE = "index.html"

OPEN_MODEL = Call(
    "topic_probe.lens.opening:open_model",
    filled=("source",),
    help={"tokenizer": "name or folder of the tokenizer, where it does not lie beside the model"},
)
WORD_LISTS = Call("topic_probe.topics:Topics.from_word_lists", filled=("words", "tokenizer"))
FROM_NAME = Call("topic_probe.topics:Topics.builtin", filled=("name", "tokenizer"), help={
    "language": "language of word lists that come along (default: en; emoji has more)",
})  # fmt: skip
FROM_FIT = Call("topic_probe.text.lda:TopicFit.topics")
BUNDLED_CORPUS = Call("topic_probe.text.corpus:Corpus.bundled")
# What is said of an option is said for all ways to texts.
FILES = Call(
    "topic_probe.text.corpus:Corpus.from_files",
    filled=("paths",),
    help={
        "field": "field of a record that is the text (default: text)",
        "split": "a text of a .txt: file or line; or the split of a data set (default: file; train)",
        "n_documents": "texts at most (default: all; of Wikipedia 10,000)",
    },
)
WIKIPEDIA_CORPUS = Call(
    "topic_probe.text.corpus:Corpus.wikipedia",
    flags={"seed": "corpus-seed", "revision": "corpus-revision"},
    help={
        "seed": "which texts are drawn (default: of Wikipedia 0; the first ones of all others)",
        "revision": "commit of the data set, or branch or tag (default: of Wikipedia a fixed one)",
    },
)
DATASET = Call(
    "topic_probe.text.corpus:Corpus.from_dataset",
    filled=("dataset",),
    without={"options": "only Python can pass any argument on to the datasets package"},
    flags={"config": "corpus-config", "seed": "corpus-seed", "revision": "corpus-revision"},
)
CORPORA = (FILES, WIKIPEDIA_CORPUS, DATASET, BUNDLED_CORPUS)
DOCUMENTS = Call(
    "topic_probe.text.corpus:Corpus.documents",
    filled=("tokenizer", "progress"),
)


REVISIONS = Call(
    "topic_probe.series.checkpoints:revisions",
    filled=("name", "steps"),
    help={"pattern": "how revisions of the repository are called (default: step{step})"},
)
SERIES_HELP = (
    "folders of checkpoints in one (checkpoint-500, step20); with --steps a repository on the Hugging Face hub "
    "that has them as revisions, or a pattern of repositories with {step} in it"
)


def add_model_or_series(parser: Parser) -> None:
    """Let a command name a model, or else a series of checkpoints."""
    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument("model", metavar="MODEL", help=MODEL_HELP, nargs="?")
    either.add_argument("--series", metavar="SERIES", help=SERIES_HELP)
    parser.add_argument("--steps", metavar="N", type=int, nargs="+", help="the steps of a series on the hub")
    add_options(parser, {"series": (REVISIONS,)})


def open_series(parsed: argparse.Namespace) -> Any:
    """The checkpoints that a command names."""
    from topic_probe.series.checkpoints import checkpoints_in

    path = Path(parsed.series).expanduser()
    if path.is_dir():
        _refuse(
            [*(["--steps"] if parsed.steps else []), *REVISIONS.given(parsed)],
            "that is for a series on the hub",
        )
        return checkpoints_in(path)
    if parsed.steps is None:
        raise WrongUsageError(f"there is no {path}; for a series on the hub say which --steps there are")
    if "{step}" not in parsed.series:
        return REVISIONS.call(parsed, parsed.series, parsed.steps)
    _refuse(REVISIONS.given(parsed), "every step has a repository of its own")
    return {step: parsed.series.replace("{step}", str(step)) for step in parsed.steps}


def add_model(parser: Parser) -> None:
    """Let a command name a model."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)


def add_model_and_topics(parser: Parser, *, several: bool = False) -> None:
    """Let a command name a model and topics; those of several fits, where it can report them together."""
    add_model(parser)
    more = "; once for every fit, to report several together" if several else ""
    action = "append" if several else "store"
    parser.add_argument("--topics", metavar="TOPICS", required=True, action=action, help=TOPICS_HELP + more)


# --- models -------------------------------------------------------------------------------------------


def open_model(parsed: argparse.Namespace) -> Any:
    """The model that a command names, hooked."""
    from topic_probe import storage

    folder = Path(parsed.model).expanduser()
    trained = folder / "history" if (folder / "history").is_dir() else folder
    if not (folder / "config.json").is_file() and storage.kind_of(trained) == "history":
        return _trained(trained, parsed)
    from topic_probe.lens.opening import open_model as open_hooked

    options = opening_options(parsed)
    with quiet_transformers(progress=parsed.console.progress), OPEN_MODEL.blamed(parsed):
        return open_hooked(parsed.model, **options)


def opening_options(parsed: argparse.Namespace) -> dict[str, Any]:
    """What `open_model` is to be told of how to open a model."""
    options = OPEN_MODEL.arguments(parsed)
    import torch

    if name := options.get("dtype"):
        options["dtype"] = dtype = getattr(torch, name, None)
        if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise WrongUsageError(
                f"--dtype must be a type of weights such as float32, float16 or bfloat16, got {name!r}"
            )
    if name := options.get("device"):
        try:
            torch.empty(0, device=name)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            why = str(error).splitlines()[0]
            raise WrongUsageError(f"--device {name!r} cannot be used here: {why}") from error
    if "tokenizer" in options:
        options["tokenizer"] = open_tokenizer(options["tokenizer"])
    return options


def _trained(folder: Path, parsed: argparse.Namespace) -> Any:
    """The model of a history; one trained on text can be given the tokenizer that it was trained with."""
    from topic_probe.lens.opening import open_model as open_hooked
    from topic_probe.train.bert import TextConfig
    from topic_probe.train.history import History

    history = History.load(folder)
    on_text = isinstance(history.toy, TextConfig)
    unread = [option for option in OPEN_MODEL.given(parsed) if not (on_text and option == "--tokenizer")]
    _refuse(unread, "what was trained here is opened as it is")
    if not on_text:
        return history.model()
    tokenizer = open_tokenizer(parsed.tokenizer) if "tokenizer" in parsed else None
    return open_hooked(history.model(), tokenizer=tokenizer)


def open_tokenizer(name: str, *, revision: str | None = None) -> Any:
    """The tokenizer of a model, from a folder or the hub."""
    from topic_probe.lens.opening import load_tokenizer

    with quiet_transformers(progress=False):
        tokenizer = load_tokenizer(str(Path(name).expanduser()) if name.startswith("~") else name, revision)
    if tokenizer is None:
        raise OSError(
            f"no tokenizer can be loaded from {name!r}: give the folder of a model with its tokenizer, or a name "
            f"on the Hugging Face hub; without a network, fetch the files elsewhere (`hf download {name} --local-dir "
            "FOLDER`) and give that folder"
        )
    return tokenizer


def tokenizer_of(model: Any) -> Any:
    """The tokenizer of an opened model, which texts and word lists need."""
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is None and hasattr(model, "toy_config"):
        raise ValueError(
            "this model was trained on synthetic documents, whose words are numbers, so it reads no texts: "
            "measure its embeddings or weights with the topics beside it"
        )
    if tokenizer is None:
        raise ValueError("this model has no tokenizer to read words with: name one with --tokenizer")
    return tokenizer


# --- topics and texts ---------------------------------------------------------------------------------


def look_for_topics(parsed: argparse.Namespace) -> None:
    """See that there are the topics that a command names, before anything slow is opened.

    As with texts, the name of what comes along is that, and a file of the same name is asked for as ./NAME.
    """
    path = Path(parsed.topics).expanduser()
    if parsed.topics in BUILTIN_TOPICS:
        from topic_probe.topics.builtin import word_lists

        try:
            word_lists(parsed.topics).lists(*_language(parsed).values())
        except ValueError as error:
            raise WrongUsageError(f"--language: {error}") from error
        if path.exists():
            warn(f"{parsed.topics} means the word lists that come along; what lies here is ./{path}", "note")
    elif parsed.topics != STDIN and not path.exists():
        near = meant(parsed.topics, BUILTIN_TOPICS)
        raise FileNotFoundError(
            f"there are no topics at {parsed.topics}{near or f': needed is {TOPICS_HELP}'}"
        )


def _language(parsed: argparse.Namespace) -> dict[str, str]:
    return {name: value for name, value in FROM_NAME.arguments(parsed).items() if name == "language"}


def open_topics(parsed: argparse.Namespace, model: Any) -> Any:
    """The topics that a command names."""
    if parsed.topics in BUILTIN_TOPICS:
        only_fits = [flag for flag in FROM_FIT.given(parsed) if flag not in FROM_NAME.options]
        _refuse(only_fits, "that is for topics that fit-topics has fitted, these are lists of words")
        return FROM_NAME.call(parsed, parsed.topics, tokenizer_of(model))
    _refuse([f"--{name}" for name in _language(parsed)], "that is for word lists that come along")
    if are_word_lists(parsed.topics):
        only_fits = [flag for flag in FROM_FIT.given(parsed) if flag not in WORD_LISTS.options]
        _refuse(only_fits, "that is for topics that fit-topics has fitted, these are words")
        return WORD_LISTS.call(parsed, read_word_lists(parsed.topics), tokenizer_of(model))
    only_lists = [flag for flag in WORD_LISTS.given(parsed) if flag not in FROM_FIT.options]
    _refuse(only_lists, "that is for a JSON file of words")
    return _saved_topics(parsed, Path(parsed.topics).expanduser())


def _saved_topics(parsed: argparse.Namespace, path: Path) -> Any:
    """Topics of a folder: those that were saved there, or others from the fit beside them where options say so."""
    from topic_probe import storage
    from topic_probe.text.lda import TopicFit
    from topic_probe.topics import Topics

    folder, wanted = path.parent if path.is_file() else path, FROM_FIT.arguments(parsed)
    fits = [place for place in (folder, folder / "fit") if storage.kind_of(place) == "topic fit"]
    saved = [place for place in (folder, folder / "topics") if storage.kind_of(place) == "topics"]
    if fits and (wanted or not saved):
        return FROM_FIT.call(parsed, TopicFit.load(fits[0]))
    if not saved:
        raise FileNotFoundError(f"there are no topics in the folder {path}: needed is {TOPICS_HELP}")
    _refuse(FROM_FIT.given(parsed), "these topics are chosen already, and no fit is beside them")
    return Topics.load(saved[0])


def are_word_lists(name: str) -> bool:
    """Whether topics of this name are lists of words, on standard input or in a file."""
    from topic_probe import storage

    path = Path(name).expanduser()
    return name == STDIN or (path.is_file() and path.name != storage.FILE)


def read_word_lists(name: str) -> dict[str, Any]:
    """Lists of words, from standard input or a file."""
    import json

    what = "standard input" if name == STDIN else name

    def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        lists = dict(pairs)
        if len(lists) < len(pairs):
            twice = next(name for name in lists if [other for other, _ in pairs].count(name) > 1)
            raise ValueError(
                f"{what} has several topics of the name {twice!r}: put their words into one list"
            )
        return lists

    try:
        text = sys.stdin.read() if name == STDIN else Path(name).expanduser().read_text(encoding="utf-8")
        content = json.loads(text, object_pairs_hook=each_once)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{what} is not JSON ({error}): needed is {{topic: [word, …]}}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{what} must hold {{topic: [word, …]}}, it holds a {type(content).__name__}")
    return content


def open_corpus(parsed: argparse.Namespace) -> Any:
    """The texts that a command names."""
    name = parsed.corpus
    path = Path(name).expanduser()
    if name == BUNDLED:
        way, refused = BUNDLED_CORPUS, "the bundled articles take no such option"
    elif name == WIKIPEDIA:
        way, refused = WIKIPEDIA_CORPUS, "Wikipedia takes no such option"
    elif path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1 or path.suffix in _KINDS:
        way, refused = FILES, "files take no such option"
    else:
        warn(
            f"there is no file or folder {name!r}, so it is taken for a data set on the Hugging Face hub",
            "note",
        )
        return DATASET.call(parsed, name)
    allowed = way.given(parsed)
    _refuse([flag for call in CORPORA for flag in call.given(parsed) if flag not in allowed], refused)
    return way.call(parsed, *((path,) if way is FILES else ()))


_KINDS = (".txt", ".jsonl", ".gz")


def _refuse(options: list[str], why: str) -> None:
    """Leave no option unheeded."""
    if options:
        raise WrongUsageError(f"{options[0]} does not fit here: {why}")


def documents_of(
    corpus: Any,
    parsed: argparse.Namespace,
    tokenizer: Any,
    *,
    limit: int | None = None,
    progress: bool = False,
) -> Any:
    """The texts as a stream of token ids, no longer than the model can take."""
    options = DOCUMENTS.arguments(parsed)
    if limit is not None:
        options["max_length"] = min(options.get("max_length", limit), limit)
    with DOCUMENTS.blamed(parsed):
        return corpus.documents(tokenizer, progress=progress, **options)
