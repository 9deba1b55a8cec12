"""``topic-probe fit-topics TOKENIZER --corpus C --out DIR``."""

import argparse
from contextlib import nullcontext

from topic_probe.cli.inputs import (
    CORPORA,
    CORPUS_HELP,
    DOCUMENTS,
    FROM_FIT,
    documents_of,
    open_corpus,
    open_tokenizer,
)
from topic_probe.cli.options import Call, Parser, add_command, add_options, add_out

FIT = Call(
    "topic_probe.text.lda:fit_topics",
    filled=("documents", "tokenizer", "progress"),
    without={"lda_options": "only Python can pass any option on to gensim"},
)
_EPILOG = """example:
  topic-probe fit-topics google-bert/bert-base-uncased --corpus bundled --n-topics 20 --out topics20
  topic-probe measure attention google-bert/bert-base-uncased --topics topics20 --corpus bundled"""


def add_to(parser: Parser) -> None:
    """What the command takes."""
    add_command(parser, run, usage="fit-topics TOKENIZER --corpus CORPUS --out DIR", epilog=_EPILOG)
    parser.add_argument(
        "tokenizer", metavar="TOKENIZER", help="name or folder of the model, or its tokenizer"
    )
    parser.add_argument("--corpus", metavar="CORPUS", required=True, help=CORPUS_HELP)
    add_out(parser, "a new folder for the fit and the topics chosen from it", required=True)
    parser.add_argument("--revision", help="commit, branch or tag of the tokenizer on the hub")
    add_options(parser, {"fit": (FIT,), "choice of words": (FROM_FIT,), "documents": (*CORPORA, DOCUMENTS)})


def run(parsed: argparse.Namespace) -> int:
    """Fit topics, choose their words, save both."""
    from torch import isin

    from topic_probe import storage

    console = parsed.console
    with nullcontext() if console.silent else storage.draft(parsed.out, overwrite=parsed.overwrite) as draft:
        corpus = open_corpus(parsed)
        tokenizer = open_tokenizer(parsed.tokenizer, revision=parsed.revision)
        documents = documents_of(corpus, parsed, tokenizer, progress=console.progress)
        fit = FIT.call(parsed, documents, tokenizer, progress=console.progress)
        topics = FROM_FIT.call(parsed, fit)
        if draft is not None:
            fit.save(draft / "fit")
            topics.save(draft / "topics")
    # How often each word is expected to occur, of which those with a topic cover a share of all tokens.
    occurrences = fit.tokens @ fit.phi
    share = float(occurrences[isin(fit.token_ids, topics.words)].sum()) / fit.provenance["tokens"]
    rows = fit.to_dataframe()
    rows.insert(1, "n_words", topics.sizes.tolist())
    document = {
        "topics": rows,
        "documents": fit.provenance["documents"],
        "words": len(fit.token_ids),
        "diversity": fit.diversity(),
        "tokens_with_a_topic": share,
        "provenance": fit.provenance,
        "settings": fit.settings,
        "saved": parsed.out,
    }
    coverage = f"about {100 * share:.1f} % of tokens have a topic"
    text = f"{coverage}\n{fit}\n\n{topics}\nsaved in {parsed.out}: use it with --topics {parsed.out}"
    console.answer(text, document)
    return 0
