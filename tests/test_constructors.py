"""Whatever a constructor or function is given in place of a number, a flag or a choice is taken as it is or named.

What tests of single rooms hold to plain readings are lists, documents and matrices; here it is options.
"""

import math
from dataclasses import fields
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import topic_probe as tp

pytestmark = pytest.mark.usefixtures("unchecked_module")

# All that people pass for a number or a flag: of Python, numpy and torch, as text, in lists, nothing at all.
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 40), st.sampled_from([2**31, 2**63, 2**80, -(2**80)]), st.floats(),
    st.text(max_size=2), st.binary(max_size=1), st.lists(st.integers(0, 3), max_size=2),
    st.sampled_from(
        [np.int64(3), np.uint64(2**64 - 1), np.float32(0.5), np.True_, np.array(3), np.array([3]), torch.tensor(3),
         torch.tensor(0.5), torch.tensor(True), torch.tensor([3]), Fraction(1, 2), 1j, {}, {3}, object, ...]
    ),
)  # fmt: skip
TOKENIZER = tp.word_tokenizer(["the army and the band"])
TEXTS = Path(__file__).parents[1] / "LICENSE"
TOY = tp.ToyConfig(world=tp.World(n_topics=2, words_per_topic=2))
MODEL = tp.build_toy(TOY)
CONFIGS = [
    (tp.World, {"n_topics": 2, "words_per_topic": 2}), (tp.Masking, {}), (tp.TrainConfig, {"steps": 3}),
    (tp.ToyConfig, {"world": tp.World(n_topics=2, words_per_topic=2)}), (tp.TextConfig, {"vocabulary_size": 9}),
]  # fmt: skip


def as_number(value):
    """A number as Python's own, by what it says of itself; None for what is none, a bool included."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray | torch.Tensor) and value.ndim == 0):
        value = value.item()
    if isinstance(value, Fraction):
        return float(value)
    return value if type(value) in (int, float) else None


def same(one, other):
    return one == other or (
        isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other)
    )


def refusal_of(call):
    """What a call gives, and the message of the TypeError or ValueError that it raises instead."""
    try:
        return call(), ""
    except (TypeError, ValueError) as error:
        return None, str(error) or "an error without a message"


@settings(max_examples=200)
@given(st.sampled_from([(*config, field.name) for config in CONFIGS for field in fields(config[0])]), VALUES)
def test_a_config_holds_what_it_was_given_or_names_it(case, value):
    config, rest, name = case
    made, refusal = refusal_of(lambda: config(**{**rest, name: value}))
    if refusal:
        assert name.split("_")[0] in refusal or repr(value) in refusal
        return
    held, number = getattr(made, name), as_number(value)
    if number is None and not isinstance(value, bool):
        # A default that depends on others, several values, a choice: tests of these say what they are.
        assert value is None or isinstance(value, list | set | dict | str | np.ndarray | torch.Tensor)
        return
    assert same(held, value if number is None else number), (held, value)
    default = getattr(config(**rest), name)
    assert type(held) in ((type(default),) if isinstance(default, int) else (bool, int, float))


FUNCTIONS = {
    "blocks": (lambda **options: tp.Topics.blocks(**options), {"n_topics": 2, "words_per_topic": 2}),
    "from_token_ids": (
        lambda **options: tp.Topics.from_token_ids({"war": [1], "music": [2]}, **options),
        {"vocabulary_size": 9, "tokenizer": None},
    ),
    "from_word_lists": (
        lambda **options: tp.Topics.from_word_lists({"war": ["army"], "music": ["band"]}, **options),
        {"tokenizer": TOKENIZER, "case_variants": True, "leading_space": True, "split_words": "drop"},
    ),
    "from_matrix": (
        lambda **options: tp.Topics.from_matrix([[0.6, 0.3, 0.1], [0.1, 0.3, 0.6]], **options),
        {"fraction": 0.5, "one_topic_per_word": True, "exclude": [], "rounding": "plain", "min_probability": 0.0,
         "names": None, "token_ids": None, "vocabulary_size": 9, "tokenizer": None},
    ),
    "encode_texts": (
        lambda **options: list(tp.encode_texts(["the army"], **options)),
        {"tokenizer": TOKENIZER, "max_length": 9, "add_special_tokens": True},
    ),
    "documents": (
        lambda **options: list(tp.Corpus.from_texts(["the army"]).documents(TOKENIZER, **options)),
        {"max_length": 9, "long": "cut", "min_length": 1, "add_special_tokens": True},
    ),
    "shard": (lambda **options: list(tp.Corpus.from_texts(["the army"]).shard(**options)), {"index": 0, "n_shards": 1}),
    "from_files": (lambda **options: tp.Corpus.from_files(TEXTS, **options), {"field": "text", "split": "file"}),
    "count_cooccurrence": (
        lambda **options: tp.count_cooccurrence([[1, 2]], **options),
        {"words": [1, 2], "vocabulary_size": 9, "max_words": 9, "max_length": 9, "long": "cut", "progress": False},
    ),
    "word_tokenizer": (lambda **options: tp.word_tokenizer(["the army"], **options), {"n_words": 9}),
    "build_toy": (lambda **options: tp.build_toy(TOY, **options), {"seed": 0}),
    "measure_weights": (
        lambda **options: tp.measure_weights(MODEL, TOY.world.topics, **options),
        {"n_resamples": 0, "confidence": 0.9, "seed": 0},
    ),
    "measure_embeddings": (
        lambda **options: tp.measure_embeddings(MODEL, TOY.world.topics, **options),
        {"center": False, "remove_components": 0, "include_self": True, "exclude": [], "statistic": "ratio",
         "n_resamples": 0, "batch_size": 8, "max_length": 9, "progress": False},
    ),
    "measure_attention": (
        lambda **options: tp.measure_attention(MODEL, TOY.world.topics, [[1, 2, 3, 4]], **options, n_resamples=0),
        {"include_self": True, "level": "token", "batch_size": 8, "check_rows": True, "n_permutations": 0, "seed": 0},
    ),
}  # fmt: skip


@settings(max_examples=150)
@given(
    st.sampled_from([(name, option) for name, (_, options) in FUNCTIONS.items() for option in options]),
    VALUES.filter(
        lambda value: not (isinstance(value, int) and 40 <= value <= 2**31)
    ),  # what is merely large
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_option_of_a_wrong_type_is_a_sentence_that_names_it(case, value):
    function, name = case
    call, options = FUNCTIONS[function]
    _, refusal = refusal_of(lambda: call(**{**options, name: value}))
    default, number = options[name], as_number(value)
    if refusal:
        assert name.split("_")[0] in refusal or type(value) is type(default)
    elif isinstance(default, bool):
        assert isinstance(value, bool)
    elif isinstance(default, int | float):
        assert number is not None or value is None
    elif isinstance(default, str):
        assert isinstance(value, str)
