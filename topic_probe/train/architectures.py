"""Small models of the architectures that the paper measures, and GPT-2: each with a tokenizer of its kind and its task.

BERT, ALBERT and RoBERTa predict masked tokens; GPT-2 every next token; ELECTRA's discriminator tells which tokens its
generator has replaced, and both are trained together; BART writes a text of which spans were replaced by one mask
each. What transformers has no loss or collator for is here: the pair of ELECTRA, and infilling.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int32, Int64
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from topic_probe.options import check_value, check_whole, checked, settle_fields
from topic_probe.text.subwords import Kind
from topic_probe.topics.vocabulary import vocabulary_size

Architecture = Literal["bert", "albert", "electra", "roberta", "bart", "gpt2"]
ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)

TOKENIZERS: Mapping[Architecture, Kind] = {
    "bert": "wordpiece",
    "albert": "unigram",
    "electra": "wordpiece",
    "roberta": "byte-level",
    "bart": "byte-level",
    "gpt2": "byte-level without ends",
}
"""The kind of tokenizer that an architecture has."""

_MASKED = ("bert", "albert", "roberta")

HIDDEN = 0.3
"""Share of the tokens that are masked, as BART's masks hide; half of that, as BERT has it, takes small models twice as
long."""

SPAN = 3
"""Mean length of what one mask of BART hides (Poisson)."""

NOTHING = -100
"""The label of a position that is not predicted."""

Row = dict[str, Tensor]


@dataclass(frozen=True)
class SmallConfig:
    """How large a model is.

    Attributes:
        n_layers: layers; BART has half of them in each of its two stacks.
        n_heads: heads of every layer.
        d_model: width, a multiple of ``n_heads``. Embeddings of ALBERT are at most 128 wide.
        max_length: tokens of the longest document.
        scale: standard deviation of the initial weights; BERT has 0.02.
    """

    n_layers: int = 4
    n_heads: int = 4
    d_model: int = 128
    max_length: int = 128
    scale: float = 0.02

    def __post_init__(self) -> None:
        settle_fields(self)
        for name in ("n_layers", "n_heads", "d_model", "max_length"):
            check_whole(name, getattr(self, name))
        if self.d_model % self.n_heads:
            raise ValueError(
                f"d_model must be a multiple of n_heads, got {self.d_model} and {self.n_heads} heads"
            )
        if self.n_layers % 2:
            raise ValueError(f"n_layers must be even, because BART has two stacks, got {self.n_layers}")


@checked
def build_small(
    architecture: Architecture, tokenizer: Any, config: SmallConfig | None = None, *, seed: int = 0
) -> nn.Module:
    """A small model with fresh weights and without dropout, in evaluation mode; of ELECTRA an `ElectraPair`.

    Args:
        architecture: which.
        tokenizer: whose ids it reads.
        config: how large; None: four layers of width 128.
        seed: of the weights; the global generators stay as they are.
    """
    check_value("architecture", architecture, Architecture)
    sizes, make = config or SmallConfig(), _MAKERS[architecture]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(check_whole("seed", seed, 0))
        return make(sizes, _ids(tokenizer)).eval()


def _ids(tokenizer: Any) -> dict[str, int]:
    """The size of a vocabulary and the ids of the tokens with roles, as configurations name them."""
    roles = ("pad", "bos", "eos", "mask")
    found = {f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in roles}
    return {
        "vocab_size": vocabulary_size(tokenizer),
        **{name: one for name, one in found.items() if one is not None},
    }


def _encoder(sizes: SmallConfig, ids: Mapping[str, int], **other: Any) -> dict[str, Any]:
    """What configurations of encoders have in common."""
    return {
        "vocab_size": ids["vocab_size"], "pad_token_id": ids["pad_token_id"], "hidden_size": sizes.d_model,
        "num_hidden_layers": sizes.n_layers, "num_attention_heads": sizes.n_heads,
        "intermediate_size": 4 * sizes.d_model, "max_position_embeddings": sizes.max_length,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": sizes.scale, **other,
    }  # fmt: skip


def _bert(sizes: SmallConfig, ids: Mapping[str, int]) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    model: nn.Module = BertForMaskedLM(BertConfig(**_encoder(sizes, ids)))
    return model


def _albert(sizes: SmallConfig, ids: Mapping[str, int]) -> nn.Module:
    from transformers import AlbertConfig, AlbertForMaskedLM

    width = min(128, sizes.d_model)  # as in ALBERT of any size
    model: nn.Module = AlbertForMaskedLM(AlbertConfig(**_encoder(sizes, ids, embedding_size=width)))
    return model


def _roberta(sizes: SmallConfig, ids: Mapping[str, int]) -> nn.Module:
    from transformers import RobertaConfig, RobertaForMaskedLM

    # It numbers positions from behind the id that pads.
    places = sizes.max_length + ids["pad_token_id"] + 1
    ends = {name: ids[name] for name in ("bos_token_id", "eos_token_id")}
    model: nn.Module = RobertaForMaskedLM(
        RobertaConfig(**_encoder(sizes, ids, max_position_embeddings=places, type_vocab_size=1, **ends))
    )
    return model


def _gpt2(sizes: SmallConfig, ids: Mapping[str, int]) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    model: nn.Module = GPT2LMHeadModel(
        GPT2Config(
            n_embd=sizes.d_model, n_layer=sizes.n_layers, n_head=sizes.n_heads, n_positions=sizes.max_length,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=sizes.scale,
            **{name: ids[name] for name in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")},
        )
    )  # fmt: skip
    return model


def _bart(sizes: SmallConfig, ids: Mapping[str, int]) -> nn.Module:
    from transformers import BartConfig, BartForConditionalGeneration

    halves: dict[str, Any] = {}
    for stack in ("encoder", "decoder"):
        halves |= {f"{stack}_layers": sizes.n_layers // 2, f"{stack}_attention_heads": sizes.n_heads}
        halves[f"{stack}_ffn_dim"] = 4 * sizes.d_model
    names = ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")
    model: nn.Module = BartForConditionalGeneration(
        BartConfig(
            d_model=sizes.d_model, max_position_embeddings=sizes.max_length, dropout=0.0, init_std=sizes.scale,
            decoder_start_token_id=ids["eos_token_id"], forced_eos_token_id=None, **halves,
            **{name: ids[name] for name in names},
        )
    )  # fmt: skip
    return model


class ElectraPair(nn.Module):
    """ELECTRA's generator and discriminator, of one size, with one and the same embeddings.

    Both losses have the same weight. ELECTRA has a smaller generator and fifty times the other loss, which in batches
    as small as those of a processor drowns what the generator is to learn of the embeddings.

    Trained together, and each measured by its name: ``TopicProbe(..., model="discriminator")``.
    """

    def __init__(self, generator: nn.Module, discriminator: nn.Module) -> None:
        super().__init__()
        self.generator, self.discriminator = generator, discriminator
        self._share()

    def _share(self) -> None:
        of_generator: Any = self.generator
        of_generator.electra.embeddings = self.discriminator.electra.embeddings  # type: ignore[union-attr]
        of_generator.generator_lm_head.weight = of_generator.electra.embeddings.word_embeddings.weight

    def state_dict(self, *given: Any, **options: Any) -> dict[str, Any]:  # type: ignore[override]
        """Every tensor once, because files cannot hold one under two names."""
        every: dict[str, Any] = super().state_dict(*given, **options)
        own = [name for name, _ in (*self.named_parameters(), *self.named_buffers())]
        return {name: every[name] for name in own if name in every}

    def load_state_dict(self, state_dict: Mapping[str, Any], *given: Any, **options: Any) -> Any:
        """Of what `state_dict` gives; the other names of shared tensors are filled in with these themselves."""
        own = self.state_dict()
        others = {name: tensor for name, tensor in super().state_dict().items() if name not in own}
        return super().load_state_dict({**others, **state_dict}, *given, **options)


def _electra(sizes: SmallConfig, ids: Mapping[str, int]) -> nn.Module:
    from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

    config = ElectraConfig(**_encoder(sizes, ids, embedding_size=sizes.d_model))
    return ElectraPair(ElectraForMaskedLM(config), ElectraForPreTraining(config))


_MAKERS: Mapping[str, Callable[[SmallConfig, Mapping[str, int]], nn.Module]] = {
    "bert": _bert, "albert": _albert, "electra": _electra, "roberta": _roberta, "bart": _bart, "gpt2": _gpt2,
}  # fmt: skip


def measured_part(architecture: Architecture) -> str | None:
    """The part of a model that is kept and measured, None where it is the whole: of ELECTRA the discriminator."""
    return "discriminator" if architecture == "electra" else None


# --- what is predicted ------------------------------------------------------------------------------


class Predicted(NamedTuple):
    """What of a batch is predicted, of tokens that the model does not see.

    Attributes:
        loss: mean, in nats a token.
        targets: the tokens.
        found: mean loss of telling which tokens were replaced, None where no model tells.
        replaced: share of the tokens that were replaced; NaN where none are.
    """

    loss: Float[Tensor, ""]
    targets: Int64[Tensor, " target"]
    found: Float[Tensor, ""] | None = None
    replaced: float = float("nan")


@dataclass(frozen=True)
class Task:
    """What an architecture is trained for: how documents become rows, and the loss of a batch of them.

    Attributes:
        architecture: which.
        tokenizer: of the documents.
        length: tokens of every row; shorter documents are padded.
    """

    architecture: Architecture
    tokenizer: Any
    length: int

    def row(self, ids: Int32[np.ndarray, " position"], rng: np.random.Generator) -> Row:
        """A document as the model is to read it, with what it is to predict."""
        ids = ids[: self.length].astype(np.int64)
        labels = np.full(len(ids), NOTHING, dtype=np.int64)
        if self.architecture == "gpt2":
            shown, labels[1:], hidden = ids, ids[1:], None
        elif self.architecture == "bart":
            (shown, hidden), labels = self._infilled(ids, rng), ids
        else:
            (shown, picked), hidden = self._masked(ids, rng), None
            labels[picked] = ids[picked]
        parts = {"input_ids": (shown, self._pad), "labels": (labels, NOTHING)}
        if hidden is not None:
            parts["hidden"] = (hidden, False)
        row = {name: self._padded(values, filler) for name, (values, filler) in parts.items()}
        row["attention_mask"] = self._padded(np.ones(len(shown), dtype=np.int64), 0)
        return row

    def loss(self, model: Any, batch: Mapping[str, Tensor]) -> Float[Tensor, ""]:
        """What is minimised."""
        if self.architecture == "electra":
            told = _of_pair(model, batch)
            assert told.found is not None
            return told.loss + told.found
        return cross_entropy(*self._logits(model, batch))

    def predicted(self, model: Any, batch: Mapping[str, Tensor]) -> Predicted:
        """The loss of tokens that the model does not see; where models tell what was replaced, of that, too.

        What BERT is to predict and still sees, one picked token of ten, costs it next to nothing and is left out, as
        are the tokens that others stand for, and what BART copies.
        """
        if self.architecture == "electra":
            return _of_pair(model, batch)
        predicted, hidden = batch["labels"] != NOTHING, batch.get("hidden")
        if self.architecture in _MASKED:
            hidden = batch["input_ids"] == self.tokenizer.mask_token_id
        logits, labels = self._logits(model, batch)
        if hidden is not None:
            logits, labels = logits[hidden[predicted]], labels[hidden[predicted]]
        return Predicted(cross_entropy(logits, labels), labels)

    def _logits(
        self, model: Any, batch: Mapping[str, Tensor]
    ) -> tuple[Float[Tensor, "target word"], Int64[Tensor, " target"]]:
        """Of the predicted positions only, where most of the work of a small model is."""
        labels, given = batch["labels"], {name: batch[name] for name in ("input_ids", "attention_mask")}
        predicted = labels != NOTHING
        if self.architecture == "bart":
            before = labels.masked_fill(~predicted, self._pad).roll(1, dims=1)
            before[:, 0] = model.config.decoder_start_token_id
            given["decoder_input_ids"] = before
        states = model.base_model(**given).last_hidden_state
        # GPT-2 predicts at a position what stands at the next.
        at = predicted.roll(-1, dims=1) if self.architecture == "gpt2" else predicted
        return _head(model)(states[at]), labels[predicted]

    @cached_property
    def _n_tokens(self) -> int:
        return vocabulary_size(self.tokenizer)  # which reads all of a vocabulary

    @property
    def _pad(self) -> int:
        return int(self.tokenizer.pad_token_id)

    def _padded(self, values: np.ndarray, filler: int) -> Tensor:
        row = np.full(self.length, filler, dtype=values.dtype)
        row[: len(values)] = values
        return torch.from_numpy(row)

    def _masked(
        self, ids: Int64[np.ndarray, " position"], rng: np.random.Generator
    ) -> tuple[Int64[np.ndarray, " position"], Bool[np.ndarray, " position"]]:
        """Of the tokens so many are picked; of these 8 of 10 masked, 1 of 10 another token. ELECTRA masks all."""
        words = ~np.isin(ids, self.tokenizer.all_special_ids)
        picked = words & (rng.random(len(ids)) < HIDDEN)
        if words.any() and not picked.any():
            picked[rng.choice(np.flatnonzero(words))] = True
        shown, kind = ids.copy(), rng.random(len(ids))
        others = rng.integers(len(self.tokenizer.all_special_ids), self._n_tokens, len(ids))
        shown[picked] = self.tokenizer.mask_token_id
        if self.architecture != "electra":
            shown[picked & (kind >= 0.9)] = others[picked & (kind >= 0.9)]
            shown[picked & (kind >= 0.8) & (kind < 0.9)] = ids[picked & (kind >= 0.8) & (kind < 0.9)]
        return shown, picked

    def _infilled(
        self, ids: Int64[np.ndarray, " position"], rng: np.random.Generator
    ) -> tuple[Int64[np.ndarray, " shown"], Bool[np.ndarray, " position"]]:
        """With one mask for every hidden span, the ends of a text being none; and which positions are hidden."""
        first, last = int(ids[0] == self.tokenizer.bos_token_id), int(ids[-1] == self.tokenizer.eos_token_id)
        inside = ids[first : len(ids) - last]
        n_hidden = max(1, round(HIDDEN * len(inside)))
        lengths = np.diff(np.minimum(np.cumsum(rng.poisson(SPAN, n_hidden)), n_hidden), prepend=0)
        lengths = np.trim_zeros(lengths, "b") if lengths.any() else np.array([n_hidden])
        # A span, which may be empty, stands in a gap between tokens that stay, and no two in one.
        gaps = np.sort(rng.permutation(len(inside) - int(lengths.sum()) + 1)[: len(lengths)])
        lengths = lengths[: len(gaps)]
        hidden = np.insert(
            np.zeros(len(inside) - int(lengths.sum()), dtype=bool), np.repeat(gaps, lengths), True
        )
        shown = np.insert(inside[~hidden], gaps, self.tokenizer.mask_token_id)
        whole = np.concatenate([ids[:first], shown, ids[len(ids) - last :]])
        return whole[: self.length], np.pad(hidden, (first, last))


def _head(model: Any) -> nn.Module:
    """What turns states of the last layer into logits."""
    for name in ("cls", "lm_head", "predictions"):
        if hasattr(model, name):
            head: nn.Module = getattr(model, name)
            return head
    return nn.Sequential(model.generator_predictions, model.generator_lm_head)


def _of_pair(pair: Any, batch: Mapping[str, Tensor]) -> Predicted:
    """The generator's loss on what is masked, and the discriminator's on all tokens after these were drawn."""
    ids, labels, mask = batch["input_ids"], batch["labels"], batch["attention_mask"]
    masked = labels != NOTHING
    states = pair.generator.base_model(input_ids=ids, attention_mask=mask).last_hidden_state
    logits = _head(pair.generator)(states[masked])
    drawn = torch.multinomial(logits.detach().softmax(-1), 1)[:, 0]
    shown = ids.masked_scatter(masked, drawn)
    replaced = (shown != labels) & masked
    found = pair.discriminator(input_ids=shown, attention_mask=mask, labels=replaced.long()).loss
    share = float(replaced.sum() / mask.sum())
    return Predicted(cross_entropy(logits, labels[masked]), labels[masked], found, share)
