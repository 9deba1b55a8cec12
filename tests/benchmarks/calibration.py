"""Whether p-values and intervals of effects say what they promise, on models whose answer is known.

Random heads of untrained models are no better than others, so their p-values are to be uniform (Kolmogorov-Smirnov,
p > 0.001 over all models). A toy with Theorem 2's W_V has an effect in the population of its documents, and 93 to 97 %
of the intervals of samples are to hold it.

Run: ``python tests/benchmarks/calibration.py`` (a quarter of an hour).
"""

import argparse
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from scipy.stats import binomtest, kstest
from transformers import BertConfig, BertModel

sys.path.append(str(Path(__file__).parents[1] / "helpers"))
import known_toy

import topic_probe as tp

WANTED_P, WANTED = 0.001, (0.93, 0.97)
VOCABULARY, HEADS, LAYERS, TOGETHER, N_MATCHED = 66, 8, 3, 3, 99
SOURCES, POPULATION = (15, 60), 3_000


def p_value(seed: int) -> float:
    """Of a random set of heads of an untrained BERT, on documents of random words."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=4 * HEADS, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=32, max_position_embeddings=32, initializer_range=0.3,
    )  # fmt: skip
    model = BertModel(config, add_pooling_layer=False).eval()
    generator = np.random.default_rng(seed)
    topics = tp.Topics.from_token_ids(
        {name: list(range(first, first + 20)) for name, first in (("one", 5), ("two", 25), ("three", 45))},
        vocabulary_size=VOCABULARY,
    )
    documents = generator.integers(5, VOCABULARY, (8, 16)).tolist()
    # Not of the last layer, from which no head follows; all of one layer, so that there are sets like it.
    layer = int(generator.integers(LAYERS - 1))
    heads = [(layer, int(head)) for head in generator.choice(HEADS, TOGETHER, replace=False)]
    report = tp.measure_ablation(
        model,
        topics,
        documents,
        sets={"random": heads},
        kind="mean",
        n_matched=N_MATCHED,
        special_ids=(),
        seed=seed,
    )
    return float(report.p_value.item())


def held(n_sources: int, n_samples: int) -> int:
    """How many intervals of samples hold the effect in the population, which plain forward passes give."""
    toy = known_toy.toy(W_V=known_toy.theorem_2())
    world = tp.World(n_topics=10, words_per_topic=10, topics_per_document=2, min_length=40, max_length=40)
    drawn = world.documents(POPULATION, generator=torch.Generator().manual_seed(0))
    documents, shown = drawn.ids.tolist(), SimpleNamespace(ids=drawn.ids, mask=drawn.mask)
    with torch.no_grad():
        effects = known_toy.squared_loss(toy, shown) - known_toy.squared_loss(known_toy.toy(), shown)
    truth = float(effects.mean())
    generator, n_held = np.random.default_rng(n_sources), 0
    for _ in range(n_samples):
        chosen = generator.integers(POPULATION, size=n_sources)
        report = tp.measure_ablation(
            toy, world.topics, [documents[number] for number in chosen], sets={"the head": "0.0"}, kind="zero",
            outcome=known_toy.squared_loss, n_matched=0, special_ids=(),
        )  # fmt: skip
        low, high = report.interval[0, 0]
        n_held += bool(low <= truth <= high)
    return n_held


def main() -> int:
    """Print what was found; 1 where something that is wanted is not there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=1000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    p_values = [p_value(seed) for seed in range(arguments.models)]
    uniform = kstest(p_values, "uniform").pvalue
    shares = ", ".join(f"{np.mean(np.array(p_values) <= level):.1%} ≤ {level}" for level in (0.05, 0.1, 0.5))
    print(f"p-values of {len(p_values):,} untrained models: {shares}; uniform with p = {uniform:.3f}")
    missed = uniform <= WANTED_P
    for n_sources in SOURCES:
        n = held(n_sources, arguments.samples)
        low, high = binomtest(n, arguments.samples).proportion_ci()
        share = n / arguments.samples
        print(
            f"intervals over {n_sources} documents that hold the effect: {share:.1%} [{low:.1%}, {high:.1%}] of "
            f"{arguments.samples:,}, wanted 93 to 97 %"
        )
        missed |= not WANTED[0] <= share <= WANTED[1]
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
