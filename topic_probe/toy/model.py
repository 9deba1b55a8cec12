"""The paper's one-layer transformer (Section 3.3): as a function of word counts, and as a hooked model.

    f(X̃) = W_Eᵀ (W_V Z A + b_V) + b_pred,   Z = W_E X̃,   A = softmax over keys of (W_K Z + b_K)ᵀ (W_Q Z + b_Q) / √d

No residual connection, normalisation, MLP, positions or output projection; the decoder is the embedding. Which
tensors are trained and what the others are frozen at is data (:data:`REGIMES`). :func:`predictions` is equation 6,
:func:`build_toy` the same as a hooked model of the installed TransformerLens; what differs between its generations
stays in this file.
"""

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import version
from operator import attrgetter
from typing import Any, Literal

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn
from torch.nn.functional import embedding

from topic_probe.options import check_number, check_whole, checked, settle_fields
from topic_probe.toy.theory import embedding_bias, optimal_value
from topic_probe.toy.theory.losses import RegimeName
from topic_probe.toy.world import Attend, Loss, Masking, World

LAYER_TENSORS = ("W_K", "W_Q", "W_V", "b_K", "b_Q", "b_V")
TENSORS = ("W_E", *LAYER_TENSORS, "b_pred")

Init = Literal["usual", "near-zero"]
Rule = Literal["identity", "theorem1", "theorem2"]
Dtype = Literal["float32", "float64"]


@dataclass(frozen=True)
class Regime:
    """What is trained, and what the other tensors are frozen at: zero where no rule is named."""

    trained: tuple[str, ...]
    frozen: Mapping[str, Rule] = field(default_factory=dict)
    init: Init = "usual"


REGIMES: Mapping[RegimeName, Regime] = {
    "full": Regime(TENSORS),
    "embedding": Regime(("W_E",), {"W_V": "identity", "b_pred": "theorem1"}),
    "value": Regime(("W_V",), {"W_E": "identity"}),
    # With W_E = I the biases b_V and b_pred are one and the same, so only b_V is trained.
    "attention": Regime(LAYER_TENSORS, {"W_E": "identity"}),
    "keys": Regime(("W_K", "W_Q"), {"W_E": "identity", "W_V": "theorem2"}),
    "two-stage": Regime(("W_K", "W_Q", "W_V"), {"W_E": "identity"}, init="near-zero"),
}


@dataclass(frozen=True)
class ToyConfig:
    """Which toy transformer to build.

    Tensors are named as in the paper: ``W_E W_K W_Q W_V b_K b_Q b_V b_pred``. With several layers, ``W_K`` means
    that tensor in every layer and ``W_K.1`` the one of layer 1.

    Attributes:
        regime: What is trained, and at what the rest is frozen (:data:`REGIMES`).
        world: The documents the model is for: gives the vocabulary, and frozen values that depend on it.
        masking: The corruption the model is for.
        attend: Which positions attention sees: ``all`` of a document, as in the paper, or ``unmasked``, those that were
            not chosen for prediction, whatever these show, as in the code that its authors have published. Chosen
            positions ask in any case.
        d_model: Width d of embeddings, keys and queries. None is the size of the vocabulary, which one-hot embeddings
            need.
        n_layers: Number of attention layers.
        n_heads: Heads per layer. There is no output projection, so each has a full W_V and their outputs add up.
        residual: Add the input of each layer to its output.
        init: ``usual``: keys, queries, values and their biases uniform in ±1/√d; ``near-zero``: the same tensors
            normal with standard deviation ``noise``. None takes the regime's. W_E is normal in both.
        noise: Standard deviation of the near-zero initialisation; 0 starts at zero.
        embedding_scale: Standard deviation of W_E where it is not frozen.
        trained: Names of the trained tensors. Those that the regime would train, too, stay where they begin.
            None: all that the regime trains.
        dtype: Type of the tensors.

    Example:
        >>> config = tp.ToyConfig(regime="value", world=tp.World(n_topics=2, words_per_topic=2))
        >>> config.d_model, config.trained_tensors  # one-hot embeddings of [MASK] and four words
        (5, ('W_V',))
    """

    regime: RegimeName = "full"
    world: World = field(default_factory=World)
    masking: Masking = field(default_factory=Masking)
    attend: Attend = "all"
    d_model: int | None = None
    n_layers: int = 1
    n_heads: int = 1
    residual: bool = False
    init: Init | None = None
    noise: float = 0.01
    embedding_scale: float = 0.02
    trained: Sequence[str] | None = None
    dtype: Dtype = "float32"

    def __post_init__(self) -> None:
        settle_fields(self)
        # What is left out is filled in, so that two configs of one model are equal.
        d_model = self.vocabulary_size if self.d_model is None else self.d_model
        filled = {
            "d_model": d_model,
            "init": REGIMES[self.regime].init if self.init is None else self.init,
            "trained": None if self.trained is None else tuple(self.trained),
        }
        for name, value in filled.items():
            object.__setattr__(self, name, value)
        for name in ("d_model", "n_layers", "n_heads"):
            check_whole(name, getattr(self, name))
        check_number("noise", self.noise, zero=True, why="a standard deviation")
        why = "a standard deviation (a W_E of zeros never moves)"
        check_number("embedding_scale", self.embedding_scale, why=why)
        if REGIMES[self.regime].frozen.get("W_E") == "identity" and d_model != self.vocabulary_size:
            raise ValueError(
                f"regime {self.regime!r} needs one-hot embeddings, d_model = {self.vocabulary_size} (the words and "
                f"[MASK]), got d_model={d_model}; leave d_model out"
            )
        for entry in self.trained or ():
            if not any(stand_for([entry], name) for name in self.tensor_names):
                names = ", ".join(self.tensor_names)
                raise ValueError(f"{entry!r} is no tensor of this model; there are {names}")

    @property
    def vocabulary_size(self) -> int:
        """Number of token ids, ``[MASK]`` included."""
        return self.world.vocabulary_size

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """Every tensor of the model; those of a layer end in ``.0``, ``.1``, ... where there are several."""
        if self.n_layers == 1:
            return TENSORS
        layers = (f"{name}.{layer}" for layer in range(self.n_layers) for name in LAYER_TENSORS)
        return ("W_E", *layers, "b_pred")

    @property
    def trained_tensors(self) -> tuple[str, ...]:
        """Names of the tensors that training changes."""
        entries = REGIMES[self.regime].trained if self.trained is None else self.trained
        return tuple(name for name in self.tensor_names if stand_for(entries, name))


def scores(t: Mapping[str, Float[Tensor, "..."]], *, one_hot: bool) -> Float[Tensor, "*toy query key"]:
    """What the softmax is taken of, for every token that asks and every token that is asked.

    b_K is left out: it adds the same to all scores of a query. With one-hot embeddings (W_E = I, equation 7) nothing
    is multiplied with W_E.
    """
    keys = t["W_K"] if one_hot else t["W_K"] @ t["W_E"]
    queries = (t["W_Q"] if one_hot else t["W_Q"] @ t["W_E"]) + t["b_Q"][..., None]
    return queries.mT @ keys / math.sqrt(keys.shape[-2])


def predictions(
    t: Mapping[str, Float[Tensor, "toy ..."]],
    tokens: Int64[Tensor, "toy query"],
    log_counts: Float[Tensor, "toy query word"],
    *,
    one_hot: bool,
    uniform: bool,
) -> Float[Tensor, "toy query word"]:
    """Equation 6: logits at positions that show ``tokens``, in documents of these word counts, of several toys.

    Without positions, that is all that a prediction depends on; and all c occurrences of a word together get c times
    the attention of one, which is log c more in its score. What follows attention is linear, and attention sums to 1,
    so a prediction is the mean of what each word alone would predict.

    Args:
        t: Tensors as :func:`toy_tensors` names them, with an axis ``toy`` in front.
        tokens: What every position shows.
        log_counts: The logarithm of how often its document shows each token; −∞ where it does not.
        one_hot: Whether W_E is the identity.
        uniform: Whether scores are zero.
    """
    if uniform:
        A = log_counts.softmax(-1)
    else:
        of_tokens = scores(t, one_hot=one_hot)
        n_toys, size = of_tokens.shape[:2]
        toys = torch.arange(n_toys, device=tokens.device)[:, None]
        # embedding looks rows up as indexing does, with a far cheaper gradient.
        A = (embedding(tokens + size * toys, of_tokens.flatten(0, 1)) + log_counts).softmax(-1)
    written = (t["W_V"] if one_hot else t["W_V"] @ t["W_E"]) + t["b_V"][..., None]
    of_words = (written if one_hot else t["W_E"].mT @ written) + t["b_pred"][..., None]
    return A @ of_words.mT


def mean_losses(
    logits: Float[Tensor, "toy query word"],
    entries: Int64[Tensor, "toy masked"],
    shares: Float[Tensor, "toy masked"],
    *,
    loss: Loss,
) -> Float[Tensor, "toy"]:
    """Loss of every toy.

    Args:
        logits: Of every query.
        entries: For every position to be predicted, where its query and the word that was there cross in ``logits``.
        shares: Of every position in the mean; they sum to 1.
        loss: Of a prediction.
    """
    size = logits.shape[-1]
    weights = torch.zeros_like(logits[..., 0]).scatter_add_(1, entries // size, shares)
    of_targets = (shares * logits.flatten(1).gather(1, entries)).sum(-1)
    if loss == "squared":  # |x − e_y|² = |x|² − 2 x_y + 1
        return (weights * logits.square().sum(-1)).sum(-1) - 2 * of_targets + 1
    return (weights * logits.logsumexp(-1)).sum(-1) - of_targets


def counts_suffice(model: nn.Module) -> bool:
    """Whether :func:`predictions` are those of a toy: not with layers, heads, a residual connection or hooks on it."""
    config, points = toy_config(model), model.hook_dict
    hooked = any(point.fwd_hooks or point.bwd_hooks for point in points.values())  # type: ignore[operator]
    return config.n_layers == config.n_heads == 1 and not config.residual and not hooked


@checked
def build_toy(config: ToyConfig, *, seed: int = 0, tensors: Mapping[str, Tensor] | None = None) -> nn.Module:
    """The toy as a hooked model: a HookedTransformer on TransformerLens 3, a TransformerBridge on 4.

    Args:
        config: What to build.
        seed: Of the initialisation. The same seed gives the same tensors on both generations and, up to
            rounding, in both dtypes; the global generators are neither used nor changed.
        tensors: Values for tensors by name, trained or frozen, in place of their initialisation or rule, in
            the paper's orientation (see :func:`toy_tensors`).
    """
    settings = {
        "n_layers": config.n_layers,
        "n_heads": config.n_heads,
        "d_model": config.d_model,
        "d_head": config.d_model,
        "d_vocab": config.vocabulary_size,
        "n_ctx": max(config.world.max_length, 2048),  # without positions there is no limit in fact
        "attn_only": True,
        "normalization_type": None,
        "attention_dir": "bidirectional",
        "init_weights": False,
        "dtype": getattr(torch, config.dtype),
        "device": "cpu",
    }
    model: nn.Module = (_build_hooked_transformer if TL3 else _build_bridge)(config, settings)
    model.toy_config = config  # type: ignore[assignment]
    model.untrained_twin = partial(build_toy, config)  # type: ignore[assignment]
    shapes = {name: tensor.shape for name, tensor in toy_tensors(model).items()}
    set_toy_tensors(model, _first_values(config, shapes, seed))
    set_toy_tensors(model, tensors or {})
    model.requires_grad_(False)
    parameters = toy_parameters(model)
    for name in config.trained_tensors:
        parameters[name].requires_grad_()
    return model


def toy_config(model: nn.Module) -> ToyConfig:
    """The config a toy was built with; an error for any other model."""
    config = getattr(model, "toy_config", None)
    if not isinstance(config, ToyConfig):
        raise TypeError(
            f"needed a toy transformer from build_toy, got {type(model).__name__} without its config"
        )
    return config


def toy_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters themselves by the paper's names, in the layout of the installed TransformerLens."""
    found = {}
    for name in toy_config(model).tensor_names:
        kind, _, layer = name.partition(".")
        own = kind if TL3 else f"{kind[-1].lower()}.{'weight' if kind.startswith('W') else 'bias'}"
        found[name] = attrgetter(OUTSIDE.get(kind, f"blocks.{layer or 0}.attn.{own}"))(model)
    return found


def toy_tensors(model: nn.Module) -> dict[str, Float[Tensor, "..."]]:
    """The named tensors in the paper's orientation, as differentiable views of the parameters.

    W_E is [d, vocabulary]: column i embeds token i. W_K, W_Q and W_V are [d, d], each applied from the left (W_V Z), so
    in the one-hot case ``W_V[i, j]`` is the weight from shown word j to predicted word i. b_K, b_Q and b_V are [d],
    b_pred [vocabulary]. With several heads an axis ``head`` comes first.

    Example:
        >>> toy = tp.build_toy(tp.ToyConfig(regime="value", world=tp.World(n_topics=2, words_per_topic=2)))
        >>> tp.toy_tensors(toy)["W_E"][:, 3].tolist()  # the one-hot embedding of word 3
        [0.0, 0.0, 0.0, 1.0, 0.0]
    """
    heads = toy_config(model).n_heads
    found: dict[str, Tensor] = {}
    for name, leaf in toy_parameters(model).items():
        if name in ("W_E", "b_pred"):
            found[name] = leaf.T if name == "W_E" else leaf
            continue
        if name.startswith("b"):
            of_heads = leaf.view(heads, -1)
        else:
            of_heads = leaf.mT if TL3 else leaf.view(heads, -1, leaf.shape[-1])
        found[name] = of_heads[0] if heads == 1 else of_heads
    return found


def set_toy_tensors(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Overwrite named tensors, given in the paper's orientation; the others stay as they are."""
    own = toy_tensors(model)
    for name, value in tensors.items():
        if name not in own:
            raise ValueError(f"{name!r} is no tensor of this model; there are {', '.join(own)}")
        if value.shape != own[name].shape:
            raise ValueError(f"{name} must have shape {tuple(own[name].shape)}, got {tuple(value.shape)}")
    with torch.no_grad():
        for name, value in tensors.items():
            own[name].copy_(value)


def stand_for(entries: Collection[str], name: str) -> bool:
    """Whether any entry, such as ``W_K`` (of every layer) or ``W_K.1``, stands for a tensor."""
    return name in entries or name.partition(".")[0] in entries


def _first_values(
    config: ToyConfig, shapes: Mapping[str, torch.Size], seed: int
) -> dict[str, Float64[Tensor, "..."]]:
    """Every tensor at its initialisation, or where neither the regime nor the config trains it by the regime's rule.

    All are drawn, whether that is used or not: W_V does not depend on the regime.
    """
    generator = torch.Generator().manual_seed(check_whole("seed", seed, 0))
    regime, values = REGIMES[config.regime], {}
    for name, shape in shapes.items():
        if name == "b_pred":
            values[name] = torch.zeros(shape, dtype=torch.float64)
        elif name == "W_E" or config.init == "near-zero":
            deviation = config.embedding_scale if name == "W_E" else config.noise
            values[name] = deviation * torch.randn(shape, dtype=torch.float64, generator=generator)
        else:
            uniform = torch.rand(shape, dtype=torch.float64, generator=generator)
            values[name] = (2 * uniform - 1) / math.sqrt(shapes["W_E"][0])
        if stand_for((*regime.trained, *config.trained_tensors), name):
            continue
        rule = regime.frozen.get(name.partition(".")[0])
        if rule == "identity":
            values[name] = torch.eye(shape[-1], dtype=torch.float64).expand(shape)
        elif rule == "theorem1":
            values[name] = embedding_bias(config.world, config.masking, attend=config.attend)
        elif rule == "theorem2":
            values[name] = optimal_value(config.world, config.masking, attend=config.attend).expand(shape)
        else:
            values[name] = torch.zeros(shape, dtype=torch.float64)
    return values


# The hooked model. Both generations of TransformerLens can do without an MLP and without normalisation; positions, the
# decoder and the skip connection are replaced, and the output projection is the identity.

TL3 = version("transformer-lens").startswith("3.")
# Where TransformerLens keeps what is no tensor of a layer.
OUTSIDE = (
    {"W_E": "embed.W_E", "b_pred": "unembed.b_U"}
    if TL3
    else {"W_E": "embed.weight", "b_pred": "unembed.bias"}
)


def _build_hooked_transformer(config: ToyConfig, settings: Mapping[str, Any]) -> Any:
    """The toy on TransformerLens 3."""
    from transformer_lens import HookedTransformerConfig
    from transformer_lens.components import TransformerBlock
    from transformer_lens.hook_points import HookPoint

    class ToyBlock(TransformerBlock):  # type: ignore[misc]
        def forward(self, resid_pre: Tensor, attention_mask: Tensor | None = None, **_: Any) -> Any:
            x, hidden = self.hook_resid_pre(resid_pre), None
            if attention_mask is not None:  # which attention itself only reads when it is causal
                hidden = torch.where(attention_mask[:, None, None] == 0, -torch.inf, 0.0)
            out = self.hook_attn_out(self.attn(x, x, x, additive_attention_mask=hidden))
            return self.hook_resid_post(x + out if config.residual else out)

    class ToyUnembed(nn.Module):
        def __init__(self, embed: nn.Module):
            super().__init__()
            self._tied = (embed,)  # in a tuple, so that it is no second submodule
            self.b_U = nn.Parameter(torch.zeros_like(embed.W_E[:, 0]))  # type: ignore[index]
            self.hook_in, self.hook_out = HookPoint(), HookPoint()

        @property
        def W_U(self) -> Any:
            return self._tied[0].W_E.T

        def forward(self, residual: Tensor) -> Any:
            return self.hook_out(self.hook_in(residual) @ self.W_U + self.b_U)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of HookedTransformer
        model = _without_positions()(HookedTransformerConfig(**settings))
    model.blocks = nn.ModuleList(ToyBlock(model.cfg, layer) for layer in range(config.n_layers))
    model.unembed = ToyUnembed(model.embed)
    del model.pos_embed, model.hook_pos_embed
    for block in model.blocks:
        block.attn.W_O.data.copy_(torch.eye(settings["d_model"]))
    model.setup()
    return model


@cache  # one class for all toys
def _without_positions() -> Any:
    from transformer_lens import HookedTransformer

    class ToyTransformer(HookedTransformer):  # type: ignore[misc]
        def get_residual(self, embed: Tensor, *_: Any, **__: Any) -> Any:
            return embed, None

    return ToyTransformer


def _build_bridge(config: ToyConfig, settings: Mapping[str, Any]) -> Any:
    """The toy on TransformerLens 4, whose own native model needs three changes."""
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge.sources import build_bridge_from_module
    from transformer_lens.model_bridge.sources.native import NativeBlock, NativeModel

    class NoSkip(NativeBlock):  # type: ignore[misc]
        def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **_: Any) -> Any:
            return (self.attn(hidden_states, attention_mask=attention_mask)[0],)

    class TiedHead(nn.Module):
        def __init__(self, embedding: nn.Embedding):
            super().__init__()
            self._tied = (embedding,)  # in a tuple, so that it is no second submodule
            self.bias = nn.Parameter(torch.zeros_like(embedding.weight[:, 0]))

        @property
        def weight(self) -> Tensor:
            return self._tied[0].weight

        def forward(self, hidden_states: Tensor) -> Tensor:
            return nn.functional.linear(hidden_states, self.weight, self.bias)

    cfg = TransformerBridgeConfig(**settings)
    with torch.random.fork_rng(devices=[]):  # what it draws is overwritten
        native = NativeModel(cfg)
        if not config.residual:
            native.layers = nn.ModuleList(NoSkip(cfg) for _ in range(config.n_layers))
    native.pos, native.head = None, TiedHead(native.tok_embed)
    native.to(cfg.dtype)
    for block in native.layers:
        block.attn.o.weight.data.copy_(torch.eye(settings["d_model"]).repeat(1, config.n_heads))
        block.attn.o.bias.data.zero_()
    return build_bridge_from_module(
        native,
        "TransformerLensNative",
        tl_config=cfg,
        model_name="toy",
        post_adapter_hook=lambda adapter: adapter.component_mapping.pop("pos_embed"),
    )
