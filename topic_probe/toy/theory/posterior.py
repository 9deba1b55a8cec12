"""The best possible masked predictor on documents of finite length.

The predictor sees the shown document and is asked about a position that it knows to be masked, without knowing which
other positions are: that is the information a model has. Given the topic proportions, positions are independent, so
with ŵ = E[p | the *other* shown tokens], ::

    P(word i | document, position shows [MASK]) = ŵ_i
    P(word i | document, position shows s)      ∝ ŵ_i (p_c [i = s] + p_r / n)

and all that is needed is ŵ, the posterior expectation of the word probabilities p. A model whose attention sees only
positions that were not chosen (``attend="unmasked"``) has the words there, all of them genuine: ŵ = E[p | these words].

Given the topic proportions θ, a position shows word i with probability ``a p_i + ε``, independently of the others, and
``[MASK]`` with a probability that does not depend on θ. Uniform topics are a sum over all sets of topics. Under LDA
with disjoint topics the likelihood of the counts is a product over topics of Π (a φ_i θ_t + ε). Expanding every factor
by how many of the topic's shown words are genuine leaves powers of θ, whose expectations are known, so that ::

    P(k_1, k_2, ...) ∝ Π_t P(k_t of topic t are genuine) · Γ(α + k_t) / Γ(α)  ·  Γ(Tα) / Γ(Tα + K),    K = Σ k_t

and E[θ_t] = E[(α + k_t) / (Tα + K)]. A sum over all (k_1, k_2, ...) takes one pass over the topics for the products so
far, and one back for what is behind.
"""

from itertools import combinations
from math import comb

import torch
import torch.nn.functional as F
from jaxtyping import Float64, Int64
from torch import Tensor

from topic_probe.toy.world import Attend, MaskedBatch, Masking, World

MAX_SUBSETS = 20_000
"""Sets of topics that are enumerated at most."""
MAX_LENGTH = 1_000
"""Shown words per document up to which the range of floats holds every term that matters."""
ROWS_AT_ONCE = 256


def bayes_predictor(
    world: World, masking: Masking, batch: MaskedBatch, *, attend: Attend = "all"
) -> Float64[Tensor, "chosen token"]:
    """P(original word | shown document, the position is masked), a row for every chosen position of the batch.

    Rows are in the order of ``chosen.nonzero()``; the column of ``[MASK]`` is 0.
    Exact for documents of at most 1,000 shown words, of uniform topics with at most 20,000 possible sets of topics, or
    of LDA with disjoint topics of any word probabilities. Anything else has no sum that is feasible (ValueError).

    Example:
        >>> import torch
        >>> from topic_probe.toy.world import MaskedBatch
        >>> world = tp.World(n_topics=2, words_per_topic=2, topics_per_document=1)
        >>> words, mask = torch.tensor([[2, 1, 1]]), torch.ones(1, 3, dtype=torch.bool)
        >>> chosen = torch.tensor([[True, False, False]])
        >>> batch = MaskedBatch(shown=words.masked_fill(chosen, 0), target=words, mask=mask, chosen=chosen)
        >>> tp.theory.bayes_predictor(world, tp.Masking(p_random=0.0), batch).tolist()  # another word of topic 0
        [[0.0, 0.5, 0.5, 0.0, 0.0]]
    """
    n = world.n_words
    seen = batch.shown.masked_fill(~batch.visible(attend), 0)  # like [MASK], what is not seen says nothing
    if seen.numel() and not 0 <= int(seen.min()) <= int(seen.max()) <= n:
        raise ValueError(
            f"shown ids must lie in 0..{n} (0 is [MASK]) for this world, got {int(seen.min())}.."
            f"{int(seen.max())}; pass documents of the same world"
        )
    documents, positions = batch.chosen.nonzero(as_tuple=True)
    # The word at the position itself has to be left out, if it was counted: 0 where there is none.
    left_out = seen[documents, positions]
    counts = torch.zeros(len(seen), n + 1, dtype=torch.float64)
    counts.scatter_add_(1, seen, torch.ones_like(counts[:, :1]).expand(seen.shape))
    # Positions of one document that show the same token share everything else, and so the posterior.
    keys, row_of_position = torch.unique(documents * (n + 1) + left_out, return_inverse=True)
    rows = counts[keys // (n + 1)]
    rows[torch.arange(len(keys)), keys % (n + 1)] -= 1
    genuine = Masking(p_mask=0.0) if attend == "unmasked" else masking
    words = _expected_words(world, genuine, rows[:, 1:])[row_of_position]
    return prediction_at(words, batch.shown[documents, positions], masking)


def prediction_at(
    words: Float64[Tensor, "chosen word"], shown: Int64[Tensor, "chosen"], masking: Masking
) -> Float64[Tensor, "chosen token"]:
    """From expected word probabilities given the other tokens to the prediction at the position itself."""
    factor = torch.full_like(words, masking.p_random / words.shape[1])
    kept = shown > 0
    factor[kept, shown[kept] - 1] += masking.p_keep
    factor[~kept] = 1.0
    return F.pad(_normalised(words * factor), (1, 0))


def _expected_words(
    world: World, masking: Masking, counts: Float64[Tensor, "row word"]
) -> Float64[Tensor, "row word"]:
    """E[p | counts of the shown words]."""
    longest = float(counts.sum(dim=1).max()) if len(counts) else 0
    if longest > MAX_LENGTH:
        raise ValueError(
            f"documents may show at most {MAX_LENGTH} words, got one of {longest:.0f}; for longer ones, "
            "loss_floor is the limit"
        )
    exact = _under_lda if world.topics_per_document is None else _over_all_sets
    parts = [exact(world, masking, part) for part in torch.split(counts, ROWS_AT_ONCE) if len(part)]
    return torch.cat([counts[:0], *parts])


def _over_all_sets(
    world: World, masking: Masking, counts: Float64[Tensor, "row word"]
) -> Float64[Tensor, "row word"]:
    """E[p | counts] for uniform topics."""
    tau = world.topics_per_document
    assert tau is not None
    number = comb(world.n_topics, tau)
    if number > MAX_SUBSETS:
        raise ValueError(
            f"{number:,} possible sets of topics_per_document={tau} out of n_topics={world.n_topics} are too many to "
            f"enumerate (at most {MAX_SUBSETS:,}); use fewer topics, or alpha with disjoint topics"
        )
    p = world.topic_words[torch.tensor(list(combinations(range(world.n_topics), tau)))].mean(dim=1)
    shown = masking.genuine_share * p + masking.random_share(world)
    impossible = counts @ (shown == 0).double().T > 0
    logs = counts @ shown.where(shown > 0, 1.0).log().T
    return _normalised(_scaled(logs.masked_fill(impossible, -torch.inf))) @ p


def _under_lda(
    world: World, masking: Masking, counts: Float64[Tensor, "row word"]
) -> Float64[Tensor, "row word"]:
    """E[p | counts] for disjoint topics whose shares follow a Dirichlet distribution."""
    if not world.has_disjoint_topics:
        raise ValueError(
            "overlapping topics under LDA have no exact posterior; use disjoint topics, or topics_per_document "
            "instead of alpha"
        )
    T, alpha, words = world.n_topics, world.dirichlet_parameter, world.topic_words
    topic = words.argmax(dim=0)
    per_topic = torch.zeros(len(counts), T, dtype=torch.float64).index_add_(1, topic, counts)
    # Only topics with a shown word need a factor of their own; all others are alike.
    n_slots = max(1, int((per_topic > 0).sum(dim=1).max()))
    slots = per_topic.argsort(dim=1, descending=True)[:, :n_slots]
    sizes, lengths = per_topic.gather(1, slots), per_topic.sum(dim=1, keepdim=True)
    width = int(lengths.max()) + 1
    steps = torch.arange(width, dtype=torch.float64)
    rising, rising_all = _log_rising(alpha, width), _log_rising(T * alpha, width)
    # Without this common factor per genuine word, Γ(α + k) and Γ(Tα + K) leave the range of floats.
    growth = rising_all[lengths.long()] / lengths.clamp(min=1)
    guess = (alpha + sizes) / (T * alpha + lengths)  # about E[θ_t]: where the genuine counts concentrate
    genuine = _genuine_counts(world, masking, counts, slots, guess)
    logs = genuine.log() + rising - steps * (guess.log() + growth).unsqueeze(2)
    tables = [_scaled(logs[:, slot, : int(sizes[:, slot].max()) + 1]) for slot in range(n_slots)]
    products = _products(tables, width)
    weight = (steps * growth - rising_all).exp()
    inverse = (_normalised(products[-1] * weight) / (T * alpha + steps)).sum(dim=1)  # E[1 / (Tα + K)]
    means = _slot_means(tables, products, weight / (T * alpha + steps))
    theta = (alpha * inverse).unsqueeze(1).repeat(1, T)
    theta.scatter_(1, slots, (alpha + means) * inverse.unsqueeze(1))
    return theta[:, topic] * words.sum(dim=0)


def _genuine_counts(
    world: World,
    masking: Masking,
    counts: Float64[Tensor, "row word"],
    slots: Int64[Tensor, "row slot"],
    guess: Float64[Tensor, "row slot"],
) -> Float64[Tensor, "row slot number"]:
    """Probability of every number of genuine words in a topic, were the topic's share the guess.

    That is the product over its shown words of (random + genuine · z), one factor at a time.
    """
    words, n_rows = world.topic_words, len(counts)
    topic, genuine = words.argmax(dim=0), masking.genuine_share * words.sum(dim=0)
    random = masking.random_share(world)
    slot_of_topic = torch.zeros(n_rows, world.n_topics, dtype=torch.long)
    slot_of_topic.scatter_(1, slots, torch.arange(slots.shape[1]).expand(n_rows, -1))
    length = int(counts.sum(dim=1).max())
    table = torch.zeros(n_rows, slots.shape[1], length + 1, dtype=torch.float64)
    table[:, :, 0] = 1
    row, ends = torch.arange(n_rows), counts.cumsum(dim=1)
    for number in range(length):
        live = number < ends[:, -1]
        word = torch.searchsorted(ends, torch.full((n_rows, 1), float(number)).double(), right=True)
        word = word.squeeze(1).clamp(max=len(topic) - 1)
        slot = slot_of_topic[row, topic[word]]
        weight = genuine[word] * guess[row, slot]
        p = torch.where(live, weight / (weight + random), 0.0).unsqueeze(1)
        before = table[row, slot]
        table[row, slot] = (1 - p) * before + p * F.pad(before, (1, -1))
    return table


def _products(tables: list[Float64[Tensor, "row _number"]], width: int) -> list[Float64[Tensor, "row total"]]:
    """P_t(K) = Σ_k P_{t−1}(K − k) table_t(k): of the total over the first 0, 1, 2, ... topics.

    Each is scaled to a largest entry of 1.
    """
    product = torch.zeros(len(tables[0]), width, dtype=torch.float64)
    product[:, 0] = 1
    products = [product]
    for table in tables:
        size = table.shape[1]
        windows = F.pad(product, (size - 1, 0)).unfold(1, size, 1)
        product = torch.einsum("rtk,rk->rt", windows, table.flip(1))
        product = product / product.amax(dim=1, keepdim=True)
        products.append(product)
    return products


def _slot_means(
    tables: list[Float64[Tensor, "row _number"]],
    products: list[Float64[Tensor, "row total"]],
    weight: Float64[Tensor, "row total"],
) -> Float64[Tensor, "row slot"]:
    """E[k_t] where (k_1, k_2, ...) has probability proportional to Π table_t(k_t) · weight(K).

    Backward, the tail of the last topic is the weight, R_{t−1}(K) = Σ_k table_t(k) R_t(K + k), and
    P(k_t) ∝ table_t(k_t) Σ_K P_{t−1}(K) R_t(K + k_t).
    """
    means, tail = [], weight
    for table, product in zip(reversed(tables), reversed(products[:-1]), strict=True):
        size = table.shape[1]
        windows = F.pad(tail, (0, size - 1)).unfold(1, size, 1)  # [row, total so far, number] -> next total
        joint = _normalised(torch.einsum("rt,rtk->rk", product, windows) * table)
        means.append((joint * torch.arange(size)).sum(dim=1))
        tail = torch.einsum("rtk,rk->rt", windows, table)
        tail = tail / tail.amax(dim=1, keepdim=True)
    return torch.stack(means[::-1], dim=1)


def _scaled(logs: Float64[Tensor, "*rows number"]) -> Float64[Tensor, "*rows number"]:
    """Exponentials, relative to the largest of the row."""
    return (logs - logs.amax(dim=-1, keepdim=True)).exp()


def _log_rising(base: float, width: int) -> Float64[Tensor, "number"]:
    """log(base · (base + 1) ··· (base + k − 1)) for k = 0, 1, ..., width − 1."""
    steps = torch.arange(width - 1, dtype=torch.float64)
    return F.pad((base + steps).log().cumsum(dim=0), (1, 0))


def _normalised(weights: Float64[Tensor, "*rows word"]) -> Float64[Tensor, "*rows word"]:
    """Rows that sum to 1, refusing those that sum to 0."""
    total = weights.sum(dim=-1, keepdim=True)
    if not bool((total > 0).all()):
        raise ValueError(
            "some document cannot occur in this world under this masking scheme (for example more topics "
            "than topics_per_document with p_random = 0); pass the world and scheme that made it"
        )
    return weights / total
