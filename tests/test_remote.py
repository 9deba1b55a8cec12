"""Models and articles by name, from a hub on this machine that drops, refuses, changes and goes away.

The functions at the top run in processes of their own, which know no other hub (`hub_client`).
"""

import io
import logging
import os
from importlib import import_module
from pathlib import Path

import pytest
import torch
import transformers as hf
from hub_client import Client
from loopback_hub import Hub, first
from real_text import minilm_folder, topics_by_hand

import topic_probe as tp
from topic_probe.lens.host import facts_of
from topic_probe.lens.weights import word_embeddings
from topic_probe.text.corpus import WIKIPEDIA
from topic_probe.topics.lookup import tokenizer_hash

pytestmark = pytest.mark.slow

# --- what is done in processes of their own -----------------------------------------------------------


def prepare():
    """What takes seconds is imported once."""
    for name in (
        "datasets.packaged_modules.cache.cache",
        "datasets.packaged_modules.parquet.parquet",
        "pyarrow.parquet",
        "transformer_lens.model_bridge.sources",
        "transformers.models.bert.modeling_bert",
    ):
        import_module(name)
    logging.disable()


def seen_of(model):
    """By what a model and its tokenizer are known, with what a report says where they are from."""
    return (
        word_embeddings(model).double().sum().item(),
        None if model.tokenizer is None else tokenizer_hash(model.tokenizer),
        facts_of(model).description["revision"],
    )


def opened(name, **options):
    return seen_of(tp.open_model(name, **options))


def measured(folder, name, **options):
    """A report as text, and of which commit its articles are."""
    model = tp.open_model("small/bert")
    documents = tp.Corpus.from_dataset(name, config=ENGLISH[1], **options).documents(
        model.tokenizer, max_length=32
    )
    topics = topics_by_hand(model.tokenizer)
    given = {"n_permutations": 3, "batch_size": 1, "folder": folder, "part_size": 16}
    report = tp.measure_attention(model, topics, documents, **given)
    return report.to_dataframe().to_json(double_precision=15), report.provenance["corpus"]["corpus"][
        "revision"
    ]


def opened_as(user, name):
    os.environ["HF_TOKEN"] = user
    return opened(name)


def articles(*given, **options):
    corpus = tp.Corpus.from_dataset(*given, **options)
    return list(corpus), corpus.provenance["revision"]


def wikipedia(*given, **options):
    return list(tp.Corpus.wikipedia(*given, **options))


# --- repositories -------------------------------------------------------------------------------------


def files_of(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()
    }


def bert(folder, seed, tokenizer=None):
    """A folder with a small BERT."""
    tokenizer = tokenizer or hf.AutoTokenizer.from_pretrained(minilm_folder())
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = hf.BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        hf.BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def passages():
    """Beginnings of Wikipedia articles and what follows them, of a thousand letters or so."""
    found = []
    for article in tp.Corpus.bundled():
        found += [article[start : start + 1000] for start in range(0, min(len(article), 4000), 1000)]
    return found[: N_FILES * PER_FILE]


N_FILES, PER_FILE = 4, 40
README = """---
configs:
- config_name: 20231101.de
  data_files: 20231101.de/*
- config_name: 20231101.en
  data_files: 20231101.en/*
---
Articles, as wikimedia/wikipedia has them.
"""


def parquet(texts):
    """A file of articles."""
    import pyarrow as pa
    from pyarrow import parquet as pq

    file = io.BytesIO()
    columns = {"id": list(map(str, range(len(texts)))), "text": texts}
    pq.write_table(pa.table(columns), file, row_group_size=25, compression="none")
    return file.getvalue()


def data_set(texts):
    """The files of a data set of articles."""
    parts = [texts[start : start + PER_FILE] for start in range(0, len(texts), PER_FILE)]
    return {
        "README.md": README.encode(),
        "20231101.de/train-00000-of-00001.parquet": parquet(["Der Hund ist ein Haustier."]),
        **{
            f"20231101.en/train-{number:05d}-of-{len(parts):05d}.parquet": parquet(part)
            for number, part in enumerate(parts)
        },
    }


ENGLISH = (WIKIPEDIA[0], WIKIPEDIA[1])


class World:
    """The hub, what is on it, and clients of it."""

    def __init__(self, hub, folder):
        self.hub, self.folder, self.texts = hub, folder, passages()
        plain = hf.AutoTokenizer.from_pretrained(minilm_folder())
        self.folders = {
            "older": bert(folder / "older", 1),
            "bert": bert(folder / "bert", 2, plain.train_new_from_iterator(self.texts, 900)),
        }
        self.files = {name: files_of(place) for name, place in self.folders.items()}
        self.commits = {
            "older": hub.put("models", "small/bert", self.files["older"], branch="older"),
            "bert": hub.put("models", "small/bert", self.files["bert"]),
        }
        hub.put("models", "small/gated", self.files["older"], token="hf_granted")
        self.data = data_set(self.texts)
        hub.put("datasets", WIKIPEDIA[0], self.data, commit=WIKIPEDIA[2])
        hub.put("datasets", "small/gated-articles", self.data, token="hf_granted")
        self.clients = {}

    def client(self, **environment):
        """A client with a home of its own, or with that of the first and an environment of its own."""
        key = tuple(environment.items())
        if key not in self.clients:
            home = str(self.folder / "home")
            settings = {"HF_ENDPOINT": self.hub.endpoint, "HF_HOME": home, **environment}
            self.clients[key] = Client(__file__, settings)
        return self.clients[key]

    @property
    def run(self):
        return self.client()

    def new(self, name, files="older"):
        """A model that nobody has downloaded; its commit."""
        return self.hub.put("models", name, self.files[files])

    def expected(self, files, commit):
        """What is seen of a folder, under the commit."""
        model = tp.open_model(self.folders[files])
        return (*seen_of(model)[:2], commit)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with Hub() as hub:
        world = World(hub, tmp_path_factory.mktemp("hub"))
        yield world
        for client in world.clients.values():
            client.close()


def done(outcome):
    """The value, where there was no error."""
    assert not outcome.error, outcome.trace
    return outcome.value


def is_file(request):
    return "/resolve/" in request.path


# --- models -------------------------------------------------------------------------------------------


def test_a_model_of_the_hub_is_that_of_its_folder_and_says_its_commit(world):
    older, newer = (world.expected(name, world.commits[name]) for name in ("older", "bert"))
    assert older[:2] != newer[:2]
    assert done(world.run(opened, "small/bert")) == newer
    for revision in ("older", world.commits["older"]):  # its own weights and its own tokenizer
        assert done(world.run(opened, "small/bert", revision=revision)) == older


def test_all_files_are_of_one_commit_though_the_branch_moves_meanwhile(world):
    commit = world.new("small/moving")

    def moves(request):
        if is_file(request):
            world.new("small/moving", "bert")

    with world.hub.troubled(moves):
        assert done(world.run(opened, "small/moving")) == world.expected("older", commit)


WRONG = {
    "no such model": (opened, ["small/nobody"], {}, "names there are OWNER/NAME"),
    "no such revision": (opened, ["small/bert"], {"revision": "newest"}, "newest"),
    "gated": (opened, ["small/gated"], {}, "needs a login (`hf auth login`)"),
    "no such data set": (articles, ["small/nobody"], {}, "names there are OWNER/NAME"),
    "no such configuration": (articles, [ENGLISH[0], "20231101.xx"], {}, "Available: ['20231101.de'"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_what_will_not_come_is_said_at_once_with_what_to_do(world, mistake):
    function, given, options, said = WRONG[mistake]
    outcome = world.run(function, *given, **options)
    assert "OSError" in outcome.kinds, outcome.trace
    assert outcome.error.startswith(f"cannot load '{given[0]}' from the Hugging Face hub: ")
    assert said in outcome.error
    assert outcome.seconds < 5


def test_a_login_opens_what_is_gated(world):
    seen = done(world.run(opened_as, "hf_granted", "small/gated"))
    assert seen[:2] == world.expected("older", "")[:2]
    texts, _ = done(world.run(articles, "small/gated-articles", ENGLISH[1], token="hf_granted"))
    assert texts == world.texts


# --- a hub that is not there --------------------------------------------------------------------------


def test_a_hub_that_is_gone_is_told_at_once_or_done_without(world):
    known = done(world.run(opened, "small/bert"))
    world.new("small/unknown")
    with world.hub.gone():
        unknown, again = world.run(opened, "small/unknown"), world.run(opened, "small/bert")
        stream, whole = world.run(wikipedia, 9), world.run(articles, "small/none", streaming=False)
    assert done(again) == known
    for outcome, remedy in (
        (unknown, "hf download small/unknown --local-dir FOLDER"),
        (stream, "Corpus.bundled() has real articles"),
        (whole, "Corpus.from_files reads your own"),
    ):
        assert "OSError" in outcome.kinds, outcome.trace
        assert remedy in outcome.error
    assert max(outcome.seconds for outcome in (unknown, again, stream, whole)) < 60


def test_offline_what_was_opened_before_is_opened_again_and_nothing_is_asked(world):
    known = done(world.run(opened, "small/bert"))
    world.new("small/unknown")
    run = world.client(HF_HUB_OFFLINE="1")
    with world.hub.troubled(lambda request: None) as asked:
        again, unknown = run(opened, "small/bert"), run(opened, "small/unknown")
        stream = run(articles, "small/none")
    assert done(again) == known
    assert "hf download small/unknown --local-dir FOLDER" in unknown.error
    assert "Corpus.bundled() has real articles" in stream.error
    assert asked == []


# --- articles -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def local(world):
    """The same data set as a folder."""
    folder = world.folder / "english"
    folder.mkdir()
    for path, content in world.data.items():
        if path.startswith(ENGLISH[1]):
            (folder / Path(path).name).write_bytes(content)
    return str(folder)


def test_wikipedia_is_that_of_its_files_whole_and_in_samples(world, local):
    assert done(world.run(wikipedia, None)) == world.texts
    expected = list(tp.Corpus.from_dataset(local, n_documents=20, seed=7))
    sample = done(world.run(wikipedia, 20, seed=7))
    assert sample == expected
    assert len(set(sample)) == 20
    files = [world.texts.index(text) // PER_FILE for text in sample]
    assert sorted(files) == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5
    assert done(world.run(articles, *ENGLISH, n_documents=50)) == (world.texts[:50], WIKIPEDIA[2])


@pytest.mark.parametrize("what", [{"drop": 20_000}, {"status": 503}], ids=str)
def test_a_stream_of_articles_goes_on_where_it_broke(world, what):
    with world.hub.troubled(first(4, lambda request: ".parquet" in request.path and is_file(request), what)):
        assert done(world.run(wikipedia, None)) == world.texts


def test_a_download_says_its_commit_and_is_never_read_under_another_one(world):
    name, whole = "small/downloaded", {"streaming": False}
    old = world.hub.put("datasets", name, world.data)
    assert done(world.run(articles, name, ENGLISH[1], **whole)) == (world.texts, old)
    new = world.hub.put("datasets", name, data_set(world.texts[::-1]))
    with world.hub.gone():
        unnamed = world.run(articles, name, ENGLISH[1], **whole)
        same = world.run(articles, name, ENGLISH[1], revision=old, **whole)
        other = world.run(articles, name, ENGLISH[1], revision=new, **whole)
    assert done(unnamed) == done(same) == (world.texts, old)
    assert "OSError" in other.kinds, other.trace
    assert f"needed is commit {new}, and the copy on this machine is of {old}" in other.error
    assert done(world.run(articles, name, ENGLISH[1], revision=new, **whole)) == (world.texts[::-1], new)


# --- measurements in a folder of parts ---------------------------------------------------------------


def test_a_measurement_goes_on_after_the_hub_was_gone_and_never_with_the_articles_of_another_commit(
    world, tmp_path
):
    name, last = "small/changing", f"train-{N_FILES - 1:05d}"
    old = world.hub.put("datasets", name, world.data)
    whole = done(world.run(measured, tmp_path / "whole", name))
    assert whole[1] == old
    with world.hub.troubled(lambda request: {"status": 500} if last in request.path else None):
        broken = world.run(measured, tmp_path / "parts", name)
    assert broken.error, broken.value
    assert 0 < len(list((tmp_path / "parts").iterdir())) < len(list((tmp_path / "whole").iterdir()))
    world.hub.put("datasets", name, data_set([text.upper() for text in world.texts]))
    refused = world.run(measured, tmp_path / "parts", name)
    assert "was measured of other texts (they differ in revision)" in refused.error, refused.value
    assert done(world.run(measured, tmp_path / "parts", name, revision=old)) == whole
    with world.hub.troubled(lambda request: None) as asked:
        assert done(world.run(measured, tmp_path / "parts", name, revision=old)) == whole
    # Of the parts that are there nothing is read again: the first file only names its columns.
    assert {request.path.split("train-")[1][:5] for request in asked if ".parquet" in request.path} <= {
        "00000"
    }
