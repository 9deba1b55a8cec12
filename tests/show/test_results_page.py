"""A folder of saved results as one page: pictures of the paper first, then reports; whatever is broken is named."""

from dataclasses import replace

import numpy as np
import pytest
from page_parser import check_stands_alone

import topic_probe as tp
from topic_probe.paper import recipe_named
from topic_probe.paper.recipe import Measured, Run, judged
from topic_probe.show.results_page import report_page
from topic_probe.storage import FILE

NAMES = [f"value, {loss}, {rule}" for loss in ("cross-entropy", "squared") for rule in ("SGD", "Adam")]
EVIL = "<img src=x onerror=alert(1)>"


def figure2(blocks=1.0, broken=0.1, **more):
    """A result of Figure 2 with numbers that were put in by hand."""
    rows = [
        {"training": f"{name}, L2", "regime": "value", "loss": "squared", "optimizer": "adam", "l2": 0.1, "seed": seed,
         "control": control, "own topic first": share, "height of the blocks": share}
        for name in NAMES
        for control, share in (("", blocks), ("no topics", broken))
        for seed in (3000, 3001)
    ]  # fmt: skip
    matrix = np.eye(7, dtype=np.float32)
    arrays = {f"{name}, L2 · 3000 · matrix": matrix for name in NAMES}
    found = judged(recipe_named("figure2"), Run(quick=True), Measured(rows, arrays), seconds=4.25)
    return replace(found, **more)


def landscape():
    world = tp.World(n_topics=4, words_per_topic=5, topics_per_document=2)
    points = np.array([1.0, 2.0])
    return tp.measure_landscape(world, tp.Masking(), alphas=points, betas=points)


def test_a_recipe_is_a_wall_of_pictures_with_sentence_number_control_and_verdict_under_each(tmp_path):
    figure2().save(tmp_path / "figure2")
    parsed = check_stands_alone(report_page(tmp_path))
    assert parsed.scripts == []
    (image,) = parsed.all("img")
    assert image["src"].startswith("data:image/svg+xml;base64,")  # as an image a script in it cannot run
    assert "under uniform attention quick variant" in parsed.text
    sentence = "W_V has a block for every topic. Section 6.1, Figure 2 100% of words must fail: no topics 10%"
    assert sentence in parsed.text
    assert parsed.text.index("W_V under uniform attention") < parsed.text.index(sentence)
    assert "What did not come out" not in parsed.text
    links = [link["href"] for link in parsed.all("a")]
    assert links == ["https://arxiv.org/abs/2303.04245"]


def test_what_did_not_come_out_has_a_card_and_what_was_not_checked_its_reason(tmp_path):
    figure2(blocks=0.5).save(tmp_path / "figure2")
    reason = {"bert": "no files here"}
    judged(recipe_named("table1"), Run(), Measured(missing=reason)).save(tmp_path / "table1")
    text = check_stands_alone(report_page(tmp_path)).text
    card = text[text.index("What did not come out") :]
    assert "50% of words" in card
    assert "does not hold" in card
    assert "not checked here: no files here" in text


def test_recipes_stand_in_the_papers_order_and_reports_after_them(tmp_path):
    landscape().save(tmp_path / "a" / "landscape")
    judged(recipe_named("table1"), Run(), Measured()).save(tmp_path / "b")
    figure2().save(tmp_path / "c")
    text = check_stands_alone(report_page(tmp_path)).text
    places = [text.index(what) for what in ("Figure 2, Section 6.1", "Table 1, Section 6.2", "a/landscape")]
    assert places == sorted(places)
    assert "optimum under α = β" in text


def test_nothing_that_is_saved_becomes_markup(tmp_path):
    words = tp.Topics.from_token_ids({EVIL: [1, 2], "b": [3, 4]}, vocabulary_size=9)
    words.save(tmp_path / "topics")
    figure2(title=EVIL, missing={"x": EVIL}, tables={"table": [{EVIL: EVIL}]}).save(tmp_path / "figure2")
    parsed = check_stands_alone(report_page(tmp_path, title=EVIL))
    assert parsed.scripts == []
    assert all(image["src"].startswith("data:") for image in parsed.all("img"))


def test_broken_and_foreign_files_are_named_and_cost_nothing_else(tmp_path):
    landscape().save(tmp_path / "good")
    landscape().save(tmp_path / "cut")
    (tmp_path / "cut" / FILE).write_bytes(b"short")
    (tmp_path / "away").symlink_to("/etc")
    page = report_page(tmp_path)
    text = check_stands_alone(page).text
    unread = text[text.index("Not shown") :]
    assert f"cut: {FILE} is not whole" in unread
    assert "away" not in unread
    assert str(tmp_path) not in page.html  # a page that is mailed says nothing of the machine


def test_a_folder_without_results_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        report_page(tmp_path / "none")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ValueError, match=r"holds nothing that topic_probe has saved: save a report"):
        report_page(tmp_path)


def test_a_recipe_without_claims_is_its_pictures(tmp_path):
    rows = [{"training": "value, squared, Adam, Zipf exponent = 1", "control": "", "seed": 3000, "regime": "value",
             "loss": "squared", "own topic first": 1.0}]  # fmt: skip
    judged(recipe_named("robustness"), Run(quick=True), Measured(rows)).save(tmp_path / "robustness")
    parsed = check_stands_alone(report_page(tmp_path))
    assert len(parsed.all("img")) == 1
