"""Topics and documents of a small language, and a series of checkpoints that is measured on them."""

import numpy as np
import pytest
import small_language
import torch
import zoo

import topic_probe as tp

STEPS = (0, 10, 20, 40, 80)


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


@pytest.fixture(scope="session")
def series(tmp_path_factory, tokenizer):
    """Folders of a small BERT whose weights go one way, several files to a checkpoint."""
    root, model, before = tmp_path_factory.mktemp("series"), zoo.make("bert"), 0.0
    generator = torch.Generator().manual_seed(0)
    ways = [torch.randn(parameter.shape, generator=generator) for parameter in model.parameters()]
    for step in STEPS:
        way, folder = float(np.log1p(step)), root / f"checkpoint-{step}"
        with torch.no_grad():
            for parameter, direction in zip(model.parameters(), ways, strict=True):
                parameter += 0.01 * (way - before) * direction
        before = way
        model.save_pretrained(folder, max_shard_size="30KB")
        tokenizer.save_pretrained(folder)
    return tp.checkpoints_in(root)


@pytest.fixture(scope="session")
def report(series, topics, documents):
    return tp.measure_series(series, topics, documents, n_permutations=3)
