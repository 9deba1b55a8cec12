"""Tokenizers of every kind that are trained on a few texts."""

import subprocess
import sys

import pytest

import topic_probe as tp

TEXTS = [
    "The army lost the battle at 30°C a°b°, and the band played.",
    "An army marches; a band plays on.",
] * 3
SIZES = {"wordpiece": 80, "unigram": 80, "byte-level": 300, "byte-level without ends": 300}


@pytest.mark.parametrize("kind", SIZES)
def test_a_text_comes_back_from_its_tokens(kind):
    tokenizer = tp.subword_tokenizer(TEXTS, kind, n_tokens=SIZES[kind])
    text = TEXTS[0].lower() if kind in ("wordpiece", "unigram") else TEXTS[0]
    back = tokenizer.decode(tokenizer(TEXTS[0])["input_ids"], skip_special_tokens=True)
    assert back.replace(" ", "") == text.replace(" ", "")
    assert len(tokenizer) <= SIZES[kind]


def test_ends_are_those_of_the_models():
    ends = {}
    for kind, size in SIZES.items():
        tokenizer = tp.subword_tokenizer(TEXTS, kind, n_tokens=size)
        tokens = tokenizer.convert_ids_to_tokens(tokenizer("The army")["input_ids"])
        ends[kind] = tokens[0], tokens[-1]
    assert ends["wordpiece"] == ends["unigram"] == ("[CLS]", "[SEP]")
    assert ends["byte-level"] == ("<s>", "</s>")
    assert "<|endoftext|>" not in ends["byte-level without ends"]


def test_word_pieces_are_the_same_in_another_process():
    # Hash tables have another order there, and by their order the trainer numbers letters.
    code = f"import topic_probe as tp\nfound = tp.subword_tokenizer({TEXTS!r}, n_tokens=60).get_vocab()\n"
    code += "print(sorted(found.items()))"
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    own = sorted(tp.subword_tokenizer(TEXTS, n_tokens=60).get_vocab().items())
    assert runs[0] == runs[1] == f"{own}\n"


def test_too_few_tokens_are_refused():
    with pytest.raises(ValueError, match="raise n_tokens, got 100"):
        tp.subword_tokenizer(TEXTS, "byte-level", n_tokens=100)
    with pytest.raises(ValueError, match="at least 1"):
        tp.subword_tokenizer(TEXTS, n_tokens=0)
    with pytest.raises(ValueError, match="kind must be"):
        tp.subword_tokenizer(TEXTS, "words")


def test_texts_that_can_be_read_only_once_are_refused_where_they_are_read_twice():
    with pytest.raises(ValueError, match="read only once: pass a list, or a Corpus"):
        tp.subword_tokenizer(iter(TEXTS), "wordpiece", n_tokens=80)
    once = tp.subword_tokenizer(iter(TEXTS), "byte-level", n_tokens=300)
    assert once.get_vocab() == tp.subword_tokenizer(TEXTS, "byte-level", n_tokens=300).get_vocab()
