"""What can be measured of a model, and whether the numbers can be trusted, found out by trying."""

from dataclasses import dataclass
from math import isnan, nan
from typing import Any

import torch

from topic_probe.lens import host as hosts
from topic_probe.lens.hooked import Hooked
from topic_probe.lens.sites import TOLERANCE
from topic_probe.lens.weights import word_embeddings
from topic_probe.text.encoder import begins_with_token, encode_texts

_WORDS = "Same words, different topics: bassoonists re-tuned antidisestablishmentarianism"


@dataclass(frozen=True)
class Stack:
    """One kind of attention of a model.

    Attributes:
        name: "self", or "encoder", "decoder" and "cross" in models with two stacks.
        layers: Layers that attend.
        heads: Heads of each layer.
        causal: Whether no position sees a later one.
    """

    name: str
    layers: int
    heads: tuple[int, ...]
    causal: bool

    def __str__(self) -> str:
        fewest, most = min(self.heads), max(self.heads)
        each = str(most) if fewest == most else f"{fewest} to {most}"
        direction = "causal" if self.causal else "in both directions"
        return f"{self.name}: {self.layers} layers × {each} heads, {direction}"


@dataclass(frozen=True)
class ModelCheck:
    """What a trial on a few tokens showed of a model.

    Attributes:
        model: Class of the host, with that of the Hugging Face model inside.
        name: Name or folder that the model says it comes from; None where it does not say.
        host: "bridge" or "hooked" (TransformerLens's own), or "adapter-free" (this package's).
        attention: Whether attention can be measured.
        reason: Why not; empty where it can.
        stacks: Where it attends.
        row_error: How far the rows of its patterns are from summing to one, at most; NaN without patterns.
        rows_sum_to_one: Whether that is rounding only.
        honours_padding: Whether no document reads the padding beside it, by attention or otherwise (ConvBERT's
            convolutions do). Where one does, documents of different length are never put into one batch.
        batch_error: How far the patterns of a document in a padded batch are from those of it alone, at most.
        batch_changes_nothing: Whether that is rounding only.
        fused: Whether attention is read beside PyTorch's fused kernel, which is faster.
        tokenizer: Class of the tokenizer; None where there is none.
        word_numbers: Whether the tokenizer says which tokens form a word, which split words need.
        begin_token: Whether it begins a text with a special token; None where it cannot be known. Where it does not,
            the first position of a causal model is a sink whatever stands there.
        vocabulary_size: Rows of the word embedding table, and `embedding_width` its columns.
        context_length: Tokens that it can take; None where nothing limits it.
        weights: Their type, and where they are.
    """

    model: str
    name: str | None
    host: str
    attention: bool
    reason: str
    stacks: tuple[Stack, ...]
    row_error: float
    rows_sum_to_one: bool
    honours_padding: bool
    batch_error: float
    batch_changes_nothing: bool
    fused: bool
    tokenizer: str | None
    word_numbers: bool
    begin_token: bool | None
    vocabulary_size: int
    embedding_width: int
    context_length: int | None
    weights: str

    def __repr__(self) -> str:
        lines = self._lines()
        width = max(len(what) for what, _ in lines)
        return "\n".join(f"{what:<{width}}  {answer}" for what, answer in lines)

    def _lines(self) -> list[tuple[str, str]]:
        alone = "" if self.honours_padding else ": documents of different length never share a batch"
        read = [
            *(("attention", str(stack)) for stack in self.stacks),
            ("patterns are seen", "yes"),
            ("rows sum to one", f"{_yes(self.rows_sum_to_one)}{_off(self.row_error)}"),
            ("padding is honoured", f"{_yes(self.honours_padding)}{alone}"),
            ("batched = single", f"{_yes(self.batch_changes_nothing)}{_off(self.batch_error)}"),
            ("read beside the fused kernel", _yes(self.fused)),
        ]
        first = "yes" if self.begin_token else "no"
        if not self.begin_token and any(stack.causal and stack.name == "self" for stack in self.stacks):
            first = "no: the first position is a sink; begin_token=True adds one"
        return [
            ("model", self.model if self.name is None else f"{self.model}, {self.name}"),
            ("host", self.host),
            *(read if self.attention else [("patterns are seen", f"no: {self.reason}")]),
            ("tokenizer", self.tokenizer or "none: texts need --tokenizer"),
            *([] if self.begin_token is None else [("begins with a token", first)]),
            ("words of split tokens", "known" if self.word_numbers else "unknown: no word level"),
            ("word embeddings", f"{self.vocabulary_size:,} × {self.embedding_width:,}"),
            ("context", "no limit" if self.context_length is None else f"{self.context_length:,} tokens"),
            ("weights", self.weights),
        ]


def _yes(answer: bool) -> str:
    return "yes" if answer else "NO"


def _off(error: float) -> str:
    if isnan(error):
        return ": there is NaN in the attention, see whether the weights are whole and load them in float32"
    return f" (off by {error:.0e} at most)"


def check_model(model: Any) -> ModelCheck:
    """What can be measured of a hooked model, found out on a few tokens.

    Args:
        model: what `open_model` gives. It comes back as it was.

    Example:
        >>> toy = tp.build_toy(tp.ToyConfig(world=tp.World(n_topics=2, words_per_topic=2)))
        >>> check = tp.check_model(toy)
        >>> check.attention, check.stacks
        (True, (Stack(name='self', layers=1, heads=(1,), causal=False),))
    """
    try:
        host, reason = hosts.host_of(model), ""
    except ValueError as error:
        host, reason = None, str(error)
    row_error, batch_error = (nan, nan) if host is None else (host.row_error, host.batch_error)
    stacks = () if host is None else _stacks(host)
    known, hooked = hosts.facts_of(model), Hooked(model)
    tolerance = TOLERANCE.get(getattr(torch, known.description["dtype"]), 1e-5)
    tokenizer = getattr(model, "tokenizer", None)
    return ModelCheck(
        model=hooked.name,
        name=known.description["name"],
        host=hooked.kind,
        attention=host is not None,
        reason=reason,
        stacks=stacks,
        row_error=row_error,
        rows_sum_to_one=row_error <= tolerance,
        honours_padding=host is not None and host.sharing.lengths,
        batch_error=batch_error,
        batch_changes_nothing=batch_error <= tolerance,
        fused=host is not None and host.tap is not None,
        tokenizer=None if tokenizer is None else type(tokenizer).__name__,
        word_numbers=_has_word_numbers(tokenizer),
        begin_token=None if tokenizer is None else begins_with_token(tokenizer),
        vocabulary_size=known.vocabulary_size,
        embedding_width=word_embeddings(model, check=False).shape[1],
        context_length=known.context_length,
        weights=f"{known.description['dtype']} on {known.description['device']}",
    )


def _stacks(host: hosts.Host) -> tuple[Stack, ...]:
    of_stack: dict[str, list[tuple[int, bool]]] = {site.stack: [] for site in host.sites}
    for site, n_heads, causal in zip(host.sites, host.n_heads, host.causal, strict=True):
        of_stack[site.stack].append((n_heads, causal and site.stack != "cross"))
    return tuple(
        Stack(name, len(own), tuple(n for n, _ in own), all(causal for _, causal in own))
        for name, own in of_stack.items()
    )


def _has_word_numbers(tokenizer: Any) -> bool:
    if tokenizer is None or not getattr(tokenizer, "is_fast", False):
        return False
    return next(iter(encode_texts([_WORDS], tokenizer))).word_index is not None
