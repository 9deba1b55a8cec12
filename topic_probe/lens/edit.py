"""Edits what heads do: their outputs are replaced, or queries are kept from reading keys, for the length of a block.

An edit is a hook on a hook point. It is tried first whether a model honours it: an edit of nothing has to change
nothing, and every other edit something.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from topic_probe.lens.host import Host, host_of, is_hooked, without_hooks
from topic_probe.lens.running import evaluating, is_a
from topic_probe.lens.sites import Inputs, Site
from topic_probe.lens.trial import check_outputs, real_vectors
from topic_probe.options import checked

Outputs = Float[Tensor, "batch query head d_head"]
Edges = Bool[Tensor, "#batch #head query key"]
How = Literal["scores", "weights"]
Replacement = Literal["zero"] | Tensor | Callable[[Tensor], Tensor]
OutputsReader = Callable[[int, Outputs], None]
Hooks = Sequence[tuple[str, Callable[..., Tensor]]]


@checked
@contextmanager
def edit_heads(
    model: Any, edits: Mapping[Site, Callable[[Outputs], Outputs] | Mapping[int, Replacement]]
) -> Iterator[None]:
    """Context manager: every forward pass of a model has outputs of its heads replaced, before the output projection.

    An edit is a hook on ``hook_z``. The model is in evaluation mode inside, without gradients unless they are asked for
    there (torch.enable_grad), and comes back as it was. Blocks of this and of `cut_edges` may stand in each other:
    outputs pass through the functions from the outermost block to the innermost. With no edits the block is the intact
    model in the same arithmetic, which is what an edited one is to be compared with.

    Args:
        model: a hooked model (`open_model`).
        edits: what is replaced at which site (`lens.host.sites_of`). Either by head: "zero"; a tensor that fits
            [batch, query, d_head], so that a vector is the same everywhere; or a function of the head's own output. Or
            a function of the outputs of all heads, [batch, query, head, d_head].

    Raises:
        TypeError: where it is not a hooked model.
        ValueError: for a site or head that the model does not have; where its heads cannot be edited; in a forward pass
            for a replacement of another shape.

    Example:
        One head that attends to both words alike, with identity matrices around it, puts out half of each:

        >>> import torch
        >>> from topic_probe.lens.host import sites_of
        >>> world = tp.World(n_topics=2, words_per_topic=2)
        >>> toy = tp.build_toy(tp.ToyConfig(regime="value", world=world), tensors={"W_V": torch.eye(5)})
        >>> ids = torch.tensor([[1, 2]])
        >>> with tp.edit_heads(toy, {}):
        ...     toy(ids, attention_mask=torch.ones_like(ids))[0, 0].tolist()
        [0.0, 0.5, 0.5, 0.0, 0.0]
        >>> with tp.edit_heads(toy, {sites_of(toy)[0]: {0: "zero"}}):
        ...     toy(ids, attention_mask=torch.ones_like(ids))[0, 0].tolist()
        [0.0, 0.0, 0.0, 0.0, 0.0]
    """
    functions = {site: replaced(by) if isinstance(by, Mapping) else by for site, by in edits.items()}
    with _editing(model, {site: [_on_outputs(site, function)] for site, function in functions.items()}):
        yield


@checked
@contextmanager
def cut_edges(model: Any, cut: Mapping[Site, Edges], *, how: How = "scores") -> Iterator[None]:
    """Context manager: queries of a model do not read keys; in every forward pass these edges are cut.

    The mask of a layer, with its window and its padding, stays as it is: edges are cut inside it. A row of which
    nothing is left puts out 0. Patterns are computed eagerly meanwhile, which takes longer than the fused kernel; with
    nothing cut the block is the intact model in that arithmetic. Otherwise as `edit_heads`.

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
        >>> from topic_probe.lens.host import sites_of
        >>> world = tp.World(n_topics=2, words_per_topic=2)
        >>> toy = tp.build_toy(tp.ToyConfig(regime="value", world=world), tensors={"W_V": torch.eye(5)})
        >>> ids, edge = torch.tensor([[1, 2]]), torch.tensor([[[[False, True], [False, False]]]])
        >>> for how in ("scores", "weights"):
        ...     with tp.cut_edges(toy, {sites_of(toy)[0]: edge}, how=how):
        ...         toy(ids, attention_mask=torch.ones_like(ids))[0, 0].tolist()
        [0.0, 1.0, 0.0, 0.0, 0.0]
        [0.0, 0.5, 0.0, 0.0, 0.0]
    """
    hooks = {site: _on_edges(model, site, edges, how) for site, edges in cut.items()}
    with _editing(model, hooks, edges=True):
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
    """Streams what the heads of every site put out before the output projection, by the number of the site."""

    def look(number: int, outputs: Outputs) -> Outputs:
        read(number, outputs)
        return outputs

    hooks = {site: [_on_outputs(site, partial(look, number))] for number, site in enumerate(host.sites)}
    with _editing(host.model, hooks, known=host):
        host.hooked.run(inputs)


@contextmanager
def editing(host: Host, *, edges: bool = True) -> Iterator[None]:
    """Context manager: around others; as `cut_edges` with nothing cut where edges can be, or as `edit_heads`."""
    with _editing(host.model, {}, edges=edges and not _why_no_edges(host), known=host):
        yield


# Models inside a block, which are not tried again.
_open: WeakKeyDictionary[nn.Module, Host] = WeakKeyDictionary()


@contextmanager
def _editing(
    model: Any, hooks: Mapping[Site, Hooks], *, edges: bool = False, known: Host | None = None
) -> Iterator[None]:
    if not is_hooked(model):
        raise TypeError(
            f"needed a hooked model, not {type(model).__name__}: pass it through open_model first"
        )
    with evaluating(model):
        outer = _open.get(model)
        host = known or outer or host_of(model)
        if (reason := _why_no_edges(host)) and edges:
            raise ValueError(reason)
        if unknown := [site for site in hooks if site not in host.sites]:
            there = ", ".join(site.hook_name for site in host.sites)
            raise ValueError(f"{host.hooked.name} does not attend at {unknown[0]}; it does at {there}")
        _open[model] = host
        try:
            with _with_hooks(host, [hook for own in hooks.values() for hook in own], edges=edges):
                yield
        finally:
            if outer is None:
                del _open[model]


@contextmanager
def _with_hooks(host: Host, hooks: Hooks, *, edges: bool) -> Iterator[None]:
    # With every pattern a copy of itself, all rows are multiplied with values in one way, whatever is cut of which.
    copies = [(site.hook_name, lambda pattern, hook: pattern.clone()) for site in host.sites if edges]
    was_fused = host.hooked.is_opened and host.model.is_fused
    if host.hooked.is_opened:
        host.model.is_fused = host.tap is not None
    try:
        with host.hooked.showing_patterns(), host.model.hooks(fwd_hooks=[*copies, *hooks]):
            yield
    finally:
        if host.hooked.is_opened:
            host.model.is_fused = was_fused


def _on_outputs(site: Site, function: Callable[[Outputs], Outputs]) -> tuple[str, Callable[..., Tensor]]:
    """The hook that puts what a function makes of the outputs of the heads in their place."""

    def replace(outputs: Outputs, hook: Any) -> Outputs:
        given = function(outputs)
        if not isinstance(given, Tensor) or given.shape != outputs.shape or given.dtype != outputs.dtype:
            what = (
                f"{list(given.shape)} of {given.dtype}" if isinstance(given, Tensor) else type(given).__name__
            )
            raise ValueError(
                "what replaces the outputs of heads must be a tensor like them: needed [batch, query, head, d_head] = "
                f"{list(outputs.shape)} of {outputs.dtype}, got {what}. A function gives back what it changes"
            )
        return given.contiguous()  # some layers take it as it lies in memory

    return f"{site.hook_name.removesuffix('pattern')}z", replace


def _on_edges(model: Any, site: Site, edges: Edges, how: How) -> Hooks:
    """The hooks that cut edges of a site."""
    if not isinstance(edges, Tensor) or edges.dtype != torch.bool or edges.ndim != 4:
        what = f"{list(edges.shape)} of {edges.dtype}" if isinstance(edges, Tensor) else type(edges).__name__
        raise ValueError(
            f"edges are cut by a boolean mask [batch, head, query, key], True where a query must not read a key; "
            f"got {what} for {site.hook_name}"
        )
    emptied: list[Tensor] = []

    def without(table: Tensor, hook: Any) -> Tensor:
        return table.masked_fill(_fitting(edges, table), 0)

    def shared_out(pattern: Tensor, hook: Any) -> Tensor:
        cut = _fitting(edges, pattern)
        kept = pattern.masked_fill(cut, 0)
        left = kept.sum(-1, keepdim=True)
        # A row with nothing left is zero, not the NaN of a division.
        return torch.where(cut.any(-1, keepdim=True), kept / left.masked_fill(left == 0, 1), pattern)

    def hidden(scores: Tensor, hook: Any) -> Tensor:
        cut, visible = _fitting(edges, scores), scores > _HIDDEN
        # Rows of which nothing is left stay, because a softmax of nothing is no number, and are made zero behind it.
        emptied.append(visible.any(-1, keepdim=True) & ~(visible & ~cut).any(-1, keepdim=True))
        return scores.masked_fill(cut & ~emptied[-1], torch.finfo(scores.dtype).min)

    def without_emptied(pattern: Tensor, hook: Any) -> Tensor:
        return pattern.masked_fill(emptied.pop(), 0)

    if how == "weights":
        return [(site.hook_name, without)]
    if not is_a(model, "HuggingFaceHost"):  # TransformerLens's hook_attn_scores are not scores on every host
        return [(site.hook_name, shared_out)]
    scores = f"{site.hook_name.removesuffix('pattern')}attn_scores"
    return [(scores, hidden), (site.hook_name, without_emptied)]


# Masks add the lowest number of some precision to scores, of half precision at least.
_HIDDEN = -3e4


def _fitting(edges: Edges, table: Float[Tensor, "batch head query key"]) -> Tensor:
    """Edges where a table is."""
    fits = zip(edges.shape, table.shape, (True, True, False, False), strict=True)
    if not all(n == m or (n == 1 and shared) for n, m, shared in fits):
        raise ValueError(
            "edges are cut by a mask [batch, head, query, key] whose batch and head may be 1 (the same for all): "
            f"this forward pass needed {list(table.shape)}, got {list(edges.shape)}. Give each batch its own block"
        )
    return edges.to(table.device)


# The trial of edits.


def _why_no_edges(host: Host) -> str:
    """Why the edges of a model cannot be cut, though its heads can be edited; mostly nothing. It is tried once."""
    if not host.edited:
        try:
            if host.hooked.is_opened and host.model.calls is None:
                raise ValueError(
                    "its layers do not call the attention interface of transformers, inside which heads are edited"
                )
            with without_hooks(host.model), evaluating(host.model):
                host.edited.append(_try_edits(host))
        except Exception as error:  # it may fail in any way where its attention is not what it is taken for
            reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            raise ValueError(f"the heads of {host.hooked.name} cannot be edited: {reason}") from error
    return host.edited[0]


def _try_edits(host: Host) -> str:
    inputs, outputs = host.hooked.trial_inputs(), dict[Site, Tensor]()

    def answer(hooks: Hooks, *, edges: bool = False) -> Any:
        with _with_hooks(host, hooks, edges=edges):
            return host.hooked.run(inputs)

    def same(one: Any, other: Any) -> bool:
        return all(map(torch.equal, real_vectors(one, inputs), real_vectors(other, inputs)))

    looking = [_on_outputs(site, partial(_look, outputs, site)) for site in host.sites]
    intact = answer(looking)
    as_it_is = host.hooked.run(inputs)
    check_outputs(host.model, as_it_is, intact, inputs)
    for site, n_heads in zip(host.sites, host.n_heads, strict=True):
        if site not in outputs or outputs[site].ndim != 4 or outputs[site].shape[2] != n_heads:
            raise ValueError(f"{site.hook_name} does not show outputs of {n_heads} heads")
        numbers = torch.linspace(1, 2, outputs[site].shape[3]).to(outputs[site])
        numbers *= 1 + outputs[site].abs().max()
        if same(intact, answer([_on_outputs(site, numbers.expand_as)])):
            raise ValueError(f"what is written into the heads of {site.hook_name} changes nothing")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TransformerLens 4 says of some edits that it discards them
            intact = answer(looking, edges=True)
            try:
                check_outputs(host.model, as_it_is, intact, inputs)
            except ValueError as error:  # Granite with sinks scales them afterwards
                raise ValueError("what its heads put out is not its patterns times its values") from error
            for how in get_args(How):
                seen, nothing, others = dict[Site, Tensor](), list[Any](), list[Any]()
                for site in host.sites:
                    queries, keys = inputs.masks(site)
                    own = torch.eye(queries.shape[1], keys.shape[1], dtype=torch.bool, device=keys.device)
                    nothing += _on_edges(host.model, site, torch.zeros_like(own)[None, None], how)
                    # Of all keys but the own. Intact outputs go on, so that every site gets what it got.
                    others += _on_edges(host.model, site, ~own[None, None], how)
                    others.append(_on_outputs(site, partial(_look, seen, site, instead=outputs[site])))
                if not same(intact, answer(nothing, edges=True)):
                    return f"edges of {host.hooked.name} cannot be cut: cutting none changes what it puts out"
                answer(others, edges=True)
                for site, own in outputs.items():
                    # Where every position puts out the same, none can be seen to be read.
                    if torch.equal(seen[site], own) and not torch.equal(own, own[:1, :1].expand_as(own)):
                        return (
                            f"edges of {host.hooked.name} cannot be cut: what {site.hook_name} puts out is the same "
                            "whatever is cut there. Where it wraps a Hugging Face model, topic_probe.open_model of "
                            "that model cuts its edges"
                        )
    except ValueError as error:
        return f"edges of {host.hooked.name} cannot be cut: {error}"
    return ""


def _look(
    seen: dict[Site, Tensor], site: Site, outputs: Outputs, *, instead: Tensor | None = None
) -> Outputs:
    """Keeps what the heads of a site put out."""
    seen[site] = outputs
    return outputs if instead is None else instead
