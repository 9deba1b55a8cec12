"""Word lists that come along: read from the package, held against their checksums, told with source and licence.

They are made by ``demos/build_topics.py`` from public packages and lie in ``wordlists``: a line for every list, which
begins with its language and its name, a catalogue, and the licences whole.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files


@dataclass(frozen=True, repr=False)
class WordLists:
    """A family of word lists that comes along; a word stands in one list of a language only.

    Attributes:
        attribution: Who made them, and what was changed.
        sources: The packages that they were made from.
        rule: How a word came to its list, and in which order words stand.
        left_out: Reason -> how many were left out for it.
        n_lists: Language -> number of lists.
        n_words: Language -> number of words.
        coverage: The percentage of tokens that have a topic (``tokens``) and the pairs of tokens of the same topic in
            an article (``pairs``): in English, as BERT's tokenizer parts the bundled articles, cut at 256 tokens.
        sha256: Checksum of the lists.
    """

    name: str
    title: str
    version: str
    licence: str
    attribution: str
    sources: Sequence[str]
    rule: str
    left_out: Mapping[str, int]
    n_lists: Mapping[str, int]
    n_words: Mapping[str, int]
    coverage: Mapping[str, float]
    sha256: str

    @property
    def described(self) -> str:
        """Name, version and checksum in one phrase, for provenance."""
        return f"the built-in lists {self.name} {self.version} (sha256 {self.sha256})"

    def lists(self, language: str = "en") -> dict[str, tuple[str, ...]]:
        """The words of every list in a language, the commonest or first-named first.

        Example:
            >>> tp.builtin_topics()["wordnet-nouns"].lists()["plant"][:3]
            ('leaf', 'seed', 'pollen')
        """
        if language not in self.n_words:
            raise ValueError(f"{self.name} has no lists in {language!r}{_near(language, self.n_words)}")
        content = _read(f"{self.name}.tsv")
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise ValueError(
                f"the lists {self.name} are not those that came with topic_probe: their sha256 differs, install it anew"
            )
        rows = (line.split("\t") for line in content.decode().splitlines())
        return {name: tuple(words) for of, name, *words in rows if of == language}

    def __repr__(self) -> str:
        others = f" and {len(self.n_words) - 1} more languages" if len(self.n_words) > 1 else ""
        size = f"{self.n_lists['en']} lists of {self.n_words['en']:,} words in English{others}"
        tokens, pairs = self.coverage["tokens"], self.coverage["pairs"]
        cover = f"{tokens:.1f} % of tokens of the bundled articles, {pairs:.1f} same-topic pairs an article"
        return f"{self.name}: {self.title}, {size}; {cover}; {self.licence}"


def builtin_topics() -> dict[str, WordLists]:
    """The word lists that come along, by name: how many, how much of a text they cover, under which licence.

    `Topics.builtin` makes topics of them; ``builtin_topics()[name].lists()`` gives the words.

    Example:
        >>> list(tp.builtin_topics())
        ['wordnet-nouns', 'wordnet-domains', 'empath', 'emoji']
        >>> tp.builtin_topics()["empath"].licence
        'MIT'
    """
    return {
        name: WordLists(name=name, **facts) for name, facts in json.loads(_read("catalogue.json")).items()
    }


def word_lists(name: str) -> WordLists:
    """The family of a name; ValueError for a name that none has."""
    known = builtin_topics()
    if name not in known:
        raise ValueError(f"unknown built-in topics {name!r}{_near(name, known)}")
    return known[name]


def _near(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name.lower(), known, n=1)
    return f"{f', did you mean {near[0]!r}?' if near else ''}: there are {', '.join(known)}"


def _read(file: str) -> bytes:
    return files("topic_probe.topics").joinpath("wordlists", file).read_bytes()
