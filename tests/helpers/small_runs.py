"""A small model, topics and documents that several tests measure."""

from functools import cache
from typing import Any

import numpy as np
import torch
from real_text import minilm_folder
from transformers import AutoTokenizer, BertConfig, BertModel

import topic_probe as tp

VOCABULARY = 50
TOPICS = {"fruit": [5, 6, 7, 8, 20], "tools": [10, 11, 12, 13, 20], "birds": [30, 31, 32, 5]}
TEXTS = [
    f"the {animal} of {place}" for animal in ("frog", "toad", "duck") for place in ("water", "stone", "wood")
]


def model(vocabulary: int = VOCABULARY) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
        config = BertConfig(vocab_size=vocabulary, max_position_embeddings=64, initializer_range=0.3, **sizes)
        return BertModel(config).double().eval()


def topics() -> tp.Topics:
    return tp.Topics.from_token_ids(TOPICS, vocabulary_size=VOCABULARY)


def other_topics() -> tp.Topics:
    return tp.Topics.from_token_ids({"one": [5, 6, 10], "two": [30, 31]}, vocabulary_size=VOCABULARY)


def documents(n: int, seed: int = 0) -> list[list[int]]:
    words = [5, 6, 7, 8, 10, 11, 12, 13, 20, 30, 31, 32, 40, 41, 2]
    generator = np.random.default_rng(seed)
    found = [generator.choice(words, size=generator.integers(1, 24)).tolist() for _ in range(n)]
    return [[20, 40] if number % 10 == 3 else ids for number, ids in enumerate(found)]


@cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(minilm_folder())


def text_topics() -> tp.Topics:
    lists = {"animals": ["frog", "toad", "duck"], "places": ["water", "stone", "wood"]}
    return tp.Topics.from_word_lists(lists, tokenizer())
