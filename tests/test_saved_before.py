"""What the version before the manifests has saved loads for ever, and says what ``numbers.json`` says it held."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from transformers import BertConfig, BertModel

import topic_probe as tp
from topic_probe import storage
from topic_probe.text.cooccurrence import Cooccurrence
from topic_probe.text.lda import TopicFit
from topic_probe.toy.model import build_toy
from topic_probe.train.history import History
from topic_probe.train.loop import train_toy

SAVED = Path(__file__).parent / "saved_before"
NUMBERS = json.loads((SAVED / "numbers.json").read_text())
REPORTS = [
    "agreement", "attention", "dynamics", "embeddings", "landscape", "matched", "matrix", "weights",
]  # fmt: skip


def check(found, expected):
    """Numbers to the last digit; what is undefined is null in the file."""
    expected = [math.nan if number is None else number for number in expected]
    np.testing.assert_array_equal(np.asarray(found, dtype=float).ravel(), expected)


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_loads_with_its_numbers(name):
    report = tp.load_report(SAVED / name)
    assert report.kind == name == storage.kind_of(SAVED / name)
    table = report.to_dataframe()
    for column, numbers in NUMBERS[name].items():
        check(table[column], numbers)


def test_reports_saved_before_there_were_effect_sizes_have_none():
    heads = tp.load_report(SAVED / "attention").heads
    assert np.isnan(heads.effect_size).all()
    assert "effect_size" not in heads.to_dataframe()
    assert heads.top(2) == heads.top(2, by="ratio")


def test_an_agreement_saved_before_there_were_effects_has_none():
    report = tp.load_report(SAVED / "agreement")
    assert report.effects == report.effects_error == report.effects_theory == {}
    assert not report.to_dataframe()["quantity"].str.contains("effect of").any()


def test_trainings_load_with_their_numbers_and_models():
    history = History.load(SAVED / "history")
    check(history.loss, NUMBERS["history"]["loss"])
    assert sum(parameter.numel() for parameter in history.model().parameters()) > 0
    assert tp.load_report(SAVED / "history") == history
    text = tp.load_report(SAVED / "text_history")
    assert (text.last_step, text.toy.vocabulary_size) == (4, 97)
    assert text.model() is not None


def test_topics_counts_and_fits_load_with_their_numbers():
    topics = tp.Topics.load(SAVED / "topics")
    check(topics.words, NUMBERS["topics"]["words"])
    assert topics.fingerprint == NUMBERS["topics"]["fingerprint"]
    counts = Cooccurrence.load(SAVED / "cooccurrence")
    check(counts.counts.sum(dim=1), NUMBERS["cooccurrence"]["counts"])
    fit = TopicFit.load(SAVED / "fit")
    check(fit.phi.sum(dim=0), NUMBERS["fit"]["phi"])
    assert tp.load_report(SAVED / "fit") == fit


def test_a_recipe_loads_part_by_part_and_shows_as_a_page():
    assert len(History.load(SAVED / "recipe/histories/keys-squared-adam-long-documents")) > 0
    assert len(tp.load_report(SAVED / "recipe/reports/landscape/t-10-v-10-2").loss) > 0
    page = tp.report_page(SAVED)
    for name in (*REPORTS, "topics", "fit", "text_history", "recipe/reports"):
        assert name.split("/")[0] in page.html


def test_a_finished_training_is_not_trained_again(tmp_path):
    history = History.load(SAVED / "history")
    checkpoint = shutil.copy(SAVED / "training.safetensors", tmp_path / "training.safetensors")
    again = train_toy(build_toy(history.toy, seed=5), history.train, checkpoint=checkpoint)
    check(again.loss, NUMBERS["history"]["loss"])


def test_token_ids_of_a_cache_are_read():
    [shard] = (SAVED / "cache").glob("*/*")
    saved = storage.load(shard, "token ids")
    assert (
        saved.content["progress"]["tokens"]
        == saved.arrays["lengths"].sum()
        == len(saved.arrays["ids"])
        == 384
    )


def test_half_a_measurement_is_read_and_belongs_to_its_model_alone(tmp_path):
    saved = storage.load(SAVED / "sums" / "process-0-of-1" / "000002", "sums of a measurement")
    assert saved.content["past"]["batches"] == 1
    shutil.copytree(SAVED / "sums", tmp_path / "sums")
    topics = tp.Topics.load(SAVED / "topics")
    config = BertConfig(
        vocab_size=97, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    with pytest.raises(ValueError, match=r"sums (belongs to another measurement|cannot be taken up)"):
        tp.measure_attention(
            BertModel(config), topics, [[5, 6, 28]], checkpoint=tmp_path / "sums", n_permutations=3
        )


@pytest.mark.parametrize("name", ["attention", "topics", "fit"])
def test_an_old_result_is_replaced_by_a_new_one_of_its_kind_only(name, tmp_path):
    folder = tmp_path / name
    shutil.copytree(SAVED / name, folder)
    load = {"topics": tp.Topics.load}.get(name, tp.load_report)
    result = load(folder)
    with pytest.raises(FileExistsError, match="not overwritten unasked"):
        result.save(folder)
    other = tp.Topics.load(SAVED / "topics") if name != "topics" else tp.load_report(SAVED / "attention")
    with pytest.raises(FileExistsError, match="or one of another kind"):
        other.save(folder, overwrite=True)
    result.save(folder, overwrite=True)
    assert storage.MANIFEST in (names := [path.name for path in folder.iterdir()])
    assert not {"report.json", "topics.json", "fit.json", "arrays.safetensors"} & set(names)
    assert load(folder) == result
