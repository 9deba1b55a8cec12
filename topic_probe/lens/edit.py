"""Edits what heads do: their outputs are replaced, or queries are kept from reading keys, for the length of a block.

Heads of Hugging Face models are edited inside the attention function, before the output projection and with the layer's
own mask; those of TransformerLens's layers at their hook points. A model has one way, which is tried first: an edit of
nothing has to change nothing, and every other edit something.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from topic_probe.lens.changes import HOWS, NO_CHANGE, Change, Edges, How, Outputs
from topic_probe.lens.hooked import Hooked
from topic_probe.lens.host import Host, host_of, is_hooked, without_hooks
from topic_probe.lens.interface import BESIDE_SDPA, EAGER, editing_calls
from topic_probe.lens.running import evaluating
from topic_probe.lens.sites import Inputs, Site
from topic_probe.lens.trial import check_outputs, real_vectors
from topic_probe.options import checked

Replacement = Literal["zero"] | Tensor | Callable[[Tensor], Tensor]
OutputsReader = Callable[[int, Outputs], None]


@checked
@contextmanager
def edit_heads(
    model: Any, edits: Mapping[Site, Callable[[Outputs], Outputs] | Mapping[int, Replacement]]
) -> Iterator[None]:
    """Context manager: every forward pass of a model has outputs of its heads replaced, before the output projection.

    The model is in evaluation mode inside, without gradients unless they are asked for there (torch.enable_grad), and
    comes back as it was. Blocks of this and of `cut_edges` may stand in each other: edges are cut first, and outputs
    pass through the functions from the outermost block to the innermost. With no edits the block is the intact model in
    the same arithmetic, which is what an edited one is to be compared with.

    Args:
        model: a hooked model (`open_model`).
        edits: what is replaced at which site (`lens.capture.sites`). Either by head: "zero"; a tensor that fits
            [batch, query, d_head], so that a vector is the same everywhere; or a function of the head's own output. Or
            a function of the outputs of all heads, [batch, query, head, d_head].

    Raises:
        TypeError: where it is not a hooked model.
        ValueError: for a site or head that the model does not have; where its heads cannot be edited; in a forward pass
            for a replacement of another shape.

    Example:
        One head that attends to both words alike, with identity matrices around it, puts out half of each:

        >>> import torch
        >>> from topic_probe.lens import capture
        >>> world = tp.World(n_topics=2, words_per_topic=2)
        >>> toy = tp.build_toy(tp.ToyConfig(regime="value", world=world), tensors={"W_V": torch.eye(5)})
        >>> ids = torch.tensor([[1, 2]])
        >>> with tp.edit_heads(toy, {}):
        ...     toy(ids, attention_mask=torch.ones_like(ids))[0, 0].tolist()
        [0.0, 0.5, 0.5, 0.0, 0.0]
        >>> with tp.edit_heads(toy, {capture.sites(toy)[0]: {0: "zero"}}):
        ...     toy(ids, attention_mask=torch.ones_like(ids))[0, 0].tolist()
        [0.0, 0.0, 0.0, 0.0, 0.0]
    """
    functions = {site: replaced(by) if isinstance(by, Mapping) else by for site, by in edits.items()}
    with _changing(model, {site: Change(outputs=function) for site, function in functions.items()}):
        yield


@checked
@contextmanager
def cut_edges(model: Any, cut: Mapping[Site, Edges], *, how: How = "scores") -> Iterator[None]:
    """Context manager: queries of a model do not read keys; in every forward pass these edges are cut.

    The mask of a layer, with its window and its padding, stays as it is: edges are cut inside it. A row of which
    nothing is left puts out 0. Otherwise as `edit_heads`.

    Args:
        model: a hooked model (`open_model`).
        cut: by site, True where a query must not read a key: [batch, head, query, key], with 1 for batch or head where
            all are cut alike.
        how: "scores" cuts before the softmax, so that the other keys of the row get the mass; "weights" behind it, so
            that the mass is lost.

    Raises:
        TypeError: where it is not a hooked model.
        ValueError: for a site that the model does not have; where its edges cannot be cut; in a forward pass on inputs
            of another size than the mask.

    Example:
        The toy of `edit_heads`; its first word no longer reads the second:

        >>> import torch
        >>> from topic_probe.lens import capture
        >>> world = tp.World(n_topics=2, words_per_topic=2)
        >>> toy = tp.build_toy(tp.ToyConfig(regime="value", world=world), tensors={"W_V": torch.eye(5)})
        >>> ids, edge = torch.tensor([[1, 2]]), torch.tensor([[[[False, True], [False, False]]]])
        >>> for how in ("scores", "weights"):
        ...     with tp.cut_edges(toy, {capture.sites(toy)[0]: edge}, how=how):
        ...         toy(ids, attention_mask=torch.ones_like(ids))[0, 0].tolist()
        [0.0, 1.0, 0.0, 0.0, 0.0]
        [0.0, 0.5, 0.0, 0.0, 0.0]
    """
    for site, edges in cut.items():
        if not isinstance(edges, Tensor) or edges.dtype != torch.bool or edges.ndim != 4:
            what = (
                f"{list(edges.shape)} of {edges.dtype}" if isinstance(edges, Tensor) else type(edges).__name__
            )
            raise ValueError(
                f"edges are cut by a boolean mask [batch, head, query, key], True where a query must not read a key; "
                f"got {what} for {site.hook_name}"
            )
    with _changing(model, {site: _cutting(how, edges) for site, edges in cut.items()}, edges=True):
        yield


def replaced(heads: Mapping[int, Replacement]) -> Callable[[Outputs], Outputs]:
    """What replaces the outputs of some heads, by number, and leaves those of the others as they are."""
    for head, by in heads.items():
        if not (isinstance(by, Tensor) or by == "zero" or callable(by)):
            raise ValueError(
                f"the output of head {head} is replaced by 'zero', a tensor or a function, got {by!r:.100}"
            )

    def replace(outputs: Outputs) -> Outputs:
        new = list(outputs.unbind(2))
        for head, by in heads.items():
            if not 0 <= head < len(new):
                raise ValueError(f"there is no head {head}: this site has heads 0 to {len(new) - 1}")
            new[head] = _replacement(head, by, new[head])
        return torch.stack(new, 2)

    return replace


def _replacement(head: int, by: Replacement, own: Tensor) -> Tensor:
    if isinstance(by, str):
        return torch.zeros_like(own)
    given = by if isinstance(by, Tensor) else by(own)
    try:
        return given.to(own).expand_as(own)
    except (AttributeError, RuntimeError):
        got = list(given.shape) if isinstance(given, Tensor) else type(given).__name__
        raise ValueError(
            f"what replaces the output of head {head} has to fit [batch, query, d_head] = {list(own.shape)}: one "
            f"vector for all, one per query, or one for each; got {got}"
        ) from None


def head_outputs(host: Host, inputs: Inputs, read: OutputsReader) -> None:
    """Streams what the heads of every site put out before the output projection, by the number of the site.

    Raises:
        ValueError: where its heads cannot be edited.
    """

    def look(number: int, outputs: Outputs) -> Outputs:
        read(number, outputs)
        return outputs

    changes = {site: Change(outputs=partial(look, number)) for number, site in enumerate(host.sites)}
    with _changing(host.model, changes, known=host):
        host.hooked.run(inputs)


@contextmanager
def editing(host: Host) -> Iterator[None]:
    """Context manager: as `edit_heads` with no edits, around others, of a model that was looked at before."""
    with _changing(host.model, {}, known=host):
        yield


# Blocks.


@dataclass
class _Block:
    """What is done to a model that is being edited: by the outermost block that edits it, and those within."""

    host: Host
    no_edges: str
    changes: Mapping[Site, Change] = field(default_factory=dict)

    def at(self, site: Site) -> Change:
        return self.changes.get(site, NO_CHANGE)


_blocks: WeakKeyDictionary[nn.Module, _Block] = WeakKeyDictionary()


@contextmanager
def _changing(
    model: Any, changes: Mapping[Site, Change], *, edges: bool = False, known: Host | None = None
) -> Iterator[None]:
    if not is_hooked(model):
        raise TypeError(
            f"needed a hooked model, not {type(model).__name__}: pass it through open_model first"
        )
    with evaluating(model), _block(model, known) as block:
        if edges and block.no_edges:
            raise ValueError(block.no_edges)
        if unknown := [site for site in changes if site not in block.host.sites]:
            there = ", ".join(site.hook_name for site in block.host.sites)
            raise ValueError(f"{block.host.hooked.name} does not attend at {unknown[0]}; it does at {there}")
        before = block.changes
        block.changes = {**before, **{site: block.at(site).then(change) for site, change in changes.items()}}
        try:
            yield
        finally:
            block.changes = before


@contextmanager
def _block(model: Any, known: Host | None) -> Iterator[_Block]:
    """Context manager: the block that edits a model, opened where there is none yet."""
    if (outer := _blocks.get(model)) is not None:
        yield outer
        return
    host = known or host_of(model)
    if not host.edited:
        with without_hooks(model):
            host.edited.append(_try_edits(host))
    block = _Block(host, host.edited[0])
    with _editing(host, block.at):
        _blocks[model] = block
        try:
            yield block
        finally:
            del _blocks[model]


def _editing(host: Host, changes: Callable[[Site], Change]) -> AbstractContextManager[None]:
    """Context manager: every forward pass has its heads edited in the one way that there is for a model.

    Raises:
        ValueError: where there is none.
    """
    hooked = host.hooked
    if host.tap is not None:
        return editing_calls(hooked.inside, BESIDE_SDPA, host.tap, changes)
    if not hooked.is_opened:
        return _editing_at_hooks(hooked, changes)
    if hooked.model.calls is None:
        raise ValueError(
            "its layers do not call the attention interface of transformers, inside which heads are edited; where "
            "TransformerLens has an adapter for it, a bridge that you build may be edited"
        )
    return editing_calls(hooked.inside, EAGER, hooked.model.calls, changes)


@contextmanager
def _editing_at_hooks(hooked: Hooked, changes: Callable[[Site], Change]) -> Iterator[None]:
    hooks: list[tuple[str, Any]] = []
    for site in hooked.sites():
        at = partial(changes, site)
        hooks.append((site.hook_name, lambda pattern, hook, at=at: at().pattern(pattern)))
        outputs = f"{site.hook_name.removesuffix('hook_pattern')}hook_z"
        hooks.append((outputs, lambda given, hook, at=at: at().replace(given)))
    with hooked.showing_patterns(), hooked.model.hooks(fwd_hooks=hooks):
        yield


# The trial of edits.


def _try_edits(host: Host) -> str:
    """Why the edges of a model cannot be cut, though its heads can be edited; mostly nothing.

    Raises:
        ValueError: where its heads cannot be edited.
    """
    with evaluating(host.model):
        try:
            return _Trial(host).result()
        except Exception as error:  # it may fail in any way where its attention is not what it is taken for
            reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            raise ValueError(f"the heads of {host.hooked.name} cannot be edited: {reason}") from error


class _Trial:
    """The edits of a model, tried out on a few tokens, more than its windows hold."""

    def __init__(self, host: Host) -> None:
        self.host, self.inputs = host, host.hooked.trial_inputs()
        self.own_key: dict[Site, Tensor] = {}
        for site in host.sites:
            queries, keys = self.inputs.masks(site)
            shape = queries.shape[1], keys.shape[1]
            self.own_key[site] = torch.eye(*shape, dtype=torch.bool, device=keys.device)[None, None]

    def result(self) -> str:
        """Why edges cannot be cut."""
        outputs: dict[Site, Tensor] = {}
        intact = self.answer(
            {site: Change(outputs=partial(_look, outputs, site)) for site in self.host.sites}
        )
        for site, n_heads in zip(self.host.sites, self.host.n_heads, strict=True):
            got = list(outputs[site].shape) if site in outputs else []
            if len(got) != 4 or got[2] != n_heads:
                raise ValueError(
                    f"{site.hook_name} needed to show outputs of {n_heads} heads [batch, query, head, d_head], got {got}"
                )
        check_outputs(self.host.model, self.host.hooked.run(self.inputs), intact, self.inputs)
        nothing = {site: torch.zeros_like(own) for site, own in self.own_key.items()}
        if not self._same(
            intact, self.answer({site: Change(no, no, _itself) for site, no in nothing.items()})
        ):
            raise ValueError("an edit of nothing changes the outputs of the model")
        for site in self.host.sites:
            # What is written into all heads of a site changes what the model puts out.
            numbers = torch.linspace(1, 2, outputs[site].shape[3]).to(outputs[site])
            constant = (numbers * (1 + outputs[site].abs().max())).expand_as(outputs[site])
            change = Change(outputs=lambda _, constant=constant: constant)
            if self._same(intact, self.answer({site: change})):
                raise ValueError(
                    f"what is written into the heads of {site.hook_name} changes nothing that the model puts out"
                )
        unmoved = [site for how in HOWS for site in self._unmoved(how, outputs)]
        return self._why_not(unmoved[0]) if unmoved else ""

    def answer(self, changes: Mapping[Site, Change]) -> Any:
        """The answer of the model with its heads edited."""
        with _editing(self.host, lambda site: changes.get(site, NO_CHANGE)):
            return self.host.hooked.run(self.inputs)

    def _unmoved(self, how: How, outputs: Mapping[Site, Tensor]) -> list[Site]:
        """Sites that put out the same when every key is cut but the query's own.

        Their intact outputs go on, so that every site gets what it gets in the intact model. Where every position puts
        out the same, none can be seen to be read.
        """
        seen: dict[Site, Tensor] = {}
        changes = {
            site: _cutting(how, ~own).then(Change(outputs=partial(_look, seen, site, instead=outputs[site])))
            for site, own in self.own_key.items()
        }
        self.answer(changes)
        same = [site for site in self.host.sites if torch.equal(seen[site], outputs[site])]
        return [
            site for site in same if not torch.equal(seen[site], seen[site][:1, :1].expand_as(seen[site]))
        ]

    def _same(self, one: Any, other: Any) -> bool:
        pairs = zip(*(real_vectors(answer, self.inputs) for answer in (one, other)), strict=True)
        return all(torch.equal(*pair) for pair in pairs)

    def _why_not(self, site: Site) -> str:
        return (
            f"edges of {self.host.hooked.name} cannot be cut: what {site.hook_name} puts out is the same whatever is cut "
            "there, because the host computes it without looking at an edited pattern. Heads can be edited with "
            "edit_heads; where it wraps a Hugging Face model, topic_probe.open_model of that model cuts its edges"
        )


def _cutting(how: How, edges: Edges) -> Change:
    return Change(scores=edges) if how == "scores" else Change(weights=edges)


def _itself(outputs: Outputs) -> Outputs:
    return outputs


def _look(
    seen: dict[Site, Tensor], site: Site, outputs: Outputs, *, instead: Tensor | None = None
) -> Outputs:
    """Keeps what the heads of a site put out."""
    seen[site] = outputs
    return outputs if instead is None else instead
