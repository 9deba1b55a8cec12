"""The page of one text and the gallery hold what a model attends to, and no text can break them."""

import base64
import json
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
import transformers as hf
import zoo
from matplotlib.colors import to_rgb
from page_parser import Parsed, check_stands_alone
from real_text import minilm_folder

import topic_probe as tp
from topic_probe.lens.sites import Inputs
from topic_probe.show.attention_page import attention_page, show_attention
from topic_probe.show.gallery import show_heads
from topic_probe.show.style import LESS, MORE
from topic_probe.show.text_attention import read_text_attention
from topic_probe.topics import Topics

TOPICS = {"one": range(5, 30), "two": range(25, 60), "three": range(60, 80)}  # 25 … 29 are in two topics
OF = [{name for name, held in TOPICS.items() if one in held} for one in range(zoo.VOCABULARY)]


@pytest.fixture(scope="module")
def topics():
    return Topics.from_token_ids(
        {name: list(ids) for name, ids in TOPICS.items()}, vocabulary_size=zoo.VOCABULARY
    )


def ids_of(n=24, seed=0):
    return zoo.documents((n,), seed)[0][0].tolist()


@cache
def opened(name):
    return tp.open_model(zoo.make(name))


def small_bert(heads=1, layers=1, vocabulary=zoo.VOCABULARY):
    sizes = {
        "hidden_size": 4 * heads,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 8,
    }
    with torch.random.fork_rng(devices=[]):
        return hf.BertModel(hf.BertConfig(vocab_size=vocabulary, **sizes)).eval()


def embedded(page):
    """What a page's script gets to read; patterns as multiples of uniform attention, NaN where a key is hidden."""
    (text,) = [given for given in Parsed(page.html).scripts if given.startswith("{")]
    data = json.loads(text)
    for head in data["heads"] if isinstance(data.get("heads"), list) else []:
        if head["pattern"] is not None:
            steps = np.frombuffer(base64.b64decode(head["pattern"]), np.uint8).astype(float)
            steps = steps.reshape(len(data["queries"]["words"]), -1)
            head["pattern"] = np.where(steps == 255, np.nan, data["most"] * (steps / 254) ** 2)
    return data


def times_uniform(name, ids, layer, head):
    """What Hugging Face returns, times the number of keys that a row may see; NaN where it may not."""
    inputs = Inputs(torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.bool))
    seen = zoo.visible(name, "self", layer, inputs)[0]
    pattern = zoo.own_patterns(zoo.make(name), inputs)["self"][layer][0, head]
    return (pattern * seen.sum(-1, keepdim=True)).masked_fill(~seen, torch.nan).double().numpy()


@pytest.mark.parametrize("name", ["bert", "gemma2"])
def test_the_page_holds_the_patterns_that_hugging_face_returns(name, topics):
    ids = ids_of()
    data = embedded(show_attention(opened(name), topics, ids, heads=["0.3", "L2H1"]))
    assert data["first"] == ["L0H3", "L2H1"]
    heads = {head["name"]: head for head in data["heads"]}
    for layer, head in ((0, 3), (2, 1)):
        theirs = times_uniform(name, ids, layer, head)
        found = heads[f"L{layer}H{head}"]["pattern"]
        assert (np.isnan(found) == np.isnan(theirs)).all()
        # One of 254 steps of the root, up to 16 times uniform attention.
        np.testing.assert_allclose(np.sqrt(found), np.sqrt(np.minimum(theirs, 16)), atol=4 / 254 / 2 + 1e-6)


def test_the_numbers_beside_a_head_are_those_of_a_double_loop_over_its_pattern(topics):
    ids = ids_of()
    data = embedded(show_attention(opened("bert"), topics, ids, heads="L1H2"))
    pattern = times_uniform("bert", ids, 1, 2)
    scores = {"same word": [], "same topic": [], "different topic": []}
    for query, one in enumerate(ids):
        for key, other in enumerate(ids):
            if OF[one] and OF[other]:
                topic = "same topic" if OF[one] & OF[other] else "different topic"
                scores["same word" if one == other else topic].append(pattern[query, key])
    mean = {name: sum(found) / len(found) for name, found in scores.items()}
    [head] = [head for head in data["heads"] if head["name"] == "L1H2"]
    assert head["means"] == pytest.approx(list(mean.values()), rel=1e-3)
    assert head["pairs"] == [len(found) for found in scores.values()]
    assert float(head["ratio"]) == pytest.approx(mean["same topic"] / mean["different topic"], rel=6e-3)
    pairs = np.array([*scores["same topic"], *scores["different topic"]])
    effect = (mean["same topic"] - mean["different topic"]) / pairs.std()
    assert float(head["effect"].replace("−", "-")) == pytest.approx(effect, rel=6e-2)
    counts = [data["relation"].count(str(kind)) for kind in (1, 2, 3)]  # of the cells of the page
    assert counts == head["pairs"]


def test_the_map_is_orange_where_heads_turn_to_the_topic_and_blue_where_they_turn_away(topics):
    page = show_attention(opened("bert"), topics, ids_of(), max_heads=1)
    heads = tp.measure_attention(opened("bert"), topics, [ids_of()], n_permutations=0).heads
    span = max(0.2, np.abs(heads.effect_size).max())
    buttons = [given for given in Parsed(page.html).all("button") if "data-name" in given]
    assert [given["data-name"] for given in buttons] == [f"L{n // 4}H{n % 4}" for n in range(12)]
    for at, given in enumerate(buttons):
        colour = re.search(r"#\w{6}", given["style"])[0]
        end = MORE if heads.effect_size[at] > 0 else LESS
        share = (1 - np.array(to_rgb(colour))) / (1 - np.array(to_rgb(end)))  # white at 0
        assert share == pytest.approx(abs(heads.effect_size[at]) / span, abs=0.02)


def test_a_report_chooses_the_heads_and_colours_the_map_and_one_of_another_model_is_refused(topics, tmp_path):
    report = tp.measure_attention(
        opened("bert"), topics, [ids_of(seed=seed) for seed in range(9)], n_permutations=20
    )
    page = show_attention(
        opened("bert"), topics, ids_of(), heads=str(report.save(tmp_path / "report")), max_heads=2
    )
    best = report.heads.top(2).index
    assert embedded(page)["first"] == [
        f"L{layer}H{head}" for layer, head in zip(best["layer"], best["head"], strict=True)
    ]
    assert "in the report, q " in page.html
    with pytest.raises(ValueError, match="is of another model"):
        show_attention(opened("bart"), topics, ids_of(6), heads=report)


def test_the_page_says_that_its_heads_were_chosen_on_this_text_and_what_it_is_of(topics):
    text = Parsed(show_attention(opened("bert"), topics, ids_of(40), max_tokens=6).html).text
    assert "Attention by topic: BertForMaskedLM" in text
    assert "Only the first 6 of 40 tokens are shown and measured." in text
    assert "have the largest effect sizes on this very text: they were chosen by it" in text
    assert "The numbers rest on few pairs" in text
    assert not re.search(r"\w+=", text)  # no Python


def test_a_head_of_a_stack_is_named_with_it_and_what_is_not_there_is_refused(topics):
    page = show_attention(opened("bart"), topics, ids_of(6), heads="decoder.1.0")
    assert "Shown is the stack “decoder”; the model also has encoder, cross." in Parsed(page.html).text
    for options, message in (
        ({"heads": "0.7"}, "no head '0.7': .* the last one of this stack is L2H3"),
        ({"heads": "first"}, "named as in"),
        ({"stack": "decoder"}, "no stack 'decoder'"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            show_attention(opened("bert"), topics, ids_of(6), **options)


def test_words_of_several_topics_name_all_and_pieces_of_words_and_special_tokens_none(topics):
    page = show_attention(opened("bert"), topics, [61, 26, 7, 90])
    assert embedded(page)["queries"]["topics"] == [[2], [0, 1], [0], []]
    (both,) = [given for given in Parsed(page.html).all("bdi") if given["data-at"] == "1"]
    assert both["title"] == "0: one (5·6·7) and 1: two (25·26·27)"
    # All four are listed in a topic.
    flags = torch.tensor([False, False, False, True])
    document = tp.Document(torch.tensor([7, 8, 9, 61]), torch.tensor([0, 0, 1, -1]), flags)
    data = embedded(show_attention(opened("bert"), topics, document))
    assert data["queries"]["topics"] == [[], [], [0], []]
    assert data["queries"]["special"] == [0, 0, 0, 1]
    assert data["relation"] == "0000000000100000"


def test_a_listed_word_that_the_tokenizer_splits_is_named_and_marked():
    tokenizer = hf.AutoTokenizer.from_pretrained(minilm_folder())
    topics = Topics.from_word_lists({"a": ["espresso", "tea"], "b": ["court"]}, tokenizer)
    page = show_attention(
        small_bert(vocabulary=30522), topics, "Espresso or tea in court", tokenizer=tokenizer
    )
    assert "split by this model's tokenizer, so that it counts nowhere: espresso." in Parsed(page.html).text
    assert len(Parsed(page.html).all("bdi", **{"class": "w split"})) == 3  # es ##press ##o


def test_a_page_stays_below_250_kilobytes_and_says_which_patterns_it_leaves_out(topics):
    page = show_attention(small_bert(heads=12), topics, ids_of(128))
    assert len(page.html.encode()) < 250_000
    heads = embedded(page)["heads"]
    n_missing = sum(head["pattern"] is None for head in heads)
    assert 0 < n_missing < 12
    assert f"of {n_missing} heads, dashed, only the numbers are in this page" in Parsed(page.html).text


# -------------------------------------------------------------------- circuitsvis' gallery


@pytest.mark.parametrize("name", ["bert", "gemma2"])
def test_the_gallery_has_all_heads_by_topic_in_logarithms_of_multiples_of_uniform_attention(name, topics):
    ids = [61, 7, 90, 30, 8, 7]  # of topics three, one, none, two, one, one
    page = show_heads(opened(name), topics, ids)
    data = embedded(page)
    causal = name == "gemma2"
    order = [4, 5, 3] if causal else [1, 5, 4, 3, 0]
    order = [1, 5, 4, 3] if causal else order  # the first position of a causal model is a sink
    names = {0: "three:61", 1: "one:7", 3: "two:30", 4: "one:8", 5: "one:7"}
    assert data["tokens"] == [names[at] for at in order]
    assert data["attentionHeadNames"] == [f"L{n // 4}H{n % 4}" for n in range(12)]
    times = times_uniform(name, ids, 1, 2)[np.ix_(order, order)]
    wanted = np.nan_to_num(np.clip(np.log2(times), -3, 3), nan=0.0)
    np.testing.assert_allclose(data["attention"][6], wanted, atol=0.051)
    assert data["maskUpperTri"] is False
    text = Parsed(page.html).text
    assert f"{len(order)} words with a topic; {6 - len(order)} other tokens are left out." in text
    assert ("hidden by the model’s mask" in text) == causal


def test_the_gallery_shows_at_most_64_words_and_needs_two(topics):
    page = show_heads(small_bert(), topics, [7, 61, 30] * 25)
    assert len(embedded(page)["tokens"]) == 64
    assert "Of 75 words with a topic the first 64 are shown." in page.html
    with pytest.raises(ValueError, match="fewer than two words"):
        show_heads(opened("bert"), topics, [7, 90, 91])


# -------------------------------------------------------------------- whatever stands in a text


def test_no_token_becomes_markup_or_ends_a_script(topics):
    found = read_text_attention(opened("bert"), topics, ids_of(9), max_heads=1)
    nasty = (
        "<script>alert(1)</script>", '</script><img src=x onerror="alert(2)">', "<!--<script>", "\0", "\ud83d",
        "'\"&", "\u202eevil", "שלום 🐸", "",
    )  # fmt: skip
    tokens = replace(found.keys, words=nasty)
    labels = ("0: <b>·\0·'\"",) * 3
    page = attention_page(
        replace(found, queries=tokens, keys=tokens, labels=labels, names=nasty[:3], model=nasty[1])
    )
    parsed = check_stands_alone(page)
    plain = check_stands_alone(attention_page(found))
    assert [tag for tag, _ in parsed.elements] == [tag for tag, _ in plain.elements]
    for word in ("<script>alert(1)</script>", "␀", "'\"&", "שלום 🐸"):
        assert word in parsed.text
    assert embedded(page)["queries"]["words"][:2] == list(nasty[:2])
    assert page.html.encode().count(b"\0") == 0
