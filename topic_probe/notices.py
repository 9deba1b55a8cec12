"""What is said on the way: warnings and progress bars on stderr, and nothing where nobody could read it.

A service or a closed terminal has no stderr, or a closed one, on which Python's own warnings fail.
"""

import sys
import warnings
from typing import Any


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


def progress_bar(*given: Any, shown: bool, **options: Any) -> Any:
    """A bar of tqdm, which is only seen if it is to be shown and can be."""
    from tqdm.auto import tqdm

    return tqdm(*given, disable=not (shown and is_read()), **options)
