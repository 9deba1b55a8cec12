"""Does a transformer treat words of the same topic differently? Where, how strongly, how sure are we?

The public names are loaded on first use, so that ``import topic_probe`` stays as cheap as ``import torch``
and a missing or broken optional package only hurts where it is needed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topic_probe.topics import Topics as Topics

__version__ = "0.1.0"

# public name -> module that defines it; a name that is missing here is not public.
_PUBLIC = {
    "Topics": "topic_probe.topics",
}

__all__ = ["Topics", "__version__"]


def __getattr__(name: str) -> Any:
    """Load a public name from its module on first use."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'topic_probe' has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
