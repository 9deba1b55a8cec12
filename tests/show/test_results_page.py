import json
import math
import shutil
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import saved_results
from page_parser import Parsed, check_stands_alone

from topic_probe.contrast import Contrast
from topic_probe.measure.attention import AttentionReport
from topic_probe.report import provenance
from topic_probe.show.results_page import report_page, terms
from topic_probe.topics import Topics

CLAIMS = [
    {"text": "W_V has <blocks>", "source": "Figure 2", "paper": "blocks & more", "measured": 0.123456, "wanted": "> 0",
     "setting": "value, squared", "detail": "1 of 2", "not_checked": "", "verdict": "passed"},
    {"text": "W_V has <blocks>", "source": "Figure 2", "paper": "blocks & more", "measured": None, "wanted": "> 0",
     "setting": "value, cross-entropy", "detail": "", "not_checked": "", "verdict": "failed"},
    {"text": "converged", "source": "Section 6", "paper": "", "measured": 5.0, "wanted": "any number", "setting": "",
     "detail": "", "not_checked": "the quick variant stops early", "verdict": "not checked"},
]  # fmt: skip


def contrast(values, counts, **more):
    arrays = [np.array(value, dtype=np.float64) for value in (*values, *counts)]
    return Contrast(*arrays, **more)


def attention_report(**more):
    index = {"stack": ("self", "self"), "layer": (0, 1), "head": (3, 0)}
    heads = contrast([[1.5, 2.0], [1.25, math.nan], [0.5, 0.25]], [[4, 4], [8, 0], [20_000, 16]], index=index)
    one = contrast([2.0, 1.25, 0.375], [8, 8, 20_016])
    record = provenance(
        options={"level": "token", "note": "<i>"}, seed=7, left_out={"pieces of split words": 3}
    )
    record["versions"]["torch"] = "9.9.9"
    return AttentionReport(
        overall=one, stacks=heads, layers=heads, heads=heads, matched=heads, overall_matched=one, without_sinks=heads,
        sink_mass=np.array([0.25, 0.5]), provenance={**record, **more},
    )  # fmt: skip


def save_recipe(folder, name="figure2", claims=CLAIMS, **more):
    folder.mkdir(parents=True)
    content = {
        "recipe": name,
        "title": "blocks in W_V",
        "quick": True,
        "seconds": 4.25,
        "claims": claims,
        **more,
    }
    (folder / "claims.json").write_text(json.dumps(content))
    (folder / "claims.txt").write_text("the same")
    (folder / "tables").mkdir()
    (folder / "tables" / "ratios.json").write_text(
        json.dumps([{"model": "<bert>", "ratio": 1.5}, {"model": "gpt2", "ratio": None}])
    )
    (folder / "tables" / "ratios.csv").write_text("model,ratio")
    (folder / "figures").mkdir()
    (folder / "figures" / "blocks.svg").write_text(
        "<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
    )
    (folder / "figures" / "blocks.png").write_bytes(b"twin")
    return folder


def section(page, name):
    """What is shown under a heading, up to the next of its kind."""
    text = Parsed(page.html).text
    return text[text.rindex(name) :]


def test_a_recipe_is_shown_with_claims_verdicts_tables_and_figures(tmp_path):
    save_recipe(tmp_path / "figure2")
    page = report_page(tmp_path)
    parsed = check_stands_alone(page)
    assert parsed.scripts == []
    assert page.title == f"Results in {tmp_path.name}"
    assert "3 claims: 1 passed, 1 failed, 1 not checked." in parsed.text
    assert "figure2 (quick variant) blocks in W_V ✓ 1 ✗ 1 ○ 1 4.2" in parsed.text
    claims = section(page, "setting measured wanted verdict")
    assert "W_V has <blocks> Figure 2 · the paper: blocks & more" in claims
    assert "value, squared 0.1235 > 0 ✓ passed 1 of 2" in claims
    assert "value, cross-entropy – > 0 ✗ failed" in claims
    assert "all – any number ○ not checked the quick variant stops early" in claims
    assert "model ratio <bert> 1.5 gpt2 –" in parsed.text
    (image,) = parsed.all("img")
    assert image["src"].startswith("data:image/svg+xml;base64,")  # as an image its script cannot run
    assert parsed.text.count("W_V has <blocks>") == 1  # its settings stand under it
    assert "blocks.png" not in parsed.text


def test_saved_reports_are_shown_with_their_numbers_settings_and_versions(tmp_path):
    report = attention_report()
    report.save(tmp_path / "bert" / "attention")
    page = report_page(tmp_path, title="My <results>")
    parsed = check_stands_alone(page)
    assert "My <results>" in parsed.text
    assert "report: attention bert/attention" in parsed.text
    cells = [given.get("title") for given in parsed.all("td", **{"class": "n"})]
    for column in ("ratio", "sink_mass", "same_topic"):
        for value in report.to_dataframe()[column]:
            assert repr(float(value)) in cells
    assert "self 0 3 1.5 1.25 0.5 2.5" in parsed.text
    assert "20,000" in parsed.text
    assert "no pair of different words shares a topic" in parsed.text
    for part in ("level token", "note <i>", "seed 7", "pieces of split words 3", "torch 9.9.9"):
        assert part in parsed.text
    (picture,) = parsed.all("img")
    assert picture["alt"] == "figure of bert/attention"
    defined = section(page, "How each number is defined")
    assert "same_topic ÷ different_topic: 1 where topics make no difference" in defined
    assert "share of attention that goes to special tokens" in defined
    assert "p_value" not in defined  # which this report does not have
    assert "verdict" not in defined


def test_heads_with_q_values_stand_in_the_order_of_evidence(tmp_path):
    report = attention_report()
    heads = replace(
        report.heads, same_topic=np.array([1.25, 0.5]), n_same_topic=np.array([8.0, 2.0]),
        q_value=np.array([0.6, 0.01]), spread=np.array([0.25, 0.5]),
    )  # fmt: skip
    replace(report, heads=heads).save(tmp_path / "attention")
    parsed = check_stands_alone(report_page(tmp_path))
    assert parsed.text.index("self 1 0 2 0.5 0.25 2") < parsed.text.index("self 0 3 1.5 1.25 0.5 2.5")
    assert "difference ÷ standard deviation" in section(report_page(tmp_path), "How each number is defined")


def test_a_name_that_means_something_else_in_one_kind_of_report_is_defined_for_each():
    found, pairs = terms(
        [("attention", "difference"), ("agreement", "difference"), ("agreement", "unheard of")]
    )
    assert found["difference"].startswith("same_topic − different_topic")
    assert found["difference (agreement)"].startswith("measured − theory")
    assert len(found) == 2
    assert pairs
    assert terms([("dynamics", "value_start")])[1] is False


def test_a_single_report_folder_is_a_page_too_and_topics_are_listed(tmp_path):
    attention_report().save(tmp_path / "r")
    assert "report: attention r" in Parsed(report_page(tmp_path / "r").html).text
    Topics.from_token_ids({"a": [1, 2], "b": [3]}, vocabulary_size=9).save(tmp_path / "t")
    parsed = check_stands_alone(report_page(tmp_path / "t"))
    assert "0: 1·2 a 2 1: 3 b 1" in parsed.text


def test_recipes_come_in_the_order_that_people_count_and_versions_that_differ_are_seen(tmp_path):
    for name in ("figure10", "figure2", "table1"):
        save_recipe(tmp_path / name, name)
    attention_report().save(tmp_path / "figure10" / "reports" / "attention" / "x")
    attention_report(versions={"torch": "2.0.0"}).save(tmp_path / "table1" / "reports" / "attention" / "x")
    text = Parsed(report_page(tmp_path).html).text
    assert text.index("figure2 (quick") < text.index("figure10 (quick") < text.index("table1 (quick")
    assert "torch 9.9.9 and 2.0.0" in text
    assert "Report: attention (1)" in text


def test_broken_and_foreign_files_are_named_and_cost_nothing_else(tmp_path):
    save_recipe(tmp_path / "figure2")
    save_recipe(tmp_path / "figure1", claims=[{"verdict": "<b>perfect</b>"}])
    attention_report().save(tmp_path / "cut")
    saved_results.arrays_file(tmp_path / "cut").write_bytes(b"short")
    attention_report().save(tmp_path / "good")
    (tmp_path / "future").mkdir()
    (tmp_path / "future" / "report.json").write_text(
        '{"format": "topic_probe report", "schema": 99, "kind": "attention"}'
    )
    (tmp_path / "nojson").mkdir()
    (tmp_path / "nojson" / "report.json").write_text("{")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "report.json").write_text("[" * 100_000)
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "no.json").write_text("[1, 2]")
    (tmp_path / "<img src=x onerror=alert(1)>.txt").write_text("?")
    (tmp_path / "model.pkl").write_bytes(b"cos\nsystem\n(S'touch /tmp/pwned'\ntR.")
    (tmp_path / ".hidden.json").write_text("")
    (tmp_path / "away").symlink_to("/etc")
    (tmp_path / "passwd.svg").symlink_to("/etc/passwd")
    page = report_page(tmp_path)
    parsed = check_stands_alone(page)
    unread = section(page, "These could not be read")
    for part in (
        "figure1/claims.json a claim has the verdict '<b>perfect</b>'",
        "cut/saved.json",
        "is truncated, changed or of another save",
        "future/report.json",
        "schema 99",
        "nojson/report.json",
        "not whole or not JSON",
        "deep/report.json",
        "tables/no.json it holds no rows of a table",
        "away a link, which is not followed",
        "passwd.svg a link",
        "<img src=x onerror=alert(1)>.txt",
        "model.pkl",
    ):
        assert part in unread, part
    assert ".hidden.json" not in page.html
    assert str(tmp_path) not in page.html  # a page that is mailed says nothing of the machine
    assert "report: attention good" in parsed.text
    assert "figure2 (quick variant)" in parsed.text


def test_the_page_depends_on_nothing_but_the_folder(tmp_path):
    save_recipe(tmp_path / "a" / "figure2")
    attention_report().save(tmp_path / "a" / "r")
    shutil.copytree(tmp_path / "a", tmp_path / "b" / "a")
    assert report_page(tmp_path / "a").html == report_page(tmp_path / "b" / "a").html


def test_long_tables_are_cut_and_large_files_named(tmp_path, monkeypatch):
    folder = save_recipe(tmp_path / "figure2")
    rows = [{"row": number} for number in range(250)]
    (folder / "tables" / "long.json").write_text(json.dumps(rows))
    assert "The first 200 of 250 rows." in report_page(tmp_path).html
    monkeypatch.setattr("topic_probe.show.saved.MAX_FIGURE", 10)
    parsed = Parsed(report_page(tmp_path).html)
    assert parsed.all("img") == []
    assert "figure2/figures/blocks.svg its 0 MB are too much for a page" in parsed.text


def test_a_folder_without_results_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        report_page(tmp_path / "none")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(
        ValueError, match=r"holds nothing that topic_probe has saved: save a report with report\.save"
    ):
        report_page(tmp_path)
    (tmp_path / "report.json").write_text("{")
    with pytest.raises(ValueError, match=r"report\.json.*not whole or not JSON"):
        report_page(tmp_path)


def test_headings_and_contents_lead_to_every_section(tmp_path):
    save_recipe(tmp_path / "figure2")
    attention_report().save(tmp_path / "r")
    (tmp_path / "x.bin").write_bytes(b"")
    parsed = Parsed(report_page(tmp_path).html)
    targets = {given["id"] for _, given in parsed.elements if "id" in given}
    links = [given["href"][1:] for given in parsed.all("a") if given["href"].startswith("#")]
    assert set(links) <= targets
    assert {given["id"] for given in parsed.all("section")} <= set(links)
    levels = [int(tag[1]) for tag, _ in parsed.elements if tag in ("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert parsed.all("html", lang="en")
