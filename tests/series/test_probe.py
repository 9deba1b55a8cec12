"""Trainings with and without a probe: the same weights, and the numbers of the checkpoint of every step."""

import random

import numpy as np
import pytest
import torch
import transformers as hf
import zoo
from torch import nn

import topic_probe as tp
from topic_probe.series.measured import SeriesReport
from topic_probe.storage import FILE

FEW = {"attention": {"n_permutations": 3}}
WORDS = {"measure": ["embeddings"]}
of_transformers = pytest.mark.filterwarnings("ignore")  # which warns about its own settings


def rows(n=64, length=24):
    generator = torch.Generator().manual_seed(0)
    for _ in range(n):
        ids = torch.randint(5, zoo.VOCABULARY, (length,), generator=generator)
        yield {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


class Draws(hf.TrainerCallback):
    """Notes what the generators draw, what stands on the model, and its modes, after every step."""

    def __init__(self):
        self.drawn = []

    def on_step_end(self, args, state, control, model, **given):
        hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
        modes = [module.training for module in model.modules()]
        needed = [parameter.requires_grad for parameter in model.parameters()]
        implementation = model.config._attn_implementation if hasattr(model, "config") else None
        numbers = random.random(), float(np.random.rand()), torch.rand(1).item()  # noqa: NPY002
        self.drawn.append((numbers, hooks, modes, needed, implementation))


def train(model, folder, *probes, steps=6, resume=None, **options):
    """The state after a training of a few steps with dropout, and what was drawn on its way."""
    given = {"per_device_train_batch_size": 4, "learning_rate": 1e-3, "seed": 0, "save_steps": 500} | options
    tokenizer = given.pop("tokenizer", None)
    arguments = hf.TrainingArguments(
        output_dir=str(folder), max_steps=steps, report_to=[], disable_tqdm=True, use_cpu=True, logging_strategy="no",
        dataloader_pin_memory=False, **given,
    )  # fmt: skip
    data, draws = list(rows()), Draws()
    evaluated = data[:4] if arguments.load_best_model_at_end else None
    trainer = hf.Trainer(
        model=model, args=arguments, train_dataset=data, eval_dataset=evaluated, processing_class=tokenizer,
        callbacks=[*probes, draws],
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=resume)
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}, draws.drawn


def drawn(name, seed=0):
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)
    return zoo.make(name, seed=seed).train()


@of_transformers
def test_a_training_is_the_same_with_a_probe_to_the_last_bit_and_its_numbers_are_those_of_its_checkpoints(
    topics, documents, tokenizer, tmp_path, unchecked
):
    options = {"tokenizer": tokenizer, "steps": 4, "save_steps": 2}
    plain, before = train(drawn("bert"), tmp_path / "plain", **options)
    probe = tp.TopicProbe(topics, documents, every=2, **FEW)
    probed, after = train(drawn("bert"), tmp_path / "probed", probe, **options)
    assert plain.keys() == probed.keys()
    assert all(torch.equal(plain[name], probed[name]) for name in plain)
    assert before == after
    assert probe.report().steps.tolist() == [0, 2, 4]
    reports, saved = probe.report().reports[1], tmp_path / "probed" / "checkpoint-2"
    heads = tp.measure_attention(saved, topics, documents, n_permutations=3)
    words = tp.measure_embeddings(saved, topics, documents)
    for field in ("overall", "heads", "layers", "matched", "without_sinks"):
        assert getattr(reports["attention"], field) == getattr(heads, field)
    read = reports["attention"].provenance["options"]["special_ids"]
    assert read == heads.provenance["options"]["special_ids"] == sorted(tokenizer.all_special_ids)
    for field in ("cosine", "dot", "layers", "topics"):
        assert getattr(reports["embeddings"], field) == getattr(words, field)


class KilledError(RuntimeError):
    """What a machine that goes down is here."""


class Kills(hf.TrainerCallback):
    def on_step_end(self, args, state, control, **given):
        if state.global_step == 5:
            raise KilledError("the machine goes down")


@of_transformers
def test_a_resumed_training_measures_every_step_once_and_another_one_anew(topics, tokenizer, tmp_path):
    """Killed behind step 5, resumed from step 3: what lies before it is taken up."""
    options = {"tokenizer": tokenizer, "steps": 6, "save_steps": 3}
    whole, killed, again, other = (tp.TopicProbe(topics, every=1, **WORDS) for _ in range(4))
    folder = tmp_path / "run" / "topic_probe"

    def written():
        return {step.name: (step / FILE).stat().st_mtime_ns for step in folder.iterdir()}

    train(drawn("bert"), tmp_path / "whole", whole, **options)
    with pytest.raises(KilledError):
        train(drawn("bert"), tmp_path / "run", killed, Kills(), **options)
    before = written()
    resume = str(tmp_path / "run" / "checkpoint-3")
    train(drawn("bert", seed=3), tmp_path / "run", again, resume=resume, **options)
    kept = {name for name, time in written().items() if time == before.get(name)}
    assert kept == {"step 0", "step 1", "step 2"}
    assert again.report().steps.tolist() == whole.report().steps.tolist() == list(range(7))
    assert again.report().reports == whole.report().reports
    # What lies ahead of another training is measured anew.
    train(drawn("bert"), tmp_path / "run", other, tokenizer=tokenizer, steps=2, weight_decay=0.9)
    assert other.report().steps.tolist() == [0, 1, 2]
    assert other.report().reports[2] != whole.report().reports[2]


@pytest.mark.slow
@of_transformers
def test_neither_the_best_model_nor_autocast_passes_for_the_last_one(topics, tokenizer, tmp_path):
    """Losses rise from the first step on, so that the model of step 1 is loaded at the end."""
    probe = tp.TopicProbe(topics, at=[1], **WORDS)
    best = {"eval_steps": 1, "eval_strategy": "steps", "load_best_model_at_end": True, "learning_rate": 10.0}
    options = {"steps": 3, "save_steps": 1, "bf16": True, "tokenizer": tokenizer}
    train(drawn("bert"), tmp_path, probe, **options, **best)
    report = probe.report()
    assert report.steps.tolist() == [1, 3]
    for reports, step in zip(report.reports, (1, 3), strict=True):
        wanted = tp.measure_embeddings(tmp_path / f"checkpoint-{step}", topics).cosine
        assert reports["embeddings"].cosine == wanted
    assert report.reports[0] != report.reports[1]


# --- loops of one's own -------------------------------------------------------------------------------


def test_powers_of_two_are_due_where_nothing_else_is_said(topics):
    probe = tp.TopicProbe(topics, **WORDS)
    assert [step for step in range(70) if probe.is_due(step)] == [0, 1, 2, 4, 8, 16, 32, 64]
    probe = tp.TopicProbe(topics, every=20, at=[3, 40], **WORDS)
    assert [step for step in range(70) if probe.is_due(step)] == [0, 3, 20, 40, 60]


def test_a_loop_of_ones_own_has_its_gradients_and_generators_left_alone(topics, documents, unchecked):
    def loop(probe):
        model = drawn("bert")
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for step, row in zip(range(3), rows(), strict=False):
            model(**{name: value[None] for name, value in row.items()}).loss.backward()
            gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
            probe(step, model)  # between a gradient and its update
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                assert gradient is parameter.grad or torch.equal(parameter.grad, gradient)
            optimizer.step()
            optimizer.zero_grad()
        return model.state_dict(), random.random(), float(np.random.rand()), torch.rand(1).item()  # noqa: NPY002

    (plain, *before), (probed, *after) = loop(lambda *_: {}), loop(tp.TopicProbe(topics, documents, **FEW))
    assert before == after
    assert all(torch.equal(plain[name], probed[name]) for name in plain)


def test_trainings_of_this_package_take_a_probe_as_what_they_measure():
    world = tp.World(n_topics=2, words_per_topic=5)
    documents = world.documents(12, generator=torch.Generator().manual_seed(0)).ids
    probe, toy = (
        tp.TopicProbe(world.topics, documents, every=1, **FEW),
        tp.build_toy(tp.ToyConfig(world=world), seed=0),
    )
    config = tp.TrainConfig(steps=6, measure_every=3, optimizer="adam", seed=0)
    history = tp.train_toy(toy, config, measure=probe)
    assert probe.report().steps.tolist() == history.measured["attention"].steps.tolist() == [0, 3, 6]
    wanted = tp.measure_attention(toy, world.topics, documents, **FEW["attention"]).overall
    assert probe.report().reports[-1]["attention"].overall == wanted
    last = float(history.measured["attention"].values[-1])
    assert last == pytest.approx(float(wanted.effect_size), nan_ok=True)


class Interrupted(list):
    """Documents at the third of which somebody presses Ctrl-C, when it is time."""

    now = False

    def __iter__(self):
        for number, document in enumerate(super().__iter__()):
            if self.now and number == 3:
                raise KeyboardInterrupt
            yield document


class Pair(nn.Module):
    """A model that is trained beside another, as a generator and a discriminator are."""

    def __init__(self, model):
        super().__init__()
        self.generator, self.discriminator = zoo.make("bert", seed=1), model


@pytest.mark.filterwarnings("ignore:no document is left to measure")
def test_what_cannot_be_measured_and_half_a_measurement_are_no_points_of_a_curve(topics, documents):
    model, given = zoo.make("bert"), Interrupted(documents)
    probe = tp.TopicProbe(topics, given, every=1, measure=["embeddings", "attention"], **FEW)
    probe(0, model)
    # A part is measured as if it were alone.
    assert probe(1, model) == probe(0, model)
    of_part = tp.TopicProbe(
        topics, documents, model="discriminator", measure=["embeddings", "attention"], **FEW
    )
    assert of_part(0, Pair(model)) == probe(0, model)
    given.now = True
    with pytest.raises(KeyboardInterrupt):
        probe(2, zoo.make("bert", seed=1))
    given.now = False
    with torch.no_grad():
        model.get_input_embeddings().weight.fill_(torch.nan)
    assert all(np.isnan(number) for number in probe(3, model).values())
    report = probe.report()
    assert report.steps.tolist() == [0, 1, 3]
    assert [bool(why) for why in report.reasons] == [False, False, True]
    assert np.isnan(report.curve("attention")[2]).all()
    with pytest.raises(ValueError, match=r"NaN|finite|no word"):  # of the first it is an error
        tp.TopicProbe(topics, documents, every=1, **FEW)(1, model)


# --- the report ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def probed(topics, documents, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    probe = tp.TopicProbe(topics, documents, every=1, folder=folder, **FEW)
    for step in range(3):
        probe(step, zoo.make("bert", seed=step))
    return probe.report(), folder


def test_a_report_is_saved_loaded_joined_and_drawn(probed, tmp_path):
    report, folder = probed
    assert tp.load_report(report.save(tmp_path / "report")) == report
    assert SeriesReport.joined([tp.load_report(folder / f"step {step}") for step in (2, 0, 1)]) == report
    names = [text.get_text() for text in report.plot().get_legend().get_texts()]
    assert names == ["embeddings", "states of layer 3", "attention"]


def test_a_report_has_a_row_for_every_step_and_what_was_measured_with_its_interval(probed):
    report, _ = probed
    table = report.to_dataframe()
    assert table.measured.unique().tolist() == ["embeddings", "states of layer 3", "attention"]
    assert table.step.tolist() == [0, 1, 2] * 3
    overall = [reports["attention"].overall for reports in report.reports]
    for number, ends in (("effect_size", "effect_size_interval"), ("ratio", "interval")):
        for found, contrast in zip(report.curve("attention", number), overall, strict=True):
            assert found.tolist() == [getattr(contrast, number), *getattr(contrast, ends)]
    heads, table = report.reports[1]["attention"].heads, report.to_dataframe("head")
    assert table[(table.measured == "L0H0") & (table.step == 1)]["ratio"].item() == heads[0].ratio
    names = report.to_dataframe(by="layer").measured.unique().tolist()
    assert names[:5] == [*(f"states of layer {n}" for n in range(4)), "attention of layer 0"]


def test_what_cannot_be_meant_is_refused(topics, documents, probed, unchecked):
    for given, error, said in (
        (
            {"measure": ["attention"]},
            ValueError,
            "attention and states are measured in documents: pass these",
        ),
        ({**WORDS, "every": 0}, ValueError, "every"),
        ({"documents": iter([[1, 2]])}, ValueError, "these can be read only once"),
    ):
        with pytest.raises(error, match=said):
            tp.TopicProbe(topics, **given)
    other = tp.TopicProbe(topics, documents, folder=probed[1], attention={"n_permutations": 4})
    with pytest.raises(ValueError, match="step 0 was measured with other options"):
        other(0, zoo.make("bert"))
    with pytest.raises(ValueError, match=r"model='generator' is no part of BertForMaskedLM"):
        tp.TopicProbe(topics, model="generator", **WORDS)(0, zoo.make("bert"))
