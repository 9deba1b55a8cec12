"""Fitting topics beside gensim's own LdaModel: time on one core and over processes, perplexity, coherence.

Run with ``python tests/benchmarks/topics.py``. Overlapping slices of the articles inside gensim, tokenized by the
tokenizer of all-MiniLM-L6-v2; every tenth is held out. Both sides have the same words, chunks, passes, priors and
start; gensim has its bags in memory and its own single precision. Processor time, interleaved, the least of several.
Perplexity is gensim's, of one and the same class of model in double precision; coherence is the mean NPMI of topics.
"""

import argparse
import sys
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
sys.path.insert(0, str(Path(__file__).parent))

from corpus import slices
from gensim.models import LdaModel
from gensim.utils import FakeDict
from real_text import minilm_folder
from transformers import AutoTokenizer

from topic_probe.notices import progress_bar
from topic_probe.processes import Processes
from topic_probe.text import lda
from topic_probe.text.bags import Bags, Reading, judge
from topic_probe.text.corpus import Corpus

SEEDS = range(5)


class Fits:
    """Documents of which every tenth is held out, and topics of the others, ours and gensim's."""

    def __init__(self, n: int, n_topics: int, passes: int) -> None:
        tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
        tokenizer.backend_tokenizer.no_padding()
        documents = list(Corpus.from_texts(slices(n)).documents(tokenizer))
        self.words = judge(tokenizer, None, 2)
        self.bags, self.reading = self.read([d for number, d in enumerate(documents) if number % 10])
        self.columns = lda._columns(self.reading, 5, 0.5)
        self.fitted = self.pairs(self.bags)
        self.held_out = self.pairs(self.read(documents[::10])[0])
        chunk_size = lda._even_chunks(len(self.fitted), None)
        self.settings = {
            "n_topics": n_topics, "passes": passes, "iterations": 50, "chunk_size": chunk_size, "alpha": "symmetric",
            "eta": None, "start": "documents", "workers": 1,
        }  # fmt: skip

    def read(self, documents: list[Any]) -> tuple[Bags, Reading]:
        reading = Reading(bags := Bags(), self.words)
        reading.read(documents)
        reading.exchange(Processes())
        return bags, reading

    def pairs(self, bags: Bags) -> list[list[tuple[int, int]]]:
        """Bags as gensim wants them, in random order."""
        corpus = lda._Pairs(bags, self.columns, len(self.words.reason), 0)
        corpus.bar = progress_bar(shown=False)
        return list(corpus)

    def ours(self, seed: int) -> np.ndarray:
        corpus = lda._Passes(self.bags, self.columns, len(self.words.reason), seed)
        settings = {**self.settings, "seed": seed}
        return lda._fit(corpus, self.reading.tokens[self.columns], settings, Processes(), False)[0]

    def gensims(self, seed: int) -> np.ndarray:
        """LdaModel, started from documents as ours are: without, its topics are far worse."""
        model = LdaModel(
            id2word=FakeDict(len(self.columns)), num_topics=self.settings["n_topics"], random_state=seed,
            chunksize=self.settings["chunk_size"], passes=self.settings["passes"], eval_every=None,
        )  # fmt: skip
        lda._start_from_documents(model, lda._Passes(self.bags, self.columns, len(self.words.reason), seed))
        model.update(self.fitted)
        phi = model.get_topics().astype(np.float64)
        return phi / phi.sum(1, keepdims=True)

    def quality(self, phi: np.ndarray) -> tuple[float, float]:
        """Perplexity of the documents that were held out, and mean coherence."""
        tokens = self.reading.tokens[self.columns].sum()
        model = LdaModel(
            id2word=FakeDict(phi.shape[1]), num_topics=len(phi), random_state=0, dtype=np.float64
        )
        model.state.sstats = phi * tokens / len(phi)  # of topics of equal size
        model.sync_state()
        npmi, _ = lda.coherence(
            np.argsort(-phi, axis=1, kind="stable")[:, : lda.TOP], self.bags, self.columns, Processes()
        )
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
    print(f"{len(fits.fitted):,} documents, {len(fits.columns):,} words, {options.topics} topics")
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
        fits.settings["passes"] = 10
        for name, fit in (("ours", fits.ours), ("gensim", fits.gensims)):
            qualities = np.array([fits.quality(fit(seed)) for seed in SEEDS])
            for what, values in zip(("perplexity", "NPMI"), qualities.T, strict=True):
                print(
                    f"  {name:8s} {what:10s} {values.mean():10.4f}  [{values.min():.4f}, {values.max():.4f}]"
                )


if __name__ == "__main__":
    main()
