"""Small models with random weights of every architecture that is tested, and what is known of them from elsewhere."""

import copy
from collections.abc import Callable, Hashable, Iterable, Sequence
from importlib.metadata import version
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

import topic_probe as tp
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
    "roberta-headless": lambda: hf.RobertaModel(hf.RobertaConfig(**_encoder, pad_token_id=1)),
    "bart": lambda: hf.BartForConditionalGeneration(hf.BartConfig(**_bart(2, 2))),
    "bart-uneven": lambda: hf.BartForConditionalGeneration(hf.BartConfig(**_bart(2, 3))),
    "bart-headless": lambda: hf.BartModel(hf.BartConfig(**_bart(3, 2))),
    "albert": lambda: hf.AlbertForMaskedLM(hf.AlbertConfig(**_narrow)),
    "albert-headless": lambda: hf.AlbertModel(hf.AlbertConfig(**_narrow)),
    "electra": lambda: hf.ElectraForMaskedLM(hf.ElectraConfig(**_narrow)),
    "electra-discriminator": lambda: hf.ElectraForPreTraining(hf.ElectraConfig(**_narrow)),
    "electra-headless": lambda: hf.ElectraModel(hf.ElectraConfig(**_narrow)),
    "distilbert": lambda: hf.DistilBertForMaskedLM(hf.DistilBertConfig(**_distilbert)),
    "distilbert-headless": lambda: hf.DistilBertModel(hf.DistilBertConfig(**_distilbert)),
    "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**_gpt2, eos_token_id=0)),
    "gpt2-headless": lambda: hf.GPT2Model(hf.GPT2Config(**_gpt2, eos_token_id=0)),
    "neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**_encoder, bos_token_id=0, eos_token_id=0)),
    "neox-headless": lambda: hf.GPTNeoXModel(hf.GPTNeoXConfig(**_encoder, bos_token_id=0, eos_token_id=0)),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**_grouped)),
    "llama-headless": lambda: hf.LlamaModel(hf.LlamaConfig(**_grouped)),
    "modernbert": lambda: hf.ModernBertForMaskedLM(hf.ModernBertConfig(**_modernbert)),
    "modernbert-headless": lambda: hf.ModernBertModel(hf.ModernBertConfig(**_modernbert)),
    "t5": lambda: hf.T5ForConditionalGeneration(hf.T5Config(**_t5, decoder_start_token_id=0)),
    "t5-headless": lambda: hf.T5Model(hf.T5Config(**_t5, num_decoder_layers=3, decoder_start_token_id=0)),
    "t5-encoder": lambda: hf.T5EncoderModel(hf.T5Config(**_t5)),
    "mpnet": lambda: hf.MPNetForMaskedLM(hf.MPNetConfig(**_encoder)),
    "deberta": lambda: hf.DebertaV2ForMaskedLM(hf.DebertaV2Config(**_encoder)),
    "xlmr": lambda: hf.XLMRobertaForMaskedLM(hf.XLMRobertaConfig(**_encoder)),
    "gemma2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**_grouped, head_dim=8, sliding_window=6)),
}  # fmt: skip

ARCHITECTURES = tuple(_MAKERS)
# Architectures that TransformerLens has a working adapter for.
BRIDGED = {
    3: {"bert", "bart", "gpt2", "neox", "llama", "gemma2"},
    4: {"bert", "bart", "gpt2", "neox", "llama", "gemma2", "roberta", "t5"},
}[GENERATION]
# Architectures that never call the attention interface and only return their patterns.
ONLY_RETURNED = {"mpnet", "deberta"}
CAUSAL = {"gpt2", "neox", "llama", "gemma2"}
TWO_STACKS = {"bart", "bart-uneven", "bart-headless", "t5", "t5-headless"}


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


def own_patterns(model: Any, inputs: Any) -> dict[str, list[Tensor]]:
    """Hugging Face's own ``output_attentions`` of an eager copy, by stack: nothing of this package takes part."""
    answer = _run_copy(model, inputs, output_attentions=True)
    if inputs.target_ids is None:
        return {"self": list(answer.attentions)}
    return {
        "encoder": list(answer.encoder_attentions),
        "decoder": list(answer.decoder_attentions),
        "cross": list(answer.cross_attentions),
    }


def own_hidden_states(model: Any, inputs: Any) -> list[Tensor]:
    """Hugging Face's own ``hidden_states``, those of the encoder where there are two stacks."""
    answer = _run_copy(model, inputs, output_hidden_states=True)
    return list(answer.hidden_states if inputs.target_ids is None else answer.encoder_hidden_states)


def _run_copy(model: Any, inputs: Any, **options: Any) -> Any:
    twin = copy.deepcopy(model).eval()
    twin.set_attn_implementation("eager")
    given = {"input_ids": inputs.ids, "attention_mask": inputs.mask.long()}
    if inputs.target_ids is not None:
        given |= {
            "decoder_input_ids": inputs.target_ids,
            "decoder_attention_mask": inputs.target_mask.long(),
        }
    with torch.no_grad():
        return twin(**given, **options, return_dict=True)


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
    if name.startswith("modernbert") and layer % 2:
        allowed &= offset.abs() <= 4
    return allowed & keys[:, None, :]
