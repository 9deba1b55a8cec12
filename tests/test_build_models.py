"""The page of architectures says what is measured, and with which versions."""

import re
import sys
from pathlib import Path

import any_architecture
import pytest
import zoo

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "demos"))

import build_models  # noqa: E402

PAGE = build_models.TARGET.read_text(encoding="utf-8")
LINES = {line.split("`")[1]: line for line in PAGE.splitlines() if line.startswith("| `")}

# Of different kinds: one layer called several times, attention to both sides, patterns that are only returned,
# compressed keys, windows, no adapter needed, heads that may attend to nothing, layers without attention, none at all,
# biases by distance, two stacks, two of which one cannot be read.
SAMPLE = {
    "albert": "AlbertForMaskedLM",
    "bert": "BertForMaskedLM",
    "deberta-v2": "DebertaV2ForMaskedLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gemma3_text": "Gemma3ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "jamba": "JambaForCausalLM",
    "longt5": "LongT5ForConditionalGeneration",
    "mamba": "MambaForCausalLM",
    "mpt": "MptForCausalLM",
    "t5": "T5ForConditionalGeneration",
    "xlnet": "XLNetLMHeadModel",
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
    pinned = dict(
        re.findall(r"^([\w-]+)==([\d.]+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    )
    older = re.search(r"transformer-lens==(\d[\d.]+)/", (ROOT / "Makefile").read_text())[1]
    needed = {
        "transformers": [pinned["transformers"]],
        "transformer-lens": [pinned["transformer-lens"], older],
    }
    for package, versions in needed.items():
        said = re.search(rf"\b{package} ([\d.]+(?: and [\d.]+)*)", PAGE)[1].split(" and ")
        assert list(map(build_models.short, said)) == list(map(build_models.short, versions)), (
            "run: make models"
        )


def test_the_page_counts_its_lines_and_no_architecture_is_measured_wrongly():
    counts = [int(n) for n in re.findall(r"\d+", re.search(r"\*\*(\d+ architectures: .*?)\.\*\*", PAGE)[1])]
    assert counts[0] == sum(counts[1:]) == len(LINES) >= 200
    summary = re.search(r"\*\*\d+ architectures: (.*?)\.\*\*", PAGE)[1]
    assert {part.split()[1] for part in summary.split(", ")} == {"equal", "refused"}


def test_a_number_that_is_not_the_architectures_own_is_called_wrong(monkeypatch):
    own = zoo.own_patterns

    def other_heads(*given):
        return {stack: [pattern.flip(1) for pattern in patterns] for stack, patterns in own(*given).items()}

    monkeypatch.setattr(zoo, "own_patterns", other_heads)
    ways = build_models.row("bert", "BertForMaskedLM").ways
    assert [way.split(" by ")[0] for way in ways.values()] == ["wrong:", "wrong:"]


def test_another_visibility_is_called_wrong(monkeypatch):
    own = zoo.own_patterns

    def last_key_hidden(*given):
        patterns = own(*given)
        for pattern in patterns["self"]:
            pattern[..., -1] = 0
        return patterns

    monkeypatch.setattr(zoo, "own_patterns", last_key_hidden)
    assert build_models.row("bert", "BertForMaskedLM").ways["hooks"] == "wrong: other pairs"


@pytest.mark.slow
def test_an_architecture_that_does_not_answer_is_told_and_stops_no_other(monkeypatch):
    monkeypatch.setattr(build_models, "SECONDS", 0.05)
    worker = build_models.Worker(sys.executable)
    for name in ("bert", "albert"):
        found = worker.ask(name, SAMPLE[name])
        assert (found.name, worker.process) == (name, None)
        assert set(found.ways.values()) == {"failed: no answer within 0.05 s"}
    assert build_models.verdict([found]) == "failed"


def test_a_small_configuration_keeps_a_layer_of_every_kind():
    from transformers import Gemma3TextConfig, JambaConfig

    gemma = Gemma3TextConfig(**any_architecture.small(Gemma3TextConfig))
    assert (gemma.layer_types, gemma.sliding_window) == (["sliding_attention", "full_attention"], 6)
    jamba = JambaConfig(**any_architecture.small(JambaConfig))
    assert len(set(jamba.layer_types)) == 2
    assert min(build_models.LENGTHS) > gemma.sliding_window
