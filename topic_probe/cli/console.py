"""What a command says, and where: answers on stdout, everything else on stderr."""

import json
import math
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

NAME = "topic-probe"


class WrongUsageError(ValueError):
    """A command line that cannot be meant as it stands."""


@dataclass(frozen=True)
class Output:
    """How a command answers."""

    out: Annotated[str | None, "a new folder for what was found"] = None
    overwrite: Annotated[bool, "replace an earlier result at that place"] = False
    json: Annotated[bool, "one JSON document on stdout, for machines"] = False
    wide: Annotated[bool, "tables with all columns, however long the lines"] = False
    bars: Annotated[bool, "show the time left on stderr, where that is a terminal"] = True
    debug: Annotated[bool, "show where an error or a warning came from"] = False

    @property
    def progress(self) -> bool:
        """Whether bars are shown."""
        return self.bars and sys.stderr.isatty()

    @property
    def writes(self) -> bool:
        """Whether this process writes the result; of several that torchrun has started the first one does."""
        return self.out is not None and not _is_silent()

    def check_free(self) -> None:
        """FileExistsError, before anything is computed, where a result is in the way."""
        if self.out is not None:
            from topic_probe import storage

            storage.check_free(Path(self.out) / storage.FILE, overwrite=self.overwrite, file=True)

    def answer(self, text: str, document: Mapping[str, Any]) -> None:
        """Prints the result: the text, or the document for machines, in which what has no number is null."""
        if self.json:
            text = json.dumps(plain(document), ensure_ascii=False, allow_nan=False, indent=1)
        if not _is_silent():
            write(f"{text}\n", _Answers.stream)


class _Answers:
    """The real standard output, while a command runs."""

    stream: Any = None


def _is_silent() -> bool:
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and os.environ.get("RANK", "0") != "0"


def write(text: str, stream: Any) -> None:
    """Writes a text, now; where whoever read it has left (``| head``), this and all that follows leads nowhere."""
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:  # Python would complain once more when it closes the stream
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def warn(text: str, kind: str = "warning") -> None:
    """One line on stderr."""
    print(f"{NAME}: {kind}: {' '.join(text.split())}", file=sys.stderr, flush=True)  # noqa: T201


@contextmanager
def only_answers_on_stdout(*, debug: bool) -> Iterator[None]:
    """Sends what libraries print to stderr, and their warnings too: ours as a line, those of others only on demand."""

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if category is UserWarning:
            warn(str(message))

    _Answers.stream = sys.stdout
    with redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("default" if debug else "ignore")
        warnings.simplefilter("always", UserWarning)
        if not debug:
            warnings.showwarning = show
        yield


def plain(value: Any) -> Any:
    """Reports, tables and arrays as lists and dictionaries; a contrast is a list of rows, or a row if it is overall."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "to_dataframe") and hasattr(value, "shape"):
        rows = plain(value.to_dataframe())
        return rows if value.shape else rows[0]
    if hasattr(value, "to_dict") and hasattr(value, "columns"):
        return plain(value.to_dict(orient="records"))
    if is_dataclass(value):
        kind = getattr(value, "kind", None)
        content = {field.name: plain(getattr(value, field.name)) for field in fields(value)}
        return content if kind is None else {"kind": kind, **content}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value)


@contextmanager
def quiet_transformers(*, progress: bool) -> Iterator[None]:
    """Context manager: transformers keeps to itself what it logs; what matters of it is said by this package."""
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
