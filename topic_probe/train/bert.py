"""A small BERT with keys, queries and values near zero, the paper's model for real text (Figure 5)."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from topic_probe.options import check_number, check_whole, checked, settle_fields
from topic_probe.toy.model import Init


@dataclass(frozen=True)
class TextConfig:
    """Which BERT to build: embeddings with positions, layer norms, residual connections and MLPs, all as in BERT.

    Attributes:
        vocabulary_size: Number of token ids, ``len(tokenizer)``.
        n_layers: Layers.
        n_heads: Heads of every layer.
        d_model: Width, a multiple of ``n_heads``; MLPs are four times as wide.
        max_length: Longest document in tokens, special ones included.
        init: ``near-zero``: W_K, W_Q and W_V normal with standard deviation ``noise``; ``usual``: as BERT begins, with
            0.02, as all other matrices do in both. Biases are 0.
        noise: Standard deviation of the near-zero initialisation; 0 starts at zero.
    """

    vocabulary_size: int
    n_layers: int = 4
    n_heads: int = 4
    d_model: int = 128
    max_length: int = 128
    init: Init = "near-zero"
    noise: float = 0.001

    def __post_init__(self) -> None:
        settle_fields(self)
        for name in ("vocabulary_size", "n_layers", "n_heads", "d_model", "max_length"):
            check_whole(name, getattr(self, name))
        check_number("noise", self.noise, zero=True, why="a standard deviation")

    @property
    def regime(self) -> str:
        """What is trained, for the head line of a history."""
        return "text"


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

    sizes = BertConfig(
        vocab_size=config.vocabulary_size,
        num_hidden_layers=config.n_layers,
        num_attention_heads=config.n_heads,
        hidden_size=config.d_model,
        intermediate_size=4 * config.d_model,
        max_position_embeddings=config.max_length,
        type_vocab_size=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(check_whole("seed", seed, 0))
        model: nn.Module = BertForMaskedLM(sizes).eval()
        parameters = bert_parameters(model)
        if config.init == "near-zero":
            for name in filter(is_attention, parameters):
                parameters[name].normal_(std=config.noise)
        for name, value in (tensors or {}).items():
            parameters[name].copy_(value)
    model.text_config = config  # type: ignore[assignment]
    return model


def bert_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters by name: ``W_E`` (word embeddings, [word, d_model]), ``W_K.0`` and so on, others by their own.

    W_K, W_Q and W_V are [d_model, d_model], all heads of a layer together, applied from the left (W_V Z); with one
    layer they have no number, as in the toy.
    """
    n_layers = len(model.bert.encoder.layer)  # type: ignore[union-attr, arg-type]
    names = {"bert.embeddings.word_embeddings.weight": "W_E"}
    for layer in range(n_layers):
        for letter, place in (("K", "key"), ("Q", "query"), ("V", "value")):
            own = f"bert.encoder.layer.{layer}.attention.self.{place}.weight"
            names[own] = f"W_{letter}" if n_layers == 1 else f"W_{letter}.{layer}"
    return {names.get(own, own): parameter for own, parameter in model.named_parameters()}


def is_attention(name: str) -> bool:
    """Whether a name of `bert_parameters` is that of a W_K, W_Q or W_V."""
    return name[:3] in ("W_K", "W_Q", "W_V")
