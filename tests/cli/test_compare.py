"""``topic-probe compare``, with two small models in folders."""

import json

import pytest
import torch
import transformers as hf

import topic_probe as tp
from topic_probe.cli import main


def test_two_models_are_compared_and_the_report_is_that_of_python(model_folder, tmp_path, capsys):
    other = hf.AutoModelForMaskedLM.from_pretrained(model_folder)
    with torch.no_grad():
        other.bert.encoder.layer[0].attention.self.query.weight.mul_(20)
    other.save_pretrained(tmp_path / "other")
    hf.AutoTokenizer.from_pretrained(model_folder).save_pretrained(tmp_path / "other")
    words = {"war": ["army", "battle"], "music": ["band", "song"]}
    texts = [f"{'the ' * n}army and band of battle and song" for n in range(1, 13)]
    (tmp_path / "words.json").write_text(json.dumps(words))
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    models = {"first": model_folder, "other": str(tmp_path / "other")}
    line = f"compare first={model_folder} other={tmp_path}/other --topics {tmp_path}/words.json --json"
    over = f"--corpus {tmp_path}/texts.txt --split line --n-permutations 19 --no-bars"
    assert main(f"{line} {over} --out {tmp_path}/out".split()) == 0
    assert json.loads(capsys.readouterr().out)["models"] == ["first", "other"]
    saved = tp.load_report(tmp_path / "out")
    found = tp.compare(models, words, texts, n_permutations=19)
    for of, what in (("attention", "number"), ("heads", "p_value")):
        assert saved.differences[of][what] == pytest.approx(found.differences[of][what], nan_ok=True)
