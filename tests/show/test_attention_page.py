import base64
import json
import math
import re
import warnings
import zlib
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
import zoo
from matplotlib.colors import to_rgb
from page_parser import Parsed, check_stands_alone
from real_text import minilm_folder, topics_by_hand

import topic_probe as tp
from topic_probe.contrast import DIFFERENT_TOPIC, SAME_TOPIC, SAME_WORD
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


@pytest.mark.parametrize("name", ["bert", "gpt2", "deberta", "gemma2"])
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
    model = opened("bert")
    page = show_attention(model, topics, ids, layer=1, heads=2, circuitsvis=False)
    pattern = own("bert", ids)["self"][1][0, 2].double()
    of = {one: {name for name, held in TOPICS.items() if one in held} for one in ids}
    scores = {"same word": [], "same topic": [], "different topic": []}
    for query, one in enumerate(ids):
        for key, other in enumerate(ids):
            if of[one] and of[other]:
                relation = (
                    "same word"
                    if one == other
                    else "same topic"
                    if of[one] & of[other]
                    else "different topic"
                )
                scores[relation].append(float(pattern[query, key]) * len(ids))
    mean = {name: sum(found) / len(found) for name, found in scores.items()}
    [head] = embedded(page)["heads"]
    assert head["means"] == pytest.approx(list(mean.values()), rel=1e-5)
    assert head["pairs"] == [len(found) for found in scores.values()]
    assert head["ratio"] == pytest.approx(mean["same topic"] / mean["different topic"], rel=1e-5)
    # … which are the same that measure_attention gives, to every digit.
    report = tp.measure_attention(model, topics, [ids], n_resamples=0, n_permutations=0)
    place = report.heads.index["layer"].index(1) + 2
    shown = [head["effect"], head["ratio"]]
    assert shown == [report.heads.effect_size[place], report.heads.ratio[place]]
    pairs = np.array([*scores["same topic"], *scores["different topic"]])
    effect = (mean["same topic"] - mean["different topic"]) / pairs.std()
    assert shown[0] == pytest.approx(effect, rel=1e-4)
    # … and the cells of the page have these relations.
    counts = np.bincount(embedded(page)["relation"].ravel(), minlength=4)[1:]
    assert counts.tolist() == [len(found) for found in scores.values()]


def test_a_page_agrees_with_the_measurement_on_what_the_first_position_is(topics):
    ids = [6, *ids_of()]
    for name, first in (("gpt2", "sink"), ("gpt2", "word"), ("bert", "sink")):
        attention = read_text_attention(opened(name), topics, ids, heads=["L1H0"], first_position=first)
        options = {"n_resamples": 0, "n_permutations": 0, "first_position": first, "special_ids": None}
        heads = tp.measure_attention(opened(name), topics, [ids], **options).heads
        [place] = [
            at
            for at, cell in enumerate(zip(heads.index["layer"], heads.index["head"], strict=True))
            if cell == (1, 0)
        ]
        [shown] = attention.heads
        assert shown.contrast.n_same_topic == heads[place].n_same_topic
        assert shown.contrast.same_topic == pytest.approx(heads[place].same_topic, rel=1e-6)
        is_sink = (name, first) == ("gpt2", "sink")
        assert attention.keys.special[0] is is_sink
        assert any("first position" in note for note in attention.notes) is is_sink


def test_a_causal_model_hides_the_upper_triangle_and_an_encoder_nothing(topics):
    causal = show_attention(opened("gpt2"), topics, ids_of(), max_heads=2)
    (mask,) = embedded(causal)["masks"]
    assert (mask == np.tril(np.ones_like(mask))).all()
    assert "Hatched: what a causal mask hides" in causal.html
    whole = show_attention(opened("bert"), topics, ids_of(), max_heads=2)
    assert (embedded(whole)["masks"][0] == 1).all()
    assert "Hatched" not in whole.html
    local = show_attention(opened("gemma2"), topics, ids_of(), layer=0, max_heads=1, circuitsvis=False)
    assert "causal mask hides" in local.html  # a window that only looks back
    both_ways = show_attention(
        opened("modernbert"), topics, ids_of(), layer=1, max_heads=1, circuitsvis=False
    )
    assert "Hatched: what the model's mask hides" in Parsed(both_ways.html).text


def test_the_page_stands_alone_with_one_copy_of_circuitsvis_however_many_heads(topics):
    page = show_attention(opened("bert"), topics, ids_of(), max_heads=12)
    parsed = check_stands_alone(page)
    assert len(embedded(page)["heads"]) == 12
    (library,) = [code for code in parsed.scripts if len(code) > 300_000]
    library = zlib.decompress(base64.b64decode(library)).decode()
    assert "AttentionHeads" in library
    assert "CircuitsVis.render(" not in library
    assert "unpkg" not in library[-100_000:]
    assert len(page.html) < 700_000
    without = show_attention(opened("bert"), topics, ids_of(), max_heads=12, circuitsvis=False)
    assert len(without.html) < 100_000
    assert check_stands_alone(without).all("aside") == []
    assert "circuitsvis" not in Parsed(without.html).text


def test_every_head_of_every_layer_is_in_the_page_whichever_are_shown_first(topics):
    for options in ({"max_heads": 2}, {"heads": ["L1H2"]}, {"layer": 2}):
        page = show_attention(opened("bert"), topics, ids_of(), circuitsvis=False, **options)
        data, theirs = embedded(page), own("bert", ids_of())["self"]
        names = [f"L{layer}H{head}" for layer in range(3) for head in range(zoo.HEADS)]
        assert sorted(head["name"] for head in data["all"]) == names
        for head in data["all"]:
            layer, number = int(head["name"][1]), int(head["name"][3])
            assert_written_down(data, head, theirs[layer][0, number])
        buttons = [given for given in Parsed(page.html).all("button") if "data-name" in given]
        assert [given["data-name"] for given in buttons] == names
        assert not any("aria-disabled" in given for given in buttons)


def test_the_grid_is_orange_where_heads_turn_to_the_topic_and_blue_where_they_turn_away(topics):
    page = show_attention(opened("bert"), topics, ids_of(), max_heads=1, circuitsvis=False)
    heads = tp.measure_attention(opened("bert"), topics, [ids_of()], n_resamples=0, n_permutations=0).heads
    span = max(0.2, np.abs(heads.effect_size).max())
    buttons = [given for given in Parsed(page.html).all("button") if "data-name" in given]
    for at, given in enumerate(buttons):
        (colour,) = re.findall(r"--text:(#\w{6})ff", given["style"])
        end = MORE if heads.effect_size[at] > 0 else LESS
        share = (1 - np.array(to_rgb(colour))) / (1 - np.array(to_rgb(end)))  # white at 0
        assert share == pytest.approx(abs(heads.effect_size[at]) / span, abs=0.02)
        assert (
            f"effect size {number(heads.effect_size[at])}, ratio {number(heads.ratio[at])}" in given["title"]
        )
        assert given["aria-label"] == given["title"]


def test_a_report_chooses_the_heads_shown_first_and_colours_the_grid(topics, tmp_path):
    model = opened("bert")
    documents = [ids_of(seed=seed) for seed in range(12)]
    report = tp.measure_attention(model, topics, documents, n_resamples=20, n_permutations=40)
    index = report.heads.top(3).index
    wanted = [f"L{layer}H{head}" for layer, head in zip(index["layer"], index["head"], strict=True)]
    q = np.linspace(0.2, 0.9, 12)
    q[5], q[7] = 0.01, 0.049
    some = replace(report, heads=replace(report.heads, q_value=q))
    page = show_attention(model, topics, ids_of(), heads=report, max_heads=3, circuitsvis=False)
    assert embedded(page)["first"] == wanted
    text = Parsed(page.html).text
    assert (
        "Shown first are the 3 heads with the strongest evidence in the report, of 12 in all layers" in text
    )
    report.save(tmp_path / "saved")
    again = show_attention(
        model, topics, ids_of(), heads=str(tmp_path / "saved"), max_heads=3, circuitsvis=False
    )
    assert again.html == page.html
    certain = show_attention(model, topics, ids_of(), heads=some, max_heads=2, circuitsvis=False)
    assert embedded(certain)["first"] == ["L1H1", "L1H3"]
    marked = re.findall(r'<button[^>]*data-name="(L\dH\d)"[^>]*>●</button>', certain.html)
    assert marked == ["L1H1", "L1H3"]
    assert "q 0.049" in certain.html
    radios = [given["value"] for given in Parsed(page.html).all("input", name="evidence")]
    assert radios == ["report", "text"]
    within = show_attention(model, topics, ids_of(), heads=report, layer=2, max_heads=2, circuitsvis=False)
    assert {name[:2] for name in embedded(within)["first"]} == {"L2"}


def test_a_report_of_another_model_or_kind_is_refused(topics, tmp_path):
    report = tp.measure_attention(opened("bert"), topics, [ids_of()], n_resamples=0, n_permutations=0)
    fewer = replace(report, heads=report.heads[:8])
    with pytest.raises(
        ValueError, match=r"needs a report of this model, which has 12 heads in its stack 'self'.*knows 8"
    ):
        show_attention(opened("bert"), topics, ids_of(), heads=fewer)
    tp.measure_embeddings(opened("bert"), topics).save(tmp_path / "other")
    with pytest.raises(
        ValueError, match=r"a report of measure_attention, but .* holds one of another kind: embeddings"
    ):
        show_attention(opened("bert"), topics, ids_of(), heads=str(tmp_path / "other"))


def test_twelve_layers_of_twelve_heads_over_128_tokens_stay_below_three_megabytes(topics):
    """Also where heads are as hard to compress as any: every cell drawn by chance."""
    found = read_text_attention(opened("bert"), topics, ids_of(64), max_heads=1)
    tokens = replace(found.keys, **{name: getattr(found.keys, name) * 2 for name in vars(found.keys)})
    generator = torch.Generator().manual_seed(0)

    def head(layer, number, sharpness):
        pattern = torch.softmax(sharpness * torch.randn(128, 128, generator=generator), -1)
        whole = torch.ones(128, 128, dtype=torch.bool)
        return replace(found.heads[0], layer=layer, head=number, pattern=pattern, visible=whole)

    index = {"layer": tuple(np.repeat(range(12), 12).tolist()), "head": tuple(range(12)) * 12}
    measured = replace(found.measured[[0] * 144], index=index)
    for sharpness in (0.5, 3.0):
        heads = [head(layer, number, sharpness) for layer in range(12) for number in range(12)]
        relation = torch.zeros(128, 128, dtype=torch.int8)
        attention = replace(
            found, queries=tokens, keys=tokens, relation=relation, word_relation=relation,
            heads=tuple(heads[:6]), rest=tuple(heads[6:]), measured=measured,
        )  # fmt: skip
        page = attention_page(attention)
        assert len(page.html.encode()) < 3_000_000
        data = embedded(page)
        assert len(data["all"]) == 144
        for own, there in zip(heads, data["all"], strict=True):
            assert_written_down(data, there, own.pattern)


def test_where_even_coarse_steps_are_too_many_the_heads_with_the_weakest_evidence_have_no_pattern(
    topics, monkeypatch
):
    found = read_text_attention(opened("bert"), topics, ids_of(40), heads=["L1H1", "L0H2"])
    whole = embedded(attention_page(found, circuitsvis=False))
    monkeypatch.setattr("topic_probe.show.attention_page._ROOM", len(whole["packed"]) // 4)
    page = attention_page(found, circuitsvis=False)
    data = embedded(page)
    assert 2 <= len(data["all"]) < 12
    assert [head["name"] for head in data["all"]] == [head["name"] for head in whole["all"]][
        : len(data["all"])
    ]
    assert data["first"] == ["L1H1", "L0H2"]
    missing = [given["data-name"] for given in Parsed(page.html).all("button", **{"aria-disabled": "true"})]
    assert len(missing) == 12 - len(data["all"])
    assert (
        f"The patterns of {len(missing)} heads with the weakest evidence are not in this page"
        in Parsed(page.html).text
    )
    order = tp.measure_attention(
        opened("bert"), topics, [ids_of(40)], n_resamples=0, n_permutations=0
    ).heads.order()
    weakest = [f"L{at // 4}H{at % 4}" for at in order.tolist()]
    assert set(missing) == set([name for name in weakest if name not in ("L1H1", "L0H2")][-len(missing) :])


def test_no_token_becomes_markup_or_ends_a_script(topics):
    found = read_text_attention(opened("bert"), topics, ids_of(9), max_heads=1)
    nasty = (
        "<script>alert(1)</script>",
        '</script><img src=x onerror="alert(2)">',
        "<!--<script>",
        "\0",
        "\ud83d",
        "'\"&",
        "\u202eevil",
        "שלום 🐸",
        "",
    )
    tokens = replace(found.keys, words=nasty, in_words=nasty)
    changed = {
        **vars(found),
        "queries": tokens,
        "keys": tokens,
        "labels": ("0: <b>·\0·'\"",) * 3,
        "names": nasty[:3],
    }
    page = attention_page(type(found)(**changed))
    parsed = check_stands_alone(page)
    plain = check_stands_alone(attention_page(found))
    assert [tag for tag, _ in parsed.elements] == [tag for tag, _ in plain.elements]
    for word in ("<script>alert(1)</script>", "␀", "'\"&", "שלום 🐸"):
        assert word in parsed.text
    assert embedded(page)["queries"]["words"][:2] == list(nasty[:2])
    assert page.html.encode().count(b"\0") == 0


def test_topics_keep_their_number_and_words_of_several_topics_name_all(topics):
    ids = [61, 26, 7, 90]
    page = show_attention(opened("bert"), topics, ids, layer=0, heads=0, circuitsvis=False)
    data = embedded(page)
    assert data["queries"]["topics"] == [[2], [0, 1], [0], []]
    assert sorted(data["topics"]) == ["0", "1", "2"]
    parsed = Parsed(page.html)
    (both,) = [given for given in parsed.all("bdi") if given["data-at"] == "1"]
    assert both["title"] == "0: one (5·6·7) and 1: two (25·26·27)"
    assert "t0" in both["class"].split()


def test_long_inputs_are_cut_and_say_so(topics):
    page = show_attention(opened("bert"), topics, ids_of(40), max_tokens=16, max_heads=1, circuitsvis=False)
    assert len(embedded(page)["queries"]["words"]) == 16
    assert "Only the first 16 of 40 tokens are shown and measured (max_tokens=16)." in Parsed(page.html).text
    page = show_attention(opened("bert"), topics, ids_of(64) + ids_of(20), max_heads=1, circuitsvis=False)
    assert "Only the first 64 of 84 tokens" in page.html
    assert "the model takes no more than 64 tokens" in page.html
    assert "Only" not in Parsed(show_attention(opened("bert"), topics, ids_of(), circuitsvis=False).html).text


def test_the_strongest_heads_are_shown_and_the_page_says_so(topics):
    model, ids = opened("bert"), ids_of()
    page = show_attention(model, topics, ids, max_heads=3, circuitsvis=False)
    heads = tp.measure_attention(model, topics, [ids], n_resamples=0, n_permutations=0).heads.top(3).index
    expected = [f"L{layer}H{head}" for layer, head in zip(heads["layer"], heads["head"], strict=True)]
    assert [head["name"] for head in embedded(page)["heads"]] == expected
    assert (
        "the 3 heads with the highest effect size on this text, of 12 in all layers" in Parsed(page.html).text
    )
    ratios = show_attention(model, topics, ids, max_heads=3, by="ratio", circuitsvis=False)
    heads = tp.measure_attention(model, topics, [ids], n_resamples=0, n_permutations=0).heads.top(
        3, by="ratio"
    )
    expected = [
        f"L{layer}H{head}" for layer, head in zip(*map(heads.index.get, ("layer", "head")), strict=True)
    ]
    assert [head["name"] for head in embedded(ratios)["heads"]] == expected
    assert "the 3 heads with the highest ratio on this text" in Parsed(ratios.html).text
    within = show_attention(model, topics, ids, layer=2, max_heads=9, circuitsvis=False)
    assert {head["name"][:2] for head in embedded(within)["heads"]} == {"L2"}
    assert len(embedded(within)["heads"]) == zoo.HEADS


def test_a_text_without_topics_or_with_one_word_shows_dashes_and_their_reason(topics):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        page = show_attention(opened("bert"), topics, [90, 91, 92], circuitsvis=False)
        single = show_attention(opened("bert"), topics, [7], circuitsvis=False)
    parsed = check_stands_alone(page)
    assert "No word of this text belongs to a topic" in parsed.text
    assert "no effect size is defined on this text" in parsed.text
    assert embedded(page)["heads"][0]["means"] == [None] * 3
    assert embedded(page)["heads"][0]["pairs"] == [0] * 3
    assert "nan" not in parsed.text.lower()
    assert "no pair of different words shares a topic" in embedded(single)["heads"][0]["reason"]
    check_stands_alone(single)


def test_each_stack_of_an_encoder_decoder_can_be_chosen(topics):
    ids = ids_of(10)
    theirs = None
    for stack in ("encoder", "decoder", "cross"):
        page = show_attention(opened("bart"), topics, ids, stack=stack, layer=1, heads=[3])
        data = embedded(page)
        parsed = check_stands_alone(page)
        assert f"Shown is the stack “{stack}”" in parsed.text
        inside = zoo.make("bart")
        target = torch.tensor([[inside.config.decoder_start_token_id, *ids[:-1]]])
        ones = torch.ones(1, len(ids), dtype=torch.bool)
        theirs = zoo.own_patterns(inside, Inputs(torch.tensor([ids]), ones, target, ones))
        assert_written_down(data, data["heads"][0], theirs[stack][1][0, 3])
        if stack == "cross":
            assert data["queries"]["words"] == [str(one) for one in target[0].tolist()]
            assert data["keys"]["words"] == [str(one) for one in ids]
            assert parsed.all("aside", id="circuitsvis") == []  # which knows only square patterns
        else:
            assert data["keys"] is None
    assert (
        "Shown is the stack “encoder”" in show_attention(opened("t5-headless"), topics, ids, max_heads=1).html
    )


def test_a_toy_model_and_one_whose_hooks_are_its_own_are_shown():
    world = tp.World(n_topics=3, words_per_topic=4, alpha=0.1)
    toy = tp.build_toy(tp.ToyConfig(regime="full", world=world))
    page = show_attention(
        toy, Topics.blocks(n_topics=3, words_per_topic=4), list(range(13)), circuitsvis=False
    )
    assert [head["name"] for head in embedded(page)["heads"]] == ["L0H0"]
    check_stands_alone(page)


def test_real_text_is_read_with_the_models_own_tokenizer():
    model = tp.open_model(minilm_folder())
    topics = topics_by_hand(model.tokenizer)
    text = "The army and its troops play music: guitar, piano. Unbelievable! <b>Église</b>\0 🐸 שלום"
    page = show_attention(model, topics, text, circuitsvis=False)
    parsed = check_stands_alone(page)
    words = embedded(page)["queries"]["words"]
    assert words[:4] == ["[CLS]", "the", "army", "and"]
    assert words[-1] == "[SEP]"
    colours = {given["data-at"]: given["class"].split() for given in parsed.all("bdi")}
    assert "t0" in colours["2"]  # army: war
    assert "t1" in colours[str(words.index("guitar"))]  # music
    assert "special" in colours["0"]
    long = "army music, " * 100_000
    cut = embedded(
        page_of_long := show_attention(model, topics, long, max_tokens=32, max_heads=1, circuitsvis=False)
    )
    assert len(cut["queries"]["words"]) == 32
    assert cut["queries"]["words"][-1] == "[SEP]"
    assert f"Only the first 32 tokens of a text of {len(long):,} characters are shown" in page_of_long.html
    middle = show_attention(model, topics, "army music " * 40, max_tokens=32, max_heads=1, circuitsvis=False)
    assert "Only 32 of 82 tokens are shown and measured" in middle.html
    with pytest.raises(ValueError, match="L99H0"):
        show_attention(model, topics, text, heads="L99H0")


def test_documents_in_any_shape_are_shown_but_only_one(topics):
    ids = ids_of(8)
    model = opened("bert")
    same = [
        embedded(show_attention(model, topics, given, layer=0, heads=0, circuitsvis=False))["heads"][0]["pattern"]
        for given in (ids, np.array(ids), torch.tensor([ids]), tp.Document(torch.tensor(ids)),
                      {"input_ids": [ids], "attention_mask": [[1] * 8]})
    ]  # fmt: skip
    for pattern in same:
        np.testing.assert_array_equal(pattern, same[0])
    with pytest.raises(ValueError, match="one text is shown at a time, but 2 came"):
        show_attention(model, topics, [ids, ids])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 9}, r"no layer 9 in this stack; its layers are 0–2"),
        ({"heads": [(0, 7)]}, r"no head L0H7 in this stack; the heads of layer 0 are 0–3"),
        ({"heads": 2}, "needs its layer"),
        ({"layer": 0, "heads": ["L1H2"]}, "head L1H2 is not in layer 0"),
        ({"heads": "first"}, "named as in 'L3H7' or '3.7'"),
        ({"heads": []}, "heads is empty"),
        ({"stack": "decoder"}, "no stack 'decoder'; it has 'self'"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
    ],
)
def test_what_is_not_there_is_named(options, message, topics):
    with pytest.raises(ValueError, match=message):
        show_attention(opened("bert"), topics, ids_of(6), **options)


def test_a_number_that_is_none_is_refused(topics):
    with pytest.raises(TypeError, match="max_heads must be a whole number, got True"):
        show_attention(opened("bert"), topics, ids_of(6), max_heads=True)


def test_text_without_a_tokenizer_and_text_without_tokens_are_refused(topics):
    model = opened("bert")
    with pytest.raises(ValueError, match="needs the model's tokenizer and this model has none"):
        show_attention(model, topics, "words")
    with pytest.raises(ValueError, match="has no tokens"):
        show_attention(model, topics, torch.tensor([], dtype=torch.int64))


def test_a_head_with_nan_is_refused(topics):
    inside = zoo.make("bert")
    with torch.no_grad():
        inside.bert.encoder.layer[1].attention.self.query.weight.fill_(math.nan)
    with pytest.raises(ValueError, match=r"NaN|not an attention pattern"):
        show_attention(inside, topics, ids_of())


def test_pieces_of_split_words_and_special_tokens_have_no_topic(topics):
    ids, words, special = (
        [7, 8, 9, 61],
        [0, 0, 1, -1],
        [False, False, False, True],
    )  # all four are listed in a topic
    document = tp.Document(torch.tensor(ids), torch.tensor(words), torch.tensor(special))
    page = show_attention(opened("bert"), topics, document, layer=0, heads=0, circuitsvis=False)
    data = embedded(page)
    assert data["queries"]["topics"] == [[], [], [0], []]
    assert data["queries"]["special"] == [0, 0, 0, 1]
    assert np.argwhere(data["relation"]).tolist() == [[2, 2]]
    assert "7</bdi><bdi" in page.html  # the second piece follows without a gap
    assert "8</bdi> <bdi" in page.html


def test_a_split_word_that_the_topics_know_has_its_topic_as_a_whole_word_only():
    model = tp.open_model(minilm_folder())
    words = {"war": ["army", "bandleader"], "music": ["guitar"]}
    topics = Topics.from_word_lists(words, model.tokenizer, split_words="keep")
    data = embedded(show_attention(model, topics, "army bandleader guitar", max_heads=1, circuitsvis=False))
    side = data["queries"]
    at, end, guitar = (side["words"].index(word) for word in ("band", "##leader", "guitar"))
    assert side["inWords"][at : end + 1] == ["bandleader"] * 2
    assert side["topics"][at] == []
    assert side["wordTopics"][at] == side["wordTopics"][end] == [0]
    army = side["words"].index("army")
    assert data["relation"][army, at] == 0
    assert data["word_relation"][army, at] == SAME_TOPIC
    assert data["word_relation"][guitar, at] == DIFFERENT_TOPIC
    assert data["word_relation"][at, at] == SAME_WORD
    alone = read_text_attention(model, topics, "army bandleader guitar", max_heads=1, include_self=False)
    assert not alone.word_relation[at : end + 1, at : end + 1].any()
