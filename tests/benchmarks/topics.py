"""Fitting topics beside gensim's own LdaModel: time, perplexity, coherence.

Run with ``python tests/benchmarks/topics.py``. Overlapping slices of the articles inside gensim, tokenized by the
tokenizer of all-MiniLM-L6-v2; every tenth is held out. Both sides have the same words, chunks, passes, priors and
start; gensim has its bags in memory as it wants them. Processor time, interleaved, the least of several. Perplexity is
gensim's, of one and the same class of model in double precision; coherence is the mean NPMI of topics.
"""

import argparse
import sys
from pathlib import Path
from time import process_time

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from gensim.models import LdaModel
from gensim.utils import FakeDict
from real_text import minilm_folder
from scipy.sparse import csr_array
from transformers import AutoTokenizer

from topic_probe.options import progress_bar
from topic_probe.text import lda
from topic_probe.text.corpus import Corpus

SEEDS = range(5)


def slices(n: int) -> list[str]:
    """As many slices of a thousand letters of the bundled articles, overlapping as much as they must."""
    text = " ".join(Corpus.bundled())
    return [text[start : start + 1_000] for start in np.linspace(0, len(text) - 1_000, n).astype(int)]


class Fits:
    """Documents of which every tenth is held out, and topics of the others, ours and gensim's."""

    def __init__(self, n: int, n_topics: int, passes: int) -> None:
        tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
        tokenizer.backend_tokenizer.no_padding()
        documents = list(Corpus.from_texts(slices(n)).documents(tokenizer))
        reason, _ = lda._classified(tokenizer, None)
        bags, counts = lda._read_bags([d for number, d in enumerate(documents) if number % 10], reason)
        columns = lda._frequent(bags, counts, 5, 0.5)
        self.bags = bags[:, columns]
        self.fitted = self.pairs(self.bags)
        self.held_out = self.pairs(lda._read_bags(documents[::10], reason)[0][:, columns])
        self.n_topics = n_topics
        self.options = {"passes": passes, "chunksize": lda._even_chunks(len(self.fitted))}

    def pairs(self, bags: csr_array) -> list[list[tuple[int, int]]]:
        """Bags as gensim wants them, in random order."""
        corpus = lda._Passes(bags, 0)
        corpus.bar = progress_bar(shown=False)
        return list(corpus)

    def ours(self, seed: int) -> np.ndarray:
        return lda._fit(self.bags, self.n_topics, seed, self.options, False)[0]

    def gensims(self, seed: int) -> np.ndarray:
        """LdaModel, started from documents as ours are: without, its topics are far worse."""
        model = LdaModel(
            id2word=FakeDict(self.bags.shape[1]), num_topics=self.n_topics, random_state=seed, eval_every=None,
            **self.options,
        )  # fmt: skip
        lda._start_from_documents(model, lda._Passes(self.bags, seed))
        model.update(self.fitted)
        phi = model.get_topics().astype(np.float64)
        return phi / phi.sum(1, keepdims=True)

    def quality(self, phi: np.ndarray) -> tuple[float, float]:
        """Perplexity of the documents that were held out, and mean coherence."""
        model = LdaModel(
            id2word=FakeDict(phi.shape[1]), num_topics=len(phi), random_state=0, dtype=np.float64
        )
        model.state.sstats = phi * self.bags.sum() / len(phi)  # of topics of equal size
        model.sync_state()
        npmi = lda.coherence(np.argsort(-phi, axis=1, kind="stable")[:, : lda.TOP], self.bags)
        # As if there were as many as were fitted: the bound has a term of the topics, which few would share among them.
        bound = model.log_perplexity(self.held_out, total_docs=len(self.fitted))
        return 2**-bound, float(np.nanmean(npmi))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=4_000)
    parser.add_argument("--topics", type=int, default=100)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument(
        "--quality", action="store_true", help="perplexity and coherence over seeds, at ten passes"
    )
    options = parser.parse_args()
    fits = Fits(options.documents, options.topics, options.passes)
    print(f"{len(fits.fitted):,} documents, {fits.bags.shape[1]:,} words, {options.topics} topics")
    found: dict[str, list[float]] = {"ours": [], "gensim": []}
    for _ in range(options.repetitions):
        for name, fit in (("ours", fits.ours), ("gensim", fits.gensims)):
            start = process_time()
            fit(0)
            found[name].append(process_time() - start)
    for name, seconds in found.items():
        print(f"  {name:8s} {options.passes * len(fits.fitted) / min(seconds):8,.0f} documents/s and pass")
    print(f"  time: {min(found['ours']) / min(found['gensim']):.2f} × gensim's")
    if options.quality:
        fits.options["passes"] = 10
        for name, fit in (("ours", fits.ours), ("gensim", fits.gensims)):
            qualities = np.array([fits.quality(fit(seed)) for seed in SEEDS])
            for what, values in zip(("perplexity", "NPMI"), qualities.T, strict=True):
                print(
                    f"  {name:8s} {what:10s} {values.mean():10.4f}  [{values.min():.4f}, {values.max():.4f}]"
                )


if __name__ == "__main__":
    main()
