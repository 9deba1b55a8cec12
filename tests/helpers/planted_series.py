"""Series of steps with known truth, made of sums by source and of tables of words: no model is run."""

import numpy as np
import torch

import topic_probe as tp
from topic_probe.series.measured import SeriesReport, kept_of_words


def deviations(generator, shape, n_steps, *, correlation=0.7):
    """Normal numbers that belong together from step to step, behind axes of their own: [*shape, step]."""
    found = np.empty((*shape, n_steps))
    found[..., 0] = generator.standard_normal(shape)
    for step in range(1, n_steps):
        more = generator.standard_normal(shape)
        found[..., step] = correlation * found[..., step - 1] + np.sqrt(1 - correlation**2) * more
    return found


def attention_sums(generator, effects, *, n_sources, n_layers, spread=0.3, correlation=0.7, stay=0.5):
    """Sums of every step [head, step] with these true differences between same-topic and different-topic means.

    Sources differ: in how much attention goes to either kind of pairs at all steps (``stay``) and at each, in how many
    pairs they have (some have ten times as many as others), and less before training than after.
    """
    n_heads, n_steps = effects.shape
    pairs = np.round(np.exp(generator.normal(3, 0.7, n_sources))) + 2
    counts = np.stack([pairs, 2 * pairs, 8 * pairs], 1)[:, None]
    always = generator.normal(0, stay * spread, (n_sources, n_heads, 2, 1))
    moving = deviations(generator, (n_sources, n_heads, 2), n_steps, correlation=correlation) * spread
    grown = np.where(np.arange(n_steps) == 0, 0.3, 1.0)
    means = 1 + (always + moving) * grown
    means[:, :, 0] += effects
    rows, index = [], {
        "stack": ("self",) * n_heads,
        "layer": tuple(head * n_layers // n_heads for head in range(n_heads)),
        "head": tuple(head % (n_heads // n_layers) for head in range(n_heads)),
    }  # fmt: skip
    for step in range(n_steps):
        of_step = np.stack([np.ones((n_sources, n_heads)), means[:, :, 0, step], means[:, :, 1, step]], -1)
        squares = ((of_step**2 + 0.5) * counts)[..., 1:].sum(-1)
        keys = np.arange(n_sources, dtype=np.int64)
        rows.append(
            {"keys": keys, "sums": of_step * counts, "counts": counts, "squares": squares, "index": index}
        )
    return rows


def states_of(attention, n_layers):
    """The same sums as those of states, the first cells for layers."""
    index = {"layer": tuple(range(n_layers))}
    cut = {name: attention[name][:, :n_layers] for name in ("sums", "squares")}
    return {**attention, **cut, "index": index}


def topics_of(n_topics, n_words):
    """Topics of n words each; no other words are there."""
    return tp.Topics.blocks(n_topics=n_topics, words_per_topic=n_words)


def word_sums(generator, effects, topics, *, width=16, correlation=0.7):
    """Sums of the table of every step, in which words have so much of the direction of their topic."""
    n_words, n_topics = topics.vocabulary_size, topics.n_topics
    own = np.maximum(np.arange(n_words) - 1, 0) // ((n_words - 1) // n_topics)
    noise = deviations(generator, (n_words, width), len(effects), correlation=correlation)
    directions = generator.standard_normal((n_topics, width))
    rows = []
    for step, effect in enumerate(effects):
        table = torch.tensor(noise[..., step] + effect * directions[own])
        rows.append(kept_of_words(table, topics, {}))
    return rows


def series_report(steps, sums, measure=("embeddings", "attention", "states")):
    """The report of steps that have these sums, and nothing else."""
    n = len(sums)
    return SeriesReport(
        steps=np.array(steps), reports=({},) * n, reasons=("",) * n, models=({},) * n, sums=tuple(sums),
        provenance={"options": {"measure": list(measure)}},
    )  # fmt: skip
