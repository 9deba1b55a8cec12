"""Settings of recipes: which are chosen, and that none is trained twice."""

from dataclasses import replace

import pytest
import torch

from topic_probe.paper.training import PAIRS, Setting, choose, pair_setting, train_all
from topic_probe.toy.model import ToyConfig, toy_tensors
from topic_probe.train.history import TrainConfig


def short(name="value", steps=12, **train):
    return Setting(name, ToyConfig(regime="value"), TrainConfig(steps=steps, **train))


# -------------------------------------------------------------------- settings


def test_a_pair_setting_is_at_the_rate_of_the_paper_unless_told_otherwise():
    setting = pair_setting(
        "value", ("squared", "sgd"), 6000, seconds=1.0, l2=0.1, noise=0.5, init="near-zero"
    )
    assert setting.name == "value, squared, SGD"
    assert (setting.train.learning_rate, setting.train.l2, setting.train.record_every) == (0.01, 0.1, 3)
    assert (setting.toy.noise, setting.toy.init) == (0.5, "near-zero")
    assert pair_setting("value", PAIRS[0], 5, seconds=1.0, learning_rate=2.0).train.learning_rate == 2.0


def test_choosing_keeps_the_order():
    settings = [short("a"), short("b", seed=4), short("c")]
    assert [s.name for s in choose(settings, ["c", "a"])] == ["a", "c"]
    assert choose(settings, None) == tuple(settings)


def test_another_seed_is_one_of_documents_and_initialisation():
    shifted = short("b", seed=4).shifted(3)
    assert (shifted.seed, shifted.train.seed) == (3, 7)
    assert shifted.label == "b, seed 3"
    assert replace(shifted, control="no topics").label == "b, no topics, seed 3"


# -------------------------------------------------------------------- training


def test_a_trained_toy_gives_its_model_back_one_for_all_that_is_asked_of_it_in_a_row():
    one, other = train_all([short(), short(seed=3)])
    first = one.model()
    assert one.model() is first
    for trained in (other, one):
        assert torch.equal(toy_tensors(trained.model())["W_V"], trained.history.tensors["W_V"])
    assert one.model() is not first  # not all of them are kept


def test_with_a_folder_a_training_is_not_repeated(tmp_path, monkeypatch):
    first = train_all([short()], folder=tmp_path)[0]
    updates = []
    monkeypatch.setattr("topic_probe.train.loop._Optimizer.step", lambda *_: updates.append(1))
    again = train_all([short()], folder=tmp_path)[0]
    assert not updates
    assert again.seconds == 0
    assert torch.equal(again.history.tensors["W_V"], first.history.tensors["W_V"])
    assert torch.equal(again.history.loss, first.history.loss)


def test_settings_that_differ_in_anything_do_not_share_a_checkpoint(tmp_path):
    settings = [short(), short(steps=13), short(l2=0.1), replace(short(), seed=1)]
    for setting in settings:
        train_all([setting], folder=tmp_path)
    assert len(list(tmp_path.iterdir())) == len(settings)


def test_an_interrupted_training_ends_the_recipe_and_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    def interrupt(self, step, *recorded):
        if step == 5:
            raise KeyboardInterrupt
        return record(self, step, *recorded)

    from topic_probe.train.loop import _Recorder

    record = _Recorder.record
    monkeypatch.setattr(_Recorder, "record", interrupt)
    with pytest.raises(KeyboardInterrupt, match="interrupted at step 5 of 12"):
        train_all([short()], folder=tmp_path)
    monkeypatch.undo()
    resumed = train_all([short()], folder=tmp_path)[0]
    whole = train_all([short()])[0]
    assert torch.equal(resumed.history.tensors["W_V"], whole.history.tensors["W_V"])
    assert torch.equal(resumed.history.loss, whole.history.loss)
