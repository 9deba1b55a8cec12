"""Word lists that come along: read from the package, held against their checksums, told with source and licence.

They are made by ``demos/build_topics.py`` from public packages and lie in ``wordlists``: a line for every list, which
begins with its language and its name, and a catalogue.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

_FOLDER = "wordlists"


@dataclass(frozen=True)
class WordLists:
    """A family of word lists that comes along; a word stands in one list of a language only.

    Attributes:
        name: What `Topics.builtin` calls it.
        title: What the lists are.
        version: Version of what they were made from.
        licence: The licences that hold for them, in short; ``notice`` has them whole.
        attribution: Who made them, and what was changed.
        sources: The packages that they were made from.
        licence_files: Where their texts lie in the package.
        rule: How a word came to its list, and in which order words stand.
        left_out: Reason -> how many were left out for it.
        n_lists: Language -> number of lists.
        n_words: Language -> number of words.
        sha256: Checksum of the lists.
    """

    name: str
    title: str
    version: str
    licence: str
    attribution: str
    sources: tuple[str, ...]
    licence_files: tuple[str, ...]
    rule: str
    left_out: Mapping[str, int]
    n_lists: Mapping[str, int]
    n_words: Mapping[str, int]
    sha256: str

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages that there are lists in, as CLDR has them."""
        return tuple(self.n_words)

    @property
    def notice(self) -> str:
        """What must go with the lists where they are passed on: who made them, and the licences whole."""
        texts = [_read(file).decode() for file in self.licence_files]
        return "\n\n".join([self.attribution, *(text.strip() for text in texts)]) + "\n"

    @property
    def described(self) -> str:
        """Name, version and checksum in one phrase, for provenance."""
        return f"the built-in lists {self.name} {self.version} (sha256 {self.sha256})"

    def lists(self, language: str = "en") -> dict[str, tuple[str, ...]]:
        """The words of every list in a language, the commonest or first-named first.

        Example:
            >>> tp.builtin_topics()["wordnet-nouns"].lists()["plant"][:3]
            ('tree', 'grass', 'flower')
        """
        if language not in self.n_words:
            raise ValueError(
                f"{self.name} has no lists in {language!r}{_hint(language, self.languages)}: it has "
                f"{', '.join(self.languages)}"
            )
        content = _read(f"{self.name}.tsv")
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise ValueError(
                f"the lists {self.name} are not those that came with topic_probe: their sha256 differs, install it anew"
            )
        rows = (line.split("\t") for line in content.decode().splitlines())
        return {name: tuple(words) for of, name, *words in rows if of == language}


class BuiltinTopics(Mapping[str, WordLists]):
    """The word lists that come along, by name; shown as a table."""

    def __init__(self, families: Mapping[str, WordLists]) -> None:
        self._families = dict(families)

    def __getitem__(self, name: str) -> WordLists:
        if name not in self._families:
            raise KeyError(_unknown(name, self._families))
        return self._families[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._families)

    def __len__(self) -> int:
        return len(self._families)

    @property
    def notice(self) -> str:
        """What must go with the lists where they are passed on."""
        return "\n\n".join(f"== {name} ==\n\n{family.notice}" for name, family in self.items())

    def to_dataframe(self) -> "pd.DataFrame":
        """A row for every family: numbers of lists and words in English, languages, version, licence, sources."""
        import pandas as pd

        return pd.DataFrame(
            {
                "name": name,
                "lists": family.n_lists["en"],
                "words": family.n_words["en"],
                "languages": len(family.languages),
                "version": family.version,
                "licence": family.licence,
                "sources": ", ".join(family.sources),
            }
            for name, family in self.items()
        )

    def __repr__(self) -> str:
        return self.to_dataframe().to_string(index=False)

    def _repr_html_(self) -> str:
        note = escape("numbers of lists and words are those in English")
        return f"{self.to_dataframe().to_html(index=False, border=0)}<p>{note}</p>"


def builtin_topics() -> BuiltinTopics:
    """The word lists that come along, by name: how many, from where, under which licence.

    `Topics.builtin` makes topics of them; ``builtin_topics()[name].lists()`` gives the words.

    Example:
        >>> list(tp.builtin_topics())
        ['wordnet-nouns', 'wordnet-domains', 'empath', 'emoji']
        >>> tp.builtin_topics()["empath"].licence
        'MIT'
    """
    return BuiltinTopics(
        {
            name: WordLists(name=name, **{key: _frozen(value) for key, value in said.items()})
            for name, said in _catalogue().items()
        }
    )


def word_lists(name: str) -> WordLists:
    """The family of a name; ValueError for a name that none has."""
    known = builtin_topics()
    if name not in known:
        raise ValueError(_unknown(name, known))
    return known[name]


def _unknown(name: str, known: Mapping[str, Any]) -> str:
    return f"no topics that come along are called {name!r}{_hint(name, known)}: there are {', '.join(known)}"


def _hint(name: str, known: Iterable[str]) -> str:
    lower = {other.lower(): other for other in known}
    near = [lower[other] for other in get_close_matches(name.lower(), lower, n=1)]
    return f", did you mean {near[0]!r}?" if near else ""


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@cache
def _catalogue() -> dict[str, dict[str, Any]]:
    catalogue: dict[str, dict[str, Any]] = json.loads(_read("catalogue.json"))
    return catalogue


def _read(file: str) -> bytes:
    return files("topic_probe.topics").joinpath(_FOLDER, *file.split("/")).read_bytes()
