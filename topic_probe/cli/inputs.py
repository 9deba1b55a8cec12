"""What commands read: models, tokenizers, topics and texts, named in words that a shell can pass."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from topic_probe.cli.console import warn
from topic_probe.cli.options import Call, Parser

MODEL_HELP = "a folder, a name on the Hugging Face hub, or a folder that `train` has written"
TOPICS_HELP = "a folder of topics or of a fit, what fit-topics has written, or a JSON file {topic: [word, …]}"
CORPUS_HELP = (
    "bundled (Wikipedia articles that come along), wikipedia, a file or folder of .txt or .jsonl, or the name of a "
    "data set on the Hugging Face hub"
)
BUNDLED, WIKIPEDIA = "bundled", "wikipedia"
PAGE = "index.html"

OPEN_MODEL = Call(
    "topic_probe.lens.opening:open_model",
    filled=("source",),
    help={"tokenizer": "name or folder of the tokenizer, where it does not lie beside the model"},
)
WORD_LISTS = Call("topic_probe.topics:Topics.from_word_lists", filled=("words", "tokenizer"))
FROM_FIT = Call(
    "topic_probe.topics:Topics.from_lda",
    filled=("lda",),
    flags={"of": "fraction-of"},
    without={
        "stop_words": "a fit has left them out already",
        "exclude": "the same",
        "names": "a fit numbers its topics",
        "token_ids": "a fit knows them",
        "vocabulary_size": "a fit knows it",
        "tokenizer": "a fit knows it",
    },
)
_RETRY = {"retry": "a stream that breaks is read on"}
# What is said of an option is said for all three ways to texts.
FILES = Call(
    "topic_probe.text.corpus:Corpus.from_files",
    filled=("paths",),
    help={
        "field": "field of a record that is the text (default: text)",
        "split": "a text of a .txt: file, line or paragraph; or the split of a data set (default: file; train)",
    },
)
WIKIPEDIA_CORPUS = Call(
    "topic_probe.text.corpus:Corpus.wikipedia",
    without=_RETRY,
    flags={"seed": "corpus-seed", "revision": "corpus-revision"},
    help={
        "n_documents": "articles, or texts of a data set (default: 10,000; of a data set all)",
        "seed": "which texts are drawn (default: 0; of a data set the first ones are taken)",
        "spread": "how far into each file of a stream a sample reaches (default: 10)",
        "revision": "commit of the data set, or branch or tag (default: of Wikipedia a fixed one)",
    },
)
DATASET = Call(
    "topic_probe.text.corpus:Corpus.from_dataset",
    filled=("dataset",),
    without={**_RETRY, "options": "only Python can pass any argument on to the datasets package"},
    flags={"config": "corpus-config", "seed": "corpus-seed", "revision": "corpus-revision"},
)
CORPORA = (FILES, WIKIPEDIA_CORPUS, DATASET)
DOCUMENTS = Call(
    "topic_probe.text.corpus:Corpus.documents",
    filled=("tokenizer", "progress"),
)


def add_model(parser: Parser) -> None:
    """Let a command name a model."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)


def add_model_and_topics(parser: Parser) -> None:
    """Let a command name a model and topics."""
    add_model(parser)
    parser.add_argument("--topics", metavar="TOPICS", required=True, help=TOPICS_HELP)


# --- models -------------------------------------------------------------------------------------------


def open_model(parsed: argparse.Namespace) -> Any:
    """The model that a command names, hooked."""
    from topic_probe import storage

    folder = Path(parsed.model).expanduser()
    trained = folder / "history" if (folder / "history").is_dir() else folder
    if not (folder / "config.json").is_file() and storage.kind_of(trained) == "history":
        return _trained(trained, parsed)
    options = OPEN_MODEL.arguments(parsed)
    import torch

    from topic_probe.lens.opening import open_model as open_hooked

    if name := options.get("dtype"):
        options["dtype"] = dtype = getattr(torch, name, None)
        if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise ValueError(
                f"--dtype must be a type of weights such as float32, float16 or bfloat16, got {name!r}"
            )
    if name := options.get("device"):
        try:
            torch.empty(0, device=name)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            why = str(error).splitlines()[0]
            raise ValueError(f"--device {name!r} cannot be used here: {why}") from error
    if "tokenizer" in options:
        options["tokenizer"] = open_tokenizer(options["tokenizer"])
    with quiet_transformers(progress=parsed.console.progress):
        return open_hooked(parsed.model, **options)


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


def several_processes() -> bool:
    """Whether torchrun has started more processes than this one."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


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


def topics_path(parsed: argparse.Namespace) -> Path:
    """Where the topics are that a command names; looked for before anything slow is opened."""
    path = Path(parsed.topics).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"there are no topics at {parsed.topics}: needed is {TOPICS_HELP}")
    return path


def open_topics(parsed: argparse.Namespace, model: Any) -> Any:
    """The topics that a command names."""
    from topic_probe import storage
    from topic_probe.text.lda import TopicFit
    from topic_probe.topics import Topics

    path = topics_path(parsed)
    if path.is_file() and path.name not in storage.MANIFESTS:
        only_fits = [flag for flag in FROM_FIT.given(parsed) if flag not in WORD_LISTS.options]
        _refuse(only_fits, "that is for topics that fit-topics has fitted, this is a file of words")
        return Topics.from_word_lists(_word_lists(path), tokenizer_of(model), **WORD_LISTS.arguments(parsed))
    folder = path.parent if path.is_file() else path
    only_lists = [flag for flag in WORD_LISTS.given(parsed) if flag not in FROM_FIT.options]
    _refuse(only_lists, "that is for a JSON file of words")
    wanted = FROM_FIT.arguments(parsed)
    fits = [place for place in (folder, folder / "fit") if storage.kind_of(place) == "topic fit"]
    saved = [place for place in (folder, folder / "topics") if storage.kind_of(place) == "topics"]
    if fits and (wanted or not saved):
        return Topics.from_lda(TopicFit.load(fits[0]), **wanted)
    if not saved:
        raise FileNotFoundError(f"there are no topics in the folder {path}: needed is {TOPICS_HELP}")
    _refuse(FROM_FIT.given(parsed), "these topics are chosen already, and no fit is beside them")
    return Topics.load(saved[0])


def _word_lists(path: Path) -> dict[str, Any]:
    import json

    def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        lists = dict(pairs)
        if len(lists) < len(pairs):
            twice = next(name for name in lists if [other for other, _ in pairs].count(name) > 1)
            raise ValueError(
                f"{path} has several topics of the name {twice!r}: put their words into one list"
            )
        return lists

    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=each_once)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON ({error}): needed is {{topic: [word, …]}}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold {{topic: [word, …]}}, it holds a {type(content).__name__}")
    return content


def open_corpus(parsed: argparse.Namespace) -> Any:
    """The texts that a command names."""
    from topic_probe.text.corpus import Corpus

    name = parsed.corpus
    path = Path(name).expanduser()
    if name == BUNDLED:
        way, refused = None, "the bundled articles take no such option"
    elif name == WIKIPEDIA:
        way, refused = WIKIPEDIA_CORPUS, "Wikipedia takes no such option"
    elif path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1 or path.suffix in _KINDS:
        way, refused = FILES, "files take no such option"
    else:
        warn(
            f"there is no file or folder {name!r}, so it is taken for a data set on the Hugging Face hub",
            "note",
        )
        return Corpus.from_dataset(name, **DATASET.arguments(parsed))
    allowed = [] if way is None else way.given(parsed)
    _refuse([flag for call in CORPORA for flag in call.given(parsed) if flag not in allowed], refused)
    if way is None:
        return Corpus.bundled()
    return way.call(parsed, *((path,) if way is FILES else ()))


_KINDS = (".txt", ".jsonl", ".gz")


def _refuse(options: list[str], why: str) -> None:
    """Leave no option unheeded."""
    if options:
        raise ValueError(f"{options[0]} does not fit here: {why}")


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
    return corpus.documents(tokenizer, progress=progress, **options)


@contextmanager
def quiet_transformers(*, progress: bool) -> Iterator[None]:
    """Keeps what transformers logs to itself, because what matters of it is said by this package."""
    from transformers.utils import logging

    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not progress:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()
