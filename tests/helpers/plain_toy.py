"""The toy in plain torch, one document at a time, from the equations; and its training with torch's optimizers."""

from itertools import count

import torch

from topic_probe.toy.model import toy_config, toy_tensors
from topic_probe.toy.world import Masking, World
from topic_probe.train.toy import draw


def plain_logits(t, ids, *, residual=False, hidden=None):
    """Section 3.3 in columns: predictions [position, word] for a document, from tensors by name.

    Positions in ``hidden`` are not attended to.
    """
    n_layers = sum(name.startswith("W_K") for name in t)
    x = t["W_E"][:, ids]
    for layer in range(n_layers):
        end = "" if n_layers == 1 else f".{layer}"
        K, Q, V, k, q, v = (t[name + end] for name in ("W_K", "W_Q", "W_V", "b_K", "b_Q", "b_V"))
        heads = zip(K, Q, V, k, q, v, strict=True) if K.ndim == 3 else [(K, Q, V, k, q, v)]
        written = 0
        for K, Q, V, k, q, v in heads:
            scores = (K @ x + k[:, None]).T @ (Q @ x + q[:, None]) / len(K) ** 0.5  # [key, query]
            scores = scores if hidden is None else scores.masked_fill(hidden[:, None], -torch.inf)
            written = written + (V @ x + v[:, None]) @ scores.softmax(dim=0)
        x = written + x if residual else written
    return (t["W_E"].T @ x + t["b_pred"][:, None]).T


def plain_cost(prediction, word, loss):
    """Cross-entropy, or the squared distance to the one-hot word."""
    if loss == "cross_entropy":
        return prediction.logsumexp(0) - prediction[word]
    return (prediction - torch.eye(len(prediction), dtype=prediction.dtype)[word]).square().sum()


def plain_loss(t, batch, loss, *, residual=False, attend="all"):
    """Equation 1: the mean over documents that have any masked position of the mean over these; None without any.

    A document in which all are masked has no loss where attention sees the others only.
    """
    documents = []
    for shown, target, mask, chosen in zip(batch.shown, batch.target, batch.mask, batch.chosen, strict=True):
        hidden = chosen[mask] if attend == "unmasked" else None
        if hidden is not None and hidden.all():
            continue
        logits = plain_logits(t, shown[mask], residual=residual, hidden=hidden)
        losses = [plain_cost(logits[j], target[j], loss) for j in chosen[mask].nonzero()[:, 0].tolist()]
        documents += [torch.stack(losses).mean()] if losses else []
    return torch.stack(documents).mean() if documents else None


def plain_batches(toy, config):
    """The batches of a training, one after another."""
    for chunk in count():
        drawn = draw(toy, config, chunk)
        for start in range(0, len(drawn), config.batch_size):
            yield drawn.select(slice(start, start + config.batch_size))


def plain_training(model, config):
    """Rows of numbers by column, and tensors at the end.

    L2 is torch's weight decay (2λθ). What does not move in a phase of the schedule has no gradient, so that the
    optimizers of torch leave it with all its state.
    """
    toy, adam = toy_config(model), config.optimizer == "adam"
    t = {name: value.detach().clone() for name, value in toy_tensors(model).items()}
    trained = {name: t[name].requires_grad_() for name in toy.trained_tensors}
    make = torch.optim.Adam if adam else torch.optim.SGD
    optimizer = make(trained.values(), lr=config.learning_rate, weight_decay=2 * config.l2)
    rounds = [names for length, names in config.schedule for _ in range(length)]
    rows, turned = [], []
    for batch in plain_batches(toy, config):
        value = plain_loss(t, batch, config.loss, residual=toy.residual, attend=toy.attend)
        optimizer.zero_grad(set_to_none=False)
        value.backward()
        for name in trained:
            if t[name].grad is None or name.startswith(
                "b_K"
            ):  # zero but for rounding, which Adam would blow up
                t[name].grad = torch.zeros_like(t[name])
        step = len(rows)
        row = {"loss": value.item()}
        row |= {f"norm_{name}": x.norm().item() for name, x in t.items()}
        turned.append({n: x.detach().clone().flatten() for n, x in trained.items() if n.startswith("W_V")})
        for name, now in turned[-1].items():
            cosine = (
                torch.cosine_similarity(now, turned[step - 10][name], dim=0).item() if step > 9 else torch.nan
            )
            row[f"rotation_{name}"] = (1 - cosine) / 2
        row |= {f"gradient_{name}": x.grad.norm().item() for name, x in trained.items()}
        rows.append(row)
        if step == config.steps:
            break
        for name, x in trained.items():
            if rounds and not {name, name.partition(".")[0]} & set(rounds[step % len(rounds)]):
                x.grad = None
        optimizer.step()
    return rows, {name: x.detach() for name, x in t.items()}


def masked(world, n, *, masking=None, seed=0):
    """Masked documents of a world, with many of them random or kept."""
    generator = torch.Generator().manual_seed(seed)
    documents = world.documents(n, generator=generator)
    return (masking or Masking(0.3, 0.2, 0.2)).corrupt(documents, n_words=world.n_words, generator=generator)


def uniform(n_topics, words_per_topic, topics_per_document, **settings):
    """A world of uniform topics."""
    sizes = {"n_topics": n_topics, "words_per_topic": words_per_topic}
    return World(**sizes, topics_per_document=topics_per_document, **settings)
