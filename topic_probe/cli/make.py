"""``topic-probe fit-topics`` and ``topic-probe train``: what is made to be measured."""

from pathlib import Path
from typing import Annotated, Any, Literal

from topic_probe.cli.console import Output, WrongUsageError, plain
from topic_probe.cli.inputs import CORPUS, Texts, open_corpus, open_tokenizer
from topic_probe.cli.options import command


@command(
    "Fits topics (LDA) to texts, in the tokens of a model.",
    shown=("corpus", "n_documents", "n_topics", "passes", "fraction", "forms", "max_length", "long", "seed", "out",
           "overwrite", "json"),
    epilogue="""Example:
  topic-probe fit-topics google-bert/bert-base-uncased --corpus bundled --n-topics 20 --out topics20
  topic-probe measure attention google-bert/bert-base-uncased --topics topics20 --corpus bundled""",
)  # fmt: skip
def fit_topics(
    tokenizer: Annotated[str, "name or folder of the model, or of its tokenizer"],
    /,
    *,
    documents: Texts,
    n_topics: Annotated[int, "number of topics"] = 100,
    passes: Annotated[int, "how often LDA reads all texts"] = 10,
    min_documents: Annotated[int, "words in fewer texts are left out"] = 5,
    max_share: Annotated[float, "words in more than this share of texts are left out"] = 0.5,
    stop_words: Annotated[
        list[str] | None, "words to leave out; by default the most frequent ones of English"
    ] = None,
    fraction: Annotated[float, "a word belongs to a topic that gives it this probability"] = 0.002,
    one_topic_per_word: Annotated[bool, "whether a word belongs to its most probable topic alone"] = True,
    forms: Annotated[Literal["case", "stem"], '"stem" also takes cat and cats for one word'] = "case",
    max_length: Annotated[int | None, "texts are cut at so many tokens"] = None,
    long: Annotated[Literal["cut", "chunk"], '"chunk" makes documents of the rest of longer texts'] = "cut",
    revision: Annotated[str | None, "commit, branch or tag of the tokenizer on the hub"] = None,
    seed: Annotated[int, "seed of the fit"] = 0,
    output: Output,
) -> int:
    """Fits topics, chooses their words, saves both."""
    from torch import isin

    import topic_probe as tp

    if output.out is None:
        raise WrongUsageError("fit-topics needs a new folder to write: --out DIR")
    corpus = open_corpus(documents)
    if corpus is None:
        raise WrongUsageError(f"topics are fitted to texts: name them with --corpus: {CORPUS}")
    opened = open_tokenizer(tokenizer, revision=revision)
    read = corpus.documents(opened, max_length=max_length, long=long, progress=output.progress)
    words = {} if stop_words is None else {"stop_words": stop_words}
    fit = tp.fit_topics(
        read, opened, n_topics=n_topics, passes=passes, min_documents=min_documents, max_share=max_share,
        seed=seed, progress=output.progress, **words,
    )  # fmt: skip
    topics = fit.topics(fraction=fraction, one_topic_per_word=one_topic_per_word, forms=forms)
    save_in(Path(output.out), {"fit": fit, "topics": topics}, overwrite=output.overwrite)
    # How often each word is expected to occur, of which those with a topic cover a share of all tokens.
    occurrences = fit.tokens @ fit.phi
    share = float(occurrences[isin(fit.token_ids, topics.words)].sum()) / fit.provenance["tokens"]
    rows = fit.to_dataframe()
    rows.insert(1, "n_words", topics.sizes.tolist())
    about = {"topics": rows, "words": len(fit.token_ids), "diversity": fit.diversity(), "tokens_with_a_topic": share,
             "provenance": fit.provenance, "saved": output.out}  # fmt: skip
    text = f"about {100 * share:.1f} % of tokens have a topic\n{fit}\n\n{topics}"
    output.answer(f"{text}\nsaved in {output.out}: use it with --topics {output.out}", about)
    return 0


@command(
    "Trains the toy transformer of the paper.",
    shown=("regime", "optimizer", "loss", "steps", "learning_rate", "batch_size", "n_topics", "words_per_topic",
           "topics_per_document", "seed", "out", "overwrite", "json"),
    epilogue="""Example (a second; then look into it like into any model):
  topic-probe train --optimizer adam --steps 400 --out toy
  topic-probe measure weights toy --topics toy""",
)  # fmt: skip
def train(
    *,
    regime: Annotated[
        Literal["full", "embedding", "value", "attention", "keys", "two-stage"],
        "what is trained, as the paper names it",
    ] = "full",
    optimizer: Annotated[Literal["sgd", "adam"], "how"] = "sgd",
    loss: Annotated[Literal["cross_entropy", "squared"], "which loss"] = "cross_entropy",
    steps: Annotated[int, "number of steps"] = 1000,
    learning_rate: Annotated[float, "its rate"] = 0.01,
    l2: Annotated[float, "regularisation of the trained tensors"] = 0.0,
    batch_size: Annotated[int, "documents of a step"] = 40,
    n_topics: Annotated[int, "topics of the world"] = 10,
    words_per_topic: Annotated[int, "words of each"] = 10,
    topics_per_document: Annotated[
        int | None, "so many topics a document; by default drawn from a Dirichlet"
    ] = None,
    alpha: Annotated[float | None, "its parameter"] = None,
    min_length: Annotated[int, "shortest document"] = 100,
    max_length: Annotated[int, "longest document"] = 150,
    p_mask: Annotated[float, "share of words to predict"] = 0.15,
    p_keep: Annotated[float, "share of these that is shown as it is"] = 0.1,
    p_random: Annotated[float, "share of these that is shown as another word"] = 0.1,
    attend: Annotated[Literal["all", "unmasked"], "over which positions attention goes"] = "all",
    d_model: Annotated[int | None, "width; by default one-hot embeddings where the regime has them"] = None,
    record_every: Annotated[int, "every so many steps the loss is kept"] = 1,
    seed: Annotated[int, "of the initialisation, the documents and the masks"] = 0,
    output: Output,
) -> int:
    """Trains a toy, looks at its stages and weights, saves everything."""
    import topic_probe as tp

    if output.out is None:
        raise WrongUsageError("train needs a new folder to write: --out DIR")
    world = tp.World(
        n_topics=n_topics, words_per_topic=words_per_topic, topics_per_document=topics_per_document, alpha=alpha,
        min_length=min_length, max_length=max_length,
    )  # fmt: skip
    masking = tp.Masking(p_mask=p_mask, p_keep=p_keep, p_random=p_random)
    toy = tp.ToyConfig(regime=regime, world=world, masking=masking, attend=attend, d_model=d_model)
    training = tp.TrainConfig(
        loss=loss, optimizer=optimizer, learning_rate=learning_rate, l2=l2, batch_size=batch_size, steps=steps,
        record_every=record_every, seed=seed,
    )  # fmt: skip
    model = tp.build_toy(toy, seed=seed)
    history = tp.train_toy(model, training, progress=output.progress)
    reports = _reports(history, model, world.topics)
    kept = {"history": history, "topics": world.topics, **reports}
    save_in(Path(output.out), kept, overwrite=output.overwrite)
    text = "\n\n".join(map(str, (history, *reports.values())))
    about = {"stopped": history.stopped, "last_step": history.last_step, "loss": history.loss[-1:].tolist()}
    output.answer(f"{text}\nsaved in {output.out}", {**about, **plain(reports), "saved": output.out})
    if history.stopped.startswith("interrupted"):
        raise KeyboardInterrupt(f"{history.stopped}; the history until then is in {output.out}")
    if history.stopped != "finished":
        raise ValueError(f"{history.stopped}; what was trained until then is in {output.out}")
    return 0


def _reports(history: Any, model: Any, topics: Any) -> dict[str, Any]:
    """What the training shows: stages where enough was recorded, weights, and embeddings that were trained."""
    import topic_probe as tp
    from topic_probe.train.stages import MIN_ROWS

    reports: dict[str, Any] = {}
    if len(history) >= MIN_ROWS:
        reports["dynamics"] = tp.measure_dynamics(history)
    reports["weights"] = tp.measure_weights(model, topics)
    if "W_E" in history.toy.trained_tensors:
        reports["embeddings"] = tp.measure_embeddings(model, topics, statistic="difference")
    return reports


def save_in(folder: Path, results: dict[str, Any], *, overwrite: bool) -> None:
    """Several results in one folder, each under its name; FileExistsError where one is there, before any is written."""
    from topic_probe import storage

    for name in results:
        storage.check_free(folder / name, overwrite=overwrite)
    for name, result in results.items():
        result.save(folder / name, overwrite=overwrite)
