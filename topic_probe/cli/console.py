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
from typing import Any

NAME = "topic-probe"


class WrongUsageError(ValueError):
    """A command line that cannot be meant as it stands."""


@dataclass(frozen=True)
class Console:
    """Where a command writes.

    Attributes:
        answers: The real standard output.
        json: Whether the answer is one JSON document in place of text.
        progress: Whether bars with the time left are shown.
        silent: Nothing is written: another process of the same run does.
    """

    answers: Any
    json: bool = False
    progress: bool = False
    silent: bool = False

    def answer(self, text: str, document: Mapping[str, Any]) -> None:
        """Print the result: the text, or the document for machines."""
        if self.json:  # strict: what has no number (NaN, infinity) is null
            text = json.dumps(plain(document), ensure_ascii=False, allow_nan=False, indent=1)
        if not self.silent:
            write(f"{text}\n", self.answers)

    def remark(self, text: str) -> None:
        """Print what is not part of the answer for machines."""
        if not self.silent:
            write(f"{text}\n", sys.stderr if self.json else self.answers)


def write(text: str, stream: Any) -> None:
    """Write a text, now; where whoever read it has left (``| head``), this and all that follows leads nowhere."""
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:  # Python would complain once more when it closes the stream
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def open_closed_streams() -> None:
    """Let standard streams that the shell has closed lead nowhere.

    The file opened next would take the number of a closed one, and end up with whatever is written to that.
    """
    while (nowhere := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(nowhere)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - as long as the process


def warn(text: str, kind: str = "warning") -> None:
    """One line on stderr."""
    print(f"{NAME}: {kind}: {' '.join(text.split())}", file=sys.stderr, flush=True)  # noqa: T201


@contextmanager
def only_answers_on_stdout(*, debug: bool) -> Iterator[Any]:
    """Sends what libraries print to stderr, and their warnings too: ours as a line, those of others only on demand."""

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if category is UserWarning:
            warn(str(message))

    answers = sys.stdout
    with redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("default" if debug else "ignore")
        warnings.simplefilter("always", UserWarning)
        if not debug:
            warnings.showwarning = show
        yield answers


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
