"""What is said on the way: warnings and progress bars on stderr, and nothing where nobody could read it.

A service or a closed terminal has no stderr, or a closed one, on which Python's own warnings fail.
"""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet


def is_read() -> bool:
    """Whether there is a stderr that takes text."""
    return sys.stderr is not None and not getattr(sys.stderr, "closed", False)


def warn(message: str, *, stacklevel: int = 1) -> None:
    """Warns whoever can be warned; ``stacklevel`` counts from the function that calls."""
    try:
        warnings.warn(message, stacklevel=stacklevel + 1)
    except ValueError:
        if is_read():
            raise


def is_watched() -> bool:
    """Whether somebody sees bars as they move: in a terminal, or in a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return is_read() and (sys.stderr.isatty() or "IPKernelApp" in getattr(shell, "config", {}))


# Bars that have been made, as long as somebody has them; those that are closed are disabled.
_BARS: WeakSet[Any] = WeakSet()


def progress_bar(*given: Any, shown: bool | None, **options: Any) -> Any:
    """A bar of tqdm, which is only seen if it is to be shown and can be.

    With ``shown=None`` it is seen where somebody watches, once it has taken a second, and one at a time: not beside the
    bar of what reads from it. tqdm's own TQDM_DISABLE holds then.
    """
    from tqdm.auto import tqdm

    if shown is None and is_watched() and all(bar.disable for bar in _BARS):
        options["delay"] = 1.0
    else:
        options["disable"] = not (shown and is_read())
    bar = tqdm(*given, **options)
    _BARS.add(bar)
    return bar


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
