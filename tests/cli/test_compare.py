"""``topic-probe compare``, with two small models in folders."""

import json

import pytest
import torch
import transformers as hf

import topic_probe as tp
from topic_probe.cli import main

WORDS = {"war": ["army", "battle"], "music": ["band", "song"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    texts = [f"{'the ' * n}army and band of battle and song" for n in range(1, 13)]
    tokenizer = tp.word_tokenizer(texts)
    for seed, name in enumerate(("first", "second")):
        torch.manual_seed(seed)
        config = hf.BertConfig(
            vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=8, max_position_embeddings=32, initializer_range=0.4,
        )  # fmt: skip
        hf.BertModel(config).save_pretrained(place / name)
        tokenizer.save_pretrained(place / name)
    (place / "words.json").write_text(json.dumps(WORDS))
    (place / "texts.txt").write_text("\n".join(texts))
    return place


def command(folder, *options):
    return [
        "compare",
        str(folder / "first"),
        f"other={folder / 'second'}",
        "--topics",
        str(folder / "words.json"),
        *options,
    ]


def test_two_models_are_compared_and_the_report_is_that_of_python(folder, tmp_path, capsys):
    options = [
        "--corpus",
        str(folder / "texts.txt"),
        "--split",
        "line",
        "--n-permutations",
        "19",
        "--out",
        str(tmp_path / "out"),
    ]
    assert main(command(folder, *options, "--no-progress")) == 0
    assert "first ÷ other" in capsys.readouterr().out
    saved = tp.load_report(tmp_path / "out")
    texts = (folder / "texts.txt").read_text().splitlines()
    models = {name: str(folder / place) for name, place in (("first", "first"), ("other", "second"))}
    found = tp.compare(models, WORDS, texts, n_permutations=19)
    assert saved.differences["attention"]["number"] == pytest.approx(found.differences["attention"]["number"])
    assert saved.differences["heads"]["p_value"] == pytest.approx(found.differences["heads"]["p_value"])


def test_embeddings_alone_need_no_texts_and_machines_get_json(folder, capsys):
    assert main([*command(folder), "--measure", "embeddings", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["models"] == ["first", "other"]


def test_wrong_usage_is_told(folder, capsys):
    same = str(folder / "first")
    assert main(["compare", same, same, "--topics", "empath"]) == 2
    assert "need labels that differ" in capsys.readouterr().err
    assert main(command(folder, "--n-documents", "3")) == 2
    assert "name them with --corpus" in capsys.readouterr().err
