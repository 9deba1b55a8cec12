"""Models side by side: the same words of the same texts, whatever the tokenizer."""

import math
import re
import warnings
from contextlib import nullcontext

import known_toy
import numpy as np
import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import topic_probe as tp
from topic_probe.measure.attention_sums import AttentionSums
from topic_probe.text.encoder import Encoder
from topic_probe.text.same_texts import SameTexts

WAR, MUSIC, FOOD = "army battle siege soldier", "band song drum opera", "bread apple soup cheese"
LISTS = {"war": WAR.split(), "music": MUSIC.split(), "food": FOOD.split()}
FILLERS = ["the", "a", "of", "and", "was", "with", "near", "old", "long"]
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}


def some_texts(n=24, seed=0, longest=20):
    """Sentences of words of two topics and others, with capitals and commas."""
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(n):
        words = [word for name in generator.choice(list(LISTS), 2, replace=False) for word in LISTS[name]]
        drawn = generator.choice([*words, *FILLERS], size=generator.integers(8, longest)).tolist()
        commas = generator.random(len(drawn)) < 0.2
        text = " ".join(word + "," * bool(comma) for word, comma in zip(drawn, commas, strict=True))
        found.append(text.capitalize() + ".")
    return found


def wordpiece(without=(), order=None):
    """Words as BERT's tokenizer has them, without some that are then several pieces, in another order of ids."""
    every = [*FILLERS, *(word for words in LISTS.values() for word in words)]
    letters = [chr(letter) for letter in range(ord("a"), ord("z") + 1)]
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ",", ".")
    known = (word for word in every if word not in without)
    tokens = list(dict.fromkeys([*special, *known, *letters, *(f"##{letter}" for letter in letters)]))
    if order is not None:
        tokens = [tokens[number] for number in order]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer, backend.decoder = normalizers.BertNormalizer(lowercase=True), decoders.WordPiece()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]",
    )  # fmt: skip


def byte_level(without=("cheese",)):
    """Words as GPT-2's tokenizer has them, learned from texts without some words."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=460, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|end|>"],
        show_progress=False,
    )  # fmt: skip
    kept = [
        [word for word in text.split() if word.strip(",.").lower() not in without]
        for text in some_texts(90, 7)
    ]
    backend.train_from_iterator(map(" ".join, kept), trainer)
    return hf.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>", pad_token="<|end|>")


def bert(tokenizer, seed=0):
    torch.manual_seed(seed)
    config = hf.BertConfig(
        vocab_size=len(tokenizer), initializer_range=0.4, max_position_embeddings=64, **SIZES
    )
    return tp.open_model(hf.BertModel(config, add_pooling_layer=False).double().eval(), tokenizer=tokenizer)


def gpt2(tokenizer, seed=0):
    torch.manual_seed(seed)
    config = hf.GPT2Config(
        vocab_size=len(tokenizer), n_embd=16, n_layer=3, n_head=2, n_positions=48, initializer_range=0.4,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the begin token that this tokenizer does not put
        return tp.open_model(hf.GPT2Model(config).double().eval(), tokenizer=tokenizer)


@pytest.fixture(scope="module")
def pieces():
    return wordpiece()


@pytest.fixture(scope="module")
def several(pieces):
    """Two BERTs with tokenizers of different kinds, and a GPT-2, on the same texts."""
    other = byte_level()
    sides = {"pieces": bert(pieces), "bytes": bert(other, seed=1), "causal": gpt2(other)}
    return sides, tp.compare(sides, LISTS, some_texts(), n_permutations=39)


# ---------------------------------------------------------------- known answers


def test_the_same_model_with_other_numbers_for_its_words_differs_by_nothing_under_every_permutation(pieces):
    order = np.random.default_rng(5).permutation(len(pieces)).tolist()
    config = hf.BertConfig(vocab_size=len(pieces), initializer_range=0.4, max_position_embeddings=64, **SIZES)
    torch.manual_seed(0)
    one, other = (hf.BertModel(config, add_pooling_layer=False).double().eval() for _ in range(2))
    other.load_state_dict(one.state_dict())
    with torch.no_grad():
        other.embeddings.word_embeddings.weight.copy_(one.embeddings.word_embeddings.weight[order])
    tokenizer = wordpiece(order=order)
    assert tokenizer(["the army"])["input_ids"] != pieces(["the army"])["input_ids"]
    sides = {"one": tp.open_model(one, tokenizer=pieces), "other": tp.open_model(other, tokenizer=tokenizer)}
    found = tp.compare(sides, LISTS, some_texts(), n_permutations=39)
    assert set(found.differences) == {"cosine", "attention", "layers", "heads"}
    for name, table in found.differences.items():
        for column in ("number", "low", "high"):
            np.testing.assert_allclose(table[column], 1.0 if found.is_quotient(name) else 0.0, atol=1e-9)
        np.testing.assert_allclose(found.ranks[name].sum(0), 1)
    # Were other words permuted in the other model, some of 39 would differ by more than rounding.
    p_values = found.to_dataframe("head").p_value.to_numpy().reshape(2, -1)
    np.testing.assert_array_equal(p_values[0], p_values[1])
    own = found.numbers["attention"].p_value
    assert own[0] == own[1]
    alone = tp.measure_attention(
        sides["one"],
        tp.Topics.from_word_lists(LISTS, pieces),
        [*tp.encode_texts(some_texts(), pieces)],
        n_permutations=39,
    )
    assert found.numbers["attention"].ratio[0] == pytest.approx(alone.overall.ratio)


def planted(strength):
    """Attention to words of the same topic e^strength times as strong, if keys and queries are not scaled."""
    n = known_toy.WORLD.vocabulary_size
    return known_toy.toy(W_K=strength * known_toy.same_block(), W_Q=torch.eye(n, dtype=torch.float64))


def test_a_planted_difference_is_found_and_lost_when_topics_are_shuffled():
    documents, topics = known_toy.documents()[:20], known_toy.WORLD.topics
    toys = {"strong": planted(6.0), "weak": planted(3.0)}
    options = {"measure": ["attention"], "n_permutations": 39}
    found = tp.compare(toys, topics, documents, **options)
    strong, weak = found.numbers["attention"].ratio
    assert strong == pytest.approx(weak**2)  # logarithms of ratios are linear in the strength
    table = found.differences["attention"]
    assert table["number"][0] == pytest.approx(weak)
    assert table["p_permuted"][0] == pytest.approx(2 / 40)
    lost = tp.compare(toys, topics.shuffled(seed=1), documents, **options).differences["attention"]
    assert abs(math.log(lost["number"][0])) < 0.1 * math.log(weak)
    assert lost["p_permuted"][0] > 0.05


def test_shares_of_permutations_are_those_counted_by_hand():
    """From the sums of each model under the same permutations, of topics that mean nothing."""
    documents, topics = known_toy.documents()[:20], known_toy.WORLD.topics.shuffled(seed=8)
    toys = {"strong": planted(6.0), "weak": planted(3.0)}
    found = tp.compare(toys, topics, documents, measure=["attention"], n_permutations=99)
    logarithms = []
    for toy in toys.values():
        names = [str(word) for word in topics.words.tolist()]
        null = AttentionSums(topics, torch.zeros(1, dtype=torch.int64), n_permutations=99, names=names)
        heads = tp.measure_attention(toy, topics, documents, questions=[null], n_permutations=0).heads
        (same,), (n_same,) = null.sums["null"], null.sums["n_null"]
        n = heads.n_same_topic + heads.n_different_topic
        total = heads.same_topic * heads.n_same_topic + heads.different_topic * heads.n_different_topic
        ratios = same / n_same / ((total - same) / (n - n_same))
        logarithms.append(np.log([*heads.ratio, *ratios]))

    def two_sided(true, *permuted):
        return 2 * (1 + min(np.sum(permuted >= true), np.sum(permuted <= true))) / 100

    p_permuted = found.differences["attention"]["p_permuted"]
    assert p_permuted[0] == pytest.approx(two_sided(*(logarithms[0] - logarithms[1])))
    p_values = [two_sided(*own) for own in logarithms]
    np.testing.assert_allclose(found.numbers["attention"].p_value, np.minimum(1, p_values))


def test_a_difference_is_that_of_two_double_loops_over_words(several):
    sides, found = several
    kept = {word: topic for topic, words in LISTS.items() for word in words if word != "cheese"}
    sums, counts = np.zeros((2, 24, 3)), np.zeros((24, 3))
    for place, (name, tokenizer) in enumerate((name, sides[name].tokenizer) for name in ("pieces", "bytes")):
        for number, text in enumerate(some_texts()):
            (document,) = tp.encode_texts([text], tokenizer)
            tokens = [tokenizer.decode([token]).strip().lower() for token in document.ids.tolist()]
            words = [word.strip(",.").lower() for word in text.split()]
            # The first word, which has no special token before it in one model, counts in none.
            first = document.word_index <= 0
            spots = [(at, token) for at, token in enumerate(tokens) if token in kept and not first[at]]
            spots = [(at, token) for at, token in spots if document.whole[at] and token in words]
            pattern = patterns_of(sides[name], document.ids)
            for at, word in spots:
                for to, other in spots:
                    relation = 0 if word == other else 1 if kept[word] == kept[other] else 2
                    sums[place, number, relation] += sum(float(one[at, to]) for one in pattern) * len(tokens)
                    counts[number, relation] += len(pattern) * (place == 0)
    totals, n = sums.sum(1), counts.sum(0)
    ratios = totals[:, 1] / n[1] / (totals[:, 2] / n[2])
    contrast = found.numbers["attention"]
    np.testing.assert_array_equal(contrast.n_same_topic[:2], n[1])
    np.testing.assert_array_equal(contrast.n_different_topic[:2], n[2])
    np.testing.assert_allclose(contrast.ratio[:2], ratios, rtol=1e-9)
    np.testing.assert_allclose(found.differences["attention"]["number"][0], ratios[0] / ratios[1], rtol=1e-9)
    # A causal model of half as many more layers sees one direction of every pair.
    assert contrast.n_same_topic[2] == contrast.n_same_topic[0] * 6 / 4 / 2
    words = found.provenance["words"]
    assert words["topics"] == [["war", 4, 4], ["music", 4, 4], ["food", 4, 3]]
    assert words["missing"] == {"pieces": 0, "bytes": 1, "causal": 1}
    # All forms of a word are pairs of the same word; pairs of different words are those of 11 in topics of 4, 4, 3.
    assert found.numbers["cosine"].n_same_topic[0] == 4 * 3 + 4 * 3 + 3 * 2


def patterns_of(model, ids):
    """The patterns of all heads, from the model's own cache."""
    _, cache = model.run_with_cache(ids[None], attention_mask=torch.ones_like(ids[None]))
    names = [name for name in cache if name.endswith("hook_pattern")]
    assert len(names) == 2
    return [head for name in names for head in cache[name][0]]


def test_neither_the_order_of_models_and_texts_nor_batches_nor_whose_topics_they_are_change_a_number(several):
    sides, found = several
    texts, topics = (
        [*some_texts()[::-1], "of the and"],
        tp.Topics.from_word_lists(LISTS, sides["pieces"].tokenizer),
    )
    there = tp.compare(sides, topics, texts, n_permutations=39, batch_size=5)
    back = tp.compare(dict(reversed(sides.items())), LISTS, some_texts(), n_permutations=39)
    for name, table in found.differences.items():
        mirrored = np.reciprocal if found.is_quotient(name) else np.negative
        for column in {"number", "low", "high", "p_value", "p_permuted"} & set(table):
            np.testing.assert_allclose(there.differences[name][column], table[column], rtol=1e-6)
            other = back.differences[name][{"low": "high", "high": "low"}.get(column, column)][::-1]
            wanted = table[column] if column.startswith("p_") else mirrored(table[column])
            np.testing.assert_allclose(other, wanted, rtol=1e-6)


# ---------------------------------------------------------------- the same words


@pytest.mark.parametrize("long", ["cut", "chunk"])
def test_documents_begin_and_end_with_the_same_words_for_all_tokenizers(long):
    texts = ["...", *some_texts(6, longest=40)]
    tokenizers = [wordpiece(without=("siege",)), byte_level()]
    limits, options = [9, 11], {"add_special_tokens": True, "begin_token": False}
    encoders = [Encoder(own, limit, "cut", **options) for own, limit in zip(tokenizers, limits, strict=True)]
    same = SameTexts(texts, encoders, long=long, level="token")
    read, seen = [list(same.of(number)) for number in (0, 1)], ""
    for parts in zip(*read, strict=True):
        assert all(len(part) <= limit for part, limit in zip(parts, limits, strict=True))
        one, other = (
            "".join(tokenizer.decode(part.ids, skip_special_tokens=True).lower().split()).strip(",.")
            for tokenizer, part in zip(tokenizers, parts, strict=True)
        )
        assert one == other
        seen += one
        assert parts[0].source == parts[1].source
        numbers = [sorted(part.word_index[part.whole].tolist()) for part in parts]
        assert numbers[0] == numbers[1]
    if long == "chunk":
        everything = "".join("".join(text.lower().split()) for text in texts[1:])
        assert re.sub("[,.]", "", seen) == re.sub("[,.]", "", everything)
    else:
        assert len(read[0]) == len(texts) - 1
    assert same.read.left_out == {"texts in which no word can be read by every model": 1}
    assert (same.read.cut_off == 0) == (long == "chunk")


def test_words_of_several_tokens_count_at_the_level_of_words_and_topics_may_lose_theirs():
    sides = {"pieces": bert(wordpiece(without=("siege", *FOOD.split()))), "bytes": bert(byte_level(), seed=1)}
    options, n = {"measure": ["attention"], "n_permutations": 0}, []
    for level, kept in (("token", [4 - 1, 4, 0]), ("word", [4, 4, 4])):
        empty = pytest.warns(UserWarning, match="stay empty: food") if level == "token" else nullcontext()
        with empty:
            found = tp.compare(sides, LISTS, some_texts(), level=level, **options)
        assert found.to_dataframe("topic").kept.tolist() == kept
        one, other = found.numbers["attention"].n_same_topic
        assert one == other
        n.append(one)
    assert n[1] > n[0]


# ---------------------------------------------------------------- the report


def test_checkpoints_have_differences_of_every_layer_and_head_and_a_report_comes_back(pieces, tmp_path):
    sides, texts = {f"step {n}": bert(pieces, seed=n) for n in range(3)}, some_texts(30)
    found = tp.compare(sides, LISTS, texts, n_permutations=0)
    table = found.differences["heads"]
    assert len(table["number"]) == 3 * 4
    assert table["first"][:4] == ("step 0",) * 4
    assert table["head"] == (0, 1, 0, 1) * 3
    assert (table["q_value"] >= table["p_value"]).all()
    np.testing.assert_allclose(found.ranks["heads"].sum(0), 1)
    assert [len(found.to_dataframe(by)) for by in ("layer", "head")] == [3 * 2, 3 * 4]
    assert tp.load_report(found.save(tmp_path / "report")) == found
    assert "step 0 ÷ step 1" in str(found)
    # Texts of one source are left out together.
    sources = [n // 3 for n in range(30)]
    together = tp.compare(sides, LISTS, texts, sources=sources, measure=["attention"], n_permutations=0)
    assert together.provenance["documents"]["sources"] == 10
    one, other = (report.differences["attention"] for report in (found, together))
    assert one["number"][0] == pytest.approx(other["number"][0])
    assert one["low"][0] != pytest.approx(other["low"][0])


def test_what_cannot_be_compared_is_refused_by_name(pieces, unchecked):
    one, texts = bert(pieces), some_texts()
    both = {"one": one, "other": bert(byte_level(), seed=1)}
    bare = {"one": one, "bare": tp.open_model(hf.BertModel(hf.BertConfig(vocab_size=9, **SIZES)))}
    nameless = tp.Topics.from_token_ids({"war": [5, 6]}, vocabulary_size=9)
    for given, topics, documents, options, error, said in (
        ([one, one], LISTS, None, {}, TypeError, "models must be a Mapping"),
        (both, LISTS, [[7, 8, 9]], {}, ValueError, "different vocabularies"),
        (both, LISTS, iter(texts), {}, ValueError, "can be read only once"),
        (both, {"war": ["zeppelin"]}, None, {}, ValueError, "no word is left that all models have"),
        (both, LISTS, None, {"measure": ["attention"]}, ValueError, "attention is measured in documents"),
        (both, LISTS, None, {"statistic": "topic_ratio"}, ValueError, "statistic must be"),
        (bare, LISTS, None, {}, TypeError, "bare has none"),
        (both, nameless, None, {}, ValueError, "the words of these topics are unknown"),
    ):
        with pytest.raises(error, match=said):
            tp.compare(given, topics, documents, **options)


# ---------------------------------------------------------------- saved reports


def test_saved_reports_of_the_same_things_compare_as_their_models_do(pieces, unchecked, tmp_path):
    topics, documents = tp.Topics.from_word_lists(LISTS, pieces), list(tp.encode_texts(some_texts(), pieces))
    sides = {"one": bert(pieces), "other": bert(pieces, seed=1)}

    def measured(model, topics=topics, documents=documents, **options):
        return tp.measure_attention(model, topics, documents, n_permutations=0, **options)

    reports = {name: measured(model) for name, model in sides.items()}
    loaded = {name: tp.load_report(report.save(tmp_path / name)) for name, report in reports.items()}
    found = tp.compare_reports(loaded)
    together = tp.compare(sides, LISTS, some_texts(), measure=["attention"], n_permutations=0)
    for name in ("attention", "layers", "heads"):
        for column in ("number", "low", "high", "p_value"):
            wanted = together.differences[name][column]
            np.testing.assert_allclose(found.differences[name][column], wanted, rtol=1e-9)
    back = tp.compare_reports(dict(reversed(reports.items()))).differences["attention"]
    np.testing.assert_allclose(1 / back["high"], found.differences["attention"]["low"])
    embeddings = {name: tp.measure_embeddings(model, topics) for name, model in sides.items()}
    sizes = [report.cosine.effect_size for report in embeddings.values()]
    of_words = tp.compare_reports(embeddings)
    assert of_words.differences["cosine"]["number"][0] == pytest.approx(sizes[0] - sizes[1])
    assert np.isnan(of_words.differences["cosine"]["low"][0])
    assert "keep no sums of words" in str(of_words)

    fewer = tp.Topics.from_word_lists({name: LISTS[name] for name in ("war", "music")}, pieces)
    model, differ = sides["other"], "cannot be compared, because they differ in .*"
    for different, said in (
        (measured(model, fewer), differ + "topics"),
        (measured(model, documents=documents[:9]), differ + "documents"),
        (measured(model, include_self=False), differ + "include_self"),
        (embeddings["other"], "must all be of measure_attention, or"),
    ):
        with pytest.raises(ValueError, match=said):
            tp.compare_reports({"one": reports["one"], "other": different})
