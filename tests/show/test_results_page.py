import json
import math
from dataclasses import replace

import numpy as np
import pytest
import saved_results
from page_parser import Parsed, check_stands_alone

from topic_probe.contrast import Contrast
from topic_probe.measure.attention import AttentionReport
from topic_probe.paper.claims import Claim, Number
from topic_probe.report import provenance
from topic_probe.show.results_page import report_page

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
    record = provenance(options={"level": "token", "note": "<i>"}, seed=7)
    return AttentionReport(
        overall=one, stacks=heads, layers=heads, heads=heads, matched=heads, overall_matched=one, without_sinks=heads,
        sink_mass=np.array([0.25, 0.5]), provenance={**record, **more},
    )  # fmt: skip


def save_recipe(folder, claims=CLAIMS):
    listed = [claim.to_dict() if isinstance(claim, Claim) else claim for claim in claims]
    content = {
        "recipe": "figure2",
        "title": "blocks in W_V",
        "quick": True,
        "seconds": 4.25,
        "claims": listed,
    }
    for part in ("tables", "figures"):
        (folder / part).mkdir(parents=True)
    (folder / "claims.json").write_text(json.dumps(content))
    rows = [{"model": "<bert>", "ratio": 1.5}, {"model": "gpt2", "ratio": None}]
    (folder / "tables" / "ratios.json").write_text(json.dumps(rows))
    picture = "<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
    (folder / "figures" / "blocks.svg").write_text(picture)


def section(page, name):
    """What is shown under a heading, up to the next of its kind."""
    text = Parsed(page.html).text
    return text[text.rindex(name) :]


def test_a_recipe_is_shown_with_claims_verdicts_tables_and_figures(tmp_path):
    save_recipe(tmp_path / "figure2")
    page = report_page(tmp_path)
    parsed = check_stands_alone(page)
    assert parsed.scripts == []
    assert "5 claims: 1 does not hold, 1 not evidence, 1 undecided, 1 not checked, 1 holds" in parsed.text
    assert "2 checks of the code: 1 does not hold, 1 holds" in parsed.text
    own = section(page, "quick variant · 4.2 seconds")
    told = [
        "W_V has <blocks> Figure 2 · the paper: blocks & more",
        "value, SGD 0.5 [0.25, 0.75] over 5 seeds > 0.9 ✗ does not hold controls: no topics: 0.25 too <few> steps",
        "value, Adam 0.9877 [0.95, 1] over 5 seeds > 0.9 ✓ holds controls: no topics: 0.125 · untrained: – 1 of 2",
        "all 1.21 [1.1, 1.3] over 57 articles > 1 ⊘ not evidence controls: shuffled labels: 1.2 holds of",
        "SGD 1 1 seed, no interval > 1 ? undecided", "– any number ○ not checked the quick variant stops early",
        "Checks of the code", "T = 20 1,000,000,000 < 0.1 ✗ does not hold all 0.007812 < 0.1 ✓ holds",
    ]  # fmt: skip
    places = [own.find(text) for text in told]
    assert places == sorted(places)
    assert -1 not in places
    assert "never said" not in page.html  # why it does not hold, where it holds
    assert "model ratio <bert> 1.5 gpt2 –" in parsed.text
    (image,) = parsed.all("img")
    assert image["src"].startswith("data:image/svg+xml;base64,")  # as an image its script cannot run


def test_heads_with_q_values_stand_in_the_order_of_evidence(tmp_path):
    report = attention_report()
    heads = replace(
        report.heads, same_topic=np.array([1.25, 0.5]), n_same_topic=np.array([8.0, 2.0]),
        p_value=np.array([0.5, 0.005]), q_value=np.array([0.6, 0.01]), spread=np.array([0.25, 0.5]),
    )  # fmt: skip
    replace(report, heads=heads).save(tmp_path / "attention")
    parsed = check_stands_alone(report_page(tmp_path))
    assert "stack layer head ratio p_value q_value effect_size difference same_word same_topic" in parsed.text
    first, second = "self 1 0 2 0.005 0.01 0.5 0.25", "self 0 3 2.5 0.5 0.6 3 0.75"
    assert 0 < parsed.text.index(first) < parsed.text.index(second)


def test_broken_and_foreign_files_are_named_and_cost_nothing_else(tmp_path):
    save_recipe(tmp_path / "figure2")
    save_recipe(tmp_path / "figure1", claims=[{"verdict": "<b>perfect</b>"}])
    for name in ("cut", "good"):
        attention_report().save(tmp_path / name)
    saved_results.arrays_file(tmp_path / "cut").write_bytes(b"short")
    (tmp_path / "<img src=x onerror=alert(1)>.txt").write_text("?")
    (tmp_path / "away").symlink_to("/etc")
    page = report_page(tmp_path)
    parsed = check_stands_alone(page)
    unread = section(page, "These could not be read")
    for part in (
        "figure1/claims.json a claim has the verdict '<b>perfect</b>'", "cut/saved.json",
        "away a link, which is not followed", "<img src=x onerror=alert(1)>.txt",
    ):  # fmt: skip
        assert part in unread, part
    assert str(tmp_path) not in page.html  # a page that is mailed says nothing of the machine
    assert "report: attention good" in parsed.text


def test_a_folder_without_results_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        report_page(tmp_path / "none")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ValueError, match="holds nothing that topic_probe has saved: save a report"):
        report_page(tmp_path)
