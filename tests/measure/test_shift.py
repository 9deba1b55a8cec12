"""Shift: known answers of the toy, the same by double loops and PyTorch's own hooks, and what is replaced by what."""

import math
from collections import Counter
from functools import cache

import known_toy
import numpy as np
import pytest
import torch
import zoo
from scipy.stats import kstest

import topic_probe as tp
from topic_probe.measure.exchanges import NO_PARTNER, OWN_TOPIC, Exchanges
from topic_probe.measure.scores import Units
from topic_probe.topics import Topics
from topic_probe.toy.masking import MaskedBatch

WORDS = {"one": range(5, 20), "two": range(20, 40), "three": range(40, 60)}
TOPICS = Topics.from_token_ids(
    {name: list(words) for name, words in WORDS.items()}, vocabulary_size=zoo.VOCABULARY
)
ALIKE = torch.ones(zoo.VOCABULARY)
MASK = 3


DOCUMENTS = zoo.lists((22, 29, 24, 30, 21, 26, 23, 30, 28, 25))
OPTIONS = {"special_ids": (), "frequency": ALIKE, "mask_share": 0.3, "n_permutations": 3}


def opened(name):
    model = tp.open_model(zoo.make(name))
    known = {"mask_token_id": MASK, "pad_token_id": 0, "all_special_ids": [MASK]}
    model.tokenizer = type("Tokenizer", (), known)()
    return model


@pytest.fixture(scope="module")
def bert():
    return opened("bert")


@pytest.fixture(scope="module")
def gpt2():
    return opened("gpt2")


# ---------------------------------------------------------------------------- worlds, by theory


WORLDS = {
    "lda": tp.World(n_topics=4, words_per_topic=6, alpha=0.2, min_length=20, max_length=30),
    "uniform": tp.World(n_topics=4, words_per_topic=6, topics_per_document=2, min_length=20, max_length=30),
}


def posterior(world, power=1.0):
    """A model that predicts as well as can be, or as if it were only so sure."""

    def logits(model, inputs):
        chosen = (inputs.ids == 0) & inputs.mask
        batch = MaskedBatch(inputs.ids, inputs.ids, inputs.mask, chosen)
        rows = tp.theory.bayes_predictor(world, tp.Masking(), batch).probabilities
        scores = torch.full((*inputs.ids.shape, rows.shape[1]), torch.nan, dtype=torch.float64)
        scores[chosen] = power * rows.log() + 3.0
        return scores

    return logits


@cache
def toy_of(world):
    return tp.build_toy(tp.ToyConfig(regime="value", world=world))


def in_world(world, logits, **options):
    documents = world.documents(20, generator=torch.Generator().manual_seed(0))
    options = {"world": world, "special_ids": (), "frequency": torch.ones(world.vocabulary_size)} | options
    return tp.measure_shift(toy_of(world), world.topics, documents, logits=logits, **options)


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_the_best_predictor_has_slope_1_and_words_of_the_same_topic_do_not_move_it(world):
    report = in_world(world, posterior(world), n_matched=3)
    assert report.slope == pytest.approx(1, abs=1e-9)
    np.testing.assert_allclose(report.slope_interval, 1, atol=1e-9)
    assert report.shift < -0.5
    assert report.interval[1] < 0
    np.testing.assert_allclose(report.own_words, 0, atol=1e-9)
    assert report.beyond == pytest.approx(report.shift, abs=1e-9)
    assert report.p_value == 2 / 201
    assert report.provenance["words"]["matched"] > 0.5


@pytest.mark.slow
def test_p_values_of_models_that_were_never_trained_are_uniform():
    """Scores that every shown word moves at random, whatever its topic is; few words, so that chance moves topics."""
    world, found = WORLDS["lda"], []
    for seed in range(30):
        generator = torch.Generator().manual_seed(seed)
        moves = torch.randn(world.vocabulary_size, world.vocabulary_size, generator=generator)

        def logits(model, inputs, moves=moves):
            counts = torch.nn.functional.one_hot(inputs.ids, len(moves)).sum(1).float()
            return (counts @ moves)[:, None].expand(-1, inputs.ids.shape[1], -1)

        report = in_world(world, logits, n_matched=0, n_permutations=99, heads="", seed=seed)
        found.append(report.p_value)
    assert kstest(found, "uniform").pvalue > 0.001
    assert np.mean(np.array(found) <= 0.1) < 0.25


def test_a_predictor_that_is_half_as_sure_has_half_the_slope():
    """Words of a topic are equally likely in this world, so the square root of each halves the log-odds of topics."""
    world = WORLDS["lda"]
    assert in_world(world, posterior(world, 0.5), n_matched=0).slope == pytest.approx(0.5, abs=1e-9)


def test_a_model_that_ignores_what_it_reads_has_slope_0():
    world = WORLDS["lda"]
    bias = torch.linspace(-1, 1, world.vocabulary_size)
    report = in_world(world, lambda model, inputs: bias.expand(*inputs.ids.shape, -1), n_matched=2)
    assert report.slope == report.shift == 0.0
    assert report.slope_interval.tolist() == report.interval.tolist() == [0.0, 0.0]
    assert report.p_value == 1.0
    assert report.expected < 0
    assert np.isnan(report.share).all()


def test_the_one_head_of_a_toy_carries_the_whole_shift_and_the_head_that_writes_nothing_none():
    """Head 0 attends uniformly and writes what Theorem 2 says; head 1 attends by topic, and its values are 0."""
    n = known_toy.WORLD.vocabulary_size
    zero = torch.zeros(n, n, dtype=torch.float64)
    one = known_toy.toy(W_V=known_toy.theorem_2())
    both = known_toy.toy(
        2,
        W_K=torch.stack([zero, known_toy.same_block()]),
        W_Q=torch.stack([zero, 20 * torch.eye(n, dtype=torch.float64)]),
        W_V=torch.stack([known_toy.theorem_2(), zero]),
    )
    options = {"world": known_toy.WORLD, "special_ids": (), "frequency": torch.ones(n), "n_matched": 0}
    documents = known_toy.documents()[:12]
    reports = [tp.measure_shift(toy, known_toy.WORLD.blocks, documents, **options) for toy in (one, both)]
    assert reports[0].share == pytest.approx([1.0], abs=1e-12)
    assert reports[1].share[0] == pytest.approx(1.0, abs=1e-12)
    assert reports[1].share[1] == 0.0
    assert reports[1].share_interval[1].tolist() == [0.0, 0.0]
    assert reports[0].shift == pytest.approx(reports[1].shift, abs=1e-12)
    assert reports[0].shift < 0


def test_the_toys_shift_is_that_of_theorem_2_by_hand():
    """W_V maps the frequencies that are shown to scores; their softmax, topic by topic, before and after."""
    seen = []

    def logits(model, inputs):
        seen.append(inputs.ids.clone())
        return model(inputs.ids, attention_mask=inputs.mask.long())

    n, v = known_toy.WORLD.vocabulary_size, known_toy.V
    report = tp.measure_shift(
        known_toy.toy(W_V=known_toy.theorem_2()), known_toy.WORLD.blocks, known_toy.documents()[:3],
        world=known_toy.WORLD, special_ids=(), frequency=torch.ones(n), n_matched=0, heads="", logits=logits,
        toward="9", batch_size=1,
    )  # fmt: skip
    sums, counts = np.zeros(2), 0
    for before, after in zip(seen[::2], seen[1::2], strict=True):
        own = Counter((int(i) - 1) // v for i in before[0] if i).most_common(1)[0][0]
        held = int((before == 0).sum())
        for number, ids in enumerate((before, after)):
            y = torch.bincount(ids[0], minlength=n).double() / ids.shape[1]
            p = (known_toy.theorem_2() @ y).softmax(0)
            topics = [float(p[t * v + 1 : t * v + v + 1].sum()) for t in (own, 9)]
            sums[number] += held * (math.log(topics[0]) - math.log(topics[1]))
        counts += held
    assert report.log_odds == pytest.approx(sums[0] / counts, abs=1e-12)
    assert report.shift == pytest.approx((sums[1] - sums[0]) / counts, abs=1e-12)


# ---------------------------------------------------------------------------- language models, by hand


def own_scores(model, ids):
    with torch.no_grad():
        return model.original_model(torch.as_tensor(ids)[None]).logits[0].double().log_softmax(-1)


def topics_of(text, after):
    """The topic that words are taken from and the one that they are given to."""
    names = {i: name for name, words in WORDS.items() for i in words}
    (pair,) = {(names[i], names[j]) for i, j in zip(text, after, strict=True) if i != j}
    return pair


def read_at(name, document, text):
    """Rows of scores: at masks; of a causal model one before every word of a topic but the first token."""
    if name == "bert":
        return [at for at, shown in enumerate(text) if shown == MASK]
    return [at - 1 for at, word in enumerate(document) if at > 0 and 5 <= word < 60]


def by_hand(model, name, triples):
    """Log-odds before and after, and those of counts, with loops over documents, positions and words."""
    totals, n = np.zeros((2, 2)), 0
    for document, *texts in triples:
        pair = topics_of(*texts)
        at = read_at(name, document, texts[0])
        n += len(at)
        for number, text in enumerate(texts):
            scores = own_scores(model, text)
            for row in at:
                p = [sum(math.exp(scores[row, word]) for word in WORDS[topic]) for topic in pair]
                totals[0, number] += math.log(p[0] / p[1])
                # What stands first is no word to a causal model.
                seen = text if name == "bert" else text[1 : row + 1]
                counts = [1 + sum(word in WORDS[topic] for word in seen) for topic in pair]
                totals[1, number] += math.log(counts[0] / counts[1])
    return totals / n


def spied(model, documents, **options):
    """A report, and of every document the text as it is shown and with other words."""
    seen = []

    def logits(asked_model, inputs):
        seen.append(inputs.ids[0].tolist())
        return asked_model.original_model(inputs.ids).logits

    report = tp.measure_shift(
        model, TOPICS, documents, logits=logits, heads="", n_matched=0, batch_size=1, **OPTIONS, **options
    )
    triples = []
    for before, after in zip(seen[::2], seen[1::2], strict=True):
        same = [
            d for d in documents
            if len(d) == len(before) and all(i in (MASK, j) for i, j in zip(before, d, strict=True))
        ]  # fmt: skip
        triples.append((same[0], before, after))
    return report, triples


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_log_odds_and_their_shift_are_those_of_loops_over_words(name, request):
    model = request.getfixturevalue(name)
    report, triples = spied(model, DOCUMENTS, seed=1)
    assert len(triples) == len(DOCUMENTS)
    odds, counts = by_hand(model, name, triples)
    assert report.log_odds == pytest.approx(odds[0], abs=1e-5)
    assert report.shift == pytest.approx(odds[1] - odds[0], abs=1e-5)
    assert report.expected == pytest.approx(counts[1] - counts[0], abs=1e-12)
    assert report.slope == pytest.approx((odds[1] - odds[0]) / (counts[1] - counts[0]), abs=1e-5)
    own = tp.measure_shift(model, TOPICS, DOCUMENTS, heads="", n_matched=0, seed=1, **OPTIONS)
    assert own.shift == pytest.approx(report.shift, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "projection"),
    [
        ("bert", lambda inside: inside.base_model.encoder.layer[1].attention.output.dense),
        ("gpt2", lambda inside: inside.base_model.h[1].attn.c_proj),
    ],
)
def test_a_heads_share_is_what_its_output_on_the_other_text_does(name, projection, request):
    """Head 2 of layer 1: what goes into the output projection on the one text is put into the run on the other."""
    model = request.getfixturevalue(name)
    _, triples = spied(model, DOCUMENTS, seed=1)
    module, width = projection(model.original_model), zoo.WIDTH // zoo.HEADS
    own = slice(2 * width, 3 * width)
    whole = part = 0.0
    for document, before, after in triples:
        pair, at, kept = topics_of(before, after), read_at(name, document, before), []

        def odds(text, pair=pair, at=at):
            scores = own_scores(model, text)[at].exp()
            sums = [scores[:, list(WORDS[topic])].sum(1) for topic in pair]
            return (sums[0] / sums[1]).log().sum()

        handle = module.register_forward_pre_hook(lambda m, given, kept=kept: kept.append(given[0].clone()))
        shifted = odds(after)
        handle.remove()

        def put_in(m, given, kept=kept):
            changed = given[0].clone()
            changed[..., own] = kept[0][..., own]
            return (changed, *given[1:])

        intact = odds(before)
        handle = module.register_forward_pre_hook(put_in)
        patched = odds(before)
        handle.remove()
        whole, part = whole + float(shifted - intact), part + float(patched - intact)
    report = tp.measure_shift(model, TOPICS, DOCUMENTS, heads="1.2", n_matched=0, seed=1, **OPTIONS)
    assert report.index == {"stack": ("self",), "layer": (1,), "head": (2,)}
    assert report.share.item() == pytest.approx(part / whole, abs=1e-4)
    assert abs(part / whole) > 1e-3


def test_numbers_do_not_depend_on_batches_and_go_through_a_checkpoint(bert, tmp_path):
    options = {**OPTIONS, "n_matched": 3}
    report = tp.measure_shift(bert, TOPICS, DOCUMENTS, checkpoint=tmp_path / "sums", **options)
    alone = tp.measure_shift(bert, TOPICS, DOCUMENTS, batch_size=1, **options)
    for part in ("log_odds", "shift", "expected", "null", "own_words", "interval"):
        np.testing.assert_allclose(getattr(report, part), getattr(alone, part), atol=1e-5, err_msg=part)
    np.testing.assert_allclose(report.share, alone.share, atol=1e-3)
    assert len(report.share) == 12
    # Layer 1, head 2, of four heads a layer: by itself, and the own words without heads.
    one = tp.measure_shift(bert, TOPICS, DOCUMENTS, heads="1.2", **OPTIONS, n_matched=0)
    none = tp.measure_shift(bert, TOPICS, DOCUMENTS, heads="", **options)
    np.testing.assert_allclose(report.share[[6]], one.share, atol=1e-3)
    np.testing.assert_allclose(report.own_words, none.own_words, atol=1e-5)
    again = tp.measure_shift(bert, TOPICS, DOCUMENTS, checkpoint=tmp_path / "sums", **options)
    assert again.provenance["words"] == report.provenance["words"] == alone.provenance["words"]
    np.testing.assert_array_equal(again.share, report.share)
    assert tp.load_report(report.save(tmp_path / "report")) == report
    with pytest.raises(ValueError, match="checkpoint"):
        tp.measure_shift(
            bert, TOPICS, DOCUMENTS, checkpoint=tmp_path / "sums", **{**options, "fraction": 0.7}
        )


def test_a_report_is_a_table_and_a_figure(bert):
    report = tp.measure_shift(bert, TOPICS, DOCUMENTS, heads="0.1,2.3", n_matched=1, **OPTIONS)
    table = report.to_dataframe().set_index("quantity")
    assert table.loc["shift", "value"] == report.shift
    assert table.loc["share of head", "value"].tolist() == report.share.tolist()
    assert table.loc["share of head", "head"].tolist() == [1, 3]
    assert "words were replaced; the share of words alone moves by -" in str(report)
    assert ("the shift is not told from 0" in str(report)) == (np.sign(report.interval).sum() == 0)
    axes = report.plot()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0.1", "2.3"]


# ---------------------------------------------------------------------------- what is replaced by what


def exchanged(document, *, classes=None, fraction=0.5, toward=None, n_matched=0, key=7, topics=TOPICS):
    """What is done to a document all of whose tokens are words of topics, or -1."""
    ids = torch.tensor(document)
    at = (topics.places(ids) >= 0).nonzero().flatten()
    words = Units.of_tokens(ids[at], topics.places(ids[at]), at)
    classes = np.zeros(len(topics.words), dtype=np.int64) if classes is None else classes
    return Exchanges(topics, classes, fraction, toward, n_matched, 0, 0).of_document(ids, words, key)


def replaced_by(exchange, text=1):
    """What every word gave way to, by places."""
    pairs = zip(exchange.texts[0].tolist(), exchange.texts[text].tolist(), strict=True)
    return {old: new for old, new in set(pairs) if old != new}


DOCUMENT = [5, 5, 6, 7, 7, 7, 8, 20, 21, 20, 90, 6, 40]


def test_half_of_the_words_of_the_most_frequent_topic_give_way_each_to_one_of_another():
    for key in range(20):
        found = exchanged(DOCUMENT, toward=2, n_matched=2, key=key)
        by = replaced_by(found)
        assert len(by) == len(set(by.values())) == 2
        assert set(by) <= {5, 6, 7, 8}
        assert all(word in WORDS["three"] for word in by.values())
        # Wherever it stands, the word is the same other one, and nothing else has changed.
        assert found.texts[1].tolist() == [by.get(word, word) for word in DOCUMENT]
        own = [replaced_by(found, text) for text in (2, 3)]
        assert all(set(each) == set(by) for each in own)
        assert all(new in WORDS["one"] and new != old for each in own for old, new in each.items())
        n = sum(word in by for word in DOCUMENT)
        assert found.counted == (n, n, 2 * n)


def test_the_other_topic_is_any_other_and_the_share_is_what_was_asked_for():
    others = {
        new in WORDS["two"] for key in range(20) for new in replaced_by(exchanged(DOCUMENT, key=key)).values()
    }
    assert others == {True, False}
    assert len(replaced_by(exchanged(DOCUMENT, fraction=1.0))) == 4
    assert len(replaced_by(exchanged(DOCUMENT, fraction=0.01))) == 1


def test_words_give_way_to_words_of_their_class_of_frequency():
    classes = np.arange(len(TOPICS.words)) % 5
    for key in range(10):
        by = replaced_by(exchanged(DOCUMENT, classes=classes, fraction=1.0, key=key, n_matched=1))
        assert set(by) == {5, 6, 7, 8}
        # Words stand in order of their ids, from 5 on.
        assert all((old - new) % 5 == 0 for old, new in by.items())


def test_permuted_topics_have_as_many_words_of_every_class_and_log_odds_of_their_own():
    classes = np.arange(len(TOPICS.words)) % 3 - 1
    exchanges = Exchanges(TOPICS, classes, 0.5, 1, 0, 4, 0)
    own, *permuted = exchanges.groupings.numpy()
    assert own.tolist() == TOPICS.words.tolist()
    assert all(sorted(each) == own.tolist() for each in permuted)
    assert len({tuple(each) for each in permuted}) == 4
    class_of = dict(zip(own.tolist(), classes.tolist(), strict=True))
    assert all([class_of[word] for word in each] == classes.tolist() for each in permuted)
    ids = torch.tensor([5, 6, 7])
    words = Units.of_tokens(ids, TOPICS.places(ids), torch.arange(3))
    exchange = exchanges.of_document(ids, words, 0)
    scores = torch.randn(2, zoo.VOCABULARY, generator=torch.Generator().manual_seed(0)).double()
    found = exchange.odds(scores, exchanges.groupings)
    for grouping, odds in zip(exchanges.groupings.tolist(), found, strict=True):
        # Topics stand in their order among the words: 15, 20 and 20 of them.
        sums = [sum(math.exp(scores[1, word]) for word in part) for part in (grouping[:15], grouping[15:35])]
        assert odds[1] == pytest.approx(math.log(sums[0] / sums[1]), abs=1e-12)


def test_words_of_a_frequency_that_no_other_has_stay_and_are_counted():
    classes = np.zeros(len(TOPICS.words), dtype=np.int64)
    classes[TOPICS.places(torch.tensor([7]))] = 1
    found = exchanged(DOCUMENT, classes=classes, fraction=1.0, n_matched=1)
    assert set(replaced_by(found)) == {5, 6, 8}
    assert found.counted == (8, 5, 5)
    classes[:15], classes[15:] = 1, 0
    assert exchanged(DOCUMENT, classes=classes).why == NO_PARTNER
    # -1 is no class: such words never occur.
    assert exchanged(DOCUMENT, classes=np.full(len(classes), -1), toward=2).why == NO_PARTNER
    assert exchanged(DOCUMENT, toward=0).why == OWN_TOPIC


def test_words_of_both_topics_and_forms_of_one_word_are_no_exchange():
    """Word 3 is of both topics; 1 and 2, and 4 and 6, are forms of one word."""
    tokens = ["x", "army", "Army", "both", "band", "tank", "Band"]
    topics = Topics(
        names=("war", "music"), vocabulary_size=7, words=torch.arange(1, 7), texts=tuple(tokens[1:]),
        assignments=torch.tensor([[0, 0], [1, 0], [2, 0], [2, 1], [3, 1], [4, 0], [5, 1]]),
    )  # fmt: skip
    for key in range(10):
        found = exchanged([1, 2, 3, 3, 3, 4], topics=topics, n_matched=3, key=key)
        assert replaced_by(found) in ({1: 4, 2: 6}, {1: 6, 2: 4})
        assert topics.words[found.own].tolist() == [1, 2, 5]
        assert topics.words[found.other].tolist() == [4, 6]
        # One of the forms gives way to the only other word of the topic, the other one stays.
        assert all(list(replaced_by(found, text).values()) == [5] for text in (2, 3, 4))


def test_pieces_of_words_stay_and_are_never_given(bert):
    """Of the second topic only 20 ever stands as a word by itself; 6 is a word in one place and a piece in another."""
    seen = []

    def logits(model, inputs):
        seen.append(inputs.ids[0].tolist())
        return model.original_model(inputs.ids).logits

    ids = [5, 5, 6, 6, 21, 20, 90, 91]
    document = tp.Document(torch.tensor(ids), word_index=torch.tensor([0, 1, 2, 3, 3, 4, 5, 6]))
    report = tp.measure_shift(
        bert, TOPICS, [document], logits=logits, heads="", n_matched=0, fraction=1.0, mask_share=0.2,
        special_ids=(), frequency_bins=1, seed=5,
    )  # fmt: skip
    before, after = seen
    assert MASK in before
    changed = [at for at, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]
    assert changed
    assert set(changed) <= {0, 1, 2}
    assert {after[at] for at in changed} == {20}
    assert report.provenance["words"]["replaced"] == len(changed)


def test_named_topics_are_given_to_documents_of_others(bert):
    report = tp.measure_shift(bert, TOPICS, DOCUMENTS, toward="two", heads="", n_matched=0, **OPTIONS)
    left_out = report.provenance["left_out"]
    n_two = left_out[OWN_TOPIC]
    assert 0 < n_two < len(DOCUMENTS)
    with pytest.raises(ValueError, match="no document is left"):
        tp.measure_shift(bert, TOPICS, [], heads="", n_matched=0, **OPTIONS)


# ---------------------------------------------------------------------------- refusals


def test_what_cannot_be_done_is_said(bert, gpt2):
    def measure(model=bert, documents=DOCUMENTS, **options):
        return tp.measure_shift(
            model, TOPICS, documents, **{**OPTIONS, "n_matched": 0, "heads": "", **options}
        )

    with pytest.raises(ValueError, match="an encoder and a decoder"):
        measure(zoo.make("bart"))
    with pytest.raises(ValueError, match="has no head that scores the vocabulary"):
        measure(opened("bert-headless"))
    with pytest.raises(ValueError, match="names no mask token"):
        measure(zoo.make("bert"))
    with pytest.raises(ValueError, match="this model is causal"):
        measure(gpt2, world=WORLDS["lda"])
    with pytest.raises(ValueError, match="toward must be the name of a topic"):
        measure(toward="four")
    with pytest.raises(ValueError, match=r"there is no head '9\.0'"):
        measure(heads="9.0")
    with pytest.raises(ValueError, match="can be read only once"):
        measure(documents=iter(DOCUMENTS), frequency=None)
    with pytest.raises(ValueError, match="a number for each of the 97 token ids"):
        measure(frequency=[1, 2])
    with pytest.raises(ValueError, match=r"logits needs scores \[batch, position, vocabulary\]"):
        measure(logits=lambda model, inputs: torch.zeros(3))
    with pytest.raises(ValueError, match="fraction"):
        measure(fraction=1.5)
