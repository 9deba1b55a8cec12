"""Attention between words: against double loops, in limits that are known, planted and lost, and what is left out."""

import math
from dataclasses import replace
from functools import cache
from itertools import cycle, product

import numpy as np
import pytest
import torch
import zoo

import topic_probe as tp
from topic_probe.contrast import matched_contrast
from topic_probe.estimate import benjamini_hochberg
from topic_probe.lens.host import host_of
from topic_probe.measure import ask, permuted
from topic_probe.measure.pairs import DISTANCE_BINS, FIRST
from topic_probe.measure.permuted import PermutedWords, floor_of

N, SPECIAL, FRUIT_OF_TWO, UNKNOWN_OF_TWO = zoo.VOCABULARY, {2, 13}, (40, 41), (42, 6)
TOPICS = {"fruit": [5, 6, 7, 8, 20], "tools": [10, 11, 12, 13, 20], "birds": [30, 31, 32, 5]}
LISTS = tp.Topics.from_token_ids(TOPICS, vocabulary_size=N)
# The same, and a fruit of two tokens.
WORDS = replace(
    LISTS, words=torch.cat([LISTS.words, torch.tensor([N])]), compounds=(FRUIT_OF_TWO,),
    assignments=torch.cat([LISTS.assignments, torch.tensor([[len(LISTS.words), 0]])]),
)  # fmt: skip
DRAWN = [*((word,) for word in (5, 6, 7, 8, 10, 11, 12, 13, 20, 30, 31, 44, 2)), FRUIT_OF_TWO, UNKNOWN_OF_TWO]
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.03}
PLAIN = {"n_permutations": 0}


@cache
def opened(name, dtype=torch.float64):
    return tp.open_model(zoo.make(name).to(dtype))


def texts(n=9, seed=0, longest=24):
    """Documents as words, each a tuple of its tokens."""
    generator = np.random.default_rng(seed)
    rows = [generator.integers(0, len(DRAWN), generator.integers(4, longest)) for _ in range(n)]
    return [[DRAWN[number] for number in row] for row in rows]


def some_documents(n=9, seed=0):
    return [[token for word in words for token in word] for words in texts(n, seed)]


def document(words):
    ids = torch.tensor([token for word in words for token in word])
    return tp.Document(ids, torch.tensor([number for number, word in enumerate(words) for _ in word]))


def measure(name="bert", documents=None, topics=LISTS, dtype=torch.float64, through="rows", **options):
    """Read beside the fused kernel; or from whole patterns, as a model with hooks is."""
    given, model = some_documents() if documents is None else documents, opened(name, dtype)
    hooks = [(host_of(model).sites[0].hook_name, lambda pattern, hook: pattern)] * (through == "hooks")
    with model.hooks(fwd_hooks=hooks):
        assert host_of(model).hooked.has_hooks() == bool(hooks)
        return tp.measure_attention(model, topics, given, **{"special_ids": SPECIAL, **options})


def means(contrast):
    return np.stack([contrast.same_word, contrast.same_topic, contrast.different_topic], -1)


def counts(contrast):
    return np.stack([contrast.n_same_word, contrast.n_same_topic, contrast.n_different_topic], -1)


def padded(documents, *, left):
    ids, mask = torch.zeros(2, len(documents), 50, dtype=torch.int64)
    for row, own in enumerate(documents):
        at = slice(50 - len(own), 50) if left else slice(len(own))
        ids[row, at], mask[row, at] = torch.tensor(own), 1
    return ids, mask.bool()


def as_table(documents, *, left):
    """The same as a batch of transformers has it."""
    ids, mask = padded(documents, left=left)
    return {"input_ids": ids, "attention_mask": mask}


# --- an independent value -----------------------------------------------------------------------------


def units(words, level, *, without_first):
    """The positions of every word of a topic, with its topics."""
    at = 0
    for word in words:
        rows, at = list(range(at, at + len(word))), at + len(word)
        own = {name for name, ids in TOPICS.items() if len(word) == 1 and word[0] in ids}
        if level == "word" and word == FRUIT_OF_TWO:
            own = {"fruit"}
        if own and not SPECIAL & {*word} and not (without_first and rows[0] == 0):
            yield rows, word, own


def double_loop(pattern, visible, asking, asked, *, level, include_self, without_first):
    """Sums [head, relation] and counts [relation] of one document, pair by pair from the definitions."""
    uniform = visible / visible.sum(1, keepdims=True).clip(1)
    sums, n = np.zeros((len(pattern), 3)), np.zeros(3)
    sides = (list(units(words, level, without_first=without_first)) for words in (asking, asked))
    for (rows, one, its), (columns, other, others) in product(*sides):
        expected = uniform[np.ix_(rows, columns)].sum() / len(rows)
        if not expected or (rows == columns and not include_self):
            continue
        relation = 0 if one == other else 1 if its & others else 2
        sums[:, relation] += pattern[:, rows][:, :, columns].sum((1, 2)) / len(rows) / expected
        n[relation] += 1
    return sums, n


@pytest.mark.generation
@pytest.mark.parametrize(
    ("name", "level", "include_self", "padding", "through", "dtype", "first"),
    [
        ("bert", "token", True, "right", "hooks", torch.float64, "sink"),
        ("bert", "token", False, "left", "rows", torch.float32, "word"),
        ("bert", "word", False, "none", "hooks", torch.float32, "sink"),
        ("gpt2", "token", True, "left", "rows", torch.float64, "word"),
        ("gpt2", "word", True, "right", "rows", torch.float64, "sink"),
        ("bert", "token", True, "right", "rows", torch.bfloat16, "sink"),
        ("bart", "token", True, "right", "rows", torch.float64, "sink"),
        ("bart", "token", True, "none", "hooks", torch.float32, "sink"),
    ],
)
def test_attention_between_words_is_that_of_a_double_loop_over_what_hugging_face_returns(
    name, level, include_self, padding, through, dtype, first
):
    given = texts() if level == "word" else [[(token,) for token in ids] for ids in some_documents()]
    documents = as_table(some_documents(), left=True) if padding == "left" else [*map(document, given)]
    report = measure(
        name, documents, WORDS if level == "word" else LISTS, dtype, level=level, include_self=include_self,
        batch_size=1 if padding == "none" else 4, through=through, first_position=first, **PLAIN,
    )  # fmt: skip
    inputs = host_of(opened(name)).inputs(*padded(some_documents(), left=False))
    sums, n, starts = [], [], []
    for stack, layers in zoo.own_patterns(zoo.make(name).double(), inputs).items():
        starts.append(len(sums))
        for layer, patterns in enumerate(layers):
            visible, parts = zoo.visible(name, stack, layer, inputs).numpy(), []
            for row, words in enumerate(given):
                # A decoder reads what stands before, behind a start token of its own, which is special.
                shifted = [(2,), *words[:-1]]
                sides = {"decoder": (shifted, shifted), "cross": (shifted, words)}.get(stack, (words, words))
                without_first = first == "sink" and (name == "gpt2" or stack == "decoder")
                options = {"level": level, "include_self": include_self, "without_first": without_first}
                parts.append(double_loop(patterns[row].numpy(), visible[row], *sides, **options))
            sums.append(sum(part[0] for part in parts))
            n.append(sum(part[1] for part in parts))
    tolerance, heads = {"rtol": TOLERANCE[dtype]}, zoo.HEADS
    assert report.provenance["model"]["dtype"] == str(dtype).removeprefix("torch.")
    np.testing.assert_array_equal(counts(report.heads), np.repeat(n, heads, axis=0))
    np.testing.assert_allclose(
        means(report.heads), np.vstack(sums) / np.repeat(n, heads, axis=0), **tolerance
    )
    by_layer, n = np.sum(sums, 1), heads * np.array(n)
    for contrast, at in ((report.layers, range(len(n))), (report.stacks, starts), (report.overall, [0])):
        pooled = np.add.reduceat(by_layer, at) / np.add.reduceat(n, at)
        np.testing.assert_allclose(np.atleast_2d(means(contrast)), pooled, **tolerance)


@pytest.mark.parametrize("few", [0.0, 1.0])
def test_permuted_words_give_the_ratios_of_measuring_with_their_topics(few, monkeypatch):
    """The null of one pass against a measurement for every permutation; by products with dense and sparse tables."""
    monkeypatch.setattr(permuted, "_FEW", few)
    documents, options = some_documents(6), {"special_ids": (), "first_position": "word"}
    truth, ratios = measure("gpt2", documents, n_permutations=5, seed=3, batch_size=4, **options), []
    sums = truth.sums
    [groups] = PermutedWords(LISTS, 5, seed=3).blocks()
    for number in range(5):
        table = torch.from_numpy(LISTS.incidence.table.toarray())[groups[:, number].long()]
        topics = replace(LISTS, assignments=table.nonzero())
        report = measure("gpt2", documents, topics, n_permutations=0, **options)
        same = report.heads.same_topic * report.heads.n_same_topic
        np.testing.assert_allclose(sums["null"][:, number], same, rtol=1e-5)
        n = np.repeat(sums["n_null"][:, number], zoo.HEADS)
        np.testing.assert_array_equal(n, report.heads.n_same_topic)
        ratios.append([report.overall_matched.ratio, report.overall.ratio, *report.heads.ratio])
    # A p-value is twice how many permutations measure a ratio that is as high, or as low.
    parts = truth.overall_matched, truth.overall, truth.heads
    ratio = np.hstack([part.ratio for part in parts])
    as_far = np.minimum(np.sum(np.array(ratios) >= ratio, 0), np.sum(np.array(ratios) <= ratio, 0))
    wanted = np.minimum(1, 2 * (1 + as_far) / 6)
    np.testing.assert_allclose(np.hstack([part.p_value for part in parts]), wanted)
    np.testing.assert_allclose(truth.heads.q_value, benjamini_hochberg(truth.heads.p_value))


def test_permutations_are_the_same_whether_they_are_kept_or_made_again(monkeypatch):
    kept = torch.cat([*PermutedWords(LISTS, 50, seed=1).blocks()], 1)
    monkeypatch.setattr(permuted, "_AT_ONCE", 7 * len(LISTS.words))
    monkeypatch.setattr(permuted, "_KEPT_BYTES", 0)
    again = PermutedWords(LISTS, 50, seed=1)
    for _ in range(2):
        blocks = [*again.blocks()]
        assert [block.shape[1] for block in blocks] == [7] * 7 + [1]
        assert torch.equal(torch.cat(blocks, 1), kept)


def test_the_matched_ratio_weighs_bins_by_their_same_topic_pairs():
    """Worked by hand: two bins with same-topic means 4 and 2, different-topic means 2 and 3; 1 and 3 pairs."""
    sums, n, squares = np.zeros((1, 20, 3)), np.zeros((1, 20, 3)), np.zeros((1, 20))
    sums[0, 1:4] = (0, 4, 10), (0, 6, 3), (0, 99, 0)
    n[0, 1:4] = (0, 1, 5), (0, 3, 1), (0, 9, 0)  # nothing to compare with at the last distance: left out
    # The scores themselves: 4; 2, 2, 2. 1, 1, 3, 3, 2; 3. And what is left out.
    squares[0, 1:4] = 16 + 24, 12 + 9, 99**2
    found = matched_contrast(sums, n, squares)
    assert found.same_topic[0] == pytest.approx((1 * 4 + 3 * 2) / 4)
    assert found.different_topic[0] == pytest.approx((1 * 2 + 3 * 3) / 4)
    assert (found.n_same_topic[0], found.n_different_topic[0]) == (4, 6)
    assert found.effect_size[0] == pytest.approx((2.5 - 2.75) / np.std([4, 2, 2, 2, 1, 1, 3, 3, 2, 3]))
    # All heads of a model have the same pairs, so their matched means are as many equal parts of that of all.
    report = measure(documents=some_documents(20), **PLAIN)
    for part in ("same_topic", "different_topic"):
        assert getattr(report.overall_matched, part) == pytest.approx(getattr(report.matched, part).mean())
    assert report.overall_matched.n_same_topic == report.matched.n_same_topic.sum()


# --- an invariance, and a limit -----------------------------------------------------------------------


@pytest.mark.parametrize("little", ["numbers kept", "memory"])
def test_batches_order_padding_and_what_memory_there_is_change_nothing(little, monkeypatch):
    documents, options = some_documents(24), {"special_ids": SPECIAL, "n_permutations": 20}
    whole, model, given = measure(documents=documents, **options), opened("bert"), documents
    if little == "numbers kept":
        monkeypatch.setattr(ask, "_IN_CACHE", 2000)
        monkeypatch.setattr(permuted, "_IN_CACHE", 1)
        given, options["batch_size"] = as_table(documents[::-1], left=True), 7
    else:

        def change(pattern):
            if len(pattern) > 3:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
            return pattern

        model = with_pattern(change)
    other = tp.measure_attention(model, LISTS, given, **options)
    for name in ("overall", "heads", "matched", "without_sinks"):
        own, its = getattr(whole, name), getattr(other, name)
        np.testing.assert_allclose(means(own), means(its), rtol=1e-9)
        np.testing.assert_array_equal(counts(own), counts(its))
    np.testing.assert_allclose(whole.heads.interval, other.heads.interval, rtol=1e-9)
    np.testing.assert_allclose(whole.heads.p_value, other.heads.p_value, atol=1e-12)
    np.testing.assert_allclose(whole.sink_mass, other.sink_mass, rtol=1e-9)


def test_documents_of_a_source_and_pieces_of_a_long_document_add_up():
    def sums_of(documents, **options):
        report = measure(documents=documents, n_permutations=0, **options)
        return report, report.by_source.rows()[1][..., :6]

    documents, wanted = some_documents(18), {}
    report, found = sums_of(zoo.of_sources(documents, np.arange(18) % 9), batch_size=4)
    for number, own in enumerate(documents):
        wanted[number % 9] = wanted.get(number % 9, 0) + sums_of([own])[1][0]
    found, wanted = (sorted(part, key=lambda x: x.ravel().tolist()) for part in (found, wanted.values()))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert report.provenance["sources"] == 9
    long, options = [np.resize(documents[0], 150).tolist()], {"special_ids": (), **PLAIN}
    cut = measure(documents=long, **options).provenance["left_out"]
    assert cut["documents cut at 64 tokens"] == 1
    pieces = measure(documents=long, long="chunk", **options)
    alone = measure(documents=[long[0][start : start + 64] for start in (0, 64, 128)], **options)
    np.testing.assert_allclose(means(pieces.heads), means(alone.heads), rtol=1e-12)
    assert (pieces.provenance["documents"], pieces.provenance["sources"]) == (3, 1)


@pytest.mark.parametrize("name", ["bert", "gpt2", "bart"])
def test_uniform_attention_is_exactly_one_everywhere(name):
    model = zoo.make(name).double()
    with torch.no_grad():
        for part, parameter in model.named_parameters():
            if any(asking in part for asking in ("query", "q_proj")):
                parameter.zero_()
            if "c_attn" in part:
                parameter[..., : zoo.WIDTH] = 0
    options = {"special_ids": {2}, "level": "word", **PLAIN}
    report = tp.measure_attention(model, WORDS, [*map(document, texts(12))], **options)
    for contrast in (report.overall, report.heads, report.matched, report.without_sinks):
        np.testing.assert_allclose(means(contrast), 1, rtol=1e-12)
        np.testing.assert_allclose([contrast.ratio, contrast.topic_ratio], 1, rtol=1e-12)


# --- planted ------------------------------------------------------------------------------------------


def with_pattern(change, dtype=torch.float64):
    """A hooked model whose every pattern is replaced by ``change(pattern)``."""
    host = tp.open_model(zoo.make("bert").to(dtype))
    host_of(host)  # the trial is made before patterns are changed
    host.add_hook(lambda place: place.endswith("hook_pattern"), lambda pattern, hook: change(pattern))
    return host


BLOCKS = {"a": [5, 6, 7, 8], "b": [10, 11, 12, 13], "c": [30, 31, 32, 33]}
OF_BLOCKS = tp.Topics.from_token_ids(BLOCKS, vocabulary_size=N)
BARE = {"special_ids": ()}


def block_documents(n):
    """Documents with every word of every topic once, in a random order."""
    generator, words = np.random.default_rng(0), [word for words in BLOCKS.values() for word in words]
    return [generator.permutation(words).tolist() for _ in range(n)]


def prefers_own_topic(documents, strength):
    """A pattern that gives other words of the same topic ``strength`` times what different topics get."""
    label = {word: number for number, words in enumerate(BLOCKS.values()) for word in words}
    rows = cycle(documents)

    def change(pattern):
        topics = torch.tensor([[label[word] for word in next(rows)] for _ in pattern])
        table = torch.where(topics[:, :, None] == topics[:, None], strength, 1.0).double()
        return (table / table.sum(-1, keepdim=True))[:, None].expand(pattern.shape)

    return change


def test_a_planted_preference_is_found_exactly_and_lost_when_topics_are_shuffled():
    documents, options = block_documents(20), {"n_permutations": 30, **BARE}
    model = with_pattern(prefers_own_topic(documents, 3.0))
    found = tp.measure_attention(model, OF_BLOCKS, documents, **options)
    np.testing.assert_allclose(found.heads.ratio, 3, rtol=1e-12)
    np.testing.assert_allclose(found.heads.p_value, 2 / 31)  # no permutation is as high; both tails
    assert "p at the floor, 2/31: none of 12 heads can have q < 0.05" in str(found)
    lost = tp.measure_attention(model, OF_BLOCKS.shuffled(seed=1), documents, **options)
    assert (lost.heads.ratio < 1.5).all()
    assert (lost.heads.p_value > 0.05).all()


def test_the_floor_says_how_many_heads_must_share_it():
    """Of 270 heads k share q = 2/201 · 270/k, below 0.05 from 54 on; 10,800 permutations lift a single one."""
    heads = tp.Contrast(*np.ones((6, 270)), p_value=np.full(270, 0.5))
    assert floor_of(heads, 200) == "p at the floor, 2/201: 54 of 270 heads must share it for q < 0.05"
    assert floor_of(heads, 10_800) is None
    assert floor_of(heads, 0) is None


def test_words_that_merely_stand_closer_have_a_matched_ratio_of_one():
    """Attention falls with distance, and documents put words of a topic side by side."""
    documents = [[word for words in BLOCKS.values() for word in words] for _ in range(9)]

    def falls_with_distance(pattern):
        position = torch.arange(pattern.shape[-1])
        bins = torch.bucketize((position - position[:, None]).abs(), torch.tensor(DISTANCE_BINS), right=True)
        weight = 1.0 / (1 + bins)  # the same within a bin
        return (weight / weight.sum(-1).max()).double().expand(pattern.shape)

    model = with_pattern(falls_with_distance)
    report = tp.measure_attention(model, OF_BLOCKS, documents, n_permutations=0, **BARE)
    assert (report.heads.ratio > 1.3).all()
    np.testing.assert_allclose([*report.matched.ratio, report.overall_matched.ratio], 1, rtol=1e-12)


def test_sinks_are_reported_and_taken_out():
    """Half of the attention goes to the special token, the rest twice as much to the own topic."""
    documents = [[2, *ids] for ids in block_documents(12)]
    prefer = prefers_own_topic([ids[1:] for ids in documents], 2.0)

    def change(pattern):
        table = torch.zeros_like(pattern)
        table[..., 1:, 1:] = 0.5 * prefer(pattern[..., 1:, 1:])
        table[..., 0], table[..., 0, 0] = 0.5, 1.0
        return table

    options = {**BARE, "special_ids": {2}, "n_permutations": 0}
    report = tp.measure_attention(with_pattern(change), OF_BLOCKS, documents, **options)
    np.testing.assert_allclose(report.sink_mass, 0.5, rtol=1e-12)
    # A row of 13 visible keys with half its mass away: 13 · 0.5 · 1/(4·2 + 8); 12 keys are left without the sink.
    np.testing.assert_allclose(report.heads.different_topic, 13 * 0.5 / 16, rtol=1e-12)
    np.testing.assert_allclose(report.without_sinks.different_topic, 12 / 16, rtol=1e-12)
    np.testing.assert_allclose(report.without_sinks.ratio, 2, rtol=1e-12)
    # In a causal stack the first position is one, whatever stands there.
    sink, word = (measure("gpt2", first_position=first, **PLAIN) for first in ("sink", "word"))
    n = sum(ids[0] in set().union(*TOPICS.values()) - SPECIAL for ids in some_documents())
    assert (sink.provenance["left_out"][FIRST], word.provenance["left_out"].get(FIRST, 0)) == (n, 0)
    assert f"{n} words at the first position were left out" in str(sink)
    assert (word.sink_mass < sink.sink_mass).all()


# --- what cannot be, and what is told -----------------------------------------------------------------


def never():
    raise AssertionError("hours of measuring would be lost")
    yield


def test_what_cannot_be_measured_is_refused_before_a_document_is_read(unchecked):
    for given, said in (
        ({"confidence": 2.0}, "confidence is the share of intervals"),
        ({"n_permutations": -1}, "n_permutations must be at least 0"),
        ({"topics": LISTS.with_vocabulary_size(99)}, "vocabulary of 99 ids, the model's has 97"),
        ({"level": "word", "documents": [[5, 6]]}, "which tokens form a word"),
    ):
        with pytest.raises(ValueError, match=said):
            measure(**{"documents": never(), **given})


def test_what_there_is_nothing_of_is_nan_and_says_why():
    with pytest.warns(UserWarning, match="none of the 3 documents holds a word of any topic"):
        report = measure(documents=[[44, 45], [46], [44, 45, 46]])
    assert math.isnan(report.overall.ratio)
    assert "no pair of different words shares a topic" in report.overall.reason
    assert report.provenance["left_out"]["documents without a word of any topic"] == 3
    only = measure(topics=tp.Topics.from_token_ids({"only": [5, 6, 7]}, vocabulary_size=N), n_permutations=9)
    assert np.isnan([only.heads.ratio, only.heads.p_value]).all()
    assert np.isfinite(only.heads.same_topic).all()
    few = measure(documents=some_documents(3), n_permutations=0)
    assert np.isnan(few.overall.interval).all()
    assert "no interval: 3 of 3 texts have pairs of both kinds; 8 are needed" in few.overall.reason


def test_pieces_of_split_words_and_documents_without_their_text_are_counted():
    """Id 6 is a topic's word, but here it is the second half of a split word."""
    documents = [document([(5,), UNKNOWN_OF_TWO, (7,), (10,)]), tp.Document(torch.tensor([5, 7]))]
    report = measure(documents=documents, **PLAIN)
    assert report.overall.n_same_topic == 2 * 2 * len(report.heads)  # 5–7 and 7–5
    assert report.provenance["left_out"]["pieces of split words"] == 1
    assert report.provenance["without_words"] == 1
    assert "every token of 1 documents was taken as a word" in repr(report)


def test_documents_of_special_words_alone_are_resampled_like_others_whatever_batch_they_are_in():
    documents = [ids for other in some_documents(12) for ids in (other, [2, 2])]
    topics = tp.Topics.from_token_ids({**TOPICS, "special": [2]}, vocabulary_size=N)
    alone, together = (
        measure(documents=documents, topics=topics, batch_size=n, n_permutations=0) for n in (1, 32)
    )
    assert alone.provenance["documents_measured"] == together.provenance["documents_measured"] == 24
    np.testing.assert_allclose(alone.heads.interval, together.heads.interval, rtol=1e-9)


def test_interrupting_keeps_what_was_measured_and_heads_are_listed_by_evidence():
    documents = [[5, *ids[:6]] for ids in some_documents(150)]

    def until_interrupted():
        yield from documents
        raise KeyboardInterrupt

    report = measure(documents=until_interrupted(), batch_size=2, **PLAIN)
    assert "interrupted after" in report.provenance["options"]["stopped"]
    assert report.provenance["documents_measured"] == 128  # whole groups of 32 batches
    wanted = measure(documents=documents[:128], **PLAIN)
    np.testing.assert_allclose(means(report.heads), means(wanted.heads), rtol=1e-9)
    towards = report.heads.effect_size_interval[:, 0] > 0
    assert len(report.towards) == towards.sum()
    low, high = report.heads.effect_size_interval.T
    bound = np.maximum(np.maximum(low, -high), 0)
    assert (
        report.heads.top(2).effect_size.tolist() == report.heads.effect_size[np.argsort(-bound)][:2].tolist()
    )


def test_a_report_says_first_how_much_its_topics_cover():
    documents = some_documents(12)
    topics_of = {word: {name for name in TOPICS if word in TOPICS[name]} for word in range(N)}
    topical = [[word for word in ids if topics_of[word] and word not in SPECIAL] for ids in documents]
    together = ((one, other) for words in topical for one in words for other in words if one != other)
    pairs = sum(bool(topics_of[one] & topics_of[other]) for one, other in together)
    share = sum(map(len, topical)) / sum(map(len, documents))
    said = f"{100 * share:.1f} % of tokens have a topic, {pairs / 12:,.1f} same-topic pairs a source"
    assert said in str(measure(documents=documents, n_permutations=19))
