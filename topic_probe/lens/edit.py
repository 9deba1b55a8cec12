"""Edits what heads do: their outputs are replaced, or queries are kept from reading keys, for the length of a block.

What differs between hosts stands in `adapters.Adapter`: heads of Hugging Face models are edited inside the attention
function, before the output projection and with the layer's own mask; those of TransformerLens's layers at their hook
points. What a model allows is found out by `editable`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from topic_probe.lens import capture
from topic_probe.lens.capture import View
from topic_probe.lens.changes import NO_CHANGE, Change, Edges, How, Outputs, cutting
from topic_probe.lens.editable import Editable, editable
from topic_probe.lens.running import evaluating
from topic_probe.lens.sites import Inputs, Site
from topic_probe.options import checked

Replacement = Literal["zero"] | Tensor | Callable[[Tensor], Tensor]
OutputsReader = Callable[[int, Outputs], None]


@checked
@contextmanager
def edit_heads(
    model: Any, edits: Mapping[Site, Callable[[Outputs], Outputs] | Mapping[int, Replacement]]
) -> Iterator[None]:
    """A block in which every forward pass of a model has outputs of its heads replaced, before the output projection.

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
    """A block in which queries of a model do not read keys: in every forward pass these edges are cut.

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
    with _changing(model, {site: cutting(how, edges) for site, edges in cut.items()}, edges=True):
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


def head_outputs(view: View, inputs: Inputs, read: OutputsReader) -> None:
    """Streams what the heads of every site put out before the output projection, by the number of the site.

    Args:
        view: the model.
        inputs: what it reads.
        read: is given the number of a site, and the outputs.

    Raises:
        ValueError: where its heads cannot be edited.
    """

    def reading(number: int) -> Change:
        def look(outputs: Outputs) -> Outputs:
            read(number, outputs)
            return outputs

        return Change(outputs=look)

    changes = {site: reading(number) for number, site in enumerate(view.sites)}
    with _changing(view.model, changes, known=view):
        view.host.run(inputs)


@contextmanager
def editing(view: View) -> Iterator[None]:
    """A block as `edit_heads` with no edits, around others, of a model that was looked at before."""
    with _changing(view.model, {}, known=view):
        yield


# Blocks.


@dataclass
class _Block:
    """What is done to a model that is being edited: by the outermost block that edits it, and those within."""

    view: View
    editable: Editable
    changes: Mapping[Site, Change] = field(default_factory=dict)

    def at(self, site: Site) -> Change:
        return self.changes.get(site, NO_CHANGE)


_blocks: WeakKeyDictionary[nn.Module, _Block] = WeakKeyDictionary()


@contextmanager
def _changing(
    model: Any, changes: Mapping[Site, Change], *, edges: bool = False, known: View | None = None
) -> Iterator[None]:
    if not capture.is_hooked(model):
        raise TypeError(
            f"needed a hooked model, not {type(model).__name__}: pass it through open_model first"
        )
    with evaluating(model), _block(model, known) as block:
        known, able = block.view, block.editable
        if reason := able.no_way or (able.no_edges if edges else ""):
            raise ValueError(reason)
        if unknown := [site for site in changes if site not in known.sites]:
            there = ", ".join(site.hook_name for site in known.sites)
            raise ValueError(f"{known.host.name} does not attend at {unknown[0]}; it does at {there}")
        before = block.changes
        block.changes = {
            **before,
            **{site: block.at(site).then(change) for site, change in changes.items()},
        }
        try:
            yield
        finally:
            block.changes = before


@contextmanager
def _block(model: Any, known: View | None) -> Iterator[_Block]:
    """The block that edits a model, opened where there is none yet."""
    if (outer := _blocks.get(model)) is not None:
        yield outer
        return
    known = known or capture.view(model)
    block = _Block(known, editable(known))
    if block.editable.way is None:
        yield block
        return
    with capture.holding(known), known.host.editing(block.editable.way, block.at):
        _blocks[model] = block
        try:
            yield block
        finally:
            del _blocks[model]
