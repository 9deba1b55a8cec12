"""Topics fitted by several processes: the bits of one, gensim's own E-step and M-step, and errors in all of them."""

import many_fits
import numpy as np
import pytest
import torch
from gensim.models import LdaModel
from gensim.utils import FakeDict
from torchrun import in_two_processes

import topic_probe as tp
from topic_probe.processes import Processes
from topic_probe.text import bags as bags_module
from topic_probe.text import lda, variational


@pytest.mark.parametrize(
    "options", [{}, {"alpha": "auto", "eta": "auto"}, {"start": "random", "chunk_size": 37}]
)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_any_number_of_processes_gives_the_bits_of_one(size, options, in_processes):
    """Rounding would show: topics of random documents hang on the last bit of everything that is added up."""
    alone = many_fits.fit(**options)
    for fit in in_processes(size, lambda index: many_fits.fit(distributed=True, **options)):
        for name in ("phi", "tokens", "npmi", "umass", "document_frequency"):
            assert torch.equal(getattr(fit, name), getattr(alone, name)), name
        assert fit.settings == alone.settings
        told = {**fit.provenance, "processes": 1}
        assert told == alone.provenance


def test_the_order_of_documents_changes_no_bit():
    assert torch.equal(many_fits.fit().phi, many_fits.fit(many_fits.documents()[::-1]).phi)


def test_bags_that_are_sent_in_many_packets_arrive_once(in_processes, monkeypatch):
    monkeypatch.setattr(bags_module.Bags, "_SENT", 100)
    alone = many_fits.fit()
    for fit in in_processes(3, lambda index: many_fits.fit(distributed=True)):
        assert torch.equal(fit.phi, alone.phi)


def _model(n_documents, **options):
    """An untrained model of ours over random bags, and the same documents as gensim takes them."""
    generator = np.random.default_rng(5)
    with bags_module.Bags() as bags:
        for _ in range(n_documents):
            ids = np.sort(generator.choice(60, generator.integers(1, 20), replace=False))
            bags.add((ids, generator.integers(1, 5, len(ids))))
        bags.flush()
        corpus = lda._Passes(bags, np.arange(60), 60, 0)
        packed = list(corpus.shuffled())
    pairs = [list(zip(*(part.tolist() for part in bags_module.unpacked(one)), strict=True)) for one in packed]
    tokens = np.bincount([column for one in pairs for column, n in one for _ in range(n)], minlength=60)
    tokens = np.maximum(tokens, 1)  # what no document holds is not fitted
    settings = {"id2word": FakeDict(60), "num_topics": 7, "eval_every": None, **options}
    return variational.SharedLda(Processes(), corpus, tokens, 0, **settings), packed, pairs, settings


def test_what_documents_say_is_what_gensims_e_step_says():
    """Under a strong prior topics of documents converge to the same whatever they start from."""
    ours, packed, pairs, settings = _model(90, alpha=5.0, iterations=3000, gamma_threshold=1e-13)
    theirs = LdaModel(random_state=0, dtype=np.float64, **settings)
    states = []
    for model, chunk in ((ours, packed), (theirs, pairs)):
        states.append(variational.LdaState(model.eta, (7, 60), np.float64))
        model.do_estep(chunk, states[-1])
    assert states[0].numdocs == states[1].numdocs == 90
    np.testing.assert_allclose(states[0].sstats, states[1].sstats, rtol=1e-6, atol=1e-6)
    total = sum(n for one in pairs for _, n in one)
    assert states[0].sstats.sum() == pytest.approx(total, rel=1e-12)


def test_topics_are_updated_as_gensim_updates_them():
    """The same statistics, blended into the same state, with and without a prior that is learnt."""
    for eta in (None, "auto"):
        ours, _, _, settings = _model(20, eta=eta)
        theirs = LdaModel(random_state=0, dtype=np.float64, **settings)
        for step, rho in enumerate((0.7, 0.5, 0.3)):
            for model in (ours, theirs):
                model.state.numdocs = 100
                other = variational.LdaState(model.eta, (7, 60), np.float64)
                other.sstats = np.random.default_rng(step).random((7, 60))
                other.numdocs = 20
                model.do_mstep(rho, other, step > 1)
        assert ours.num_updates == theirs.num_updates == 40
        np.testing.assert_allclose(ours.get_topics(), theirs.get_topics(), rtol=1e-12)
        np.testing.assert_allclose(ours.of_words.T, theirs.expElogbeta, rtol=1e-12)
        np.testing.assert_allclose(ours.eta, theirs.eta, rtol=1e-12)


@pytest.mark.parametrize("tokens", [1, 2, 3, 1000, 2**20 + 1])
def test_sums_of_what_parts_say_do_not_depend_on_their_order(tokens):
    """Whole numbers of 2⁻⁵¹ of a power of two above the largest sum: added up exactly in any order."""
    generator = np.random.default_rng(0)
    above = 2.0 ** (np.ceil(np.log2(tokens)) + 1)
    said = generator.dirichlet(np.ones(50)) * tokens
    rounded = (said + above) - above
    assert np.abs(rounded - said).max() <= tokens * 2.0**-50
    sums = {float(np.add.reduce(generator.permutation(rounded))) for _ in range(20)}
    sums |= {float(sum(generator.permutation(rounded).tolist())) for _ in range(200)}
    assert len(sums) == 1
    assert (
        len({float(sum(generator.permutation(said).tolist())) for _ in range(200)}) > 1
    )  # unrounded it does


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (lambda index: {"seed": index}, "process 1 does something else than process 0; they differ in seed:"),
        (lambda index: {"n_topics": 5 + index, "passes": 2 - index}, "they differ in n_topics, passes:"),
        (lambda index: {"own": many_fits.documents()[index:]}, "they differ in number of documents, first documents:"),
        (lambda index: {"own": iter(many_fits.documents()[: 290 - index])}, "process 1 was given 289 documents in"),
        (lambda index: {"own": iter(many_fits.documents(index))}, "they differ in first documents"),
    ],
)  # fmt: skip
def test_processes_that_were_given_different_things_have_no_topics(options, words, in_processes):
    def work(index):
        with pytest.raises(ValueError, match=words):
            many_fits.fit(distributed=True, **options(index))
        return True

    assert in_processes(2, work) == [True, True]


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """What two processes saved that torchrun has started."""
    folder = tmp_path_factory.mktemp("two fits")
    in_two_processes(many_fits.__file__, folder)
    return folder


@pytest.mark.parametrize("case", list(many_fits.CASES))
def test_two_processes_of_torchrun_give_the_topics_of_one(case, two_processes):
    alone = many_fits.CASES[case](two_processes)
    for rank in range(2):
        fit = tp.load_report(two_processes / f"{case} {rank}")
        assert torch.equal(fit.phi, alone.phi)
        assert fit.provenance["processes"] == 2
        assert {**fit.provenance, "processes": 1} == alone.provenance


def test_two_processes_of_torchrun_count_what_one_counts(two_processes):
    alone = tp.count_cooccurrence(many_fits.documents(), range(5, 85))
    assert all(tp.load_report(two_processes / f"counts {rank}") == alone for rank in range(2))


def test_ctrl_c_in_one_process_ends_all_with_the_same_topics(two_processes):
    """Between two updates, of 97, 97 and 96 documents in a pass: in the eighth, which is left out."""
    fits = [tp.load_report(two_processes / f"interrupted {rank}") for rank in range(2)]
    assert fits[0] == fits[1]
    assert fits[0].provenance["stopped"] == "interrupted after 774 of 14,500 documents"


def test_a_process_that_fails_is_named_in_the_others(two_processes):
    said = [(two_processes / f"failed {rank}").read_text() for rank in range(2)]
    assert "OtherProcessError: there is no result, because process 1 failed: ValueError: document" in said[0]
    assert "holds the token id 999" in said[1]
