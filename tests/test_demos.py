"""Every notebook in demos/ runs from its first cell to its last, and keeps the outputs of a run."""

import json
import sys
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from real_text import minilm_folder

import topic_probe as tp

DEMOS = Path(__file__).parents[1] / "demos"
sys.path.insert(0, str(DEMOS))

import emergence  # noqa: E402
from run_notebooks import HUB_NAME, notebooks, run  # noqa: E402


def code_cells(path):
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def kinds(cell):
    """What a cell shows: printed text, and the MIME types of its last value."""
    return [sorted(output.get("data", {"printed": None})) for output in cell["outputs"]]


@pytest.mark.slow
@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_showed(path):
    fresh = run(path, model=str(minilm_folder()))
    cells = [cell for cell in fresh["cells"] if cell["cell_type"] == "code"]
    assert any(cell["outputs"] for cell in cells)
    assert [kinds(cell) for cell in cells] == [kinds(cell) for cell in code_cells(path)]


def test_notebooks_keep_their_outputs_and_no_path_of_a_machine():
    assert len(notebooks()) == 5
    for path in notebooks():
        cells = code_cells(path)
        assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), path.name
        assert not any(str(place) in path.read_text() for place in (Path.home(), minilm_folder()))
        # Where a folder stands in for the hub, a notebook that spells the name differently would ask the network.
        text = "".join(line for cell in cells for line in cell["source"])
        assert "all-MiniLM" not in text.replace(HUB_NAME, "")


def test_the_notebook_on_two_stages_shows_values_that_move_before_keys():
    (_, watched, *_) = code_cells(DEMOS / "toy_and_theory.ipynb")
    printed = "".join(watched["outputs"][0]["text"])
    columns, _, *lines = printed.splitlines()
    rows = {
        int(step): dict(zip(columns.split(), map(float, row), strict=True))
        for step, *row in map(str.split, lines)
    }
    keys, values = (
        (rows[100][name] - rows[0][name]) / (rows[1000][name] - rows[0][name])
        for name in ("norm_W_K", "norm_W_V")
    )
    assert keys < 0.1
    assert values > 0.8


# --- the script that watches small models learn -------------------------------------------------------


@pytest.mark.slow
def test_the_script_on_emergence_measures_text_beside_shuffled_text(tmp_path, capsys):
    emergence.main(["--quick", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    for name in ("bert", "gpt2"):
        paths = [tmp_path / "reports" / f"{name}, {kind}" for kind in ("text", "shuffled text")]
        text, shuffled = map(tp.load_report, paths)
        assert text.steps.tolist() == shuffled.steps.tolist() == emergence.QUICK.measured_steps
        assert (
            text.curve("embeddings")[0].tolist() == shuffled.curve("embeddings")[0].tolist()
        )  # the same weights
        assert text.curve("embeddings")[-1, 0] != shuffled.curve("embeddings")[-1, 0]
        assert repr(emergence.beyond(text, shuffled)) in printed
        assert f"{name} on shuffled text: held-out loss" in printed


class Tokenizer:
    all_special_ids = (0, 1)


def test_shuffled_text_has_the_tokens_as_often_and_its_special_tokens_in_place():
    documents = [[0, *range(2, 40), 1], [0, *range(30, 60), 1]]
    dealt = emergence.shuffled(documents, Tokenizer)
    assert [(len(one), one[0], one[-1]) for one in dealt] == [(40, 0, 1), (32, 0, 1)]
    assert sorted(chain(*dealt)) == sorted(chain(*documents))
    assert set(dealt[0]) - set(documents[0])  # words of the other one
    # Of words alone, a half, a quarter and a quarter: 1.5 bits.
    assert emergence.unigram_entropy([[0, 5, 5, 0], [6, 7, 0]], Tokenizer) == pytest.approx(1.5 * np.log(2))
