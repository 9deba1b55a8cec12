"""The README's example, run as it stands there."""

import re
from pathlib import Path

import pytest
from real_text import minilm_folder

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.slow
def test_the_first_result_of_the_readme_comes_out(capsys):
    text = README.read_text()
    example = re.search(r"## A first result.*?```python\n(.*?)```", text, re.DOTALL).group(1)
    name = "sentence-transformers/all-MiniLM-L6-v2"
    assert name in example
    values = {}
    exec(example.replace(name, str(minilm_folder())), values)
    printed = re.search(r"## A first result.*?```text\n(.*?)```", text, re.DOTALL).group(1)
    for number in (values["attention"].overall.ratio, values["attention"].heads.top(1).ratio[0]):
        assert f"{number:.4g}" in printed
    assert f"{values['embeddings'].cosine.ratio:.4g}" in printed
    assert f"{values['untrained'].overall.ratio:.5f}" in printed


def test_the_toy_world_of_the_readme_comes_out(capsys):
    text = README.read_text()
    example = re.search(r"## The toy world.*?```python\n(.*?)```", text, re.DOTALL).group(1)
    values = {}
    exec(example, values)
    dot = (
        values["tp"]
        .measure_embeddings(
            values["toy"], values["tp"].Topics.blocks(n_topics=10, words_per_topic=10), n_resamples=0
        )
        .dot
    )
    assert f"{dot.same_topic:.1f}" == "1.7"
    assert f"{dot.different_topic:.1f}" == "-0.2"
    assert "dot products of 1.7, those of different topics of −0.2" in text


def test_the_calls_that_the_readme_names_exist():
    import topic_probe as tp

    for name in set(re.findall(r"\btp\.(\w+)", README.read_text())):
        assert hasattr(tp, name), name
    for owner in ("Topics", "Corpus"):
        for name in set(re.findall(rf"\btp\.{owner}\.(\w+)", README.read_text())):
            assert hasattr(getattr(tp, owner), name), name
