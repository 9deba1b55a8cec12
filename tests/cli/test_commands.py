"""Commands do what the Python functions do, say so on stdout, and leave nothing behind when they fail."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import transformers as hf
import zoo
from real_text import topics_by_hand

import topic_probe as tp
from topic_probe.cli import main
from topic_probe.cli import measure as measure_command
from topic_probe.cli.console import plain
from topic_probe.train.bert import TextConfig, bert_parameters, build_bert
from topic_probe.train.history import History, TrainConfig

FEW = ["--n-resamples", "20"]
FAST = [*FEW, "--n-permutations", "9"]


def numbers(row, contrast):
    for name in ("same_word", "same_topic", "different_topic", "ratio", "n_same_topic"):
        value = float(getattr(contrast, name))
        assert row[name] == pytest.approx(value, rel=1e-12), name


def left_behind(folder):
    return sorted(path.name for path in Path(folder).iterdir())


# --- measure ------------------------------------------------------------------------------------------


def test_measured_attention_is_that_of_the_python_call(run, model_folder, words, texts, tmp_path):
    out = tmp_path / "report"
    code, said, err = run(
        "measure", "attention", model_folder, "--topics", words, "--corpus", texts, "--max-length", 40,
        "--seed", 3, *FAST, "--out", out, "--json",
    )  # fmt: skip
    assert (code, err) == (0, "")
    model = tp.open_model(model_folder)
    documents = tp.Corpus.from_files(texts).documents(model.tokenizer, max_length=40)
    wanted = tp.measure_attention(
        model, topics_by_hand(model.tokenizer), documents, seed=3, n_resamples=20, n_permutations=9
    )
    found = json.loads(said)
    assert found.pop("saved") == str(out)
    numbers(found["overall"], wanted.overall)
    assert found["overall"]["p_value"] == float(wanted.overall.p_value)
    assert [row["ratio"] for row in found["heads"]] == pytest.approx(wanted.heads.ratio.tolist(), rel=1e-9)
    report = tp.load_report(out)
    assert plain(report) == found
    assert left_behind(tmp_path) == ["report"]


def test_a_measurement_prints_a_table_that_ends_with_where_it_is_saved(run, toy_folder, tmp_path):
    out = tmp_path / "weights"
    code, said, err = run("measure", "weights", toy_folder, "--topics", toy_folder, "--out", out, *FEW)
    assert (code, err) == (0, "")
    report = tp.load_report(out)
    assert said == f"{report}\nsaved in {out}\n"
    assert report.provenance["options"]["n_resamples"] == 20


def test_measured_embeddings_are_those_of_the_python_call(run, model_folder, words, texts):
    code, said, _ = run("measure", "embeddings", model_folder, "--topics", words, "--center", *FEW, "--json")
    assert code == 0
    model = tp.open_model(model_folder)
    wanted = tp.measure_embeddings(model, topics_by_hand(model.tokenizer), center=True, n_resamples=20)
    found = json.loads(said)
    numbers(found["cosine"], wanted.cosine)
    assert found["layers"] is None
    code, said, _ = run(
        "measure", "embeddings", model_folder, "--topics", words, "--corpus", texts, "--max-length", 30, *FEW
    )
    assert code == 0
    assert "layer by layer" in said


def test_options_of_word_lists_reach_them(run, model_folder, tmp_path):
    file = tmp_path / "words.json"
    file.write_text(json.dumps({"war": ["War", "army", "bassoonist"], "music": ["song", "guitar"]}))
    options = ["--no-case-variants", "--split-words", "keep", "--forms", "stem", *FEW, "--json"]
    code, said, _ = run("measure", "embeddings", model_folder, "--topics", file, *options)
    found = json.loads(said)["provenance"]
    assert code == 0
    # "War" is unknown in its own case to an uncased tokenizer, and the piece-wise word has no row.
    assert "compounds" in found["topics"]["policy"]
    assert "in any case" not in found["topics"]["policy"]
    assert found["topics"]["one_word"] == "stem"


@pytest.mark.filterwarnings("ignore:topics without a word")
def test_topics_that_come_along_are_named_and_a_file_of_that_name_is_asked_for_as_a_path(
    run, refused, model_folder, words, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    embeddings = ["measure", "embeddings", model_folder, *FEW, "--json", "--topics"]

    def policy(*options):
        code, said, err = run(*embeddings, *options)
        assert code == 0
        return json.loads(said)["provenance"]["topics"], err

    tokenizer = tp.open_model(model_folder).tokenizer
    wanted = tp.Topics.builtin("emoji", tokenizer, language="es", forms="stem")
    found, _ = policy("emoji", "--language", "es", "--forms", "stem")
    assert (found["fingerprint"], found["policy"]) == (wanted.fingerprint, wanted.policy)
    assert tp.builtin_topics()["emoji"].sha256 in found["policy"]

    Path("empath").write_text(Path(words).read_text())
    found, said = policy("empath")
    assert found["policy"].startswith("the built-in lists empath 0.89 (sha256 ")
    assert "note: empath means the word lists that come along; what lies here is ./empath" in said
    found, said = policy("./empath")
    assert (found["policy"].startswith("words as listed"), said) == (True, "")

    assert "did you mean wordnet-nouns?" in refused(*embeddings, "wordnet-noun")
    assert "emoji has no lists in 'xx': it has af, " in refused(
        *embeddings, "emoji", "--language", "xx", code=2
    )
    assert "--fraction does not fit here" in refused(*embeddings, "emoji", "--fraction", "0.1", code=2)
    assert "--language does not fit here: that is for word lists" in refused(
        *embeddings, words, "--language", "de", code=2
    )


def test_words_of_a_fit_are_chosen_anew_on_demand(run, model_folder, texts, tmp_path):
    out = tmp_path / "fitted"
    fitted = run(
        "fit-topics", model_folder, "--corpus", texts, "--n-topics", 4, "--passes", 2, "--min-documents", 2,
        "--fraction", 0.02, "--long", "chunk", "--max-length", 60, "--out", out, "--json",
    )  # fmt: skip
    assert (fitted[0], fitted[2]) == (0, "")
    tokenizer = tp.open_model(model_folder).tokenizer
    documents = tp.Corpus.from_files(texts).documents(tokenizer, long="chunk", max_length=60)
    fit = tp.fit_topics(documents, tokenizer, n_topics=4, passes=2, min_documents=2)
    found = json.loads(fitted[1])
    topics = tp.Topics.load(out / "topics")
    assert [row["top_words"] for row in found["topics"]] == fit.to_dataframe()["top_words"].tolist()
    assert topics == tp.Topics.from_lda(fit, fraction=0.02)
    assert [row["n_words"] for row in found["topics"]] == topics.sizes.tolist()

    def policy(*options):
        code, said, _ = run("measure", "embeddings", model_folder, "--topics", out, *options, *FEW, "--json")
        assert code == 0
        return json.loads(said)["provenance"]["topics"]["fingerprint"]

    assert policy() == topics.fingerprint
    assert policy("--fraction", 0.05) == tp.Topics.from_lda(fit, fraction=0.05).fingerprint
    stems = tp.Topics.from_lda(fit, fraction=0.05, of="tokenizer", forms="stem")
    assert policy("--fraction", 0.05, "--fraction-of", "tokenizer", "--forms", "stem") == stems.fingerprint


def test_an_interrupted_measurement_keeps_what_it_has(run, model_folder, words, texts, tmp_path, monkeypatch):
    from topic_probe.measure.engine import Engine

    measured = Engine.add

    def add_once(engine, batch):
        if engine.progress.measured:
            raise KeyboardInterrupt
        measured(engine, batch)

    monkeypatch.setattr(Engine, "add", add_once)
    out = tmp_path / "report"
    code, said, err = run(
        "measure", "attention", model_folder, "--topics", words, "--corpus", texts, "--batch-size", 4,
        "--max-length", 30, *FAST, "--out", out,
    )  # fmt: skip
    assert code == 130
    assert (
        err == f"topic-probe: interrupted: interrupted after 4 documents; the report of these is in {out}\n"
    )
    assert "heads with the strongest evidence" in said
    assert tp.load_report(out).provenance["options"]["stopped"] == "interrupted after 4 documents"


def test_a_bar_counts_to_the_documents_that_are_measured(run, model_folder, texts, tmp_path):
    file = tmp_path / "words.json"
    file.write_text(json.dumps({"war": ["army", "battle"], "music": ["guitar", "song"]}))
    options = ["--corpus", texts, "--batch-size", 4, "--max-length", 60, *FAST, "--progress", "--json"]
    code, said, err = run("measure", "attention", model_folder, "--topics", file, *options)
    measured = json.loads(said)["provenance"]["documents_measured"]
    assert code == 0
    assert 0 < measured < 30
    assert re.search(rf"{measured}/{measured} \[", err)


def test_only_the_first_of_several_processes_speaks_and_writes(run, toy_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    out = tmp_path / "weights"
    answer = run("measure", "weights", toy_folder, "--topics", toy_folder, "--out", out, *FEW)
    assert answer == (0, "", "")
    assert left_behind(tmp_path) == []


# --- what is refused ----------------------------------------------------------------------------------


def measured(model, topics, *more):
    return ["measure", "attention", model, "--topics", topics, *more]


def test_missing_inputs_are_named_before_anything_is_opened(
    refused, model_folder, words, texts, tmp_path, monkeypatch
):
    def never(*_):
        raise AssertionError("nothing slow may come before this")

    monkeypatch.setattr(measure_command, "open_model", never)
    gone = tmp_path / "gone"
    assert f"no topics at {gone}" in refused(*measured(model_folder, gone, "--corpus", texts))
    assert f"{gone}.txt does not exist" in refused(*measured(model_folder, words, "--corpus", f"{gone}.txt"))
    bundled = ["--corpus", "bundled", "--field", "body"]
    assert "--field does not fit here" in refused(*measured(model_folder, words, *bundled), code=2)
    files = ["--corpus", texts, "--spread", "3"]
    assert "--spread does not fit here" in refused(*measured(model_folder, words, *files), code=2)
    embeddings = ["measure", "embeddings", model_folder, "--topics", words, "--max-length", "3"]
    assert "--max-length needs texts: name them with --corpus" in refused(*embeddings, code=2)


def test_topics_that_do_not_fit_are_refused(refused, toy_folder, model_folder, texts, tmp_path):
    corpus = ["--corpus", texts]
    assert "over a vocabulary of 13 ids" in refused(*measured(model_folder, toy_folder, *corpus))
    weights = ["measure", "weights", toy_folder, "--topics"]
    assert "there are no topics in the folder" in refused(*weights, texts)
    assert "no fit is beside them" in refused(*weights, toy_folder, "--fraction", "0.1", code=2)
    assert "--split-words does not fit here" in refused(*weights, toy_folder, "--split-words", "keep", code=2)
    broken = tmp_path / "words.json"
    twice = '{"a": ["army"], "b": ["band"], "a": ["war"]}'
    for content, what in (
        ("{", "is not JSON"),
        ("[1]", "it holds a list"),
        (twice, "several topics of the name 'a'"),
    ):
        broken.write_text(content)
        assert what in refused("measure", "embeddings", model_folder, "--topics", broken)


def test_a_corpus_without_texts_is_refused_and_nothing_is_left(refused, model_folder, words, tmp_path):
    (tmp_path / "texts").mkdir()
    corpus = ["--corpus", tmp_path / "texts", "--out", tmp_path / "results" / "new" / "report"]
    assert "there is no .txt" in refused(*measured(model_folder, words, *corpus))
    (tmp_path / "texts" / "empty.txt").write_text(" ")
    assert "the corpus has no document" in refused(*measured(model_folder, words, *corpus))
    assert left_behind(tmp_path) == ["texts"]


def test_models_that_are_not_there_are_refused(refused, words, texts, toy_folder, tmp_path):
    gone = tmp_path / "gone"
    assert f"there is no folder '{gone}'" in refused(*measured(gone, words, "--corpus", texts))
    assert f"there is no folder '{gone}'" in refused("check", gone)
    assert "holds no config.json" in refused("check", texts)
    assert "no tokenizer can be loaded" in refused("fit-topics", texts, "--corpus", texts, "--out", gone)
    assert "trained on synthetic documents" in refused(*measured(toy_folder, toy_folder, "--corpus", texts))
    assert "--dtype does not fit here" in refused("check", toy_folder, "--dtype", "float32", code=2)
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("device", ["nonsense", "cuda:99"])
def test_a_device_that_is_not_here_is_refused_by_the_name_of_the_option(refused, model_folder, device):
    assert f"--device '{device}' cannot be used here: " in refused(
        "check", model_folder, "--device", device, code=2
    )


def test_a_type_of_weights_that_is_none_is_refused(refused, model_folder):
    assert "--dtype must be a type of weights" in refused("check", model_folder, "--dtype", "int8", code=2)


def test_results_are_not_overwritten_unasked_and_other_files_never(refused, run, toy_folder, tmp_path):
    out = tmp_path / "weights"
    command = ["measure", "weights", toy_folder, "--topics", toy_folder, *FEW, "--out", out]
    assert run(*command)[0] == 0
    before = (out / "saved.json").read_bytes()
    assert (
        "is not empty and is not overwritten unasked: choose another, or add overwrite=True (--overwrite)"
        in refused(*command)
    )
    assert (out / "saved.json").read_bytes() == before
    assert run(*command, "--overwrite", "--seed", 1)[0] == 0
    assert (out / "saved.json").read_bytes() != before
    (out / "thesis.tex").write_text("mine")
    assert "holds thesis.tex, which is no result of topic-probe" in refused(*command, "--overwrite")
    assert (out / "thesis.tex").read_text() == "mine"
    assert left_behind(tmp_path) == ["weights"]


@pytest.mark.parametrize("place", ["file", "file/inside"])
def test_a_place_that_cannot_be_written_to_is_known_at_once(refused, tmp_path, place, monkeypatch):
    from topic_probe.train import loop as training

    monkeypatch.setattr(training, "train_toy", None)  # nothing may be trained before
    (tmp_path / "file").write_text("mine")
    line = refused("train", "--out", tmp_path / place)
    assert str(tmp_path / "file") in line
    assert (tmp_path / "file").read_text() == "mine"
    assert left_behind(tmp_path) == ["file"]


def test_wrong_usage_has_a_code_of_its_own(run):
    for argv in (
        [], ["measur"], ["measure"], ["measure", "attention", "model"], ["train", "--out", "x", "--steps", "many"],
        ["train", "--out", "x", "--regime", "all"], ["reproduce", "figure99"], ["reproduce"], ["report"], ["check"],
        ["fit-topics", "tokenizer"], ["train", "--out", "x", "--step", "3"],
    ):  # fmt: skip
        code, out, err = run(*argv)
        assert (code, out) == (2, ""), argv
        assert err.startswith("usage: ")


def test_debug_shows_where_an_error_came_from(run, tmp_path):
    code, out, err = run("check", tmp_path / "gone", "--debug")
    assert (code, out) == (1, "")
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("topic-probe: error: there is no folder")


# --- train --------------------------------------------------------------------------------------------


SMALL = ["--n-topics", "3", "--words-per-topic", "4", "--min-length", "10", "--max-length", "20"]


def test_a_toy_is_trained_as_by_python_and_opens_like_any_model(run, tmp_path):
    out = tmp_path / "toy"
    options = [
        "--regime",
        "attention",
        "--optimizer",
        "adam",
        "--steps",
        30,
        "--seed",
        5,
        "--frozen",
        "W_E=identity",
    ]
    code, said, err = run("train", *SMALL, *options, "--out", out, "--json")
    assert (code, err) == (0, "")
    world = tp.World(n_topics=3, words_per_topic=4, min_length=10, max_length=20)
    toy = tp.build_toy(tp.ToyConfig(regime="attention", world=world), seed=5)
    history = tp.train_toy(toy, tp.TrainConfig(optimizer="adam", steps=30, seed=5))
    found = json.loads(said)
    assert found["loss"] == history.loss[-1:].tolist()
    assert found["dynamics"]["two_stage"] == tp.measure_dynamics(history).two_stage.tolist()
    weights = tp.measure_weights(toy, tp.Topics.blocks(n_topics=3, words_per_topic=4))
    assert found["weights"] == plain(weights)
    assert "embeddings" not in found  # which are not trained in this regime
    assert left_behind(out) == ["dynamics", "history", "topics", "weights"]
    again = json.loads(run("measure", "weights", out, "--topics", out, "--json")[1])
    assert again["heads"] == found["weights"]["heads"]


def test_a_training_goes_on_from_its_checkpoint(run, tmp_path):
    command = ["train", *SMALL, "--checkpoint", tmp_path / "checkpoint", "--json"]
    first = run(*command, "--steps", 10, "--out", tmp_path / "first")
    second = run(*command, "--steps", 20, "--out", tmp_path / "second")
    whole = run("train", *SMALL, "--json", "--steps", 20, "--out", tmp_path / "whole")
    assert first[0] == second[0] == whole[0] == 0
    assert json.loads(second[1])["loss"] == json.loads(whole[1])["loss"]
    assert json.loads(second[1])["last_step"] == 20


def test_a_training_that_diverges_is_an_error_and_is_kept(run, tmp_path):
    out = tmp_path / "toy"
    code, _, err = run("train", *SMALL, "--steps", 50, "--learning-rate", 1e9, "--out", out)
    assert code == 1
    assert err.splitlines()[-1].startswith("topic-probe: error: ")
    assert f"what was trained until then is in {out}" in err
    assert tp.History.load(out / "history").stopped != "finished"


def test_settings_that_make_no_sense_are_refused_and_nothing_is_left(refused, tmp_path):
    out = ["--out", tmp_path / "toy"]
    assert "--learning-rate must be positive" in refused("train", *out, "--learning-rate", "-1", code=2)
    assert "--frozen takes NAME=VALUE" in refused("train", *out, "--frozen", "W_V", code=2)
    assert "two different distributions" in refused(
        "train", *out, "--alpha", "1", "--topics-per-document", "2", code=2
    )
    assert left_behind(tmp_path) == []


def test_an_interrupted_training_is_kept_and_the_code_says_so(run, tmp_path, monkeypatch):
    from topic_probe.train import loop as training

    update = training._Run.update

    def interrupted_at_15(training_run):
        if training_run.step == 14:
            signal.raise_signal(signal.SIGINT)
        update(training_run)

    monkeypatch.setattr(training._Run, "update", interrupted_at_15)
    out, checkpoint = tmp_path / "toy", tmp_path / "checkpoint"
    code, said, err = run("train", *SMALL, "--out", out, "--checkpoint", checkpoint, "--progress", "--json")
    assert code == 130
    assert re.search(r"\d+/1000 \[.*<.*\d+:\d+", err), "a bar with the time left"
    assert err.splitlines()[-1] == (
        "topic-probe: interrupted: interrupted after step 15 of 1000; the history until then is in "
        f"{out}, and {checkpoint} goes on from there"
    )
    assert json.loads(said)["last_step"] == tp.History.load(out / "history").last_step == 15


# --- check --------------------------------------------------------------------------------------------


def test_check_says_what_can_be_measured_of_a_model(run, model_folder):
    code, said, err = run("check", model_folder)
    assert (code, err) == (0, "")
    assert "self: 2 layers × 2 heads, in both directions" in said
    code, said, _ = run("check", model_folder, "--json", "--dtype", "bfloat16")
    found = json.loads(said)
    assert code == 0
    assert found["dtype"] == "bfloat16"
    assert found["stacks"] == [{"name": "self", "layers": 2, "heads": [2, 2], "causal": False}]


def test_check_fails_where_attention_cannot_be_measured(run, tmp_path):

    config = hf.FNetConfig(vocab_size=50, hidden_size=8, num_hidden_layers=1, intermediate_size=8)
    hf.FNetModel(config).save_pretrained(tmp_path / "fnet")
    code, said, _ = run("check", tmp_path / "fnet")
    assert code == 1
    assert "patterns are seen" in said
    assert "no: " in said


def test_check_fails_where_attention_is_nan(run, tmp_path):
    model = zoo.make("bert")
    with torch.no_grad():
        model.bert.encoder.layer[1].attention.self.query.weight[0, 0] = float("nan")
    model.save_pretrained(tmp_path / "broken")
    code, said, _ = run("check", tmp_path / "broken", "--json")
    assert code == 1
    assert json.loads(said)["attention_can_be_measured"] is False


# --- the program as a whole ---------------------------------------------------------------------------


def test_the_module_runs_as_a_program(tmp_path):
    def program(*argv):
        command = [sys.executable, "-m", "topic_probe", *argv]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert program("--version").stdout == f"topic-probe {tp.__version__}\n"
    failed = program("measure", "weights", str(tmp_path), "--topics", str(tmp_path / "gone"))
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.count("\n") == 1


def test_an_answer_comes_though_stderr_is_closed(capsys, toy_folder, monkeypatch):
    # As Python starts under `2>&-` and in programs without a console.
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["check", toy_folder]) == 0
    sys.stderr.close()
    assert "patterns are seen             yes" in capsys.readouterr().out


def test_what_libraries_print_is_no_part_of_the_answer(capsys, toy_folder, monkeypatch):
    from topic_probe.measure import weights

    measure_weights = weights.measure_weights

    def chatty(*given, **options):
        print("Moving model to device")
        warnings.warn("a remark of ours", stacklevel=1)
        for kind in (FutureWarning, UnicodeWarning, type("TracerWarning", (UserWarning,), {})):
            warnings.warn("a remark of others", kind, stacklevel=1)
        return measure_weights(*given, **options)

    monkeypatch.setattr(weights, "measure_weights", chatty)
    assert main(["measure", "weights", toy_folder, "--topics", toy_folder, *FEW, "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["kind"] == "weights"
    assert said.err == "Moving model to device\ntopic-probe: warning: a remark of ours\n"


def test_an_error_that_nobody_foresaw_says_its_kind(refused, toy_folder, monkeypatch):
    from topic_probe.measure import weights

    monkeypatch.setattr(weights, "measure_weights", lambda *_, **__: {}["ratio"])
    line = refused("measure", "weights", toy_folder, "--topics", toy_folder)
    assert line == "topic-probe: error: KeyError: 'ratio' (add --debug for where it came from)"


def test_documents_for_machines_have_null_where_there_is_no_number():
    assert json.loads(json.dumps(plain({"a": float("nan"), "b": [float("inf"), 1.5], 3: None}))) == {
        "a": None, "b": [None, 1.5], "3": None,
    }  # fmt: skip


def test_a_model_trained_on_text_is_opened_from_its_history(run, refused, model_folder, words, tmp_path):
    config = TextConfig(vocabulary_size=30522, n_layers=1, n_heads=2, d_model=8, max_length=16)
    model = build_bert(config)
    saved = History(
        config, TrainConfig(steps=1), torch.zeros(1, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.float64),
        ("loss",), {}, {name: tensor.detach() for name, tensor in bert_parameters(model).items()}, 0,
    )  # fmt: skip
    folder = saved.save(tmp_path / "history")
    assert run("check", folder, "--json")[0] == 0
    command = ["measure", "embeddings", folder, "--topics", words]
    code, said, _ = run(*command, "--tokenizer", model_folder, "--json")
    assert code == 0
    assert json.loads(said)["kind"] == "embeddings"
    assert "name one with --tokenizer" in refused(*command)
    assert "--device does not fit here" in refused(*command, "--device", "cpu", code=2)


def test_where_no_head_has_a_ratio_the_answer_says_so(run, model_folder, words, tmp_path):
    text = tmp_path / "one.txt"
    text.write_text("army")
    code, said, _ = run("measure", "attention", model_folder, "--topics", words, "--corpus", text, *FAST)
    assert code == 0
    assert "Empty DataFrame" not in said
    assert "then highest effect size)\nnone: no head has an effect size" in said


def test_the_answer_counts_what_of_a_corpus_was_not_read(run, model_folder, words, tmp_path):
    records = tmp_path / "records.jsonl"
    records.write_text('{"text": "the army and the band"}\n{"text": null}\nnot json\n')
    code, said, _ = run("measure", "attention", model_folder, "--topics", words, "--corpus", records, *FAST)
    assert code == 0
    assert "(missing texts (None): 1)" in said
    assert "(lines that are no JSON: 1)" in said


# --- what stands on the line --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "usage", "said"),
    [
        ("measure attention m --topcs t --corpus c", "measure attention MODEL", "--topcs: did you mean --topics?"),
        ("measure attention m --topics t --corpus c --n-perm 3", "measure attention", "did you mean --n-permutations?"),
        ("train --out x --optimiser adam", "train --out DIR", "no option --optimiser: did you mean --optimizer?"),
        ("train --out x --optimizer adan", "train --out DIR", "did you mean adam?"),
        ("mesure attention", "[-h]", "did you mean measure?"),
        ("measure atention", "measure KIND", "did you mean attention?"),
        ("reproduce figur4", "reproduce NAME", "did you mean figure4?"),
        ("--json check m", "[-h]", "--help lists all; options of a command stand behind its name"),
        ("check m n", "check (MODEL | --series SERIES)", "too much: n"),
        ("check", "check (MODEL | --series SERIES)", "one of the arguments MODEL --series is required"),
        ("check m --series s", "check (MODEL | --series SERIES)", "argument --series: not allowed with"),
    ],
)  # fmt: skip
def test_a_mistyped_line_is_answered_with_what_was_meant_and_the_usage_of_its_command(run, line, usage, said):
    code, out, err = run(*line.split())
    assert (code, out) == (2, "")
    assert err.startswith(f"usage: topic-probe {usage}")
    assert said in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--max-length", "0"], "--max-length must leave room"),
        (["--n-resamples", "-3"], "--n-resamples must be at least 0"),
        (["--confidence", "nan"], "--confidence is the share of intervals"),
        (["--part", "0", "3"], "--part came without --folder"),
        (["--split", "chapter"], "--split must be one of 'file', 'line', 'paragraph'"),
        (["--n-documents", "0"], "--n-documents must be at least 1"),
        (["--folder", "parts", "--part-size", "0"], "--part-size must be at least 1"),
        (["--seed", "99999999999999999999"], "--seed is too large to count with"),
    ],
)
def test_a_wrong_value_is_wrong_usage_and_said_of_its_option(
    refused, model_folder, words, texts, options, said
):
    assert said in refused(*measured(model_folder, words, "--corpus", texts), *options, code=2)


def test_a_message_that_is_not_about_an_option_that_was_given_stays_an_error(
    refused, model_folder, words, tmp_path
):
    (tmp_path / "empty.txt").write_text(" ")
    options = ["--corpus", tmp_path / "empty.txt", "--max-length", "9", "--seed", "1"]
    command = measured(model_folder, words, *options)
    assert "the corpus has no document (1 empty texts)" in refused(*command, code=1)


def test_topics_are_read_from_standard_input(run, refused, model_folder, words, monkeypatch):
    command = ["measure", "embeddings", model_folder, "--json", *FEW, "--topics"]
    wanted = json.loads(run(*command, words)[1])
    monkeypatch.setattr(sys, "stdin", io.StringIO(Path(words).read_text()))
    assert json.loads(run(*command, "-")[1]) == wanted
    monkeypatch.setattr(sys, "stdin", io.StringIO("army battle"))
    assert "standard input is not JSON" in refused(*command, "-")
    page = ["show", model_folder, "--topics", "-", "--file", "-", "--out", "page.html"]
    assert "cannot both be standard input" in refused(*page, code=2)


@pytest.mark.parametrize("argv", [["measure", "attention", "--help"], ["--help"]])
def test_whoever_reads_may_leave_at_any_time(argv):
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as nobody_reads:  # noqa: PTH123 - a number, no path
        command = [sys.executable, "-m", "topic_probe", *argv]
        answer = subprocess.run(command, stdout=nobody_reads, stderr=subprocess.PIPE, text=True)
    assert (answer.returncode, answer.stderr) == (0, "")


@pytest.mark.parametrize("corpus", ["bundled", "files"])
def test_any_corpus_can_be_read_in_part(run, model_folder, words, texts, corpus):
    name = texts if corpus == "files" else corpus
    command = [
        "measure",
        "embeddings",
        model_folder,
        "--topics",
        words,
        "--corpus",
        name,
        "--max-length",
        60,
        "--json",
    ]
    code, said, _ = run(*command, "--n-documents", 9, *FEW)
    read = json.loads(said)["provenance"]["documents"]
    assert (code, read["documents"]) == (0, 9)


def test_a_trial_run_is_small_and_says_so(run, model_folder, words, texts, tmp_path):
    command = [*measured(model_folder, words, "--corpus", texts), "--quick", "--max-length", 60]
    code, said, err = run(*command, "--out", tmp_path / "report")
    assert (code, err) == (0, "")
    assert (
        "(a trial run of 24 documents and 20 permutations at most: leave out --quick for the whole)" in said
    )
    report = tp.load_report(tmp_path / "report")
    assert report.provenance["trial"] == {"n_documents": 24, "n_permutations": 20}
    assert (report.provenance["documents"], report.provenance["options"]["n_permutations"]) == (24, 20)
    assert "a trial run of 24 documents" in str(report)
    _, said, _ = run(*command, "--n-permutations", 5, "--json")
    assert json.loads(said)["provenance"]["trial"] == {"n_documents": 24}
    assert json.loads(said)["provenance"]["options"]["n_permutations"] == 5


def test_lines_fit_a_screen_and_all_columns_are_there_on_demand(run, model_folder, words, texts):
    command = [*measured(model_folder, words, "--corpus", texts), *FAST, "--max-length", 60]
    narrow, wide = run(*command)[1], run(*command, "--wide")[1]
    tables = [line for line in narrow.splitlines() if not line.startswith("(")]
    assert max(map(len, tables)) <= 100
    assert "further columns, in to_dataframe() and with --wide" in narrow
    assert "further columns" not in wide
    assert "ratio_low" in wide


def test_several_fits_of_topics_are_reported_together(run, refused, model_folder, words, texts, tmp_path):
    lists = json.loads(Path(words).read_text())
    files = []
    for number in range(3):  # of every fit, some words are missing
        (tmp_path / f"{number}.json").write_text(json.dumps({k: v[number:] for k, v in lists.items()}))
        files += ["--topics", str(tmp_path / f"{number}.json")]
    command = ["measure", "attention", model_folder, *files, "--corpus", texts, "--n-permutations", "0"]
    code, said, _ = run(*command, "--resample", "sources", "words", "fits")
    assert code == 0
    assert "share of the variance" in said
    assert "3 fits of topics" in said
    assert "say --resample sources words fits" in refused(*command, code=2)
    assert "resample must be one of" in refused(*command[:5], *command[9:], "--resample", "source", code=2)
