"""Does a transformer treat words of the same topic differently? Where, how strongly, how sure are we?

The public names are loaded on first use, so that ``import topic_probe`` stays as cheap as ``import torch``
and a missing or broken optional package only hurts where it is needed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topic_probe.data.batches import Document as Document
    from topic_probe.data.batches import encode_texts as encode_texts
    from topic_probe.lens.hosts import open_model as open_model
    from topic_probe.lens.hosts import random_init as random_init
    from topic_probe.measure.attention import AttentionReport as AttentionReport
    from topic_probe.measure.attention import measure_attention as measure_attention
    from topic_probe.measure.report import load_report as load_report
    from topic_probe.topics import Topics as Topics

__version__ = "0.1.0"

# public name -> module that defines it; a name that is missing here is not public.
_PUBLIC = {
    "AttentionReport": "topic_probe.measure.attention",
    "Document": "topic_probe.data.batches",
    "Topics": "topic_probe.topics",
    "encode_texts": "topic_probe.data.batches",
    "load_report": "topic_probe.measure.report",
    "measure_attention": "topic_probe.measure.attention",
    "open_model": "topic_probe.lens.hosts",
    "random_init": "topic_probe.lens.hosts",
}

__all__ = [*sorted(_PUBLIC), "__version__"]


def __getattr__(name: str) -> Any:
    """Load a public name from its module on first use."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'topic_probe' has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
