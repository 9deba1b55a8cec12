"""The page of one text holds what a model attends to, and no text can break it."""

import base64
import json
import re
import zlib
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
import zoo
from matplotlib.colors import to_rgb
from page_parser import Parsed, check_stands_alone

import topic_probe as tp
from topic_probe.lens.sites import Inputs
from topic_probe.measure.text_attention import read_text_attention
from topic_probe.show.attention_page import attention_page, show_attention
from topic_probe.show.page import number
from topic_probe.show.style import LESS, MORE
from topic_probe.topics import Topics

TOPICS = {"one": range(5, 30), "two": range(25, 60), "three": range(60, 80)}  # 25 … 29 are in two topics


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


def embedded(page):
    """What the page's script gets to read, unpacked; ``heads`` are those that it shows first, ``all`` every one."""
    (packed,) = [code for code in Parsed(page.html).scripts if code.startswith('{"queries"')]
    data = json.loads(packed)
    n = len(data["queries"]["words"])
    m = n if data["keys"] is None else len(data["keys"]["words"])
    cells = np.frombuffer(zlib.decompress(base64.b64decode(data["packed"])), np.uint8).reshape(-1, n, m)
    data["relation"], data["word_relation"] = cells[:2]
    data["masks"], patterns = cells[2 : 2 + data["nMasks"]], cells[2 + data["nMasks"] :]
    assert len(patterns) == len(data["heads"])
    for head, levels in zip(data["heads"], patterns, strict=True):
        head["pattern"] = head["highest"] * (levels / data["steps"]) ** 2
    data["all"] = data["heads"]
    data["heads"] = [head for head in data["all"] if head["name"] in data["first"]]
    return data


def assert_written_down(data, head, pattern):
    """A pattern is that of a head, up to the steps in which it is stored; that of the page's own sentence."""
    pattern = np.asarray(pattern, dtype=float)
    off = (np.sqrt(pattern * head["highest"]) + head["highest"] / data["steps"]) / data["steps"]
    assert (np.abs(head["pattern"] - pattern) <= off + 1e-6).all()
    assert head["highest"] == pytest.approx(pattern.max(), rel=1e-4)


def own(name, ids):
    inside = zoo.make(name)
    batch = torch.tensor([ids])
    return zoo.own_patterns(inside, Inputs(batch, torch.ones_like(batch, dtype=torch.bool)))


@pytest.mark.parametrize("name", ["bert", "gemma2"])
def test_the_page_holds_the_patterns_that_hugging_face_returns(name, topics):
    ids = ids_of()
    data = embedded(show_attention(opened(name), topics, ids, heads=[(0, 3), "L2H1"], circuitsvis=False))
    assert [head["name"] for head in data["heads"]] == ["L0H3", "L2H1"]
    theirs = own(name, ids)["self"]
    for head, (layer, at) in zip(data["heads"], [(0, 3), (2, 1)], strict=True):
        assert_written_down(data, head, theirs[layer][0, at])
        batch = Inputs(torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.bool))
        seen = zoo.visible(name, "self", layer, batch)[0].numpy()
        assert (data["masks"][head["mask"]] == seen).all()


def test_the_numbers_beside_a_head_are_those_of_a_double_loop_over_its_pattern(topics):
    ids = ids_of()
    data = embedded(show_attention(opened("bert"), topics, ids, layer=1, heads=2, circuitsvis=False))
    pattern = own("bert", ids)["self"][1][0, 2].double()
    of = {one: {name for name, held in TOPICS.items() if one in held} for one in ids}
    scores = {"same word": [], "same topic": [], "different topic": []}
    for query, one in enumerate(ids):
        for key, other in enumerate(ids):
            if of[one] and of[other]:
                topic = "same topic" if of[one] & of[other] else "different topic"
                relation = "same word" if one == other else topic
                scores[relation].append(float(pattern[query, key]) * len(ids))
    mean = {name: sum(found) / len(found) for name, found in scores.items()}
    [head] = data["heads"]
    assert head["means"] == pytest.approx(list(mean.values()), rel=1e-5)
    assert head["pairs"] == [len(found) for found in scores.values()]
    assert head["ratio"] == pytest.approx(mean["same topic"] / mean["different topic"], rel=1e-5)
    pairs = np.array([*scores["same topic"], *scores["different topic"]])
    effect = (mean["same topic"] - mean["different topic"]) / pairs.std()
    assert head["effect"] == pytest.approx(effect, rel=1e-4)
    counts = np.bincount(data["relation"].ravel(), minlength=4)[1:]  # of the cells of the page
    assert counts.tolist() == head["pairs"]


def test_the_grid_is_orange_where_heads_turn_to_the_topic_and_blue_where_they_turn_away(topics):
    page = show_attention(opened("bert"), topics, ids_of(), max_heads=1, circuitsvis=False)
    heads = tp.measure_attention(opened("bert"), topics, [ids_of()], n_permutations=0).heads
    span = max(0.2, np.abs(heads.effect_size).max())
    buttons = [given for given in Parsed(page.html).all("button") if "data-name" in given]
    for at, given in enumerate(buttons):
        (colour,) = re.findall(r"--text:(#\w{6})ff", given["style"])
        end = MORE if heads.effect_size[at] > 0 else LESS
        share = (1 - np.array(to_rgb(colour))) / (1 - np.array(to_rgb(end)))  # white at 0
        assert share == pytest.approx(abs(heads.effect_size[at]) / span, abs=0.02)
        assert f"effect size {number(heads.effect_size[at])}" in given["title"] == given["aria-label"]


def test_no_token_becomes_markup_or_ends_a_script(topics):
    found = read_text_attention(opened("bert"), topics, ids_of(9), max_heads=1)
    nasty = (
        "<script>alert(1)</script>", '</script><img src=x onerror="alert(2)">', "<!--<script>", "\0", "\ud83d",
        "'\"&", "\u202eevil", "שלום 🐸", "",
    )  # fmt: skip
    tokens = replace(found.keys, words=nasty, in_words=nasty)
    labels = ("0: <b>·\0·'\"",) * 3
    page = attention_page(replace(found, queries=tokens, keys=tokens, labels=labels, names=nasty[:3]))
    parsed = check_stands_alone(page)
    plain = check_stands_alone(attention_page(found))
    assert [tag for tag, _ in parsed.elements] == [tag for tag, _ in plain.elements]
    for word in ("<script>alert(1)</script>", "␀", "'\"&", "שלום 🐸"):
        assert word in parsed.text
    assert embedded(page)["queries"]["words"][:2] == list(nasty[:2])
    assert page.html.encode().count(b"\0") == 0


def test_what_is_not_there_is_named(topics):
    for options, message in (
        ({"layer": 9}, "no layer 9"),
        ({"heads": [(0, 7)]}, "no head L0H7"),
        ({"layer": 0, "heads": ["L1H2"]}, "L1H2 is not in layer 0"),
        ({"heads": "first"}, "named as in"),
        ({"stack": "decoder"}, "no stack 'decoder'"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            show_attention(opened("bert"), topics, ids_of(6), **options)


def test_words_of_several_topics_name_all_and_pieces_of_words_and_special_tokens_none(topics):
    page = show_attention(opened("bert"), topics, [61, 26, 7, 90], layer=0, heads=0, circuitsvis=False)
    assert embedded(page)["queries"]["topics"] == [[2], [0, 1], [0], []]
    (both,) = [given for given in Parsed(page.html).all("bdi") if given["data-at"] == "1"]
    assert both["title"] == "0: one (5·6·7) and 1: two (25·26·27)"
    # All four are listed in a topic.
    document = tp.Document(
        torch.tensor([7, 8, 9, 61]), torch.tensor([0, 0, 1, -1]), torch.tensor([False, False, False, True])
    )
    page = show_attention(opened("bert"), topics, document, layer=0, heads=0, circuitsvis=False)
    data = embedded(page)
    assert data["queries"]["topics"] == [[], [], [0], []]
    assert data["queries"]["special"] == [0, 0, 0, 1]
    assert np.argwhere(data["relation"]).tolist() == [[2, 2]]
