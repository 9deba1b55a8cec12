"""Every text architecture that transformers knows by name, as a small model with random weights.

An architecture is a model type of transformers' auto classes whose model takes token ids and nothing else. Its default
configuration is made small by the names of its settings; as many layers are kept as there are kinds of layers. Few
architectures need more than that (`_SPECIAL`).
"""

import inspect
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import transformers as hf
import zoo
from transformers.models.auto import modeling_auto as auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

# A model with a head where there is one, and with both stacks where there are two.
_CLASSES = (
    auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    auto.MODEL_MAPPING_NAMES,
)
_NOT_TEXT = re.compile("pixel|image|audio|video|bbox|features|speech|vision|codec|vq_|visual|protein")

# What a setting of a name is made at most. The windows and blocks are shorter than documents of 15 tokens.
_AT_MOST = {
    r".*vocab_size(_base)?|vocab_size_per_layer_input|encoder_hash_byte_group_vocab": zoo.VOCABULARY,
    r"hidden_size|d_model|n_embd|dim|emb_dim|embedding_dim|.*_embed_dim|.*embedding_size|.*_hidden_size"
    r"|.*emb_size|word_embed_proj_dim|lru_width|hidden_size_per_layer_input": zoo.WIDTH,
    r".*num_(?:.*_)?heads|n_heads?|.*attention_heads|.*_n_heads": zoo.HEADS,
    r".*head_dim|d_kv|d_head|dim_head|kv_channels|attention_head_size": 8,
    r"rotary_dim": 4,
    r".*intermediate_size.*|.*ffn_dim|d_ff|dff|d_inner|dim_ff|hidden_dim|.*ffn_hidden_size|feed_forward_size"
    r"|prompt_mid_dim": 40,
    r".*_rank|hc_lowrank|.*state_size|mamba_d_state|prompt_length|prompt_types|segment_types": 8,
    r".*num_(local_|routed_)?experts|n_routed_experts|.*_expert_num": 4,
    r"num_experts_per_tok(en)?|moe_k|moe_topk|.*_shared_experts|.*num_query_groups": 2,
    r".*_layers|n_layers?|num_blocks|.*_layers_per_stack": 2,
    r".*_period|.*window_pattern|global_attn_every_n_layers|.*sparse_step|.*layer_interval|layer_group_size"
    r"|interleave_moe_layer_step|index_topk_blocks": 2,
    r"n_groups?|topk_group|num_expert_group|num_random_blocks|.*_layer_offset|first_k_dense_replace"
    r"|num_dense_layers|max_window_layers|moe_layer_end_index|num_kv_shared_layers": 1,
    r".*sliding_window.*|.*window_size|attention_window.*|.*window_len|local_attention|attention_chunk_size"
    r"|local_radius|index_topk": 6,
    r".*chunk_size|.*chunk_length|global_block_size|index_block_size|segment_means_seq_len|num_landmarks": 4,
    r"block_size": 2,
    r"(original_)?max_position_embeddings|n_positions|n_ctx|.*max_(source|target)_positions|max_seq_len"
    r"|max_(en|de)coder_position_embeddings|context_length|model_max_length": 64,
}  # fmt: skip
_SIZES = {re.compile(names): size for names, size in _AT_MOST.items()}
_GROUPED = re.compile(r"num_kv_heads|.*num_key_value_heads")
_DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_ALONE = {"chunk_size_feed_forward", "num_hidden_groups", "num_mem_blocks"}
_SPECIAL_IDS = {"pad": 0, "bos": 1, "cls": 1, "eos": 2, "sep": 3, "decoder_start": 2}

# Of every three axes of pictures one angle or two, in heads of 8.
_THREE_AXES = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}}
_MIXED = {"layer_types": ["linear_attention", "full_attention"]}
_EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1}
_SPECIAL: Mapping[str, Mapping[str, Any]] = {
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 8},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}
    },
    "cosmos3_edge_text": _THREE_AXES,
    "dbrx": {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0}},
    "deepseek_v2": {**_EXPERTS, "n_group": 1, "topk_group": 1},
    "dots1": _EXPERTS,
    "encoder-decoder": {"decoder": {"is_decoder": True, "add_cross_attention": True}},
    "esm": {"vocab_size": zoo.VOCABULARY, "pad_token_id": 0, "mask_token_id": 4},
    "esmc": {"vocab_size": zoo.VOCABULARY},
    "gemma3n_text": {
        "layer_types": ["full_attention", "sliding_attention"] * 2,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "intermediate_size": 40,
        "activation_sparsity_pattern": [0.0] * 4,
    },
    "glm4v_moe_text": {"rope_parameters": {**_THREE_AXES["rope_parameters"], "mrope_section": [1, 1, 0]}},
    "glm4v_text": _THREE_AXES,
    "glm5_next_text": {"index_kpool": 2},
    "glm_image_text": _THREE_AXES,
    "glm_ocr_text": _THREE_AXES,
    "granitemoehybrid": {**_MIXED, "mamba_n_heads": 8},
    "hrm_text": {
        "num_hidden_layers": 1,
        "num_layers_per_stack": None,
        "H_cycles": 1,
        "L_cycles": 1,
        "L_bp_cycles": [1],
    },
    "hunyuan_vl_text": _THREE_AXES,
    "laguna": {"num_attention_heads_per_layer": [4, 4]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {"qk_head_dim": 16},
    "mamba2": {"num_heads": 8},
    "mistral4": {
        "head_dim": 8,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "original_max_position_embeddings": 64,
            "llama_4_scaling_beta": 0.1,
        },
    },
    "mobilebert": {"true_hidden_size": zoo.WIDTH, "intra_bottleneck_size": zoo.WIDTH},
    "nemotron": {"num_key_value_heads": 2},
    "qwen2_5_vl_text": _THREE_AXES,
    "qwen2_vl_text": _THREE_AXES,
    "qwen4_exp_text": {
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 6,
        "indexer_compress_ratio": 2,
    },
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "reformer": {"axial_pos_embds": False},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "num_hidden_layers": 3,
        "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
    },
    "zamba2": {
        "num_hidden_layers": 3,
        "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "kv_channels": 16,
    },
}
# Architectures whose settings make another kind of attention of them.
_VARIANTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "big_bird-full": ("big_bird", {"attention_type": "original_full"}),
    "bigbird_pegasus-full": ("bigbird_pegasus", {"attention_type": "original_full"}),
    "falcon-alibi": ("falcon", {"alibi": True}),
}


@cache
def architectures() -> dict[str, str]:
    """Model types that have a configuration of their own, with the class that is built of each."""
    found: dict[str, str] = {}
    for kind in sorted(set().union(*_CLASSES) & set(CONFIG_MAPPING_NAMES)):
        name = next(classes[kind] for classes in _CLASSES if kind in classes)
        name = name if isinstance(name, str) else name[0]
        if _is_text(kind, name, CONFIG_MAPPING_NAMES[kind]):
            found[kind] = name
    return found | {variant: found[kind] for variant, (kind, _) in _VARIANTS.items()}


def _is_text(kind: str, class_name: str, config_name: str) -> bool:
    try:
        model, config = getattr(hf, class_name), getattr(hf, config_name)
        inputs = inspect.signature(model.forward).parameters
    except (
        ImportError,
        AttributeError,
    ):  # for sounds and pictures, with a package that is not here; or no model
        return False
    wanted = [*inputs, *config.sub_configs]
    takes_ids = model.main_input_name == "input_ids" and "input_ids" in inputs
    return config.model_type == kind and takes_ids and not any(map(_NOT_TEXT.search, wanted))


def build(kind: str, class_name: str, **settings: Any) -> Any:
    """A small model in evaluation mode whose attention is far from uniform, with settings of its configuration."""
    kind, variant = _VARIANTS.get(kind, (kind, {}))
    config, model = getattr(hf, CONFIG_MAPPING_NAMES[kind]), getattr(hf, class_name)
    return zoo.drawn(lambda: model(config(**small(config), **variant, **settings)))


def small(config: Any) -> dict[str, Any]:
    """What has to be given to a configuration so that its model is small, and has a layer of every kind."""
    default = config()
    values = default.to_dict()
    kinds = _kinds_of_layers(values)
    depth = max([2, *map(len, kinds.values())])
    given: dict[str, Any] = {}
    for name, value in values.items():
        if name in kinds:
            given[name] = [kinds[name][layer % len(kinds[name])] for layer in range(depth)]
        elif name in _DEPTHS:
            given[name] = depth
        elif (size := _size(name, value, values)) is not None:
            given[name] = size
    special = _SPECIAL.get(default.model_type, {})
    inside = {name: getattr(default, name, None) for name in config.sub_configs}
    parts = {
        name: small(type(part)) | special.get(name, {}) for name, part in inside.items() if part is not None
    }
    return {**given, **special, **parts}


def _kinds_of_layers(values: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The settings that have an entry for each layer, with the different entries in their order."""
    depths = {values[name] for name in _DEPTHS if isinstance(values.get(name), int)}
    lists = {
        name: value for name, value in values.items() if isinstance(value, list) and len(value) in depths
    }
    kinds = {
        name: [v for place, v in enumerate(value) if v not in value[:place]] for name, value in lists.items()
    }
    return {name: different for name, different in kinds.items() if len(different) <= 4}


def _size(name: str, value: Any, values: Mapping[str, Any]) -> int | None:
    """What a setting is to be, None where it stays."""
    if name == "head_dim" and value is None:
        return 8
    if name.endswith("_token_id"):
        named = [value] if isinstance(value, int) else value or [0]
        return _SPECIAL_IDS.get(name.removesuffix("_token_id"), 4) if max(named) > 4 else None
    if isinstance(value, bool) or not isinstance(value, int) or name in _ALONE:
        return None
    if _GROUPED.fullmatch(name):
        every = [values.get(heads) for heads in ("num_attention_heads", "n_heads")]
        return zoo.HEADS if value in every else min(value, 2)
    return next((size for names, size in _SIZES.items() if names.fullmatch(name) and value > size), None)
