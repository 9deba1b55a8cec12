"""What measurements cost beside a plain forward pass of the same model over the same documents, in one run.

Run with ``make bench``. A BERT of MiniLM's size with random weights; a fifth of the tokens have a topic. Processor time
of one thread, so that a busy machine disturbs little; the ways take turns, and each number is the median over rounds.
The whole table of embeddings is of the size of BERT's and beside the norms of its rows.
"""

import argparse
from collections.abc import Callable
from functools import partial
from time import process_time
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertModel

import topic_probe as tp

VOCABULARY, DOCUMENTS, LENGTH = 30_522, 16, 128
N_SETS = N_CUTS = 6
# What was wanted before it was measured; what is not here is told only.
WANTED = {"one set of heads taken out": 1.1, "one cut of edges": 1.1, "embeddings": 200.0}


def some_topics(n_words: int, first: int = 1_000) -> tp.Topics:
    """A hundred topics of equally many words."""
    parts = np.array_split(np.arange(first, first + n_words), 100)
    lists = {f"topic {number}": part.tolist() for number, part in enumerate(parts)}
    return tp.Topics.from_token_ids(lists, vocabulary_size=VOCABULARY)


def model_of(**sizes: int) -> Any:
    torch.manual_seed(0)
    return BertModel(BertConfig(num_attention_heads=12, **sizes), add_pooling_layer=False).eval()


def of_documents() -> dict[str, Callable[[], Any]]:
    """What reads documents."""
    inside = model_of(num_hidden_layers=6, hidden_size=384, intermediate_size=1536)
    model, topics = tp.open_model(inside), some_topics(6_000)
    smaller = [some_topics(n_words) for n_words in (6_000, 3_000, 1_500)]
    documents = np.random.default_rng(0).integers(1_000, VOCABULARY, (DOCUMENTS, LENGTH)).tolist()
    ids, plain = torch.tensor(documents), {"special_ids": ()}

    def forward() -> None:
        with torch.no_grad():
            inside(ids, output_hidden_states=True)

    attention = partial(tp.measure_attention, model, documents=documents, **plain)
    edited = {"n_matched": 0, "special_ids": ()}
    ablation = partial(tp.measure_ablation, model, topics, documents, kind="zero", **edited)
    sets = {str(head): [(1, head)] for head in range(N_SETS)}
    return {
        "forward": forward,
        "attention": partial(attention, topics, n_permutations=0),
        "attention, 200 permutations": partial(attention, topics, n_permutations=200),
        "attention, three topics at once": partial(attention, smaller, n_permutations=0),
        "states": partial(tp.measure_embeddings, model, topics, documents, **plain),
        "weights of all heads": partial(tp.measure_weights, model, smaller[-1]),
        "no set": partial(ablation, sets={}),
        "sets": partial(ablation, sets=sets),
        "one cut": partial(tp.measure_knockout, model, topics, documents, **edited),
        "cuts": partial(tp.measure_knockout, model, topics, documents, n_matched=N_CUTS, special_ids=()),
    }


def of_tables() -> dict[str, Callable[[], Any]]:
    """What reads a table of embeddings."""
    model = tp.open_model(model_of(num_hidden_layers=1, hidden_size=768, intermediate_size=64))
    table = model.original_model.get_input_embeddings().weight.detach()
    topics = some_topics(VOCABULARY, first=0)
    return {
        "norms": lambda: table.norm(dim=-1),
        "embeddings": partial(tp.measure_embeddings, model, topics),
    }


def medians(runs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Seconds of every way."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, run in runs.items():
            start = process_time()
            run()
            found[name].append(process_time() - start)
    return {
        name: float(np.median(seconds[1:])) for name, seconds in found.items()
    }  # the first round warms up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    found = medians(of_documents(), rounds)
    forward = found.pop("forward")
    sets, cuts = (
        (found.pop(many) - found.pop(one)) / n
        for many, one, n in (("sets", "no set", N_SETS), ("cuts", "one cut", N_CUTS))
    )
    found |= {"one set of heads taken out": sets, "one cut of edges": cuts}
    print(f"{DOCUMENTS} documents of {LENGTH} tokens, a forward pass of {forward:.2f} s")
    tables = medians(of_tables(), rounds)
    norms = tables.pop("norms")
    for seconds, unit, name in ((found, forward, "forward pass"), (tables, norms, "norms of all rows")):
        for way, taken in seconds.items():
            wanted = f"   wanted: at most {WANTED[way]:g}" if way in WANTED else ""
            print(f"  {way:34s} {taken / unit:7.2f} × {name}{wanted}")


if __name__ == "__main__":
    main()
