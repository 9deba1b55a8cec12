"""Trainings with and without a probe: the same weights, and the numbers of the checkpoint of every step."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers as hf
import zoo
from torch import nn

import topic_probe as tp
from topic_probe.series.measured import SeriesReport

FEW = {"attention": {"n_permutations": 3}, "embeddings": {"n_resamples": 20}}


def rows(n=64, length=24):
    generator = torch.Generator().manual_seed(0)
    for _ in range(n):
        ids = torch.randint(5, zoo.VOCABULARY, (length,), generator=generator)
        yield {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


class Trained:
    """A training of a few steps with dropout, that draws from the global generators as users' own code does."""

    def __init__(
        self, model, folder, probes=(), *, steps=6, resume=None, tokenizer=None, save_steps=500, **options
    ):
        arguments = hf.TrainingArguments(
            output_dir=str(folder), max_steps=steps, per_device_train_batch_size=4, learning_rate=1e-3, seed=0,
            report_to=[], disable_tqdm=True, use_cpu=True, save_steps=save_steps, logging_strategy="no",
            dataloader_pin_memory=False, **options,
        )  # fmt: skip
        self.drawn = []
        trainer = hf.Trainer(
            model=model, args=arguments, train_dataset=list(rows()), processing_class=tokenizer,
            callbacks=[*probes, Draws(self.drawn)],
        )  # fmt: skip
        trainer.train(resume_from_checkpoint=resume)
        self.state = {name: tensor.clone() for name, tensor in model.state_dict().items()}


class Draws(hf.TrainerCallback):
    """Notes what the generators draw, what stands on the model, and its modes, after every step."""

    def __init__(self, drawn):
        self.drawn = drawn

    def on_step_end(self, args, state, control, model, **given):
        hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
        modes = [module.training for module in model.modules()]
        needed = [parameter.requires_grad for parameter in model.parameters()]
        implementation = model.config._attn_implementation if hasattr(model, "config") else None
        numbers = random.random(), float(np.random.rand()), torch.rand(1).item()  # noqa: NPY002
        self.drawn.append((numbers, hooks, modes, needed, implementation))


def drawn(name, seed=0):
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)
    return zoo.make(name, seed=seed).train()


class ElectraPair(nn.Module):
    """Generator and discriminator that are trained together, as ELECTRA is."""

    def __init__(self):
        super().__init__()
        self.generator = zoo.make("electra", seed=1)
        self.discriminator = zoo.make("electra", seed=2)
        for part in (
            self.generator,
            self.discriminator,
        ):  # a module of one's own is saved without knowing what is tied
            part.get_output_embeddings().weight = nn.Parameter(
                part.get_output_embeddings().weight.detach().clone()
            )

    def forward(self, input_ids, attention_mask, labels):
        losses = [
            part(input_ids=input_ids, attention_mask=attention_mask)[0].square().mean()
            for part in (self.generator, self.discriminator)
        ]
        return {"loss": sum(losses)}


def lora():
    from peft import LoraConfig, get_peft_model

    return get_peft_model(
        drawn("bert"), LoraConfig(r=2, target_modules=["query", "value"], modules_to_save=["word_embeddings"])
    )


MAKERS = {
    "masked": lambda: drawn("bert"),
    "causal": lambda: drawn("gpt2"),
    "sequence to sequence": lambda: drawn("bart"),
    "several languages": lambda: drawn("t5"),
    "LoRA": lora,
    "ELECTRA": ElectraPair,
}


@pytest.mark.filterwarnings("ignore")  # of transformers and peft about their own settings
@pytest.mark.parametrize("kind", MAKERS)
def test_a_training_is_the_same_with_a_probe_to_the_last_bit(
    kind, topics, documents, tokenizer, tmp_path, unchecked
):
    plain = Trained(MAKERS[kind](), tmp_path / "plain", tokenizer=tokenizer)
    parts = ["generator", "discriminator"] if kind == "ELECTRA" else [None]
    probes = [tp.TopicProbe(topics, documents, every=2, model=part, **FEW) for part in parts]
    probed = Trained(MAKERS[kind](), tmp_path / "probed", probes, tokenizer=tokenizer)
    assert plain.state.keys() == probed.state.keys()
    assert all(torch.equal(plain.state[name], probed.state[name]) for name in plain.state)
    assert plain.drawn == probed.drawn
    for probe in probes:
        assert probe.report().steps.tolist() == [0, 2, 4, 6]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["bert", "gpt2", "bart"])
def test_numbers_are_those_of_the_saved_checkpoint_to_the_last_bit(
    name, topics, documents, tokenizer, tmp_path
):
    probe = tp.TopicProbe(topics, documents, at=[3, 5], **FEW)
    Trained(drawn(name), tmp_path, [probe], tokenizer=tokenizer, steps=5, save_steps=3)
    report = probe.report()
    assert report.steps.tolist() == [3, 5]
    for step, reports in zip((3, 5), report.reports, strict=True):
        folder = tmp_path / f"checkpoint-{step}"
        heads = tp.measure_attention(folder, topics, documents, **FEW["attention"])
        words = tp.measure_embeddings(folder, topics, documents, **FEW["embeddings"])
        for field in ("overall", "heads", "layers", "matched", "without_sinks"):
            assert getattr(reports["attention"], field) == getattr(heads, field)
        read = [one.provenance["options"]["special_ids"] for one in (reports["attention"], heads)]
        assert read[0] == read[1] == sorted(tokenizer.all_special_ids)
        for field in ("cosine", "dot", "layers", "topics"):
            assert getattr(reports["embeddings"], field) == getattr(words, field)


class KilledError(RuntimeError):
    """What a machine that goes down is here."""


class Kills(hf.TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **given):
        if state.global_step == self.step:
            raise KilledError("the machine goes down")


def counting(probe):
    """The steps at which a probe measures, as it goes."""
    steps, found = [], probe._found

    def noted(step, *given):
        steps.append(step)
        return found(step, *given)

    probe._found = noted
    return steps


@pytest.mark.filterwarnings("ignore")
def test_a_resumed_training_measures_every_step_once(topics, documents, tokenizer, tmp_path):
    """Killed behind step 7, which was measured; resumed from step 4: what lies ahead comes out the same and is kept."""
    whole = tp.TopicProbe(topics, documents, every=1, measure=["attention"], attention=FEW["attention"])
    Trained(drawn("bert"), tmp_path / "whole", [whole], tokenizer=tokenizer, steps=9, save_steps=4)
    killed = tp.TopicProbe(topics, documents, every=1, measure=["attention"], attention=FEW["attention"])
    with pytest.raises(KilledError):
        Trained(
            drawn("bert"), tmp_path / "run", [killed, Kills(7)], tokenizer=tokenizer, steps=9, save_steps=4
        )
    again = tp.TopicProbe(topics, documents, every=1, measure=["attention"], attention=FEW["attention"])
    steps = counting(again)
    Trained(
        drawn("bert", seed=3), tmp_path / "run", [again], tokenizer=tokenizer, steps=9, save_steps=4,
        resume=str(tmp_path / "run" / "checkpoint-4"),
    )  # fmt: skip
    assert steps == [8, 9]
    assert again.report().steps.tolist() == whole.report().steps.tolist() == list(range(10))
    assert again.report().weights == whole.report().weights
    assert again.report().reports == whole.report().reports


@pytest.mark.filterwarnings("ignore")
def test_what_lies_ahead_of_another_training_is_measured_anew_and_what_was_never_reached_is_gone(
    topics, documents, tokenizer, tmp_path
):
    first = tp.TopicProbe(topics, documents, every=1, measure=["embeddings"], embeddings=FEW["embeddings"])
    Trained(drawn("bert"), tmp_path, [first], tokenizer=tokenizer, steps=4)
    second = tp.TopicProbe(topics, documents, every=1, measure=["embeddings"], embeddings=FEW["embeddings"])
    steps = counting(second)
    Trained(drawn("bert"), tmp_path, [second], tokenizer=tokenizer, steps=2, weight_decay=0.9)
    assert steps == [1, 2]  # both begin with the same weights
    assert second.report().steps.tolist() == [0, 1, 2]
    assert second.report().weights[0] == first.report().weights[0]
    assert second.report().weights[2] != first.report().weights[2]


def test_a_folder_of_other_options_is_refused(topics, documents, tmp_path):
    model = zoo.make("bert")
    tp.TopicProbe(topics, documents, folder=tmp_path, **FEW)(0, model)
    other = tp.TopicProbe(topics, documents, folder=tmp_path, attention={"n_permutations": 4})
    with pytest.raises(ValueError, match="step 0 was measured with other options: choose another folder="):
        other(0, model)


@pytest.mark.filterwarnings("ignore")
def test_the_best_model_does_not_pass_for_the_last_one(topics, tokenizer, tmp_path):
    """Losses rise from the first step on, so that the model of step 1 is loaded at the end."""
    probe = tp.TopicProbe(topics, measure=["embeddings"], at=[1], embeddings=FEW["embeddings"])
    model = drawn("bert")
    arguments = hf.TrainingArguments(
        output_dir=str(tmp_path), max_steps=3, learning_rate=10.0, report_to=[], disable_tqdm=True, use_cpu=True,
        save_steps=1, eval_steps=1, eval_strategy="steps", load_best_model_at_end=True, logging_strategy="no",
        dataloader_pin_memory=False,
    )  # fmt: skip
    few = list(rows(4))
    hf.Trainer(
        model, arguments, train_dataset=few, eval_dataset=few, processing_class=tokenizer, callbacks=[probe]
    ).train()
    report, (first, last) = probe.report(), (tmp_path / f"checkpoint-{step}" for step in (1, 3))
    assert report.steps.tolist() == [1, 3]
    for reports, folder in zip(report.reports, (first, last), strict=True):
        wanted = tp.measure_embeddings(folder, topics, **FEW["embeddings"]).cosine
        assert reports["embeddings"].cosine == wanted
    assert report.weights[0] != report.weights[1]


@pytest.mark.filterwarnings("ignore")
def test_autocast_of_the_trainer_is_none_of_the_measurements(topics, documents, tokenizer, tmp_path):
    probe = tp.TopicProbe(topics, documents, at=[2], **FEW)
    Trained(drawn("bert"), tmp_path, [probe], tokenizer=tokenizer, steps=2, save_steps=2, bf16=True)
    heads = tp.measure_attention(tmp_path / "checkpoint-2", topics, documents, **FEW["attention"])
    assert probe.report().reports[0]["attention"].heads == heads.heads


# --- loops of one's own -------------------------------------------------------------------------------


def test_powers_of_two_are_due_where_nothing_else_is_said(topics):
    probe = tp.TopicProbe(topics, measure=["embeddings"])
    assert [step for step in range(70) if probe.is_due(step)] == [0, 1, 2, 4, 8, 16, 32, 64]
    probe = tp.TopicProbe(topics, measure=["embeddings"], every=20, at=[3, 40])
    assert [step for step in range(70) if probe.is_due(step)] == [0, 3, 20, 40, 60]


def test_a_loop_of_ones_own_has_its_gradients_and_generators_left_alone(topics, documents, unchecked):
    def loop(probe):
        model = drawn("bert")
        torch.manual_seed(0)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for step, row in zip(range(5), rows(), strict=False):
            loss = model(**{name: value[None] for name, value in row.items()}).loss
            loss.backward()
            gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
            numbers = probe(step, model)  # between a gradient and its update
            assert all(
                torch.equal(p.grad, g)
                for p, g in zip((p for p in model.parameters() if p.grad is not None), gradients, strict=True)
            )
            assert set(numbers) in (set(), {"embeddings", "states of layer 3", "attention"})
            optimizer.step()
            optimizer.zero_grad()
        return model.state_dict(), random.random(), float(np.random.rand()), torch.rand(1).item()  # noqa: NPY002

    (plain, *before), (probed, *after) = loop(lambda *_: {}), loop(tp.TopicProbe(topics, documents, **FEW))
    assert before == after
    assert all(torch.equal(plain[name], probed[name]) for name in plain)


def test_a_model_that_is_wrapped_is_measured_as_what_is_inside(topics):
    model = zoo.make("bert")
    probe = tp.TopicProbe(topics, measure=["embeddings"], embeddings=FEW["embeddings"], every=1)
    assert probe(0, model) == probe(1, nn.DataParallel(model))
    assert len(set(probe.report().weights)) == 1


def test_trainings_of_this_package_take_a_probe_as_what_they_measure(tmp_path):
    world = tp.World(n_topics=2, words_per_topic=5)
    documents = world.documents(12, generator=torch.Generator().manual_seed(0)).ids
    probe = tp.TopicProbe(world.topics, documents, every=1, **FEW)
    toy = tp.build_toy(tp.ToyConfig(world=world), seed=0)
    config = tp.TrainConfig(steps=6, measure_every=3, optimizer="adam", seed=0)
    history = tp.train_toy(toy, config, measure=probe)
    assert probe.report().steps.tolist() == history.measured["attention"].steps.tolist() == [0, 3, 6]
    wanted = tp.measure_attention(toy, world.topics, documents, **FEW["attention"]).overall
    assert probe.report().reports[-1]["attention"].overall == wanted
    assert float(history.measured["attention"].values[-1]) == pytest.approx(
        float(wanted.effect_size), nan_ok=True
    )


def test_what_cannot_be_measured_is_missing_with_its_reason_and_the_first_is_an_error(topics, documents):
    model = zoo.make("bert")
    probe = tp.TopicProbe(topics, documents, every=1, **FEW)
    probe(0, model)
    with torch.no_grad():
        model.get_input_embeddings().weight.fill_(torch.nan)
    assert all(np.isnan(number) for number in probe(1, model).values())
    report = probe.report()
    assert report.reasons[0] == ""
    assert "step 1: " in str(report)
    assert np.isnan(report.curve("attention")[1]).all()
    assert np.isfinite(report.curve("attention")[0, 0])
    with pytest.raises(ValueError, match=r"NaN|finite|no word"):
        tp.TopicProbe(topics, documents, every=1, **FEW)(1, model)


def test_half_a_measurement_is_no_point_of_a_curve(topics, documents, monkeypatch):
    from topic_probe.series import measured

    whole = measured.measure_attention

    def interrupted(*given, **options):
        report = whole(*given, **options)
        read = {**report.provenance["options"], "stopped": "interrupted after 3 documents"}
        return replace(report, provenance={**report.provenance, "options": read})

    probe = tp.TopicProbe(topics, documents, every=1, measure=["attention"], attention=FEW["attention"])
    probe(0, zoo.make("bert"))
    monkeypatch.setattr(measured, "measure_attention", interrupted)
    with pytest.raises(KeyboardInterrupt):
        probe(1, zoo.make("bert", seed=1))
    assert probe.report().steps.tolist() == [0]


# --- the report ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report(topics, documents):
    probe = tp.TopicProbe(topics, documents, every=1, **FEW)
    for step in range(3):
        probe(step, zoo.make("bert", seed=step))
    return probe.report()


def test_a_report_has_a_row_for_every_step_and_what_was_measured(report):
    table = report.to_dataframe()
    assert table.measured.unique().tolist() == ["embeddings", "states of layer 3", "attention"]
    assert table.step.tolist() == [0, 1, 2] * 3
    for step in range(3):
        row = table[(table.step == step) & (table.measured == "attention")].iloc[0]
        assert row.ratio == report.reports[step]["attention"].overall.ratio
    heads = report.to_dataframe(by="head")
    assert len(heads) == 3 * len(report.reports[0]["attention"].heads)
    name = heads.measured.iloc[0]
    assert name == "L0H0"
    assert report.curve(name, "ratio", by="head")[1, 0] == report.reports[1]["attention"].heads[0].ratio
    layers = report.to_dataframe(by="layer").measured.unique().tolist()
    assert layers[:5] == [*(f"states of layer {n}" for n in range(4)), "attention of layer 0"]
    with pytest.raises(TypeError, match="curve knows no option 'attenton': did you mean 'attention'"):
        report.curve("attenton")


def test_a_curve_has_the_interval_of_the_number_that_has_one(report):
    overall = [reports["attention"].overall for reports in report.reports]
    for number, ends in (("effect_size", "effect_size_interval"), ("ratio", "interval")):
        for found, contrast in zip(report.curve("attention", number), overall, strict=True):
            assert found.tolist() == [getattr(contrast, number), *getattr(contrast, ends)]
    assert np.isnan(report.curve("attention", "difference")[:, 1:]).all()


def test_a_report_is_saved_loaded_joined_and_drawn(report, tmp_path):
    assert tp.load_report(report.save(tmp_path / "report")) == report
    parts = [
        replace(
            report,
            **{name: getattr(report, name)[n : n + 1] for name in ("steps", "measuring", "between")},
            **{name: getattr(report, name)[n : n + 1] for name in ("reports", "reasons", "weights", "sums")},
        )
        for n in (2, 0, 1)
    ]
    assert SeriesReport.joined(parts) == report
    axes = report.plot()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "embeddings", "states of layer 3", "attention",
    ]  # fmt: skip
    assert tp.figures.series_heads(report).get_xlabel() == "step"
    assert "series" in tp.report_page(tmp_path).html


def test_what_measuring_took_is_told(report):
    told = replace(report, measuring=np.array([1.0, 1.0, 1.0]), between=np.array([np.nan, 40.0, 20.0]))
    assert told.share == pytest.approx(3 / 60)
    assert "3 measurements took 3 s, 5.0% of the time of the training" in str(told)
    assert np.isnan(replace(told, between=np.full(3, np.nan)).share)


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"measure": ["attention"]}, ValueError, "attention are measured in documents: pass these"),
        ({"measure": []}, ValueError, "measure must name at least one"),
        ({"measure": ["attentions"]}, ValueError, "measure"),
        ({"measure": ["embeddings"], "every": 0}, ValueError, "every"),
        (
            {"measure": ["embeddings"], "attention": {"checkpoint": "sums"}},
            TypeError,
            "attention= knows no option 'checkpoint'",
        ),
        ({"measure": ["embeddings"], "embeddings": {"centre": True}}, TypeError, "did you mean 'center'"),
        ({"documents": iter([[1, 2]])}, ValueError, "these can be read only once"),
    ],
)
def test_wrong_arguments_are_refused_at_once(given, error, said, topics, unchecked):
    with pytest.raises(error, match=said):
        tp.TopicProbe(topics, **given)


def test_a_part_that_a_model_has_not_is_refused(topics):
    with pytest.raises(ValueError, match=r"model='generator' is no part of .*, which has bert"):
        tp.TopicProbe(topics, measure=["embeddings"], model="generator")(0, zoo.make("bert"))
    with pytest.raises(ValueError, match="nothing has been measured yet"):
        tp.TopicProbe(topics, measure=["embeddings"]).report()
