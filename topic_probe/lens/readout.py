"""How the residual stream of a model becomes scores of words, where that is linear but for the final normalisation.

Nothing is assumed of an architecture: a trial on a few tokens sees what the final normalisation does, whether what
heads write arrives there unchanged while everything else is held as it was, and whether the scores are those of the
unembedding. Where one of these fails, there is no answer to what a head writes toward a word, and the model is refused.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from einops import einsum
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from topic_probe.lens import capture
from topic_probe.lens.capture import View
from topic_probe.lens.changes import NO_CHANGE, Change
from topic_probe.lens.edit import OutputsReader, ValuesReader, head_outputs, of_every_head
from topic_probe.lens.editable import editable
from topic_probe.lens.heads import HeadWeights
from topic_probe.lens.huggingface import Way
from topic_probe.lens.running import evaluating, every_module
from topic_probe.lens.sites import Inputs, Site

States = Float[Tensor, "*batch d_model"]

# How far what is linear may be from it, of its length, by precision.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 3e-2}

# Scores are looked at for states so many times as long, too, where caps on them would show.
_LONGER = 1000.0


@dataclass(frozen=True)
class Norm:
    """A final normalisation, frozen at its scale: y = scale · (x − its mean, or x) · weight + bias.

    Attributes:
        module: what normalises; None where the stream is read as it is.
        weight: what it multiplies by.
        bias: what it adds.
        centred: whether it takes the mean out first.
    """

    module: nn.Module | None
    weight: Float64[Tensor, " d_model"]
    bias: Float64[Tensor, " d_model"]
    centred: bool

    def before(self, directions: Float64[Tensor, "*some d_model"]) -> Float64[Tensor, "*some d_model"]:
        """What a direction behind the normalisation is in front of it, but for the scale."""
        weighted = directions * self.weight
        return weighted - weighted.mean(-1, keepdim=True) if self.centred else weighted

    def scale(self, x: States, y: States) -> Float64[Tensor, "*batch 1"]:
        """The scale that has made y of x."""
        if self.module is None:
            return torch.ones_like(x[..., :1], dtype=torch.float64)
        ahead = self._unscaled(x)
        return ((y.double() - self.bias) * ahead).sum(-1, keepdim=True) / ahead.square().sum(-1, keepdim=True)

    def apply(self, x: States, scale: Float64[Tensor, "*batch 1"]) -> Float64[Tensor, "*batch d_model"]:
        """What it makes of x at a scale."""
        return scale * self._unscaled(x) + self.bias

    def _unscaled(self, x: States) -> Float64[Tensor, "*batch d_model"]:
        x = x.double()
        return (x - x.mean(-1, keepdim=True) if self.centred else x) * self.weight


@dataclass(frozen=True)
class Tried:
    """The parts of the stream on the inputs of the trial, at their real positions.

    Attributes:
        heads: what all heads write.
        rest: the stream when heads write nothing and everything else is held as it was.
        scale: of the final normalisation.
        scores: of every word of the vocabulary; those that the model gives, where it gives any.
        values_error: how far patterns times values are from what heads put out, of its length, at worst.
    """

    heads: Float64[Tensor, "position d_model"]
    rest: Float64[Tensor, "position d_model"]
    scale: Float64[Tensor, "position 1"]
    scores: Float[Tensor, "position vocabulary"]
    values_error: float


@dataclass(frozen=True)
class Readout:
    """How the stream of a model becomes scores of words.

    Attributes:
        view: the model.
        norm: its final normalisation.
        columns: what scores of words are products with, behind the normalisation.
        offset: what is added to them.
        of_embeddings: whether these are the words' embeddings, because the model has no unembedding.
        weights: of the heads of every site.
        tried: what the trial has seen.
    """

    view: View
    norm: Norm
    columns: Float[Tensor, "d_model vocabulary"]
    offset: Float64[Tensor, " vocabulary"]
    of_embeddings: bool
    weights: tuple[HeadWeights, ...]
    tried: Tried

    def read(
        self, inputs: Inputs, read: OutputsReader, read_values: ValuesReader
    ) -> tuple[Float64[Tensor, "batch position 1"], Float[Tensor, "batch position d_model"]]:
        """Streams what heads put out and the values that they mix, as `edit.head_outputs`.

        Returns:
            The scale of the final normalisation, and the last states.
        """
        with _shown_by(self.norm.module) as shown:
            y = last_states(head_outputs(self.view, inputs, read, read_values))
        return self.norm.scale(shown[-1][0] if shown else y, y), y

    def error(
        self,
        words: Int64[Tensor, " word"],
        compare: Callable[[Float64[Tensor, "word width"]], Float64[Tensor, "row width"]],
    ) -> float:
        """How far what heads and all else bring is from the scores of the model, as a share of the largest.

        Args:
            words: which words.
            compare: the linear comparison of their scores that is looked at.
        """
        tried, directions = self.tried, compare(self.columns[:, words].T.double())
        brought = tried.scale * ((tried.heads + tried.rest) @ self.norm.before(directions).T)
        constant = directions @ self.norm.bias + compare(self.offset[words][:, None])[:, 0]
        scores = compare(tried.scores[:, words].T.double()).T
        return _share(brought + constant, scores)


def readout(view: View) -> Readout:
    """How a model's stream becomes scores of words, found out by a trial.

    Raises:
        ValueError: where that is not linear in what heads write, with the reason; where its heads cannot be edited.
    """
    if any(site.stack != "self" for site in view.sites):
        raise refused(view, "it has an encoder and a decoder, and only models with one stream are read")
    able = editable(view)
    if able.way is None:
        raise ValueError(able.no_way)
    with capture.without_hooks(view.model), evaluating(view.model):
        return _Trial(view, able.way).result()


# The trial.


class _Trial:
    """A model on a few tokens, as it is and with all held but what some heads write."""

    def __init__(self, view: View, way: Way) -> None:
        self.view, self.host, self.way = view, view.host, way
        self.inputs = self.host.trial_inputs()
        self.real = self.inputs.mask
        self.tolerance = _TOLERANCE.get(next(view.model.parameters()).dtype, 1e-1)
        self.y = self._states(lambda site: NO_CHANGE)
        # What the intact model shows: of every module with weights what it gave, call by call; the numbers of the calls
        # that take what the heads of a site put out; and all that gave the last states, with what it was given.
        self.gave: dict[nn.Module, list[Any]] = {}
        self.writers: dict[Site, tuple[nn.Module, int]] = {}
        self.last: list[tuple[nn.Module, Tensor]] = []
        self.outputs: dict[Site, Tensor] = {}
        self.values: dict[Site, Tensor] = {}
        self._look()
        self.norm, self.x = self._final_norm()

    def _states(self, changes: Callable[[Site], Change]) -> Tensor:
        with self.host.editing(self.way, changes):
            return last_states(self.host.run(self.inputs))

    def _look(self) -> None:
        """Keeps what is needed of a pass of the intact model."""

        def keep(module: nn.Module, args: Any, options: Any, output: Any) -> None:
            given = next((part for part in (*args, *options.values()) if isinstance(part, Tensor)), None)
            if given is not None and self._is_last(output) and not self._is_last(given):
                self.last.append((module, given.clone()))
            if _has_weights(module):
                calls = self.gave.setdefault(module, [])
                site = next(reversed(self.outputs), None)
                if site is not None and site not in self.writers and self._takes(site, module, given):
                    self.writers[site] = module, len(calls)
                calls.append(_copied(output))

        def look(site: Site, outputs: Tensor) -> Tensor:
            self.outputs[site] = outputs.clone()
            return outputs

        def changes(site: Site) -> Change:
            return Change(outputs=partial(look, site), values=partial(self.values.__setitem__, site))

        with self._hooks(keep):
            self._states(changes)

    def _is_last(self, states: Any) -> bool:
        """Whether something is the last states, to rounding: two passes need not be the same in the last digit."""
        there = isinstance(states, Tensor) and states.shape == self.y.shape and states.is_floating_point()
        return there and self._error(states, self.y) < self.tolerance

    def _takes(self, site: Site, module: nn.Module, given: Tensor | None) -> bool:
        """Whether a call takes what the heads of a site put out, or is that of the module which this never leaves."""
        inside = self.view.model.get_submodule(site.hook_name.rpartition(".")[0])
        return module is inside or (
            given is not None and _is_same(given.flatten(), self.outputs[site].flatten())
        )

    @contextmanager
    def _hooks(self, hook: Callable[..., Any]) -> Iterator[None]:
        handles = [
            module.register_forward_hook(hook, with_kwargs=True) for module in every_module(self.view.model)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _final_norm(self) -> tuple[Norm, Tensor]:
        """The module that gives the last states and normalises, with what it was given; none where none does."""
        fits = []
        for module, x in self.last:
            if x.shape != self.y.shape or not x.is_floating_point():
                continue
            for norm in _norms(module, x.shape[-1]):
                scale = norm.scale(x, self.y)
                error = self._error(norm.apply(x, scale), self.y)
                if error < self.tolerance and bool((scale[self.real] > 0).all()):
                    fits.append((error, norm, x))
        if fits:
            _, norm, x = min(fits, key=lambda fit: fit[0])
            return norm, x
        width = self.y.shape[-1]
        plain = torch.ones(width, dtype=torch.float64, device=self.y.device)
        return Norm(None, plain, torch.zeros_like(plain), centred=False), self.y

    def _error(self, found: Tensor, wanted: Tensor) -> float:
        """How far one is from the other at real positions, as a share of the longest number."""
        return _share(found[self.real].double(), wanted[self.real].double())

    def result(self) -> Readout:
        """What the trial shows.

        Raises:
            ValueError: where scores are not linear in what heads write.
        """
        weights = tuple(capture.head_weights(self.view.model, site) for site in self.view.sites)
        for site, own in zip(self.view.sites, weights, strict=True):
            self._check_arrives(site, own)
        columns, offset, of_embeddings, scores = self._scores()
        written = [
            _written(self.outputs[site], own) for site, own in zip(self.view.sites, weights, strict=True)
        ]
        tried = Tried(
            heads=torch.stack(written).sum(0)[self.real],
            rest=self._held(dict.fromkeys(self.view.sites, torch.zeros_like))[self.real].double(),
            scale=self.norm.scale(self.x, self.y)[self.real],
            scores=scores[self.real],
            values_error=self._values_error(),
        )
        return Readout(self.view, self.norm, columns, offset, of_embeddings, weights, tried)

    def _check_arrives(self, site: Site, weights: HeadWeights) -> None:
        """What is added to the outputs of heads is added to the stream in front of the final normalisation."""
        outputs = self.outputs[site]
        added = (
            torch.arange(outputs.numel(), device=outputs.device).cos().view(outputs.shape).to(outputs.dtype)
        )
        expected = _written(added, weights)
        if expected.shape != self.x.shape:
            raise refused(
                self.view,
                f"heads write {expected.shape[-1]} numbers and the last states have {self.x.shape[-1]}",
            )
        if not (length := float(expected.abs().max())):
            return
        # As long as the stream, so that it does not drown in its rounding.
        factor = (float(self.x[self.real].double().abs().max()) or 1.0) / length
        added, expected = added * factor, expected * factor
        arrived = self._held({site: lambda outputs: outputs + added}).double() - self.x.double()
        if not self._error(arrived, expected) < self.tolerance:
            share = float(arrived[self.real].norm() / expected[self.real].norm())
            how = "as something else" if share > self.tolerance else "not at all"
            raise refused(
                self.view,
                f"with everything else held, what the heads of {site.hook_name} write arrives in front of the last "
                f"normalisation {how}. So it is where layers normalise what comes out of them (post-norm models like "
                "BERT and BART, Gemma 2), where the stream is multiplied on its way, and in layers without a residual "
                "stream. measure_ablation asks what such heads do",
            )

    def _held(self, edits: Mapping[Site, Callable[[Tensor], Tensor]]) -> Tensor:
        """The stream in front of the final normalisation with outputs of heads edited, and everything else held.

        Held is what every module with weights gave in the intact model, but for those that write what the heads of
        these sites put out.
        """
        writing = {self.writers.get(site) for site in edits}
        calls = {module: enumerate(outputs) for module, outputs in self.gave.items()}

        def hold(module: nn.Module, args: Any, options: Any, output: Any) -> Any:
            if module not in calls:
                return None
            number, before = next(calls[module])
            return None if (module, number) in writing else _copied(before)

        def changes(site: Site) -> Change:
            return Change(outputs=edits[site]) if site in edits else NO_CHANGE

        # The final normalisation is held, too: that changes what comes out of it, and only what goes in is read.
        with _shown_by(self.norm.module) as shown, self._hooks(hold), self.host.editing(self.way, changes):
            answer = self.host.run(self.inputs)
        return shown[-1][0] if shown else last_states(answer)

    def _scores(self) -> tuple[Tensor, Tensor, bool, Tensor]:
        """What scores are products with, what is added, whether embeddings stand in for the first, and the scores."""
        try:
            self.host.logits(self.inputs)
        except ValueError:
            columns = capture.embedding_in_residual(self.view.model).T
            if len(columns) != self.y.shape[-1]:
                raise refused(
                    self.view,
                    f"the last states have {self.y.shape[-1]} numbers and embeddings {len(columns)}",
                ) from None
            return columns, torch.zeros_like(columns[0]).double(), True, self.y @ columns
        columns = capture.unembedding(self.view.model)
        y, scores = self._scored(1.0)
        if columns.shape != (y.shape[-1], scores.shape[-1]):
            raise refused(
                self.view,
                f"the last states have {y.shape[-1]} numbers for {scores.shape[-1]} scores, and the unembedding is of "
                f"{list(columns.shape)}",
            )
        offset = (scores - y @ columns)[self.real].double().mean(0)
        for factor in (1.0, _LONGER if self.norm.module is not None else 1.0):
            y, given = self._scored(factor)
            if not self._error(y @ columns + offset, given) < self.tolerance:
                raise refused(
                    self.view,
                    "its scores are not products of the last states and the unembedding. Something else is between "
                    "them (a transformation, as in heads of masked language models, a cap on scores, a factor). The "
                    "model without its head (AutoModel) is projected on embeddings of words",
                )
        return columns, offset, False, scores

    def _scored(self, factor: float) -> tuple[Tensor, Tensor]:
        """The last states, made so many times as long, and the scores of the model for them."""
        with (
            _shown_by(self.norm.module, factor) as shown,
            self.host.editing(self.way, lambda site: NO_CHANGE),
        ):
            scores = self.host.logits(self.inputs)
        return (shown[-1][1] if shown else self.y), scores

    def _values_error(self) -> float:
        """How far patterns times values are from what heads put out, at worst.

        Raises:
            ValueError: where they are something else.
        """
        worst = 0.0
        for site, pattern in capture.patterns(self.view.model, self.inputs).items():
            shown = [self.values[site]] if site in self.values else []
            values = of_every_head(shown, self.outputs[site], site).double()
            mixed = einsum(pattern.double(), values, "b head query key, b key head d -> b query head d")
            worst = max(worst, self._error(mixed, self.outputs[site]))
            if not worst < self.tolerance:
                raise refused(
                    self.view,
                    f"what the heads of {site.hook_name} put out is not its pattern times its values",
                )
        return worst


def refused(view: View, why: str) -> ValueError:
    """The error that says why what heads write cannot be told."""
    return ValueError(f"what heads of {view.host.name} write toward words cannot be told: {why}")


def last_states(answer: Any) -> Float[Tensor, "batch position d_model"]:
    """The last states in the answer of a model."""
    states: Tensor = answer["last_hidden_state"]
    return states


def _share(found: Tensor, wanted: Tensor) -> float:
    """How far one is from the other, as a share of the longest number."""
    return float((found - wanted).abs().max()) / (float(wanted.abs().max()) or 1.0)


def _written(
    outputs: Float[Tensor, "batch query head d_head"], weights: HeadWeights
) -> Float64[Tensor, "batch query d"]:
    """What heads with these outputs write into the stream."""
    written: Tensor = einsum(
        outputs.double(), weights.W_O.double(), "b query head d, head d model -> b query model"
    )
    return written


def _norms(module: nn.Module, width: int) -> Iterator[Norm]:
    """What a module may do that normalises, by its weights."""

    def parameter(*names: str) -> Float64[Tensor, " d_model"] | None:
        found = (getattr(module, name, None) for name in names)
        fitting = (p for p in found if isinstance(p, Tensor) and p.shape == (width,))
        own = next(fitting, None)
        return None if own is None else own.detach().double()

    weight, bias = parameter("weight", "w"), parameter("bias", "b")
    device = next(iter(module.parameters()), torch.zeros(0)).device
    ones = torch.ones(width, dtype=torch.float64, device=device)
    weights = [ones] if weight is None else [weight, 1 + weight]
    for factors in weights:
        for centred in (True, False):
            yield Norm(module, factors, torch.zeros_like(ones) if bias is None else bias, centred)


def _has_weights(module: nn.Module) -> bool:
    """Whether a module has weights of its own, beside those of its parts."""
    return any(weights is not None for weights in module._parameters.values())


def _is_same(one: Any, other: Tensor) -> bool:
    alike = isinstance(one, Tensor) and (one.shape, one.dtype) == (other.shape, other.dtype)
    return alike and torch.equal(one, other)


def _copied(output: Any) -> Any:
    """An output that nobody can write on: later layers add to tensors in place."""
    if isinstance(output, Tensor):
        return output.clone()
    return tuple(map(_copied, output)) if type(output) is tuple else output


@contextmanager
def _shown_by(module: nn.Module | None, factor: float = 1.0) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """A block in which a module shows what goes in and what comes out, so many times as long; nothing without one."""
    shown: list[tuple[Tensor, Tensor]] = []

    def look(_module: nn.Module, args: Any, options: Any, output: Tensor) -> Tensor | None:
        given = next(part for part in (*args, *options.values()) if isinstance(part, Tensor))
        longer = output if factor == 1.0 else output * factor
        shown.append((given.detach(), longer.detach()))
        return None if factor == 1.0 else longer

    if module is None:
        yield shown
        return
    handle = module.register_forward_hook(look, with_kwargs=True)
    try:
        yield shown
    finally:
        handle.remove()
