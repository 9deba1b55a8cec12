"""What is looked at after a forward pass, so that what was done to the model can be seen: an outcome.

An outcome says of a batch which numbers it reads, of pairs of words or of single positions, and of which kind each is;
the numbers are read once as the model is and once for everything that is done to it. Kinds are relations
(`topic_probe.contrast`): a pair of words is of the same topic or of different ones, a position holds a word of a topic
(coded as same topic) or does not (different topic). What is told in the end are means over kinds, or their difference.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from topic_probe.contrast import DIFFERENT_TOPIC, SAME_TOPIC, word_relations
from topic_probe.estimate import divide
from topic_probe.lens import capture
from topic_probe.lens.sites import Inputs
from topic_probe.measure.scores import Units
from topic_probe.options import Group
from topic_probe.text.batches import TokenBatch
from topic_probe.topics import Topics

Named = Literal["states", "loss"]
# What is done with the means over kinds (same word, same topic, different topic): each readout is a sum of them.
Readouts = Mapping[str, tuple[int, int, int]]


@dataclass(frozen=True, eq=False)
class Asked:
    """What an outcome reads of a batch.

    Attributes:
        inputs: what goes into the model.
        batch: the documents.
        units: the words of topics in every document.
        query, key: what the numbers of every document are of: pairs of these.
        kinds: the kind of every number.
        targets: what a model is asked to predict at every position, where that is asked; -1: nothing.
    """

    inputs: Inputs
    batch: TokenBatch
    units: list[Units]
    query: list[Units]
    key: list[Units]
    kinds: list[Int64[Tensor, "_ _"]]
    targets: Int64[Tensor, "batch position"] | None = None


class Outcome(ABC):
    """What is looked at.

    Attributes:
        readouts: what is told of it.
        of_words: whether a document without words of topics says nothing, so that no model need run on it.
    """

    readouts: ClassVar[Readouts]
    of_words: ClassVar[bool] = False

    @abstractmethod
    def ask(self, batch: TokenBatch, units: list[Units]) -> Asked:
        """What is read of a batch; the same whatever is done to the model."""

    @abstractmethod
    def read(self, asked: Asked) -> list[Float64[Tensor, "_ _"]]:
        """The numbers of every document, of the model as it is now."""

    @abstractmethod
    def n_kept(self, batch_size: int, longest: int, n_words: int) -> int:
        """How many numbers are held at once for a batch of so many documents."""

    @property
    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What the numbers depend on."""


@dataclass(frozen=True)
class LookedAt(Group):
    """What is looked at, as users say it."""

    outcome: Annotated[
        Named | Callable[[Any, Inputs], Tensor],
        'what is looked at: "states": centred cosines between words of the same topic − those between words of '
        'different ones, at a later layer; "loss": how badly words are predicted, in nats (masked words, or the next '
        "one in a causal model), so that what helps has a negative effect; or a function (model, inputs) that gives a "
        "number for every document",
    ] = "states"
    layer: Annotated[
        int | None, 'the layer of "states": 0 is what enters the first block; None: what leaves the last'
    ] = None
    mask_share: Annotated[
        float,
        'what share of tokens the "loss" of a model that sees both ways masks; the same ones whatever is done to it',
    ] = 0.15

    def of(self, view: capture.View, topics: Topics, seed: int) -> Outcome:
        """The outcome that is meant, of a model.

        Raises:
            ValueError: for a layer that the model does not have, and a loss that it cannot have.
        """
        if self.outcome == "states":
            return States(view, topics, self.layer)
        if self.outcome == "loss":
            return Loss(view, mask_share=self.mask_share, seed=seed)
        return Told(view, self.outcome)


class States(Outcome):
    """Centred cosines between the states of words of one document, same topic less different topics.

    The mean state of the document is taken out first, so that what moves all of its words alike is no effect. A state
    that is the mean has a cosine of 0 with all others.
    """

    readouts: ClassVar[Readouts] = {"same − different": (0, 1, -1)}
    of_words: ClassVar[bool] = True

    def __init__(self, view: capture.View, topics: Topics, layer: int | None) -> None:
        n_layers = capture.n_states(view.model) - 1
        self.view, self.topics = view, topics
        self.layer = n_layers if layer is None else layer
        if not 0 <= self.layer <= n_layers:
            raise ValueError(
                f"layer must be 0 (what enters the first block) to {n_layers} (what leaves the last), got {layer}"
            )

    @property
    def facts(self) -> dict[str, Any]:
        """The layer."""
        return {"outcome": "states", "layer": self.layer}

    def n_kept(self, batch_size: int, longest: int, n_words: int) -> int:
        """The states of one layer, and the cosines of all documents."""
        width = capture.word_embeddings(self.view.model, check=False).shape[1]
        return int(batch_size * (longest * width + n_words**2))

    def ask(self, batch: TokenBatch, units: list[Units]) -> Asked:
        """Pairs of words, by relation."""
        kinds = [word_relations(words.places, words.places, self.topics).long() for words in units]
        return Asked(self.view.inputs(batch.ids, batch.mask), batch, units, units, units, kinds)

    def read(self, asked: Asked) -> list[Float64[Tensor, "_ _"]]:
        """Cosines between the words of every document."""
        kept: list[Tensor] = []

        def keep(layer: int, states: Tensor) -> None:
            if layer == self.layer:
                kept.append(states)

        self.view.host.hidden_states(asked.inputs, keep)
        states, mask = kept[-1].double(), asked.inputs.mask
        mean = (states * mask[:, :, None]).sum(1, keepdim=True) / mask.sum(1)[:, None, None]
        centred = states - mean
        length, whole = centred.norm(dim=-1, keepdim=True), states.norm(dim=-1, keepdim=True)
        # A state that is the mean has no direction, and what rounding leaves of it is none.
        nowhere = length <= 10 * torch.finfo(kept[-1].dtype).eps * whole
        states = (centred / length.masked_fill(nowhere, torch.inf)).cpu()
        chosen = [part[words.positions] for part, words in zip(states, asked.units, strict=True)]
        return [part @ part.T for part in chosen]


class Loss(Outcome):
    """How badly tokens are predicted, in nats: at words of topics, and elsewhere.

    Of a causal model every token from its second on, of the others a share of each document's tokens, which are masked;
    they are drawn from the document's own content, so that they are the same whatever is done to the model.
    """

    readouts: ClassVar[Readouts] = {"words of topics": (0, 1, 0), "elsewhere": (0, 0, 1)}

    def __init__(self, view: capture.View, *, mask_share: float, seed: int) -> None:
        self.view, self.mask_share, self.seed = view, mask_share, seed
        if view.host.has_decoder:
            raise ValueError(
                "outcome='loss' is of models with one stack, and this one has an encoder and a decoder, which predicts "
                "the text that it was given: use outcome='states', or a function (model, inputs) that gives a number "
                "for every document"
            )
        if not 0 < mask_share <= 1:
            raise ValueError(
                f"mask_share is the share of tokens that are masked, above 0 and at most 1, got {mask_share}"
            )
        self.mask_id = None if view.is_causal else _mask_id(view)

    @property
    def facts(self) -> dict[str, Any]:
        """How much is masked, and where."""
        of_masks = {} if self.view.is_causal else {"mask_share": self.mask_share, "mask_seed": self.seed}
        return {"outcome": "loss"} | of_masks

    def n_kept(self, batch_size: int, longest: int, n_words: int) -> int:
        """The scores over the vocabulary."""
        return batch_size * longest * self.view.facts.vocabulary_size

    def ask(self, batch: TokenBatch, units: list[Units]) -> Asked:
        """Every position that is predicted: whether it holds a word of a topic."""
        shown, targets = batch.ids.clone(), torch.full_like(batch.ids, -1)
        real = batch.mask & ~batch.special
        if self.view.is_causal:
            predicted = real.clone()
            predicted[:, 0] = False
        else:
            predicted = real & _masked_positions(batch, self.mask_share, self.seed)
            assert self.mask_id is not None
            shown[predicted] = self.mask_id
        targets[predicted] = batch.ids[predicted]
        # Positions of documents of no length still need a column.
        nothing = Units.of_tokens(*torch.zeros(3, 1, dtype=torch.int64))
        query, kinds = [], []
        for ids, asked_at, words in zip(batch.ids, predicted, units, strict=True):
            at = asked_at.nonzero().flatten()
            of_topic = torch.isin(at, words.positions)
            query.append(Units.of_tokens(ids[at], at, at))
            kinds.append(torch.where(of_topic, SAME_TOPIC, DIFFERENT_TOPIC)[:, None])
        inputs = self.view.inputs(shown, batch.mask)
        return Asked(inputs, batch, units, query, [nothing] * len(batch), kinds, targets)

    def read(self, asked: Asked) -> list[Float64[Tensor, "_ _"]]:
        """The loss at every position that is predicted."""
        targets = asked.targets
        assert targets is not None
        logits = self.view.host.logits(asked.inputs)
        if self.view.is_causal:
            logits = torch.nn.functional.pad(logits[:, :-1], (0, 0, 1, 0))
        found = []
        for scores, target, words in zip(logits, targets, asked.query, strict=True):
            at = words.positions
            of_words = scores[at.to(scores.device)].double().log_softmax(-1).cpu()
            found.append(-of_words.gather(1, target[at][:, None]))
        return found


class Told(Outcome):
    """What a function of the user says: one number for every document."""

    readouts: ClassVar[Readouts] = {"outcome": (0, 1, 0)}

    def __init__(self, view: capture.View, function: Callable[[Any, Inputs], Any]) -> None:
        self.view, self.function = view, function

    @property
    def facts(self) -> dict[str, Any]:
        """Its name: that it stays the same function is its user's business."""
        return {"outcome": getattr(self.function, "__qualname__", type(self.function).__name__)}

    def n_kept(self, batch_size: int, longest: int, n_words: int) -> int:
        """Nothing that is known."""
        return batch_size * longest

    def ask(self, batch: TokenBatch, units: list[Units]) -> Asked:
        """One number of every document."""
        one = [Units.of_tokens(*torch.zeros(3, 1, dtype=torch.int64))] * len(batch)
        kinds = [torch.full((1, 1), SAME_TOPIC)] * len(batch)
        return Asked(self.view.inputs(batch.ids, batch.mask), batch, units, one, one, kinds)

    def read(self, asked: Asked) -> list[Float64[Tensor, "_ _"]]:
        """What the function says.

        Raises:
            ValueError: where it does not give a number for every document.
        """
        told = torch.as_tensor(self.function(self.view.model, asked.inputs)).cpu().double()
        if told.shape != (len(asked.batch),):
            raise ValueError(
                f"the outcome needs one number for each of {len(asked.batch)} documents, and the function has given a "
                f"tensor of shape {tuple(told.shape)}"
            )
        return list(told[:, None, None])


def _mask_id(view: capture.View) -> int:
    """What hides a word from a model that sees both ways; ValueError where its tokenizer does not say."""
    mask_id = getattr(getattr(view.model, "tokenizer", None), "mask_token_id", None)
    if mask_id is None:
        raise ValueError(
            "outcome='loss' masks words of a model that sees both ways, and its tokenizer names no mask token: open "
            "the model with its tokenizer, or use outcome='states'"
        )
    return int(mask_id)


def _masked_positions(batch: TokenBatch, share: float, seed: int) -> Bool[Tensor, "batch position"]:
    """A share of the positions of every document, drawn from its own content: the same ones time and again."""
    masked = np.zeros(batch.ids.shape, dtype=bool)
    for row, key in enumerate(batch.keys.tolist()):
        # Of every position by itself, so that padding and batches change nothing.
        generator = np.random.default_rng([seed, key % 2**64])
        masked[row] = generator.random(batch.ids.shape[1]) < share
    return torch.from_numpy(masked)


def means_of(
    sums: Float64[np.ndarray, "*shape kind"],
    counts: Float64[np.ndarray, "*shape kind"],
    weights: Sequence[int],
) -> Float64[np.ndarray, "*shape"]:
    """A readout: the sum of the means of the kinds that it names. NaN where one of them has no number."""
    kinds = [kind for kind, weight in enumerate(weights) if weight]
    parts = [weights[kind] * divide(sums[..., kind], counts[..., kind]) for kind in kinds]
    return np.asarray(np.sum(parts, axis=0))


def readout_of(weights: Sequence[int], values: Tensor, kinds: Tensor) -> Tensor | None:
    """A readout of one document by itself; None where it has none."""
    parts = [(weight, kinds == kind) for kind, weight in enumerate(weights, 1) if weight]
    if not all(bool(some.any()) for _, some in parts):
        return None
    return torch.stack([weight * values[some].mean() for weight, some in parts]).sum()
