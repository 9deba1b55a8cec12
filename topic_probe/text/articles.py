"""Real English Wikipedia articles that need no network: they come with gensim, and are cleaned by its functions."""

import bz2
import re
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field as attribute
from functools import cache
from typing import Any

from topic_probe.text.sources import Excluded, Source, checked, hash_of_texts

REDIRECTS = "redirects"

_DUMP = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
_ENDS_A_SENTENCE = re.compile(r"[.!?][\"'”’)]*(\s|$)")
_LEFTOVERS = re.compile(r"^(File|Image):|\.(jpe?g|png|svg|gif)\|", re.IGNORECASE)
_SHORTEST_LINE = 40


@dataclass(frozen=True)
class GensimArticles(Source):
    """The English Wikipedia articles that come with gensim, as prose."""

    n_parts: int = attribute(default=1, init=False)

    @property
    def n_entries(self) -> int:
        """Pages of the dump, redirects included."""
        return len(_pages())

    def read(self, part: int, start: int) -> Iterator[str | Excluded]:
        """The articles without the first ``start`` pages."""
        return iter(_pages()[start:])

    def describe(self) -> dict[str, Any]:
        """The file that they are in."""
        from importlib.metadata import version

        return {"source": "Wikipedia articles inside gensim", "gensim": version("gensim"), "file": _DUMP}

    def identity(self) -> str:
        """Hash of the articles as they are read."""
        return hash_of_texts(_pages())


@cache
def _pages() -> tuple[str | Excluded, ...]:
    """All pages, three megabytes, kept because cleaning them takes a second."""
    from gensim.corpora.wikicorpus import extract_pages, filter_wiki
    from gensim.test.utils import datapath

    with bz2.open(datapath(_DUMP)) as file:
        sources = [source for _, source, _ in extract_pages(file, ("0",))]
    return tuple(
        Excluded(REDIRECTS)
        if source.lstrip().upper().startswith("#REDIRECT")
        else checked(prose(filter_wiki(source)))
        for source in sources
    )


def prose(text: str) -> str:
    """The paragraphs of an article, a line each, without what is left of headings, lists, tables and captions."""
    lines = (line.strip() for line in re.sub("'{2,}", "", text).splitlines())
    return "\n".join(line for line in lines if _is_prose(line))


def _is_prose(line: str) -> bool:
    return (
        len(line) >= _SHORTEST_LINE
        and line[0] not in "*#:;|!{=}-"
        and _ENDS_A_SENTENCE.search(line) is not None
        and _LEFTOVERS.search(line) is None
    )
