"""Commands do what the Python functions do, say so on stdout, and leave nothing behind when they fail."""

import io
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from real_text import topics_by_hand

import topic_probe as tp
from topic_probe.cli.console import plain
from topic_probe.measure import documents as measuring
from topic_probe.storage import FILE

FAST = ["--n-permutations", "9"]
SMALL = ["--n-topics", "3", "--words-per-topic", "4", "--min-length", "10", "--max-length", "20"]


def left_behind(folder):
    return sorted(path.name for path in Path(folder).iterdir())


@pytest.mark.parametrize(
    ("line", "function", "given"),
    [
        ("measure attention {model} --topics {words} --corpus {texts} --n-permutations 9 --resample sources words "
         "--first-position word --no-progress", "measure.attention.measure_attention",
         {"n_permutations": 9, "resample": ["sources", "words"], "first_position": "word", "progress": False}),
        ("measure embeddings {model} --topics {words} --center --seed 3", "measure.embeddings.measure_embeddings",
         {"center": True, "seed": 3}),
        ("measure weights {toy} --topics {toy} --confidence 0.9", "measure.weights.measure_weights",
         {"confidence": 0.9}),
    ],
)  # fmt: skip
def test_options_arrive_in_the_function_of_the_command(
    run, monkeypatch, model_folder, toy_folder, words, texts, line, function, given
):
    def fake(*inputs, **options):
        arrived.update(options)
        raise RuntimeError("it has arrived")

    arrived = {}
    monkeypatch.setattr(f"topic_probe.{function}", fake)
    places = {"model": model_folder, "toy": toy_folder, "words": words, "texts": texts}
    code, out, err = run(*line.format(**places).split())
    assert (code, out) == (1, "")
    assert "it has arrived" in err.splitlines()[-1]
    assert arrived.items() >= given.items()
    assert arrived.keys() - given.keys() <= {"progress", "tokenizer"}  # what was not said is not passed on


def test_measured_attention_is_that_of_the_python_call(run, model_folder, words, texts, tmp_path):
    out = tmp_path / "report"
    given = [model_folder, "--topics", words, "--corpus", texts, "--max-length", 40, "--seed", 3, *FAST]
    code, said, err = run("measure", "attention", *given, "--out", out, "--json")
    assert (code, err) == (0, "")
    model = tp.open_model(model_folder)
    documents = tp.Corpus.from_files(texts).documents(model.tokenizer, max_length=40)
    topics = topics_by_hand(model.tokenizer)
    wanted = tp.measure_attention(model, topics, documents, seed=3, n_permutations=9)
    found = json.loads(said)
    assert found.pop("saved") == str(out)
    assert plain(tp.load_report(out)) == found
    assert plain({"a": float("nan"), 3: [float("inf"), 1.5]}) == {"a": None, "3": [None, 1.5]}
    for name in ("same_word", "same_topic", "different_topic", "ratio", "n_same_topic", "p_value"):
        assert found["overall"][name] == pytest.approx(float(getattr(wanted.overall, name)), rel=1e-12)
    assert [row["ratio"] for row in found["heads"]] == pytest.approx(wanted.heads.ratio.tolist(), rel=1e-9)
    assert left_behind(tmp_path) == ["report"]


@pytest.mark.slow
def test_words_of_a_fit_are_chosen_anew_on_demand(run, model_folder, texts, tmp_path):
    out, read = tmp_path / "fitted", ["--corpus", texts, "--long", "chunk", "--max-length", 60]
    fit_options = ["--n-topics", 4, "--passes", 2, "--min-documents", 2, "--fraction", 0.02]
    code, said, _ = run("fit-topics", model_folder, *read, *fit_options, "--out", out)
    assert code == 0
    tokenizer = tp.open_model(model_folder).tokenizer
    documents = [*tp.Corpus.from_files(texts).documents(tokenizer, long="chunk", max_length=60)]
    fit = tp.fit_topics(documents, tokenizer, n_topics=4, passes=2, min_documents=2)
    topics = tp.Topics.load(out / "topics")
    assert topics == fit.topics(fraction=0.02)
    covered = sum(int(torch.isin(one.ids[one.whole], topics.words).sum()) for one in documents)
    share = float(re.match(r"about ([\d.]+) % of tokens have a topic\n", said)[1])
    assert share == pytest.approx(100 * covered / sum(map(len, documents)), rel=0.05)
    command = ["measure", "embeddings", model_folder, "--topics", out, "--json"]
    for options, fraction in (([], 0.02), (["--fraction", 0.05], 0.05)):
        fingerprint = json.loads(run(*command, *options)[1])["provenance"]["topics"]["fingerprint"]
        assert fingerprint == fit.topics(fraction=fraction).fingerprint


def test_an_interrupted_measurement_keeps_what_it_has(run, model_folder, words, texts, tmp_path, monkeypatch):
    add, out, batches = measuring._add_halves, tmp_path / "report", []

    def add_once(*given):
        if batches:
            raise KeyboardInterrupt
        batches.append(given)
        return add(*given)

    monkeypatch.setattr(measuring, "_add_halves", add_once)
    given = [model_folder, "--topics", words, "--corpus", texts, "--batch-size", 4, "--max-length", 30, *FAST]
    code, said, err = run("measure", "attention", *given, "--out", out)
    assert code == 130
    kept = f"interrupted after 4 documents; the report of these is in {out}"
    assert err == f"topic-probe: interrupted: {kept}\n"
    assert "heads by effect size, as there are no intervals" in said
    assert re.match(r"\d+\.\d % of tokens have a topic, [\d.]+ same-topic pairs a source\n", said)
    assert tp.load_report(out).provenance["options"]["stopped"] == "interrupted after 4 documents"


def test_a_toy_is_trained_as_by_python_and_opens_like_any_model(run, tmp_path):
    out, options = (
        tmp_path / "toy",
        ["--regime", "attention", "--optimizer", "adam", "--steps", "30", "--seed", "5"],
    )
    code, said, err = run("train", *SMALL, *options, "--out", out, "--json")
    assert (code, err) == (0, "")
    world = tp.World(n_topics=3, words_per_topic=4, min_length=10, max_length=20)
    toy = tp.build_toy(tp.ToyConfig(regime="attention", world=world), seed=5)
    history = tp.train_toy(toy, tp.TrainConfig(optimizer="adam", steps=30, seed=5))
    found = json.loads(said)
    assert found["loss"] == history.loss[-1:].tolist()
    assert found["dynamics"]["two_stage"] == tp.measure_dynamics(history).two_stage.tolist()
    assert left_behind(out) == ["dynamics", "history", "topics", "weights"]
    again = json.loads(run("measure", "weights", out, "--topics", out, "--json")[1])
    assert again["heads"] == found["weights"]["heads"]


def test_check_says_what_can_be_measured_of_a_model(run, model_folder):
    code, said, err = run("check", model_folder)
    assert (code, err) == (0, "")
    assert "self: 2 layers × 2 heads, in both directions" in said
    found = json.loads(run("check", model_folder, "--json", "--dtype", "bfloat16")[1])
    assert found["dtype"] == "bfloat16"
    assert found["stacks"] == [{"name": "self", "layers": 2, "heads": [2, 2], "causal": False}]


# --- what is refused ----------------------------------------------------------------------------------

ATTENTION = "measure attention {model} --topics {words} --corpus {texts}"


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("measure attention {model} --topics {gone} --corpus {texts}", 1, "no topics at"),
        ("measure attention {gone} --topics {words} --corpus {texts}", 1, "there is no folder"),
        ("measure attention {toy} --topics {toy} --corpus {texts}", 1, "trained on synthetic documents"),
        ("measure attention {model} --topics {toy} --corpus {texts}", 1, "over a vocabulary of 13 ids"),
        ("measure embeddings {model} --topics wordnet-noun", 1, "did you mean wordnet-nouns?"),
        (ATTENTION + " --corpus-seed 3", 2, "--corpus-seed does not fit here"),
        (ATTENTION + " --n-permutations -3", 2, "--n-permutations must be at least 0"),
        (ATTENTION + " --part 0 3", 2, "--part came without --folder"),
        ("measure weights {toy} --topics {toy} --fraction 0.1", 2, "no fit is beside them"),
        ("check {model} --device nonsense", 2, "--device 'nonsense' cannot be used here: "),
        ("train --out {gone} --learning-rate -1", 2, "--learning-rate must be positive"),
        ("compare {model} {model} --topics empath", 2, "need labels that differ"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said_in_one_line_and_leaves_nothing(
    refused, model_folder, toy_folder, words, texts, tmp_path, line, code, said
):
    places = {
        "model": model_folder,
        "toy": toy_folder,
        "words": words,
        "texts": texts,
        "gone": tmp_path / "gone",
    }
    assert said in refused(*line.format(**places).split(), code=code)
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize(
    ("line", "usage", "said"),
    [
        ("", "", "COMMAND"),
        ("measure atention", "measure KIND", "did you mean attention?"),
        ("measure attention m --topcs t --corpus c", "measure attention MODEL", "--topcs: did you mean --topics?"),
        ("train --out x --optimizer adan", "train --out DIR", "did you mean adam?"),
        ("train --out x --steps many", "train --out DIR", "invalid int value: 'many'"),
        ("check m --series s", "check (MODEL | --series SERIES)", "argument --series: not allowed with"),
    ],
)  # fmt: skip
def test_a_mistyped_line_is_answered_with_what_was_meant_and_the_usage_of_its_command(run, line, usage, said):
    code, out, err = run(*line.split())
    assert (code, out) == (2, "")
    assert err.startswith(f"usage: topic-probe {usage}")
    assert said in err


def test_results_are_not_overwritten_unasked(refused, run, toy_folder, tmp_path):
    out = tmp_path / "weights"
    command = ["measure", "weights", toy_folder, "--topics", toy_folder, "--out", out]
    assert run(*command) == (0, f"{tp.load_report(out)}\nsaved in {out}\n", "")
    before = (out / FILE).read_bytes()
    assert "is not overwritten unasked" in refused(*command)
    assert (out / FILE).read_bytes() == before
    assert run(*command, "--overwrite", "--seed", 1)[0] == 0
    assert (out / FILE).read_bytes() != before


# --- the program as a whole ---------------------------------------------------------------------------


@pytest.mark.slow
def test_the_module_runs_as_a_program_and_whoever_reads_may_leave_at_any_time(tmp_path):
    def program(*argv, stdout=subprocess.PIPE):
        command = [sys.executable, "-m", "topic_probe", *argv]
        return subprocess.run(command, check=False, stdout=stdout, stderr=subprocess.PIPE, text=True)

    failed = program("measure", "weights", str(tmp_path), "--topics", str(tmp_path / "gone"))
    assert (failed.returncode, failed.stdout, failed.stderr.count("\n")) == (1, "", 1)
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as nobody_reads:  # noqa: PTH123 - a number, no path
        answer = program("measure", "attention", "--help", stdout=nobody_reads)
    assert (answer.returncode, answer.stderr) == (0, "")


def test_what_libraries_print_is_no_part_of_the_answer(run, toy_folder, monkeypatch):
    measure_weights = tp.measure_weights

    def chatty(*given, **options):
        print("Moving model to device")
        warnings.warn("a remark of ours", stacklevel=1)
        warnings.warn("a remark of others", FutureWarning, stacklevel=1)
        return measure_weights(*given, **options)

    monkeypatch.setattr("topic_probe.measure.weights.measure_weights", chatty)
    code, out, err = run("measure", "weights", toy_folder, "--topics", toy_folder, "--json")
    assert (code, json.loads(out)["kind"]) == (0, "weights")
    assert err == "Moving model to device\ntopic-probe: warning: a remark of ours\n"


def test_an_error_that_nobody_foresaw_says_its_kind_and_where_it_came_from_on_demand(
    refused, run, toy_folder, monkeypatch
):
    monkeypatch.setattr("topic_probe.measure.weights.measure_weights", lambda *_, **__: {}["ratio"])
    command = ["measure", "weights", toy_folder, "--topics", toy_folder]
    line = refused(*command)
    assert line == "topic-probe: error: KeyError: 'ratio' (add --debug for where it came from)"
    assert "Traceback" in run(*command, "--debug")[2]


def test_topics_are_read_from_standard_input(run, model_folder, words, monkeypatch):
    command = ["measure", "embeddings", model_folder, "--json", "--topics"]
    monkeypatch.setattr(sys, "stdin", io.StringIO(Path(words).read_text()))
    assert run(*command, "-") == run(*command, words)
