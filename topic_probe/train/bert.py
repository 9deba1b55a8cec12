"""A small BERT with keys, queries and values near zero, the paper's model for real text (Figure 5)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from topic_probe.options import check_number, check_whole, checked, settle_fields
from topic_probe.toy.model import Init

PLACES = {"K": "key", "Q": "query", "V": "value"}
# Size of a TextConfig -> its name in a BertConfig.
SIZES = {
    "vocabulary_size": "vocab_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "d_model": "hidden_size",
    "d_mlp": "intermediate_size",
    "max_length": "max_position_embeddings",
    "scale": "initializer_range",
}


@dataclass(frozen=True)
class TextConfig:
    """Which BERT to build: embeddings with positions, layer norms, residual connections and MLPs, all as in BERT.

    Attributes:
        vocabulary_size: Number of token ids, ``len(tokenizer)``.
        n_layers: Layers.
        n_heads: Heads of every layer.
        d_model: Width, a multiple of ``n_heads``.
        d_mlp: Width of the MLPs; None is four times ``d_model``.
        max_length: Longest document in tokens, special ones included.
        init: ``near-zero``: W_K, W_Q and W_V normal with standard deviation ``noise``; ``usual``: with ``scale``, as
            all other matrices in both. Biases are 0. ``given`` says that the model was not built here.
        noise: Standard deviation of the near-zero initialisation; 0 starts at zero.
        scale: Standard deviation of all other matrices; BERT has 0.02.
    """

    vocabulary_size: int
    n_layers: int = 4
    n_heads: int = 4
    d_model: int = 128
    d_mlp: int | None = None
    max_length: int = 128
    init: Init | Literal["given"] = "near-zero"
    noise: float = 0.001
    scale: float = 0.02

    def __post_init__(self) -> None:
        settle_fields(self)
        if self.d_mlp is None:
            # Filled in, so that two configs of one model are equal.
            object.__setattr__(self, "d_mlp", 4 * self.d_model)
        for name in ("vocabulary_size", "n_layers", "n_heads", "d_model", "d_mlp", "max_length"):
            check_whole(name, getattr(self, name))
        if self.d_model % self.n_heads:
            raise ValueError(
                f"d_model must be a multiple of n_heads, got {self.d_model} and {self.n_heads} heads"
            )
        for name in ("noise", "scale"):
            check_number(name, getattr(self, name), zero=True, why="a standard deviation")

    @property
    def regime(self) -> str:
        """What is trained, for the head line of a history."""
        return "text"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values for JSON; ``TextConfig(**values)`` reads it back."""
        return asdict(self)


@checked
def build_bert(
    config: TextConfig, *, seed: int = 0, tensors: Mapping[str, Tensor] | None = None
) -> nn.Module:
    """A `transformers.BertForMaskedLM` without dropout, in evaluation mode.

    Args:
        config: What to build.
        seed: Of the initialisation; the global generators are neither used nor changed.
        tensors: Values by name in place of their initialisation, such as ``history.tensors``.
    """
    from transformers import BertConfig, BertForMaskedLM

    if config.init == "given" and tensors is None:
        raise ValueError(
            "this config describes a model that came from elsewhere; choose its init, or give tensors"
        )
    sizes = BertConfig(
        **{theirs: getattr(config, own) for own, theirs in SIZES.items()},
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        type_vocab_size=1,
    )
    with torch.random.fork_rng(devices=[]):  # what it draws is overwritten
        model: nn.Module = BertForMaskedLM(sizes).eval()
    model.text_config = config  # type: ignore[assignment]
    parameters = bert_parameters(model)
    values = {**_initial_values(config, parameters, seed), **(tensors or {})}
    unknown = values.keys() - parameters.keys()
    if unknown:
        raise ValueError(
            f"{sorted(unknown)[0]!r} is no tensor of this model; there are {', '.join(parameters)}"
        )
    with torch.no_grad():
        for name, value in values.items():
            if value.shape != parameters[name].shape:
                shape = tuple(parameters[name].shape)
                raise ValueError(f"{name} must have shape {shape}, got {tuple(value.shape)}")
            parameters[name].copy_(value)
    return model


def text_config(model: nn.Module) -> TextConfig:
    """The config that a BERT was built with, or one that describes a BERT from elsewhere; an error for others."""
    built = getattr(model, "text_config", None)
    if isinstance(built, TextConfig):
        return built
    sizes: Any = getattr(model, "config", None)
    if getattr(sizes, "model_type", None) != "bert" or not hasattr(model, "cls"):
        raise TypeError(
            f"needed a BERT with its head for masked words (transformers.BertForMaskedLM), got {type(model).__name__}; "
            "build_bert builds one, train_toy trains the toy"
        )
    return TextConfig(**{own: getattr(sizes, theirs) for own, theirs in SIZES.items()}, init="given")


def bert_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters by name: ``W_E`` (word embeddings, [word, d_model]), ``W_K.0`` and so on, others by their own.

    W_K, W_Q and W_V are [d_model, d_model], all heads of a layer together, applied from the left (W_V Z); with one
    layer they have no number, as in the toy.
    """
    n_layers = len(model.bert.encoder.layer)  # type: ignore[union-attr, arg-type]
    names = {"bert.embeddings.word_embeddings.weight": "W_E"}
    for layer in range(n_layers):
        for letter, place in PLACES.items():
            own = f"bert.encoder.layer.{layer}.attention.self.{place}.weight"
            names[own] = f"W_{letter}" if n_layers == 1 else f"W_{letter}.{layer}"
    return {names.get(own, own): parameter for own, parameter in model.named_parameters()}


def is_attention(name: str) -> bool:
    """Whether a name of `bert_parameters` is that of a W_K, W_Q or W_V."""
    return name[:3] in ("W_K", "W_Q", "W_V")


def _initial_values(
    config: TextConfig, parameters: Mapping[str, nn.Parameter], seed: int
) -> dict[str, Float64[Tensor, "..."]]:
    generator = torch.Generator().manual_seed(check_whole("seed", seed, 0))
    values = {}
    for name, parameter in parameters.items():
        if parameter.ndim == 2:
            near_zero = config.init == "near-zero" and is_attention(name)
            value = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
            values[name] = value.mul_(config.noise if near_zero else config.scale)
        else:
            whole = torch.ones if name.endswith("LayerNorm.weight") else torch.zeros
            values[name] = whole(parameter.shape, dtype=torch.float64)
    return values
