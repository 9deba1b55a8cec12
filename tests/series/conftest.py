"""Topics and documents of a small language, which models of series are measured on."""

import pytest
import small_language

import topic_probe as tp


@pytest.fixture(scope="session")
def tokenizer():
    return small_language.tokenizer()


@pytest.fixture(scope="session")
def topics(tokenizer):
    named = {f"topic {topic}": small_language.words(topic) for topic in range(small_language.N_TOPICS)}
    return tp.Topics.from_word_lists(named, tokenizer)


@pytest.fixture(scope="session")
def documents(tokenizer):
    return list(tp.encode_texts(small_language.texts(12, 20, seed=5), tokenizer))
