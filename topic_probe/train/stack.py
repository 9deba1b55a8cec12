"""Toys side by side: seeds of one setting, whose losses, gradients and updates are one computation.

Much of what a step of one toy takes is the overhead of some hundred small operations, and a stack of toys has hardly
more of them. Documents and masks come from each toy's own generator as they would for it alone, so that its training
is the one it would be alone, but for rounding: how a product rounds depends on its shape. Therefore a toy alone is no
stack of one; its trainings stay what they were to the bit.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import groupby

import torch
from jaxtyping import Float
from torch import Tensor

from topic_probe.toy.draws import Draws
from topic_probe.toy.lean import MaskedCounts, queries
from topic_probe.toy.lean_gradients import lean_gradients
from topic_probe.toy.masking import Masking
from topic_probe.toy.world import World
from topic_probe.train.tasks import MOST_EMPTY_BATCHES, ToyTask, nothing_masked


def alike(task: ToyTask) -> Hashable:
    """What toys in one stack have in common: everything but the values of their tensors, and their data.

    None for a toy that has to be trained alone, because the lean form cannot express it.
    """
    if task.form is None:
        return None
    config = replace(task.config, seed=0, world=None, masking=None)
    shapes = tuple((name, tuple(tensor.shape)) for name, tensor in task.tensors.items())
    return config, task.form, shapes, task.trained, task.dtype, task.device


def source(task: ToyTask) -> tuple[World, Masking]:
    """Where a toy's batches come from; toys next to each other in a stack draw them together if it is the same."""
    return task.world, task.masking


class ToyStack:
    """Toys with one computation of their losses.

    Attributes:
        tasks: The toys. Their tensors are slices of ``tensors`` from now on; models follow when they are told to
            (`ToyTask.update_model`).
        tensors: The tensors of all, with an axis ``toy`` in front.
    """

    def __init__(self, tasks: Sequence[ToyTask]):
        self.tasks, self.first = tuple(tasks), tasks[0]
        self.sources = [tuple(group) for _, group in groupby(tasks, source)]
        names = self.first.tensors
        self.tensors = {name: torch.stack([task.tensors[name].detach() for task in tasks]) for name in names}
        for i, task in enumerate(tasks):
            task.join_stack({name: tensor[i] for name, tensor in self.tensors.items()})
        self.trained = [self.tensors[name] for name in self.first.trained]

    def fresh_loss(self) -> tuple[Float[Tensor, "toy"], list[Tensor]]:
        """The loss of each toy's next batch, with the gradients of the trained tensors."""
        task = self.first
        assert task.form is not None
        batch = self.draw().to(task.device)
        reduced = queries(batch, uniform=task.form.uniform, dtype=task.dtype, n_toys=len(self.tasks))
        assert reduced is not None
        return lean_gradients(self.tensors, task.form, reduced, task.trained, loss=task.config.loss)

    def draw(self) -> MaskedCounts:
        """The next batch of every toy, one behind the other; where nothing is masked in one, it is drawn again."""
        batch = MaskedCounts.joined([part for tasks in self.sources for part in _draw(tasks)])
        n_toys = len(self.tasks)
        toys = batch.document.div(len(batch.counts) // n_toys, rounding_mode="floor")
        return batch if torch.bincount(toys, minlength=n_toys).all() else self._redrawn(batch)

    def _redrawn(self, batch: MaskedCounts) -> MaskedCounts:
        n = len(batch.counts) // len(self.tasks)
        parts = [batch.part(i * n, (i + 1) * n) for i in range(len(self.tasks))]
        for i, task in enumerate(self.tasks):
            for _ in range(MOST_EMPTY_BATCHES):
                if len(parts[i].document):
                    break
                task.n_empty += 1
                parts[i] = task.draw_counts()
            else:
                raise nothing_masked(task.masking)
        return MaskedCounts.joined(parts)


def _draw(tasks: Sequence[ToyTask]) -> list[MaskedCounts]:
    """The next batches of toys in one world, all at once unless they choose from sets of their own."""
    task = tasks[0]
    if task.documents is not None or len(tasks) == 1:
        return [task.draw_counts() for task in tasks]
    draws = Draws(*(task.generator for task in tasks))
    return [MaskedCounts.fresh(task.world, task.masking, task.config.batch_size, draws)]
