"""Online variational Bayes for LDA: gensim's own, with the documents of every update shared out over processes.

gensim infers the topics of documents (`LdaModel.inference`, the E-step), blends what they say into its state and takes
topics from it (the M-step). Here the documents of an update fall into parts, always the same ones with seeds of their
own, of which every process infers some; what they say is added up over processes, and every process blends it in.

Sums of floating-point numbers depend on their order, unless no addition rounds. A word cannot be in an update oftener
than in all documents, so what a part says of it is rounded once, to what a double has room for in a number twice as
large: all sums of that are exact. Any number of processes then gives the same bits, whoever infers what and whoever is
through first.
"""

import copy
import math
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from types import FrameType
from typing import Any

import numpy as np
from gensim.models import LdaModel
from gensim.models.ldamodel import LdaState
from jaxtyping import Float64, Int64

from topic_probe.processes import Processes

# An update has so many parts, for as many processes at most, as far as a part then has so many documents at least and
# at most: with fewer, what a part costs beside them would show; of more there may be more parts.
_PARTS, _FEWEST, _MOST = 16, 32, 128


class SharedLda(LdaModel):  # type: ignore[misc]
    """gensim's LDA in double precision, of documents whose words ``corpus.columns`` unpacks."""

    def __init__(
        self,
        processes: Processes,
        corpus: Any,
        tokens: Int64[np.ndarray, "column"],
        seed: int,
        **options: Any,
    ) -> None:
        super().__init__(dtype=np.float64, random_state=seed, **options)
        self.processes, self.corpus, self.seed = processes, corpus, seed
        # What is added to this and taken off again has been rounded; it is at most half as large.
        self.above = 2.0 ** (np.ceil(np.log2(tokens)) + 1)
        self.n_chunks, self.interrupted = 0, False
        # Words are looked up and added to, so it is they whose numbers stand side by side: [column, topic].
        self.state.sstats = np.asfortranarray(self.state.sstats)
        self.of_words = np.ascontiguousarray(self.expElogbeta.T)

    def sync_state(self, current_Elogbeta: Any = None) -> None:
        """Takes topics from the state."""
        super().sync_state(current_Elogbeta)
        self.of_words = np.ascontiguousarray(self.expElogbeta.T)

    def do_estep(self, chunk: Sequence[Any], state: LdaState | None = None) -> Float64[np.ndarray, "_ topic"]:
        """Adds what the documents of an update say to a state; their topics, where a prior is learnt from these."""
        assert state is not None
        size = min(max(len(chunk) / _PARTS, _FEWEST), _MOST)
        parts = np.array_split(np.arange(len(chunk)), math.ceil(len(chunk) / size))
        said, gammas = np.zeros_like(self.of_words), []
        for number in range(self.processes.index, len(parts), self.processes.size):
            self.processes.check()
            packed = [chunk[place] for place in parts[number]]
            gamma = self._infer(packed, np.random.SeedSequence((self.seed, self.n_chunks, number)), said)
            gammas.append(gamma if self.optimize_alpha else None)
        every = self.processes.gather((self.interrupted, gammas))
        if any(interrupted for interrupted, _ in every):
            raise KeyboardInterrupt
        state.sstats = self.processes.add(said).T
        state.numdocs += len(chunk)
        self.n_chunks += 1
        if not self.optimize_alpha:
            return np.empty((0, self.num_topics))
        in_order = [every[number % len(every)][1][number // len(every)] for number in range(len(parts))]
        return np.concatenate(in_order)

    def _infer(
        self, packed: list[bytes], seed: np.random.SeedSequence, said: Float64[np.ndarray, "column topic"]
    ) -> Float64[np.ndarray, "document topic"]:
        """Topics of the documents of a part, and what these say of the words in them."""
        columns, counts, ends = self.corpus.columns(packed)
        words, places = np.unique(columns, return_inverse=True)
        # In tuples, which the collector of garbage leaves alone; lists cost it as much as a third of the inference.
        pairs = list(zip(places.tolist(), counts.tolist(), strict=True))
        documents = [pairs[start:end] for start, end in pairwise([0, *ends.tolist()])]
        model = copy.copy(self)
        model.expElogbeta = self.of_words[words].T  # only these words: a part has few of all
        model.random_state = np.random.RandomState(np.random.PCG64(seed))
        gamma, statistics = model.inference(documents, collect_sstats=True)
        of_words, above = statistics.T, self.above[words, None]
        of_words += above
        of_words -= above
        said[words] += of_words
        return gamma  # type: ignore[no-any-return]

    def do_mstep(self, rho: float, other: LdaState, extra_pass: bool = False) -> None:
        """Blends what documents have said into the state, and takes topics from it, without gensim's words on it."""
        self.state.blend(rho, other)
        self.sync_state()
        if self.optimize_eta:
            self.update_eta(self.state.get_lambda(), rho)
        if not extra_pass:
            self.num_updates += other.numdocs

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Ctrl-C ends the fit between two updates, in all processes; signals come to the first thread alone."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def note(number: int, frame: FrameType | None) -> None:
            self.interrupted = True

        before = signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
