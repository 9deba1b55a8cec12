import json
import math
import re
import shutil
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import saved_results
from page_parser import Parsed, check_stands_alone

from topic_probe import storage
from topic_probe.contrast import Contrast
from topic_probe.measure.attention import AttentionReport
from topic_probe.paper.claims import Claim, Number
from topic_probe.report import VERDICTS, provenance
from topic_probe.show import saved
from topic_probe.show.results_page import report_page, terms
from topic_probe.topics import Topics
from topic_probe.toy.model import ToyConfig, build_toy
from topic_probe.toy.world import World
from topic_probe.train.history import TrainConfig
from topic_probe.train.loop import train_toy

BLOCKS = Claim("W_V has <blocks>", "Figure 2", "blocks & more", above=0.9)
RATIO = Claim("attention is ours", "our own", "", above=1.0, ours=True)
CLAIMS = [
    replace(BLOCKS, setting="value, Adam", measured=Number(0.987654, 0.95, 1.0, "5 seeds"), detail="1 of 2",
            controls={"no topics": Number(0.125, of="2 seeds"), "untrained": Number(math.nan)}, reason="never said"),
    replace(BLOCKS, setting="value, SGD", measured=Number(0.5, 0.25, 0.75, "5 seeds"), detail="3 of 4",
            controls={"no topics": Number(0.25)}, reason="too <few> steps"),
    replace(RATIO, measured=Number(1.21, 1.1, 1.3, "57 articles"), controls={"shuffled labels": Number(1.2)}),
    replace(RATIO, setting="SGD", measured=Number(1.0, of="1 seed"), controls={"shuffled labels": Number(1.0)}),
    Claim("λ is right", "Theorem 3", "no number", Number(0.0078125), below=0.1, check=True),
    Claim("λ is right", "Theorem 3", "no number", Number(1e9), below=0.1, check=True, setting="T = 20"),
    Claim("converged", "Section 6", "level", not_checked="the quick variant stops early"),
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
        "claims": [claim.to_dict() if isinstance(claim, Claim) else claim for claim in claims],
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
    assert (
        "5 claims: 1 does not hold, 1 not evidence, 1 undecided, 1 not checked, 1 holds. "
        "2 checks of the code: 1 does not hold, 1 holds." in parsed.text
    )
    assert "does not hold not evidence undecided not checked holds checks of the code seconds" in parsed.text
    counts = "✗ 1 does not hold ⊘ 1 not evidence ? 1 undecided ○ 1 not checked ✓ 1 holds"
    checks = "checks of the code: ✗ 1 does not hold ✓ 1 holds"
    assert f"figure2 (quick variant) blocks in W_V {counts} {checks} 4.2" in parsed.text
    own = section(page, "quick variant · 4.2 seconds")
    assert (
        "setting measured wanted verdict W_V has <blocks> Figure 2 · the paper: blocks & more "
        "value, SGD 0.5 [0.25, 0.75] over 5 seeds > 0.9 ✗ does not hold "
        "controls: no topics: 0.25 too <few> steps 3 of 4 "
        "value, Adam 0.9877 [0.95, 1] over 5 seeds > 0.9 ✓ holds "
        "controls: no topics: 0.125 · untrained: – 1 of 2 "
        "attention is ours ours our own all 1.21 [1.1, 1.3] over 57 articles > 1 ⊘ not evidence "
        "controls: shuffled labels: 1.2 holds of shuffled labels too "
        "SGD 1 1 seed, no interval > 1 ? undecided controls: shuffled labels: 1 "
        "converged Section 6 · the paper: level all – any number ○ not checked the quick variant stops early"
        in own
    )
    assert (
        "Checks of the code setting measured wanted verdict λ is right Theorem 3 · the paper: no number "
        "T = 20 1,000,000,000 < 0.1 ✗ does not hold all 0.007812 < 0.1 ✓ holds" in own
    )
    assert "never said" not in page.html  # why it does not hold, where it holds
    assert "model ratio <bert> 1.5 gpt2 –" in parsed.text
    assert "<td class=n>–</td>" in page.html  # in the line of its numbers
    (image,) = parsed.all("img")
    assert image["src"].startswith("data:image/svg+xml;base64,")  # as an image its script cannot run
    assert own.count("W_V has <blocks>") == 1  # its settings stand under it
    assert "blocks.png" not in parsed.text


def test_what_does_not_hold_is_no_evidence_or_is_undecided_comes_first_and_leads_to_its_row(tmp_path):
    for name in ("figure2", "figure10"):
        save_recipe(tmp_path / name, name)
    page = report_page(tmp_path)
    parsed = Parsed(page.html)
    listed, _, rest = section(page, "What does not hold, is not evidence or is undecided").partition(
        "figure2: blocks in W_V ✗"
    )
    bad, rest_listed = listed.split("⊘ Not evidence")
    unclear, undecided = rest_listed.split("? Undecided")
    of_blocks = (
        "value, SGD 0.5 [0.25, 0.75] over 5 seeds > 0.9 ✗ does not hold "
        "controls: no topics: 0.25 too <few> steps"
    )
    for name in ("figure2", "figure10"):
        assert f"{name} : W_V has <blocks> Figure 2 · the paper: blocks & more {of_blocks}" in bad
        assert f"{name} : λ is right check of the code Theorem 3" in bad
        assert f"{name} : attention is ours ours our own all 1.21 [1.1, 1.3] over 57 articles > 1" in unclear
        assert f"{name} : attention is ours ours our own SGD 1 1 seed, no interval > 1" in undecided
    assert "✓ holds" not in listed
    assert "not checked" not in listed
    assert "3 of 4" not in listed  # the detail is in its row
    assert "3 of 4" in rest
    links = [given["href"][1:] for given in parsed.all("a") if given["href"].startswith("#claim-")]
    rows = [given["id"] for given in parsed.all("tr") if given.get("id", "").startswith("claim-")]
    assert len(links) == len(set(links)) == 8
    assert len(rows) == len(set(rows)) == 2 * len(CLAIMS)
    assert set(links) < set(rows)
    linked = page.html.split(f'id="{links[0]}"')[1].split("</tr>")[0]
    assert "value, SGD" in linked


def test_where_nothing_stands_out_the_page_says_so_and_draws_no_empty_table(tmp_path):
    save_recipe(tmp_path / "figure2", claims=[CLAIMS[0], CLAIMS[4]])
    save_recipe(tmp_path / "figure3", "figure3", claims=[CLAIMS[4]])
    page = report_page(tmp_path)
    assert "or is undecided Nothing." in Parsed(page.html).text
    assert "figure2: blocks in W_V ✗" not in page.html
    labels = [given["aria-label"] for given in Parsed(page.html).all("div", role="region")]
    assert "Claims of figure2" in labels
    assert "Claims of figure3" not in labels
    assert "Checks of the code of figure3" in labels


def test_the_verdicts_of_pages_are_those_of_claims_in_their_order():
    assert tuple(saved.SIGNS) == VERDICTS


def test_trainings_of_a_recipe_are_one_table_of_what_differs_between_them(tmp_path):
    folder = save_recipe(tmp_path / "figure2")
    toy = build_toy(ToyConfig(world=World(n_topics=2, words_per_topic=2)))
    before = storage.load(train_toy(toy, TrainConfig(steps=1)).save(tmp_path / "away"), "history")
    shutil.rmtree(tmp_path / "away")
    for seed, world in enumerate((None, None, {"n_topics": 7})):
        train = {**before.content["train"], "seed": seed, "world": world}
        place = folder / "histories" / f"value-seed-{seed}"
        storage.save(place, "history", {**before.content, "train": train}, before.arrays)
    save_recipe(tmp_path / "figure3", "figure3")
    page = report_page(tmp_path)
    text = check_stands_alone(page).text
    assert "Training (3) training what differs between them" in text
    assert (
        "training train.seed train.world.n_topics value-seed-0 0 – value-seed-1 1 – value-seed-2 2 7" in text
    )
    assert text.count("train.optimizer") == 1  # what all share stands once
    assert "train.world none" not in text  # which one of them has
    assert "3 trainings" in text
    assert Parsed(page.html).all("details", **{"class": "group"}) != []


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
    assert "stack layer head ratio" in parsed.text  # what is asked for first
    assert "self 0 3 2.5 0.75 1.5 1.25 0.5" in parsed.text
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
    assert "stack layer head ratio q_value effect_size difference same_word same_topic" in parsed.text
    assert parsed.text.index("self 1 0 2 0.01 0.5 0.25") < parsed.text.index("self 0 3 2.5 0.6 3 0.75")
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
    assert "0: a (1·2) 2 1: b (3) 1" in parsed.text


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
    attention_report().save(tmp_path / "future")
    saved_results.change(tmp_path / "future", version=99)
    (tmp_path / "nojson").mkdir()
    (tmp_path / "nojson" / "saved.json").write_text("{")
    (tmp_path / "deep" / "tables").mkdir(parents=True)
    (tmp_path / "deep" / "tables" / "no.json").write_text("[" * 100_000)
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
        "future/saved.json",
        "format version 99",
        "nojson/saved.json",
        "is not whole",
        "deep/tables/no.json",
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
    page = report_page(tmp_path)
    assert "The first 200 of 250 rows." in page.html
    (folded,) = re.findall(r"<summary>(Table.+?)</summary>", page.html)
    assert folded == "Table tables/long.json (250 rows)"
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
    (tmp_path / "saved.json").write_text("{")
    with pytest.raises(ValueError, match=r"saved\.json.*is not whole"):
        report_page(tmp_path)


def test_headings_and_contents_lead_to_every_section(tmp_path):
    save_recipe(tmp_path / "figure2")
    attention_report().save(tmp_path / "r")
    (tmp_path / "x.bin").write_bytes(b"")
    parsed = Parsed(report_page(tmp_path).html)
    targets = {given["id"] for _, given in parsed.elements if "id" in given}
    assert len(targets) == sum("id" in given for _, given in parsed.elements)
    links = [given["href"][1:] for given in parsed.all("a") if given["href"].startswith("#")]
    assert set(links) <= targets
    titles = {given["aria-labelledby"] for given in parsed.all("section")}
    assert {title.removesuffix("-title") for title in titles} <= set(links)
    levels = [int(tag[1]) for tag, _ in parsed.elements if tag in ("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert parsed.all("html", lang="en")
