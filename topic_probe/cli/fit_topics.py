"""``topic-probe fit-topics TOKENIZER --corpus C --out DIR``."""

import argparse
from typing import Any

from topic_probe.cli.inputs import (
    CORPORA,
    CORPUS_HELP,
    DOCUMENTS,
    FROM_FIT,
    documents_of,
    open_corpus,
    open_tokenizer,
)
from topic_probe.cli.options import Call, Option, add_command, add_options, add_out, number_or_word

FIT = Call(
    "topic_probe.text.lda:fit_topics",
    (
        Option("n_topics", "number of topics", int, 100),
        Option("passes", "over the documents", int, 10),
        Option("iterations", "at most for the topics of one document", int, 50),
        Option("chunk_size", "documents per update", int, shown="a quarter, within 100 and 2000"),
        Option(
            "alpha", "prior over topics: symmetric, asymmetric, auto or a number", number_or_word, "symmetric"
        ),
        Option("eta", "prior over words: symmetric, auto or a number", number_or_word, shown="symmetric"),
        Option("start", "from", default="documents", choices=("documents", "random")),
        Option("min_documents", "words in fewer documents are left out", int, 5),
        Option("max_share", "words in a larger share of the documents are left out", float, 0.5),
        Option(
            "stop_words", "words left out; with none after it: no words", many=True, shown="gensim's list"
        ),
        Option("min_letters", "words of fewer letters are left out", int, 2),
        Option("seed", "of the fit", int, 0),
        Option("workers", "processes; with more than one the topics change from run to run", int, 1),
        Option("distributed", "use gensim's own cluster", bool, False),
    ),
    filled=("documents", "tokenizer", "progress"),
)
_EPILOG = """example:
  topic-probe fit-topics google-bert/bert-base-uncased --corpus bundled --n-topics 20 --out topics20
  topic-probe measure attention google-bert/bert-base-uncased --topics topics20 --corpus bundled"""


def add_to(commands: Any) -> None:
    """The command."""
    parser = add_command(
        commands,
        "fit-topics",
        run,
        "fit topics (LDA) to texts, in the tokens of a model",
        usage="fit-topics TOKENIZER --corpus CORPUS --out DIR",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "tokenizer", metavar="TOKENIZER", help="name or folder of the model, or its tokenizer"
    )
    parser.add_argument("--corpus", metavar="CORPUS", required=True, help=CORPUS_HELP)
    add_out(parser, "a new folder for the fit and the topics chosen from it", required=True)
    parser.add_argument("--revision", help="commit, branch or tag of the tokenizer on the hub")
    add_options(parser, {"fit": (FIT,), "choice of words": (FROM_FIT,), "documents": (*CORPORA, DOCUMENTS)})


def run(parsed: argparse.Namespace) -> int:
    """Fit topics, choose their words, save both."""
    from topic_probe import storage
    from topic_probe.text.lda import fit_topics
    from topic_probe.topics import Topics

    console = parsed.console
    with storage.draft(parsed.out, overwrite=parsed.overwrite) as draft:
        corpus = open_corpus(parsed)
        tokenizer = open_tokenizer(parsed.tokenizer, revision=parsed.revision)
        documents = documents_of(corpus, parsed, tokenizer, progress=console.progress)
        fit = fit_topics(documents, tokenizer, progress=console.progress, **FIT.arguments(parsed))
        topics = Topics.from_lda(fit, **FROM_FIT.arguments(parsed))
        fit.save(draft / "fit")
        topics.save(draft / "topics")
    rows = fit.to_dataframe()
    rows.insert(1, "n_words", topics.sizes.tolist())
    told = {
        "documents": fit.provenance["documents"],
        "words": len(fit.token_ids),
        "diversity": fit.diversity(),
    }
    console.answer(
        f"{fit}\n\n{topics}\nsaved in {parsed.out}: use it with --topics {parsed.out}",
        {"topics": rows, **told, "provenance": fit.provenance, "settings": fit.settings, "saved": parsed.out},
    )
    if fit.provenance["stopped"]:
        raise KeyboardInterrupt(f"{fit.provenance['stopped']}; the fit until then is in {parsed.out}")
    return 0
