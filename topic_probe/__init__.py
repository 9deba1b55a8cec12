"""Does a transformer treat words of the same topic differently? Where, how strongly, how sure are we?

The public names stand in ``__init__.pyi`` and are loaded on first use, so that ``import topic_probe`` stays as cheap as
``import torch`` and a missing or broken optional package only hurts where it is needed.
"""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_LINES = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8").splitlines()
_PUBLIC = {m[2]: m[1] for m in map(re.compile(r"from (\S+) import (\w+) as .*").fullmatch, _LINES) if m}

__all__ = [*sorted(_PUBLIC), "__version__"]


def __getattr__(name: str) -> Any:
    """Load a public name from its module on first use."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'topic_probe' has no attribute {name!r}")
    module = import_module(_PUBLIC[name])
    # Two names are modules themselves.
    value = getattr(module, name) if hasattr(module, name) else import_module(f"{_PUBLIC[name]}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
