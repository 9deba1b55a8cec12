"""Small models with random weights of every architecture that is tested, and what is known of them from elsewhere."""

import copy
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from importlib import import_module
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import topic_probe as tp
from topic_probe.lens import running
from topic_probe.lens.host import host_of, sites_of
from topic_probe.text.documents import Document, source_key

GENERATION = int(version("transformer-lens").split(".")[0])
VOCABULARY, WIDTH, HEADS = 97, 32, 4

_words = {"vocab_size": VOCABULARY}
_encoder = {
    **_words,
    "hidden_size": WIDTH,
    "num_hidden_layers": 3,
    "num_attention_heads": HEADS,
    "intermediate_size": 37,
    "max_position_embeddings": 64,
}
_grouped = {**_encoder, "num_key_value_heads": 2}
_narrow = {**_encoder, "embedding_size": 16}
_gpt2 = {**_words, "n_embd": WIDTH, "n_layer": 3, "n_head": HEADS, "n_positions": 64, "bos_token_id": 0}
_t5 = {**_words, "d_model": WIDTH, "d_kv": 8, "num_layers": 2, "num_heads": HEADS, "d_ff": 37}
_modernbert = {
    **_encoder, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2,
    "local_attention": 8, "global_attn_every_n_layers": 2,
}  # fmt: skip
_llama4 = {
    **_grouped, "head_dim": 8, "pad_token_id": 0, "intermediate_size_mlp": 37, "attention_chunk_size": 6,
    "num_local_experts": 2, "layer_types": ["chunked_attention", "full_attention", "chunked_attention"],
}  # fmt: skip
_distilbert = {**_words, "dim": WIDTH, "n_layers": 3, "n_heads": HEADS, "hidden_dim": 37}


def _bart(encoder_layers: int, decoder_layers: int) -> dict[str, Any]:
    return {
        **_words, "d_model": WIDTH, "encoder_layers": encoder_layers, "decoder_layers": decoder_layers,
        "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "encoder_ffn_dim": 37,
        "decoder_ffn_dim": 37, "max_position_embeddings": 64,
    }  # fmt: skip


_MAKERS: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: hf.BertForMaskedLM(hf.BertConfig(**_encoder)),
    "bert-headless": lambda: hf.BertModel(hf.BertConfig(**_encoder)),
    "roberta": lambda: hf.RobertaForMaskedLM(hf.RobertaConfig(**_encoder, pad_token_id=1)),
    "bart": lambda: hf.BartForConditionalGeneration(hf.BartConfig(**_bart(2, 2))),
    "bart-uneven": lambda: hf.BartForConditionalGeneration(hf.BartConfig(**_bart(2, 3))),
    "albert": lambda: hf.AlbertForMaskedLM(hf.AlbertConfig(**_narrow)),
    "electra-discriminator": lambda: hf.ElectraForPreTraining(hf.ElectraConfig(**_narrow)),
    "distilbert": lambda: hf.DistilBertForMaskedLM(hf.DistilBertConfig(**_distilbert)),
    "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**_gpt2, eos_token_id=0)),
    "gpt2-headless": lambda: hf.GPT2Model(hf.GPT2Config(**_gpt2, eos_token_id=0)),
    "neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**_encoder, bos_token_id=0, eos_token_id=0)),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**_grouped)),
    "llama4": lambda: hf.Llama4ForCausalLM(hf.Llama4TextConfig(**_llama4)),
    "modernbert": lambda: hf.ModernBertForMaskedLM(hf.ModernBertConfig(**_modernbert)),
    "t5": lambda: hf.T5ForConditionalGeneration(hf.T5Config(**_t5, decoder_start_token_id=0)),
    "mpnet": lambda: hf.MPNetForMaskedLM(hf.MPNetConfig(**_encoder)),
    "deberta": lambda: hf.DebertaV2ForMaskedLM(hf.DebertaV2Config(**_encoder)),
    "gemma2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**_grouped, head_dim=8, sliding_window=6)),
}  # fmt: skip

ARCHITECTURES = tuple(_MAKERS)
# Architectures that TransformerLens has a working adapter for.
BRIDGED = {
    3: {"bert", "bart", "gpt2", "neox", "llama", "gemma2"},
    4: {"bert", "bart", "gpt2", "neox", "llama", "gemma2", "roberta", "t5"},
}[GENERATION]
# Bridges that compute attention by themselves; others discard edited patterns.
RECOMPUTED = {"gpt2", "neox", "llama", "gemma2"}
# Architectures that never call the attention interface and only return their patterns.
ONLY_RETURNED = {"mpnet", "deberta"}
CAUSAL = {"gpt2", "neox", "llama", "llama4", "gemma2"}


def make(name: str, *, seed: int = 0) -> Any:
    """A model of a name in evaluation mode whose attention is far from uniform."""
    return drawn(_MAKERS[name], seed=seed)


def drawn(maker: Callable[[], nn.Module], *, seed: int = 0) -> Any:
    """What a maker makes, far from uniform; the global generators stay as they are."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = maker()
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    return model.eval()


def bridge(model: Any, tokenizer: Any = None) -> Any:
    """A TransformerLens bridge as a user builds it, around other modules with the weights of a model."""
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    weights = [*model.parameters(), *model.buffers()]
    inside = copy.deepcopy(model, {id(tensor): tensor for tensor in weights})
    inside.set_attn_implementation("eager")
    name = type(model).__name__
    built = build_bridge_from_module(
        inside, name, hf_config=inside.config, tokenizer=copy.deepcopy(tokenizer), model_name=name
    )
    return built.train(model.training)


def hosted(model: Any, host: str) -> Any:
    """A model in such a bridge, or in the package's own host."""
    return bridge(model) if host == "bridge" else tp.open_model(model)


@cache
def opened(name: str, host: str = "huggingface") -> Any:
    """A model, its hooked form, the view of it and a padded batch, for tests that leave all of it as it was."""
    model = make(name)
    hooked = hosted(model, host)
    view = host_of(hooked)
    return SimpleNamespace(model=model, hooked=hooked, view=view, inputs=view.inputs(*documents()))


_own_layers = {
    "n_layers": 2, "n_heads": HEADS, "d_model": WIDTH, "d_head": 8, "d_vocab": VOCABULARY, "n_ctx": 64,
    "act_fn": "gelu", "d_mlp": 37, "normalization_type": "LN",
}  # fmt: skip


def native(**options: Any) -> Any:
    """A bridge around layers of TransformerLens's own."""
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge

    import_module("transformer_lens.model_bridge.sources.native")  # it is what brings boot_native on 3.9
    return TransformerBridge.boot_native(
        TransformerBridgeConfig(**_own_layers | {"seed": 5} | options)
    ).eval()


def hooked_class(class_name: str, **options: Any) -> Any:
    """A HookedTransformer or HookedEncoder of TransformerLens 3 with all of its weights drawn."""
    import transformer_lens

    config = transformer_lens.HookedTransformerConfig(**_own_layers | {"device": "cpu"} | options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        model = getattr(transformer_lens, class_name)(config, move_to_device=False)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def toy() -> Any:
    """The toy model over as many words as the others, with a second layer."""
    world = tp.World(n_topics=4, words_per_topic=24)
    return tp.build_toy(tp.ToyConfig(world=world, d_model=16, n_layers=2, residual=True), seed=3)


# Models of TransformerLens's own layers, as far as it has them.
OWN_LAYERS: dict[str, Callable[[], Any]] = {"native": native, "toy": toy}
if GENERATION == 3:
    OWN_LAYERS |= {
        "HookedTransformer": lambda: hooked_class("HookedTransformer"),
        "HookedEncoder": lambda: hooked_class("HookedEncoder", attention_dir="bidirectional"),
    }


def cases(quick: Iterable[Any], others: Iterable[Any] = (), *, generation: Iterable[Any] = ()) -> list[Any]:
    """The cases of a test: of `make test`, of `make test-all` alone, and which TransformerLens 3.9 is tried on."""
    quick, of_generation = list(quick), list(generation)
    late = [case for case in dict.fromkeys([*others, *of_generation]) if case not in quick]
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=[pytest.mark.slow] * (case in late) + [pytest.mark.generation] * (case in of_generation),
            id="-".join(map(str, case)) if isinstance(case, tuple) else case,
        )
        for case in (*quick, *late)
    ]


def documents(lengths: tuple[int, ...] = (20, 9, 14), seed: int = 0) -> tuple[Tensor, Tensor]:
    """Right-padded random ids (from 5 on, clear of special tokens) and their mask."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, VOCABULARY, (len(lengths), max(lengths)), generator=generator)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return ids.masked_fill(~mask, 0), mask


def of_sources(documents: Sequence[list[int]], labels: Iterable[Hashable]) -> list[Document]:
    """The same documents, each of the source that is named for it."""
    named = zip(documents, labels, strict=True)
    return [Document(torch.tensor(ids), source=source_key(label)) for ids, label in named]


def lists(lengths: tuple[int, ...], seed: int = 0) -> list[list[int]]:
    """The same documents, each as a list of its ids."""
    return [ids[mask].tolist() for ids, mask in zip(*documents(lengths, seed), strict=True)]


def state_of(*models: Any) -> Any:
    """All of models that reading changes for a moment, and what it could leave on them or on the process."""
    inside = [getattr(model, "original_model", None) for model in models]
    roots = [root for root in (*models, *inside) if root is not None]
    modules = [pair for root in roots for pair in root.named_modules()]
    tensors = [tensor for root in roots for tensor in (*root.parameters(), *root.buffers())]
    numpy_state = np.random.get_state()  # noqa: NPY002  (the global generator is what must not be touched)
    return (
        [(name, id(module), module.training, sorted(vars(module))) for name, module in modules],
        [(dict(module._forward_hooks), dict(module._forward_pre_hooks)) for _, module in modules],
        [(vars(module).get("forward"), list(vars(module).get("fwd_hooks", ()))) for _, module in modules],
        [(id(tensor), tensor.data_ptr(), tensor._version, tensor.requires_grad) for tensor in tensors],
        [vars(config).copy() for root in roots for config in running.configs(root)],
        [torch.is_grad_enabled(), torch.get_rng_state().tolist(), numpy_state[1].tolist(), numpy_state[2]],
    )


@contextmanager
def at_hook_points(model: Any) -> Iterator[None]:
    """Context manager: a hook that changes nothing, so that attention is read from whole patterns at hook points."""
    point = sites_of(model)[0].hook_name
    with model.hooks(fwd_hooks=[(point, lambda pattern, hook: None)]):
        yield


def read(view: Any, inputs: Any, through: str = "auto", rows: Tensor | None = None) -> dict[Any, Any]:
    """Rows of attention, all but where some are wanted, and the keys that they may see, by site."""
    assert view.reads_rows() or through != "rows"
    sides = {"source": inputs.ids}
    if inputs.target_ids is not None:
        sides["target"] = inputs.target_ids
    wanted = {side: torch.arange(ids.shape[1]).expand(len(ids), -1) for side, ids in sides.items()}
    found: dict[int, tuple[Tensor, Tensor]] = {}

    def take(number: int, pattern: Tensor, visible: Tensor) -> None:
        assert number not in found
        found[number] = pattern.clone(), visible.clone()

    with at_hook_points(view.model) if through == "hooks" else nullcontext():
        view.attention_rows(inputs, wanted if rows is None else dict.fromkeys(wanted, rows), take)
    assert sorted(found) == list(range(len(view.sites)))
    return {site: found[number] for number, site in enumerate(view.sites)}


def ways(view: Any) -> tuple[str, ...]:
    """How the attention of a model can be read."""
    return ("hooks", "rows")[: 1 + (view.tap is not None)]


def assert_same_patterns(
    found: Any, own: dict[str, list[Tensor]], inputs: Any, *, atol: float = 5e-5
) -> None:
    """The rows of real queries that were read are those of Hugging Face's own patterns."""
    assert len(found) == sum(map(len, own.values()))
    for site, (pattern, _) in found.items():
        real = inputs.masks(site)[0]
        rows, expected = (
            whole.transpose(1, 2)[real].double() for whole in (pattern, own[site.stack][site.layer])
        )
        torch.testing.assert_close(rows, expected, rtol=0, atol=atol)


def own_patterns(model: Any, inputs: Any) -> dict[str, list[Tensor]]:
    """Hugging Face's own ``output_attentions`` of an eager copy, by stack: nothing of this package takes part."""
    answer = own_answer(model, inputs, output_attentions=True)
    if inputs.target_ids is None:
        return {"self": list(answer.attentions)}
    return {
        "encoder": list(answer.encoder_attentions),
        "decoder": list(answer.decoder_attentions),
        "cross": list(answer.cross_attentions),
    }


def own_hidden_states(model: Any, inputs: Any) -> list[Tensor]:
    """Hugging Face's own ``hidden_states``, those of the encoder where there are two stacks."""
    answer = own_answer(model, inputs, output_hidden_states=True)
    return list(answer.hidden_states if inputs.target_ids is None else answer.encoder_hidden_states)


def own_answer(model: Any, inputs: Any, **options: Any) -> Any:
    """What an eager copy of a Hugging Face model answers."""
    twin = copy.deepcopy(model).eval()
    twin.set_attn_implementation("eager")
    with torch.no_grad():
        return twin(**arguments(inputs), **options, return_dict=True)


def arguments(inputs: Any) -> dict[str, Tensor]:
    """What a Hugging Face model is called with."""
    given = {"input_ids": inputs.ids, "attention_mask": inputs.mask.long()}
    if inputs.target_ids is None:
        return given
    return given | {
        "decoder_input_ids": inputs.target_ids,
        "decoder_attention_mask": inputs.target_mask.long(),
    }


def own_last_states(model: Any, inputs: Any) -> Tensor:
    """The last of Hugging Face's own states, those of the decoder where there are two stacks."""
    answer = own_answer(model, inputs, output_hidden_states=True)
    return (answer.hidden_states if inputs.target_ids is None else answer.decoder_hidden_states)[-1]


def visible(name: str, stack: str, layer: int, inputs: Any) -> Tensor:
    """Which keys each query may see, [batch, query, key], from what the papers and configs say of an architecture."""
    keys = inputs.target_mask if stack == "decoder" else inputs.mask
    queries = inputs.target_mask if stack in ("decoder", "cross") else inputs.mask
    offset = torch.arange(keys.shape[1]) - torch.arange(queries.shape[1])[:, None]
    allowed = torch.ones_like(offset, dtype=torch.bool)
    if name.split("-")[0] in CAUSAL or stack == "decoder":
        allowed &= offset <= 0
    if name == "gemma2" and layer % 2 == 0:
        allowed &= offset > -6
    if name == "llama4" and layer != 1:
        chunk = torch.arange(keys.shape[1]) // 6
        allowed &= chunk == chunk[:, None]
    if name.startswith("modernbert") and layer % 2:
        allowed &= offset.abs() <= 4
    return allowed & keys[:, None, :]
