"""Topics followed while a model is trained: a callback of transformers' Trainer, and a function for any other loop."""

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from torch import nn
from transformers import TrainerCallback

from topic_probe.lens.running import generators_as_they_were
from topic_probe.measure.folder import model_facts
from topic_probe.options import check_whole, checked
from topic_probe.series.measured import Plan, SeriesReport
from topic_probe.topics import Topics


class TopicProbe(TrainerCallback):  # type: ignore[misc]
    """Measures a model while it is trained, at log-spaced steps, and reports all of them.

    As a callback of transformers' Trainer, ``Trainer(..., callbacks=[probe])``, or called as ``probe(step, model)`` by
    any other loop, after every step or as often as it likes. Step t is the state after t updates. Every step has the
    same documents, permutations and draws, and the numbers are those of `measure_attention` and `measure_embeddings`
    on the checkpoint of that step. The training goes on as if nothing had been measured: weights, gradients, modes,
    hooks and global generators are as they were.

    Measurements are kept in a folder. A training that is resumed from its own checkpoint finds those of its past there;
    one that lies ahead is taken where the weights come out the same again, by their checksum, and measured anew where
    they do not. The report says how much of the time measuring has taken: at the steps 0, 1, 2, 4, 8 … it is little,
    whatever the length of the training.

    What cannot be measured at a step (NaN in attention, after a divergence) is missing with its reason, and the
    training goes on; where nothing could be measured yet, that is an error.

    Args:
        topics: which vocabulary entries belong to which topic.
        documents: what is read, as in `measure_attention`; it is read again at every step. None where only embeddings
            are measured.
        measure: "embeddings" (cosines of the table), "attention", "states" (cosines of the states of every layer).
        every: measure at every step that it divides. With neither this nor ``at``: at 0, 1, 2, 4, 8 and so on. The last
            step of a Trainer is measured in any case.
        at: steps to measure at.
        model: which part of the model that is trained is measured, a dotted name: "generator" and "discriminator" of an
            ELECTRA, each with a probe of its own.
        tokenizer: the model's tokenizer, which says what is a special token; a Trainer's own (``processing_class``)
            where it is left out.
        folder: where measurements are kept; with a Trainer by default "topic_probe" in its output folder. It belongs to
            one training. A loop of your own keeps them in memory without it.
        attention: further options of `measure_attention`, such as ``{"n_permutations": 0}``.
        embeddings: further options of `measure_embeddings`.

    Example:
        >>> import torch
        >>> world = tp.World(n_topics=2, words_per_topic=4)
        >>> toy = tp.build_toy(tp.ToyConfig(world=world), seed=0)
        >>> optimizer, generator = torch.optim.Adam(toy.parameters()), torch.Generator().manual_seed(0)
        >>> probe = tp.TopicProbe(world.topics, measure=["embeddings"])
        >>> for step in range(10):
        ...     _ = probe(step, toy)
        ...     loss = tp.toy_tensors(toy)["W_E"].square().sum()  # any other loss
        ...     loss.backward()
        ...     optimizer.step(), optimizer.zero_grad()  # doctest: +ELLIPSIS
        (...)
        >>> probe.report().steps.tolist()
        [0, 1, 2, 4, 8]
    """

    @checked
    def __init__(
        self,
        topics: Topics,
        documents: Any = None,
        *,
        measure: Collection[str] = ("embeddings", "attention", "states"),
        every: int | None = None,
        at: Collection[int] | None = None,
        model: str | None = None,
        tokenizer: Any = None,
        folder: str | os.PathLike[str] | None = None,
        attention: Mapping[str, Any] | None = None,
        embeddings: Mapping[str, Any] | None = None,
    ) -> None:
        self.plan = Plan(topics, documents, tuple(measure), attention or {}, embeddings or {})
        self.every = None if every is None else check_whole("every", every)
        self.at = None if at is None else {check_whole("at", step, 0) for step in at}
        self.part, self.tokenizer = model, tokenizer
        self.folder = None if folder is None else Path(folder).expanduser()
        self._measured: dict[int, SeriesReport] = {}  # of this training
        self._ahead: dict[
            int, SeriesReport
        ] = {}  # of the same training before it was interrupted, or of another one
        self._begun = False
        self._since = perf_counter()

    def is_due(self, step: int) -> bool:
        """Whether a step is to be measured."""
        if self.every is None and self.at is None:
            return step & (step - 1) == 0
        return (self.every is not None and step % self.every == 0) or step in (self.at or ())

    def __call__(self, step: int, model: nn.Module) -> dict[str, float]:
        """Measure a model if the step is due.

        Returns:
            effect sizes by name, as a loop may want to log them; nothing where the step is not due.
        """
        step = check_whole("step", step, 0)
        self._begin(step)
        return self._measure(step, model) if self.is_due(step) else {}

    def report(self) -> SeriesReport:
        """What was measured until now.

        Raises:
            ValueError: where nothing was.
        """
        if not self._measured:
            raise ValueError(
                "nothing has been measured yet: train with this callback, or call it as probe(step, model)"
            )
        return SeriesReport.joined(list(self._measured.values()))

    # --- events of a Trainer --------------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Take up what is kept, and measure the state that training begins with."""
        if self.folder is None:
            named = "topic_probe" if self.part is None else f"topic_probe {self.part}"
            self.folder = Path(args.output_dir) / named
        self._begun = False
        self._of_trainer(state, given, self.is_due(state.global_step))

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Measure a step that is due, or the last one."""
        last = control.should_training_stop or state.global_step == state.max_steps
        self._of_trainer(state, given, last or self.is_due(state.global_step))

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Measure the last step where that has not been done; the best model, which may be there now, is of another."""
        self._of_trainer(state, given, due=not args.load_best_model_at_end)

    def _of_trainer(self, state: Any, given: Mapping[str, Any], due: bool) -> None:
        if not state.is_world_process_zero:
            return
        self._begin(state.global_step)
        if due:
            if self.tokenizer is None:
                self.tokenizer = given.get("processing_class")
            self._measure(state.global_step, given["model"])

    # --- measuring ------------------------------------------------------------------------------------

    def _begin(self, step: int) -> None:
        """At the first step that is seen: what is kept of those before belongs to this training."""
        if self._begun:
            return
        self._begun = True
        self._since = perf_counter()
        kept = self._measured | self._ahead | _kept_in(self.folder, self.plan)
        self._measured = {number: part for number, part in kept.items() if number < step}
        self._ahead = {number: part for number, part in kept.items() if number >= step}

    def _measure(self, step: int, whole: nn.Module) -> dict[str, float]:
        if step not in self._measured:
            with generators_as_they_were():
                self._measured[step] = self._known_or_new(step, _part(_inside(whole), self.part))
            self._since = perf_counter()
        curves = self._measured[step].contrasts()
        return {name: float("nan") if c is None else float(c.effect_size) for name, (c,) in curves.items()}

    def _known_or_new(self, step: int, model: nn.Module) -> SeriesReport:
        start, weights = perf_counter(), model_facts(model)["weights"]
        known = self._ahead.pop(step, None)
        if known is not None and known.weights == (weights,):
            return known
        found = self._found(step, model, weights)
        measuring, between = np.array([perf_counter() - start]), np.array([start - self._since])
        found = replace(found, measuring=measuring, between=between)
        if self.folder is not None:
            found.save(self.folder / f"step {step}", overwrite=True)
        return found

    def _found(self, step: int, model: nn.Module, weights: str) -> SeriesReport:
        try:
            return self.plan.at(step, model, self.tokenizer, weights=weights)
        except ValueError as error:
            if not any(part.reports[0] for part in self._measured.values()):
                raise
            return self.plan.nothing(step, str(error), weights=weights)


def _inside(model: nn.Module) -> nn.Module:
    """A model without what compiles it or copies it to several devices."""
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    while (
        inside := getattr(model, "_orig_mod", model.module if isinstance(model, wrappers) else None)
    ) is not None:
        model = inside
    return model


def _part(model: nn.Module, name: str | None) -> nn.Module:
    """A part of a model by its dotted name."""
    if name is None:
        return model
    try:
        return model.get_submodule(name)
    except AttributeError as error:
        parts = ", ".join(part for part, _ in model.named_children())
        raise ValueError(f"model={name!r} is no part of {type(model).__name__}, which has {parts}") from error


def _kept_in(folder: Path | None, plan: Plan) -> dict[int, SeriesReport]:
    """What was measured before and is kept in a folder, by step."""
    found: dict[int, SeriesReport] = {}
    for place in sorted(folder.glob("step *")) if folder is not None else ():
        report = plan.kept(place)
        found[int(report.steps[0])] = report
    return found
