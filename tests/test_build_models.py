"""The page of architectures says what is measured, and with which versions."""

import re
import sys
from pathlib import Path

import pytest
import torch
import zoo

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "demos"))

import build_models  # noqa: E402

PAGE = build_models.TARGET.read_text(encoding="utf-8")
LINES = {line.split("`")[1]: line for line in PAGE.splitlines() if line.startswith("| `")}

# Of different kinds: one layer called several times, attention to both sides, patterns that are only returned, heads
# that may attend to nothing, layers without attention, none at all, two stacks, two of which one cannot be read.
SAMPLE = {
    "albert": "AlbertForMaskedLM",
    "bert": "BertForMaskedLM",
    "deberta-v2": "DebertaV2ForMaskedLM",
    "gpt_oss": "GptOssForCausalLM",
    "jamba": "JambaForCausalLM",
    "longt5": "LongT5ForConditionalGeneration",
    "mamba": "MambaForCausalLM",
    "t5": "T5ForConditionalGeneration",
}


def without_numbers(line):
    """The cells of a line without the numbers of reasons and the differences."""
    cells = [re.sub(r"\[\d+\]", "[]", cell.strip()) for cell in line.split("|")][1:-1]
    return cells[:-4] + cells[-2:]


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_the_page_says_of_an_architecture_what_is_measured(name):
    found = build_models.row(name, SAMPLE[name])
    assert max(found.worst, found.padding) <= 1e-5
    assert without_numbers(build_models.line([found], build_models.Reasons())) == without_numbers(LINES[name])


def test_the_page_is_of_the_pinned_versions():
    constraints = (ROOT / "constraints.txt").read_text()
    pinned = dict(re.findall(r"^([\w-]+)==([\d.]+)$", constraints, flags=re.MULTILINE))
    older = re.search(r"transformer-lens==(\d[\d.]+)/", (ROOT / "Makefile").read_text())[1]
    for package, others in (("transformers", []), ("transformer-lens", [older])):
        said = re.search(rf"\b{package} ([\d.]+(?: and [\d.]+)*)", PAGE)[1].split(" and ")
        found, wanted = (
            [build_models.short(one) for one in part] for part in (said, [pinned[package], *others])
        )
        assert found == wanted, "run: make models"


def test_the_page_counts_its_lines_and_no_architecture_is_measured_wrongly():
    (summary,) = re.findall(r"\*\*(\d+ architectures: .*?)\.\*\*", PAGE)
    counts = [int(n) for n in re.findall(r"\d+", summary)]
    assert counts[0] == sum(counts[1:]) == len(LINES) >= 200
    assert set(re.findall(r"\d+ (\w+)", summary)) == {"architectures", "equal", "refused"}


def last_key_hidden(pattern):
    return pattern * (torch.arange(pattern.shape[-1]) < pattern.shape[-1] - 1)


@pytest.mark.parametrize(
    ("change", "said"),
    [(lambda pattern: pattern.flip(1), "wrong: "), (last_key_hidden, "wrong: other pairs")],
)
def test_other_numbers_or_keys_than_the_architectures_own_are_called_wrong(monkeypatch, change, said):
    own = zoo.own_patterns

    def changed(*given):
        return {stack: [change(pattern) for pattern in patterns] for stack, patterns in own(*given).items()}

    monkeypatch.setattr(zoo, "own_patterns", changed)
    ways = build_models.row("bert", "BertForMaskedLM").ways
    assert all(way.startswith("wrong: ") for way in ways.values())
    assert ways["hooks"].startswith(said)
