"""How long several seeds take side by side, against one of them alone.

    python tests/benchmarks/seeds.py [--seeds 5] [--steps 300] [--rounds 7] [--record-every 10]

Cross-entropy, Adam, 40 documents of 100-150 words a step. Everything runs on one thread and is timed in turns, by the
processor time it takes, so that a busy machine slows all of them alike; the numbers are medians over the rounds. Beside
the ratio stands the one that training the seeds one after another would have.
"""

import argparse
import statistics
import time

import torch

from topic_probe.toy.model import ToyConfig, build_toy
from topic_probe.train.history import TrainConfig
from topic_probe.train.toy import train_toy, train_toys

REGIMES = ("value", "attention", "full")


def seconds(regime: str, seeds: int, options: argparse.Namespace) -> float:
    """Processor seconds of one step of so many seeds."""
    models = [build_toy(ToyConfig(regime=regime), seed=seed) for seed in range(seeds)]
    configs = [
        TrainConfig(optimizer="adam", steps=options.steps, seed=seed, record_every=options.record_every)
        for seed in range(seeds)
    ]
    start = time.process_time()
    if seeds == 1:
        train_toy(models[0], configs[0])
    else:
        train_toys(models, configs)
    return (time.process_time() - start) / options.steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--record-every", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'a step of':12}{'1 seed':>12}{f'{options.seeds} seeds':>12}{'ratio':>9}   one after another")
    for regime in REGIMES:
        times = [
            (seconds(regime, 1, options), seconds(regime, options.seeds, options))
            for _ in range(options.rounds + 1)
        ][1:]  # the first warms up
        one, several = (statistics.median(column) for column in zip(*times, strict=True))
        print(
            f"{regime:12}{one * 1e3:9.3f} ms{several * 1e3:9.3f} ms{several / one:9.2f}   {options.seeds}.00"
        )


if __name__ == "__main__":
    main()
