"""How long several seeds take side by side, against one of them alone.

    python tests/benchmarks/seeds.py [--seeds 5] [--steps 300] [--rounds 7] [--record-every 10]

Cross-entropy, Adam, 40 documents of 100-150 words a step. Everything runs on one thread and is timed in turns, by the
processor time it takes, so that a busy machine slows all of them alike; the numbers are medians over the rounds. Beside
the ratio stands the one that training the seeds one after another would have.

Below it the parts of a step of several seeds: documents and masks, the queries that they are reduced to, and the loss
with its gradients, beside what autograd takes for the same batch toy by toy.
"""

import argparse
import statistics
import time
from itertools import pairwise

import torch

from topic_probe.toy.lean import lean_loss, queries
from topic_probe.toy.lean_gradients import lean_gradients
from topic_probe.toy.model import ToyConfig, build_toy
from topic_probe.train.history import TrainConfig
from topic_probe.train.loop import train_toy, train_toys
from topic_probe.train.stack import ToyStack
from topic_probe.train.tasks import ToyTask

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


PARTS = ("documents", "queries", "gradients", "by autograd")


def parts(regime: str, seeds: int, options: argparse.Namespace) -> list[float]:
    """Processor seconds of the parts of a step of so many seeds, medians."""
    configs = [TrainConfig(seed=seed) for seed in range(seeds)]
    tasks = [ToyTask(build_toy(ToyConfig(regime=regime), seed=config.seed), config) for config in configs]
    own = [{name: value.detach().clone() for name, value in task.tensors.items()} for task in tasks]
    leaves = [[tensors[name].requires_grad_() for name in tasks[0].trained] for tensors in own]
    stack, form, trained = ToyStack(tasks), tasks[0].form, tasks[0].trained
    given = {"uniform": form.uniform, "dtype": tasks[0].dtype}
    size, times = configs[0].batch_size, []
    for _ in range(options.steps):
        clock = [time.process_time()]
        batch = stack.draw()
        clock.append(time.process_time())
        reduced = queries(batch, n_toys=seeds, **given)
        clock.append(time.process_time())
        lean_gradients(stack.tensors, form, reduced, trained, loss="cross_entropy")
        clock.append(time.process_time())
        alone = [queries(batch.part(i * size, (i + 1) * size), **given) for i in range(seeds)]
        clock.append(time.process_time())
        for tensors, trained_here, one in zip(own, leaves, alone, strict=True):
            loss = lean_loss(tensors, form, one, loss="cross_entropy")
            torch.autograd.grad(loss, trained_here, materialize_grads=True)
        clock.append(time.process_time())
        spent = [after - before for before, after in pairwise(clock)]
        times.append([*spent[:3], spent[4]])
    return [statistics.median(column) for column in zip(*times, strict=True)]


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
    print(f"\n{f'{options.seeds} seeds':12}{''.join(f'{name:>15}' for name in PARTS)}")
    for regime in REGIMES:
        each = parts(regime, options.seeds, options)
        print(f"{regime:12}{''.join(f'{seconds * 1e3:12.3f} ms' for seconds in each)}")


if __name__ == "__main__":
    main()
