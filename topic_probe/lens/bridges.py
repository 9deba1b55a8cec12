"""ALBERT, ELECTRA, DistilBERT and ModernBERT for TransformerLens 4, whose bridge has no adapters of its own for them.

They are offered through TransformerLens's entry points (group ``transformer_lens.architectures``), which it asks when
it builds a bridge; `register_adapters` names them where `boot_transformers` looks, too. An adapter says what the parts
of a Hugging Face model are to TransformerLens; attention stays what the model computes, and its pattern is seen as it
comes out. Importing this module imports TransformerLens.

What BERT does not have:

* ALBERT calls one layer many times. Each call becomes a layer of its own, around the same weights, so that each has its
  own hook points.
* ALBERT and ELECTRA have word embeddings narrower than the model: what widens them is ``embed_project``.
* ModernBERT computes queries, keys and values in one product. That product stays one, and its three parts go through
  hook points of their own.
"""

import copy
from abc import abstractmethod
from importlib.metadata import version
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.model_bridge.architecture_adapter import ArchitectureAdapter
from transformer_lens.model_bridge.generalized_components import (
    AttentionBridge,
    BlockBridge,
    EmbeddingBridge,
    LinearBridge,
    MLPBridge,
    NormalizationBridge,
    PosEmbedBridge,
    RotaryEmbeddingBridge,
    UnembeddingBridge,
)
from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent
from transformer_lens.model_bridge.supported_architectures.bert import BertArchitectureAdapter
from transformer_lens.utilities.architectures import MASKED_LM_ARCHITECTURES

from topic_probe.lens.points import has_hooks


class _LikeBert(BertArchitectureAdapter):  # type: ignore[misc]
    """What the three that are built like BERT have in common: its settings, and one table of where their parts are."""

    supports_causal_loss = False

    def __init__(self, cfg: Any) -> None:
        _check_generation(cfg)
        super().__init__(cfg)
        self.component_mapping = self._parts()

    @abstractmethod
    def _parts(self) -> dict[str, Any]:
        """What the parts of the model are to TransformerLens."""

    def _normalization(self, name: str) -> Any:
        return NormalizationBridge(name=name, config=self.cfg, use_native_layernorm_autograd=True)

    def _embeddings(self, prefix: str) -> dict[str, Any]:
        return {
            "embed": EmbeddingBridge(name=f"{prefix}.word_embeddings"),
            "token_type_embed": EmbeddingBridge(name=f"{prefix}.token_type_embeddings"),
            "pos_embed": PosEmbedBridge(name=f"{prefix}.position_embeddings"),
            "embed_ln": self._normalization(f"{prefix}.LayerNorm"),
        }

    def _blocks(
        self,
        name: str,
        *,
        norms: tuple[str, str],
        attention: str,
        heads: str,
        mlp: tuple[str | None, str, str],
    ) -> Any:
        """The layers: normalisations, what attends with its four projections, and the feed-forward network.

        ``mlp`` is the module around its two projections, None where these stand in the layer, and their names.
        """
        container, up, down = mlp
        projections = dict(zip("qkvo", heads.split(), strict=True))
        # Where there is no module around them, what goes in and comes out is seen at the projections.
        at_projections = {"hook_mlp_in": "mlp.in.hook_in", "hook_mlp_out": "mlp.out.hook_out"}
        return BlockBridge(
            name=name,
            hook_alias_overrides=at_projections if container is None else {},
            submodules={
                "ln1": self._normalization(norms[0]),
                "ln2": self._normalization(norms[1]),
                "attn": AttentionBridge(
                    name=attention,
                    config=self.cfg,
                    submodules={part: LinearBridge(name=where) for part, where in projections.items()},
                ),
                "mlp": MLPBridge(
                    name=container,
                    config=self.cfg,
                    submodules={"in": LinearBridge(name=up), "out": LinearBridge(name=down)},
                ),
            },
        )

    def _head(self, dense: str, norm: str, unembed: str) -> dict[str, Any]:
        return {
            "mlm_head": LinearBridge(name=dense),
            "unembed": UnembeddingBridge(name=unembed),
            "ln_final": self._normalization(norm),
        }

    def prepare_model(self, hf_model: Any) -> None:
        """Has the model attend eagerly, because fused kernels form no pattern."""
        hf_model.set_attn_implementation("eager")


class AlbertAdapter(_LikeBert):
    """ALBERT with its head for masked words."""

    def _parts(self) -> dict[str, Any]:
        return {
            **self._embeddings("albert.embeddings"),
            "embed_project": LinearBridge(name="albert.encoder.embedding_hidden_mapping_in"),
            "blocks": self._blocks(
                "albert.encoder.albert_layer_groups",
                norms=("attention.LayerNorm", "full_layer_layer_norm"),
                attention="attention",
                heads="query key value dense",
                mlp=(None, "ffn", "ffn_output"),
            ),
            **self._head("predictions.dense", "predictions.LayerNorm", "predictions.decoder"),
        }

    def prepare_model(self, hf_model: Any) -> None:
        """Gives each call of a layer a module of its own, with the weights of the layer.

        The encoder then has as many groups as calls, each of one layer.
        """
        super().prepare_model(hf_model)
        encoder = hf_model.albert.encoder
        config, groups = encoder.config, encoder.albert_layer_groups
        calls_per_group = config.num_hidden_layers / config.num_hidden_groups
        called = [groups[int(call / calls_per_group)] for call in range(config.num_hidden_layers)]
        layers = [_another(layer, config) for group in called for layer in group.albert_layers]
        encoder.albert_layer_groups = nn.ModuleList(layers)
        encoder.config = copy.copy(config)
        encoder.config.num_hidden_layers = encoder.config.num_hidden_groups = len(layers)
        self.cfg.n_layers = len(layers)


class ElectraAdapter(_LikeBert):
    """ELECTRA: the generator with its head for masked words, or the discriminator with a score for each token."""

    def _parts(self) -> dict[str, Any]:
        return {
            **self._embeddings("electra.embeddings"),
            "embed_project": LinearBridge(name="electra.embeddings_project"),
            "blocks": self._blocks(
                "electra.encoder.layer",
                norms=("attention.output.LayerNorm", "output.LayerNorm"),
                attention="attention",
                heads="self.query self.key self.value output.dense",
                mlp=(None, "intermediate.dense", "output.dense"),
            ),
            **self._head(
                "generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head"
            ),
        }

    def prepare_model(self, hf_model: Any) -> None:
        """Leaves out what this model does not have."""
        is_discriminator = hasattr(hf_model, "discriminator_predictions")
        if self.cfg.architecture == "ElectraForPreTraining" and not is_discriminator:
            raise ValueError(
                f"an ELECTRA discriminator was loaded as {type(hf_model).__name__}, with a head that its checkpoint "
                "does not have: load it with ElectraForPreTraining.from_pretrained and give it as hf_model="
            )
        super().prepare_model(hf_model)
        if not hasattr(hf_model.electra, "embeddings_project"):
            del self.component_mapping["embed_project"]
        if is_discriminator:
            for part in ("mlm_head", "ln_final"):
                del self.component_mapping[part]
            self.supports_compatibility_mode = (
                False  # centred over a vocabulary of one, its scores would be zero
            )
            self.component_mapping["discriminator"] = LinearBridge(name="discriminator_predictions.dense")
            self.component_mapping["unembed"] = UnembeddingBridge(
                name="discriminator_predictions.dense_prediction"
            )


class DistilBertAdapter(_LikeBert):
    """DistilBERT with its head for masked words."""

    def _parts(self) -> dict[str, Any]:
        embeddings = self._embeddings("distilbert.embeddings")
        del embeddings["token_type_embed"]
        return {
            **embeddings,
            "blocks": self._blocks(
                "distilbert.transformer.layer",
                norms=("sa_layer_norm", "output_layer_norm"),
                attention="attention",
                heads="q_lin k_lin v_lin out_lin",
                mlp=("ffn", "lin1", "lin2"),
            ),
            **self._head("vocab_transform", "vocab_layer_norm", "vocab_projector"),
        }

    def prepare_model(self, hf_model: Any) -> None:
        """Reads what TransformerLens looks for under other names."""
        super().prepare_model(hf_model)
        self.cfg.d_mlp, self.cfg.act_fn = hf_model.config.hidden_dim, hf_model.config.activation


class ModernBertAdapter(ArchitectureAdapter):  # type: ignore[misc]
    """ModernBERT with its head for masked words: rotary positions, and windows in some of its layers.

    Its weights cannot be processed (``enable_compatibility_mode``): its first layer reads the stream without a
    normalisation, and its queries, keys and values are parts of one matrix.
    """

    supports_generation = False
    supports_causal_loss = False
    supports_compatibility_mode = False
    supports_fold_ln = False
    supports_center_writing_weights = False

    def __init__(self, cfg: Any) -> None:
        _check_generation(cfg)
        super().__init__(cfg)
        cfg.normalization_type, cfg.uses_rms_norm, cfg.final_rms = "LN", False, False
        cfg.attention_dir = "bidirectional"
        cfg.gated_mlp = False  # gate and input are one product, which stays one
        cfg.attn_only = False
        self.weight_processing_conversions: dict[str, Any] = {}
        self.component_mapping = {
            "embed": EmbeddingBridge(name="model.embeddings.tok_embeddings"),
            "embed_ln": self._normalization("model.embeddings.norm"),
            "rotary_emb": RotaryEmbeddingBridge(name="model.rotary_emb"),
            "blocks": BlockBridge(
                name="model.layers",
                config=cfg,
                submodules={
                    "ln1": self._normalization("attn_norm"),
                    "ln2": self._normalization("mlp_norm"),
                    "attn": _FusedAttention(name="attn", config=cfg, fused="Wqkv", output="Wo"),
                    "mlp": MLPBridge(
                        name="mlp",
                        config=cfg,
                        submodules={"in": LinearBridge(name="Wi"), "out": LinearBridge(name="Wo")},
                    ),
                },
            ),
            "ln_final": self._normalization("model.final_norm"),
            "prediction_head": GeneralizedComponent(name="head"),
            "unembed": UnembeddingBridge(name="decoder"),
        }
        # Said last, because attention that is told so has hook points for rotated queries and keys that nothing calls.
        cfg.positional_embedding_type = "rotary"

    def _normalization(self, name: str) -> Any:
        return NormalizationBridge(name=name, config=self.cfg, use_native_layernorm_autograd=True)

    def prepare_model(self, hf_model: Any) -> None:
        """Has the model attend eagerly, because fused kernels form no pattern."""
        hf_model.set_attn_implementation("eager")


class _Rows(nn.Linear):
    """A third of a projection to queries, keys and values: its rows of the weights as they are now, not a copy."""

    def __init__(self, whole: nn.Linear, number: int) -> None:
        nn.Module.__init__(self)
        vars(self)["_whole"] = whole  # which has a place of its own among the modules
        self.number = number
        self.in_features, self.out_features = whole.in_features, whole.out_features // 3

    @property
    def weight(self) -> Float[Tensor, "out d_model"]:  # type: ignore[override]
        """Its rows."""
        weight: Tensor = vars(self)["_whole"].weight
        return weight.chunk(3)[self.number]

    @property
    def bias(self) -> Float[Tensor, " out"] | None:  # type: ignore[override]
        """Its part of the bias, None where there is none."""
        bias: Tensor | None = vars(self)["_whole"].bias
        return None if bias is None else bias.chunk(3)[self.number]


class _FusedProjection(LinearBridge):  # type: ignore[misc]
    """One product for queries, keys and values, whose three parts go through hook points of their own."""

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """What the projection makes, as the hooks on its parts leave it."""
        made: Tensor = super().forward(input, *args, **kwargs)
        if not any(has_hooks(part.hook_in) or has_hooks(part.hook_out) for part in self._thirds):
            return made
        shown = [
            part(input) if has_hooks(part.hook_in) else part.hook_out(third)
            for part, third in zip(self._thirds, made.chunk(3, -1), strict=True)
        ]
        return torch.cat(shown, -1)


class _FusedAttention(AttentionBridge):  # type: ignore[misc]
    """Attention that computes its queries, keys and values in one product, as the model itself does."""

    def __init__(self, name: str, config: Any, *, fused: str, output: str) -> None:
        thirds = {part: LinearBridge(name=part) for part in "qkv"}
        whole: Any = _FusedProjection(name=fused)
        vars(whole)["_thirds"] = tuple(thirds.values())  # whose place is beside it
        super().__init__(
            name=name,
            config=config,
            submodules={**thirds, "qkv": whole, "o": LinearBridge(name=output)},
            maintain_native_attention=True,
        )

    def set_original_component(self, original_component: nn.Module) -> None:
        """Gives each third its rows of the one projection."""
        super().set_original_component(original_component)
        whole: Any = original_component.get_submodule(self.submodules["qkv"].name)
        for number, part in enumerate("qkv"):
            self.submodules[part].set_original_component(_Rows(whole, number))


def _another(layer: nn.Module, config: Any) -> nn.Module:
    """Another module around the same weights and the same configuration."""
    shared = [*layer.parameters(), *layer.buffers(), config]
    return copy.deepcopy(layer, {id(part): part for part in shared})


def _check_generation(cfg: Any) -> None:
    if int(version("transformer-lens").split(".")[0]) < 4:
        raise ValueError(
            f"the adapter for {cfg.architecture} is for TransformerLens 4; with version 3 topic_probe.open_model hosts "
            "this architecture without an adapter"
        )


ADAPTERS: dict[str, type[ArchitectureAdapter]] = {
    "AlbertForMaskedLM": AlbertAdapter,
    "DistilBertForMaskedLM": DistilBertAdapter,
    "ElectraForMaskedLM": ElectraAdapter,
    "ElectraForPreTraining": ElectraAdapter,
    "ModernBertForMaskedLM": ModernBertAdapter,
}


def register_adapters() -> None:
    """Makes TransformerLens's `boot_transformers` know ALBERT, ELECTRA, DistilBERT and ModernBERT; nothing comes back.

    TransformerLens 4 finds their adapters by itself when it builds a bridge (entry points), but `boot_transformers` of
    4.3 and before looks only in a list of its own. `open_model` needs no such call. Adapters that TransformerLens has
    itself are left alone. With TransformerLens 3 the adapters refuse to be used, and `open_model` does without.

    Example:
        >>> tp.register_adapters()
        >>> from transformer_lens.factories.architecture_adapter_factory import SUPPORTED_ARCHITECTURES
        >>> "AlbertForMaskedLM" in SUPPORTED_ARCHITECTURES
        True
    """
    # Importing it before the bridges is a circle in TransformerLens 4.0.
    from transformer_lens.factories import architecture_adapter_factory as factory

    factory.ArchitectureAdapterFactory.discover_entry_points()
    for name, adapter in ADAPTERS.items():
        if name not in factory.SUPPORTED_ARCHITECTURES:
            factory.ArchitectureAdapterFactory.register_adapter(name, adapter)
            factory.SUPPORTED_ARCHITECTURES[name] = adapter
    MASKED_LM_ARCHITECTURES.add("ModernBertForMaskedLM")  # whose checkpoints are loaded with that head
