"""What can be measured of a model, and whether the numbers can be trusted, found out by trying."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from math import isnan, nan
from typing import Any

import torch

from topic_probe.lens import capture
from topic_probe.lens.adapters import adapter
from topic_probe.lens.sites import TOLERANCE, batch_error
from topic_probe.text.encoder import begins_with_token, encode_texts

# The versions that the tests run with.
TESTED: Mapping[str, tuple[str, ...]] = {
    "transformer-lens": ("3.9", "4.3"),
    "transformers": ("5.23",),
    "torch": ("2.13",),
}

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
            convolutions do). Where it does, documents of different length are never put into one batch, so numbers are
            right but slower to come by.
        batch_error: How far the patterns of a document in a padded batch are from those of it alone, at most.
        batch_changes_nothing: Whether that is rounding only.
        fused: Whether attention is read beside PyTorch's fused kernel, which is faster.
        tokenizer: Class of the tokenizer; None where there is none.
        word_numbers: Whether the tokenizer says which tokens form a word, which split words need.
        vocabulary_size: Rows of the word embedding table.
        begin_token: Whether it begins a text with a special token; None without one, and where it
            cannot be known. Where it does not, the first position of a causal model is a sink whatever stands there.
        tokenizer_size: Entries of the tokenizer; None without one.
        embedding_width: Width of the word embedding table.
        context_length: Tokens that it can take; None where nothing limits it.
        dtype: Of its weights.
        device: Where it is.
        versions: What is installed.
        untested: Packages of another version than any that the tests run with.
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
    tokenizer_size: int | None
    embedding_width: int
    context_length: int | None
    dtype: str
    device: str
    versions: Mapping[str, str | None]
    untested: tuple[str, ...]

    def __repr__(self) -> str:
        width = max(len(what) for what, _ in self._lines())
        return "\n".join(f"{what:<{width}}  {answer}" for what, answer in self._lines())

    def _lines(self) -> list[tuple[str, str]]:
        lines = [
            ("model", self.model if self.name is None else f"{self.model}, {self.name}"),
            ("host", self.host),
        ]
        if self.attention:
            lines += [("attention", self._stack(stack)) for stack in self.stacks]
            lines += [
                ("patterns are seen", "yes"),
                ("rows sum to one", f"{_yes(self.rows_sum_to_one)}{_off(self.row_error)}"),
                (
                    "padding is honoured",
                    f"{_yes(self.honours_padding)}{'' if self.honours_padding else _ALONE}",
                ),
                (
                    "batched = single",
                    f"{_yes(self.batch_changes_nothing)}{_off(self.batch_error)}",
                ),
                ("read beside the fused kernel", _yes(self.fused)),
            ]
        else:
            lines += [("patterns are seen", f"no: {self.reason}")]
        tokenizer = "none: texts need --tokenizer" if self.tokenizer is None else self.tokenizer
        sizes = f"{self.vocabulary_size:,} × {self.embedding_width:,}"
        return [
            *lines,
            (
                "tokenizer",
                f"{tokenizer}{f', {self.tokenizer_size:,} entries' if self.tokenizer_size else ''}",
            ),
            *([] if self.begin_token is None else [("begins with a token", self._begins())]),
            ("words of split tokens", "known" if self.word_numbers else "unknown: no word level"),
            ("word embeddings", sizes),
            ("context", "no limit" if self.context_length is None else f"{self.context_length:,} tokens"),
            ("weights", f"{self.dtype} on {self.device}"),
            ("versions", ", ".join(f"{name} {own}" for name, own in self.versions.items())),
            ("tested with these", f"no: {', '.join(self.untested)}" if self.untested else "yes"),
        ]

    def _begins(self) -> str:
        """What stands at the first position, and what that means for a model that sees backwards only."""
        if self.begin_token:
            return "yes"
        causal = any(stack.causal and stack.name == "self" for stack in self.stacks)
        return "no: the first position is a sink; begin_token=True adds one" if causal else "no"

    def _stack(self, stack: Stack) -> str:
        heads = sorted(set(stack.heads))
        each = str(heads[0]) if len(heads) == 1 else f"{heads[0]} to {heads[-1]}"
        direction = "causal" if stack.causal else "in both directions"
        return f"{stack.name}: {stack.layers} layers × {each} heads, {direction}"


_ALONE = ": documents of different length never share a batch"


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
        view, reason = capture.view(model), ""
    except ValueError as error:
        view, reason = None, str(error)
    attention = _NO_ATTENTION if view is None else _attention(view)
    host = adapter(model)
    known = capture.facts_of(host)
    described = known.description
    tolerance = TOLERANCE.get(getattr(torch, described["dtype"]), 1e-5)
    table = host.word_embeddings()
    tokenizer = getattr(model, "tokenizer", None)
    return ModelCheck(
        model=described["host"],
        name=described["name"],
        host=host.kind,
        attention=view is not None,
        reason=reason,
        rows_sum_to_one=attention["row_error"] <= tolerance,
        honours_padding=view is not None and view.sharing.lengths,
        batch_changes_nothing=attention["batch_error"] <= tolerance,
        fused=view is not None and view.tap is not None,
        tokenizer=None if tokenizer is None else type(tokenizer).__name__,
        word_numbers=_has_word_numbers(tokenizer),
        begin_token=None if tokenizer is None else begins_with_token(tokenizer),
        vocabulary_size=table.shape[0],
        tokenizer_size=None if tokenizer is None else len(tokenizer),
        embedding_width=table.shape[1],
        context_length=known.context_length,
        dtype=described["dtype"],
        device=described["device"],
        versions=(versions := {package: _version(package) for package in TESTED}),
        untested=tuple(f"{name} {own}" for name, own in versions.items() if not _is_tested(name, own)),
        **attention,
    )


_NO_ATTENTION: Mapping[str, Any] = {"stacks": (), "row_error": nan, "batch_error": nan}


def _attention(view: capture.View) -> Mapping[str, Any]:
    """Stacks, and what is off in the patterns of two documents of different length."""
    inputs = view.host.trial_inputs()
    with capture.without_hooks(view.model):
        together = capture.patterns(view.model, inputs)
        alone = [capture.patterns(view.model, inputs.document(number)) for number in range(len(inputs.ids))]
    heads = dict(zip(view.sites, view.n_heads, strict=True))
    causal_at = dict(zip(view.sites, view.causal, strict=True))
    stacks = []
    for name in dict.fromkeys(site.stack for site in view.sites):
        sites = [site for site in view.sites if site.stack == name]
        causal = name != "cross" and all(causal_at[site] for site in sites)
        stacks.append(Stack(name, len(sites), tuple(heads[site] for site in sites), causal))
    row_errors, batch_errors = [], []
    for number, patterns in enumerate(alone):
        for site, pattern in patterns.items():
            row_errors.append((pattern.double().sum(-1) - 1).abs().max())
            batch_errors.append(batch_error(site, together[site], pattern, inputs, number))
    # The maximum of tensors is NaN if one of them is.
    return {
        "stacks": tuple(stacks),
        "row_error": float(torch.stack(row_errors).max()),
        "batch_error": float(torch.stack(batch_errors).max()),
    }


def _has_word_numbers(tokenizer: Any) -> bool:
    if tokenizer is None or not getattr(tokenizer, "is_fast", False):
        return False
    return next(iter(encode_texts([_WORDS], tokenizer))).word_index is not None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _is_tested(package: str, own: str | None) -> bool:
    return own is not None and any(f"{own}.".startswith(f"{known}.") for known in TESTED[package])
