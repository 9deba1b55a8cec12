"""What commands read: models, tokenizers, topics and texts, named in words that a shell can pass."""

import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from topic_probe.cli.console import WrongUsageError, warn

BUILTIN_TOPICS = ("wordnet-nouns", "wordnet-domains", "empath", "emoji")
# Names that the datasets package takes for readers of whatever files lie in the current folder.
_READERS = (
    "arrow",
    "audiofolder",
    "csv",
    "imagefolder",
    "json",
    "parquet",
    "text",
    "videofolder",
    "webdataset",
    "xml",
)

Model = Annotated[str, "a folder, a name on the Hugging Face hub, or a folder that `train` has written"]
TopicsName = Annotated[
    str,
    f"{', '.join(BUILTIN_TOPICS)} (word lists that come along), a folder that fit-topics or train has written, a JSON "
    "file {topic: [word, …]}, or - for such JSON on standard input",
]
CORPUS = (
    "bundled (Wikipedia articles that come along), wikipedia, a file or folder of .txt or .jsonl, or the name of a "
    "data set on the Hugging Face hub"
)


@dataclass(frozen=True)
class Opening:
    """How a model is opened."""

    tokenizer: Annotated[
        str | None, "name or folder of the tokenizer, where it does not lie beside the model"
    ] = None
    revision: Annotated[str | None, "commit, branch or tag of a model on the hub"] = None
    device: Annotated[str | None, "where the model runs, such as cuda:0; by default where there is room"] = (
        None
    )
    dtype: Annotated[str | None, "type of the weights, such as bfloat16; by default that of the file"] = None


@dataclass(frozen=True)
class Choice:
    """Which words topics have."""

    language: Annotated[str, "language of word lists that come along; emoji has more"] = "en"
    forms: Annotated[
        Literal["case", "stem"], '"stem" also takes cat and cats for one word, "case" only Cat and cat'
    ] = "case"
    split_words: Annotated[
        Literal["drop", "keep"], '"keep" also takes listed words of several tokens, for --level word'
    ] = "drop"
    case_variants: Annotated[bool, "whether a listed word also stands for Word and WORD"] = True
    fraction: Annotated[
        float | None,
        "of a fit: a word belongs to a topic that gives it this probability; by default as it was saved",
    ] = None


@dataclass(frozen=True)
class Texts:
    """Which texts are read, and how."""

    corpus: Annotated[str | None, CORPUS] = None
    n_documents: Annotated[int | None, "texts at most; by default all, of Wikipedia 10,000"] = None
    split: Annotated[str | None, "a text of a .txt: file or line; or the split of a data set"] = None
    field: Annotated[str | None, "field of a record that is the text; by default text"] = None
    corpus_seed: Annotated[int | None, "which texts of a data set are drawn; by default the first ones"] = (
        None
    )
    corpus_config: Annotated[str | None, "configuration of the data set"] = None
    corpus_revision: Annotated[str | None, "commit, branch or tag of the data set"] = None
    begin_token: Annotated[bool, "put a begin token before texts of a causal model"] = False


# ---------------------------------------------------------------------------- models


def open_model(name: str, opening: Opening, *, bars: bool = False) -> Any:
    """The model that a command names, hooked."""
    import topic_probe as tp
    from topic_probe.lens.opening import quiet_transformers

    folder = Path(name).expanduser()
    trained = folder / "history" if (folder / "history").exists() else folder
    if not (folder / "config.json").is_file() and _kind(trained) == "history":
        model = tp.History.load(trained).model()
        return (
            model
            if hasattr(model, "toy_config")
            else tp.open_model(model, tokenizer=_tokenizer_given(opening))
        )
    with quiet_transformers(progress=bars):
        return tp.open_model(name, **opening_options(opening))


def opening_options(opening: Opening) -> dict[str, Any]:
    """What `tp.open_model` is to be told of how to open a model."""
    import torch

    known = {"tokenizer": _tokenizer_given(opening), "revision": opening.revision}
    options: dict[str, Any] = {name: value for name, value in known.items() if value is not None}
    if opening.dtype is not None:
        options["dtype"] = dtype = getattr(torch, opening.dtype, None)
        if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise WrongUsageError(
                f"--dtype must be a type of weights such as float32 or bfloat16, got {opening.dtype!r}"
            )
    if opening.device is not None:
        options["device"] = opening.device
        try:
            torch.empty(0, device=opening.device)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            why = str(error).splitlines()[0]
            raise WrongUsageError(f"--device {opening.device!r} cannot be used here: {why}") from error
    return options


def _tokenizer_given(opening: Opening) -> Any:
    return None if opening.tokenizer is None else open_tokenizer(opening.tokenizer)


def open_tokenizer(name: str, *, revision: str | None = None) -> Any:
    """The tokenizer of a model, from a folder or the hub."""
    from topic_probe.lens.opening import load_tokenizer, quiet_transformers

    with quiet_transformers(progress=False):
        tokenizer = load_tokenizer(str(Path(name).expanduser()) if name.startswith("~") else name, revision)
    if tokenizer is None:
        raise OSError(
            f"no tokenizer can be loaded from {name!r}: give the folder of a model with its tokenizer, or a name on "
            f"the Hugging Face hub; without a network, fetch the files elsewhere (`hf download {name} --local-dir "
            "FOLDER`) and give that folder"
        )
    return tokenizer


def tokenizer_of(model: Any) -> Any:
    """The tokenizer of an opened model, which texts and word lists need."""
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is None and hasattr(model, "toy_config"):
        raise ValueError(
            "this model was trained on synthetic documents, whose words are numbers, so it reads no texts: measure its "
            "embeddings or weights with the topics beside it"
        )
    if tokenizer is None:
        raise ValueError("this model has no tokenizer to read words with: name one with --tokenizer")
    return tokenizer


# ---------------------------------------------------------------------------- topics


def look_for_topics(name: str, choice: Choice) -> None:
    """Sees that there are the topics that a command names, before anything slow is opened."""
    path = Path(name).expanduser()
    if name in BUILTIN_TOPICS:
        from topic_probe.topics.builtin import word_lists

        try:
            word_lists(name).lists(choice.language)
        except ValueError as error:
            raise WrongUsageError(f"--language: {error}") from error
        if path.exists():
            warn(f"{name} means the word lists that come along; what lies here is ./{path}", "note")
    elif name != "-" and not path.exists():
        near = _meant(name, BUILTIN_TOPICS)
        raise FileNotFoundError(
            f"there are no topics at {name}{near}: needed is one of {', '.join(BUILTIN_TOPICS)}, a JSON file "
            "{topic: [word, …]}, or a folder that fit-topics has written"
        )


def open_topics(name: str, model: Any, choice: Choice) -> Any:
    """The topics that a command names, in the tokens of a model."""
    import topic_probe as tp

    of_words = {name: getattr(choice, name) for name in ("forms", "split_words", "case_variants")}
    if name in BUILTIN_TOPICS:
        return tp.Topics.builtin(name, tokenizer_of(model), language=choice.language, **of_words)
    if are_word_lists(name):
        return tp.Topics.from_word_lists(read_word_lists(name), tokenizer_of(model), **of_words)
    folder = Path(name).expanduser()
    saved = [place for place in (folder, folder / "topics") if _kind(place) == "topics"]
    fits = [place for place in (folder, folder / "fit") if _kind(place) == "topic fit"]
    if fits and (choice.fraction is not None or not saved):
        of_fit: dict[str, Any] = {} if choice.fraction is None else {"fraction": choice.fraction}
        return tp.TopicFit.load(fits[0]).topics(forms=choice.forms, **of_fit)
    if choice.fraction is not None:
        raise WrongUsageError("--fraction is for topics that fit-topics has fitted: no fit is beside them")
    if not saved:
        raise FileNotFoundError(f"there are no topics in the folder {folder}")
    return tp.Topics.load(saved[0])


def are_word_lists(name: str) -> bool:
    """Whether topics of this name are lists of words, on standard input or in a file of JSON."""
    path = Path(name).expanduser()
    return name == "-" or (path.is_file() and _kind(path) is None)


def read_word_lists(name: str) -> dict[str, Any]:
    """Lists of words, from standard input or a file."""
    what = "standard input" if name == "-" else name
    try:
        content = json.loads(sys.stdin.read() if name == "-" else Path(name).expanduser().read_text("utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{what} is not JSON ({error}): needed is {{topic: [word, …]}}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{what} must hold {{topic: [word, …]}}, it holds a {type(content).__name__}")
    return content


def _kind(path: Path) -> str | None:
    from topic_probe import storage

    return storage.kind_of(path)


def _meant(name: str, known: Any) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), n=1, cutoff=0.7)
    return f" (did you mean {near[0]}?)" if near else ""


# ---------------------------------------------------------------------------- texts


def open_corpus(texts: Texts) -> Any:
    """The texts that a command names; None where it names none."""
    import topic_probe as tp

    name = texts.corpus
    options = {
        "n_documents": texts.n_documents, "split": texts.split, "field": texts.field, "seed": texts.corpus_seed,
        "config": texts.corpus_config, "revision": texts.corpus_revision,
    }  # fmt: skip
    given: dict[str, Any] = {option: value for option, value in options.items() if value is not None}
    if name is None:
        if given:
            raise WrongUsageError(f"{_flag(next(iter(given)))} needs texts: name them with --corpus")
        return None
    path = Path(name).expanduser()
    takes = set(given)
    way: Any = partial(tp.Corpus.from_dataset, name)
    if name in ("bundled", "wikipedia"):
        way = getattr(tp.Corpus, name)
        takes = {"n_documents", "seed", "revision"} if name == "wikipedia" else {"n_documents"}
    elif path.exists() or name.startswith((".", "/", "~")) or path.suffix in (".txt", ".jsonl", ".gz"):
        way, takes = partial(tp.Corpus.from_files, path), {"n_documents", "split", "field"}
    elif name in _READERS:
        near = _meant(name, (entry.name for entry in Path.cwd().iterdir()))
        raise FileNotFoundError(f"there is no file or folder {name!r}{near}, and no data set is called so")
    else:
        warn(
            f"there is no file or folder {name!r}, so it is taken for a data set on the Hugging Face hub",
            "note",
        )
    if unknown := given.keys() - takes:
        raise WrongUsageError(
            f"{_flag(min(unknown))} does not fit here: --corpus {name} takes no such option"
        )
    return way(**given)


def _flag(option: str) -> str:
    of_corpus = option in ("seed", "config", "revision")
    return f"--{'corpus-' if of_corpus else ''}{option.replace('_', '-')}"


def documents_of(corpus: Any, texts: Texts, model: Any, reading: Any) -> Any:
    """The texts as a stream of token ids, no longer than the model can take."""
    from topic_probe.lens.host import facts_of

    limit = facts_of(model).context_length
    lengths = [length for length in (limit, reading.max_length) if length is not None]
    return corpus.documents(
        tokenizer_of(model), max_length=min(lengths, default=None), long=reading.long,
        begin_token=texts.begin_token, progress=False,
    )  # fmt: skip
