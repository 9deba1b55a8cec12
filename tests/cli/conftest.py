"""Small inputs for the command line, as files in folders."""

import json
import random

import pytest
import torch
import transformers as hf
from real_text import WORDS, minilm_folder

from topic_probe.cli import main


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """A BERT of two small layers with random weights and the word pieces of the real one."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = hf.AutoTokenizer.from_pretrained(minilm_folder())
    config = hf.BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=64,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        hf.BertForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def words(tmp_path_factory):
    """Six topics as a file of words."""
    file = tmp_path_factory.mktemp("topics") / "words.json"
    file.write_text(json.dumps({name: listed.split() for name, listed in WORDS.items()}))
    return str(file)


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    """A folder of thirty texts of words of two topics each."""
    folder = tmp_path_factory.mktemp("texts")
    listed = [words.split() for words in WORDS.values()]
    choose = random.Random(0)
    for number in range(30):
        some = [
            *listed[number % 6],
            *listed[(number + 1) % 6],
            *["the", "of", "and", "in", "a", "to", "is", "was"],
        ]
        (folder / f"{number:02}.txt").write_text(" ".join(choose.choices(some, k=80)))
    return str(folder)


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory):
    """What `train` writes of a small toy after a few steps."""
    folder = tmp_path_factory.mktemp("toys") / "toy"
    small = ["--n-topics", "3", "--words-per-topic", "4", "--min-length", "10", "--max-length", "20"]
    assert main(["train", "--out", str(folder), "--steps", "12", "--optimizer", "adam", *small]) == 0
    return str(folder)


@pytest.fixture
def run(capsys):
    """Runs a command line in this process: its exit code, standard output and standard error."""

    def run(*argv):
        code = main([str(part) for part in argv])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def refused(run):
    """Runs a command line that must fail with one readable line, and gives that line."""

    def refused(*argv, code=1):
        found, out, err = run(*argv)
        lines = err.splitlines()
        assert (found, out) == (code, ""), err
        assert len(lines) == 1, err
        assert lines[0].startswith("topic-probe: error: ")
        assert "Traceback" not in err
        return lines[0]

    return refused
