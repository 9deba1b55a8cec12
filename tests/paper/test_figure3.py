"""Figure 3: cosines of lists of words on a real checkpoint, directly computed, and with words of one's own."""

import math
from dataclasses import replace

import pytest
import torch
from made_result import claims_of
from real_text import minilm_folder
from small_language import save_model, words

from topic_probe.paper import figure3, reproduce
from topic_probe.paper.figure3 import WORDS


@pytest.fixture(scope="module")
def result():
    return reproduce("figure3", models={"minilm": minilm_folder()})


def test_words_that_belong_together_are_near_each_other_in_a_real_model_and_not_in_its_twin(result):
    assert [claim.verdict for claim in result.claims] == ["holds"] * 5, repr(result)
    assert [claim.setting.split(",")[0] for claim in result.claims] == ["minilm"] * 4 + ["minilm random"]
    assert result.claims[0].measured.value > 0.2
    assert "left_out" not in result.tables


def test_a_difference_counts_beyond_four_standard_errors_of_random_directions(result):
    # 9 pairs within lists and 27 between them; a list has 3 and 18. In 384 dimensions a cosine has a variance of 1/384.
    limits = [4 * math.sqrt((1 / 9 + 1 / 27) / 384), *[4 * math.sqrt((1 / 3 + 1 / 18) / 384)] * 3]
    assert [claim.above for claim in result.claims[:4]] == pytest.approx(limits)
    assert (result.claims[4].above, result.claims[4].below) == pytest.approx((-limits[0], limits[0]))


@pytest.mark.slow
def test_lists_of_words_that_do_not_belong_together_are_no_blocks():
    mixed = {str(number): group for number, group in enumerate(zip(*WORDS.values(), strict=True))}
    result = reproduce("figure3", models={"minilm": minilm_folder()}, words=mixed)
    assert "holds" not in {claim.verdict for claim in result.claims if claim.setting.startswith("minilm,")}
    (together,) = [claim for claim in result.claims if claim.setting == "minilm"]
    assert together.verdict == "does not hold"


@pytest.mark.parametrize(
    ("numbers", "twin", "verdict"),
    [
        ({}, 0.0, "holds"),
        ({"low": 0.05}, 0.0, "undecided"),
        ({"low": 0.0, "high": 0.08}, 0.0, "does not hold"),
        ({"low": None, "high": None}, 0.0, "holds"),
        ({"shuffled": 0.11}, 0.0, "not evidence"),
        ({}, 0.11, "not evidence"),
    ],
)
def test_blocks_are_judged_by_their_interval_and_by_both_controls(result, numbers, twin, verdict):
    own = {"difference": 0.3, "low": 0.2, "high": 0.4, "limit": 0.1, "shuffled": 0.01, **numbers}
    rows = [
        row | (own if row["model"] == "minilm" else {**own, "difference": twin})
        for row in result.tables["differences"]
    ]
    claims = claims_of(figure3.RECIPE, replace(result, tables={"differences": rows}))
    assert [claim.verdict for claim in claims[:-1]] == [verdict] * 4
    assert claims[-1].verdict == ("does not hold" if twin > 0.1 else "holds")


def test_the_table_has_the_cosines_that_hugging_faces_embeddings_have(result):
    from transformers import AutoModel, AutoTokenizer

    table = AutoModel.from_pretrained(minilm_folder()).get_input_embeddings().weight.detach().double()
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    found = result.table("cosines minilm").set_index("word")
    every = [word for group in WORDS.values() for word in group]
    assert set(found.index) == set(found.columns) == set(every)
    for one in every:
        for other in every:
            first, second = (table[tokenizer.convert_tokens_to_ids(word)] for word in (one, other))
            expected = float(torch.nn.functional.cosine_similarity(first, second, dim=0))
            assert found.loc[one, other] == pytest.approx(expected, abs=1e-6)


def test_words_that_are_split_are_left_out_and_named(tmp_path):
    lists = {"a": [*words(0)[:4], "unheardof"], "b": words(1)[:4], "c": ["neverseen"]}
    result = reproduce("figure3", models={"bert": save_model("bert", tmp_path)}, words=lists, twins=False)
    assert [(row["list"], row["word"]) for row in result.tables["left_out"]] == [
        ("a", "unheardof"),
        ("c", "neverseen"),
    ]
    assert set(result.table("cosines bert")["word"]) == {*words(0)[:4], *words(1)[:4]}
    folder = result.save(tmp_path / "out")
    assert (folder / "tables" / "left-out.csv").is_file()


def test_one_list_has_nothing_to_be_compared_with():
    with pytest.raises(ValueError, match=r"at least two lists to compare, got \['a'\]"):
        reproduce("figure3", words={"a": ["frog", "toad"]})
