"""``topic-probe show MODEL --topics T --text "…"``: attention by topic, as a page."""

from typing import Any


def add_to(commands: Any) -> None:
    """The command."""
