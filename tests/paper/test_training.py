"""Settings of recipes: which are chosen, and that none is trained twice."""

from dataclasses import replace

import pytest
import torch

from topic_probe.paper.training import Setting, choose, pair_setting, train_all
from topic_probe.toy.model import ToyConfig
from topic_probe.train.history import TrainConfig


def short(name="value", steps=12, **train):
    return Setting(name, ToyConfig(regime="value"), TrainConfig(steps=steps, **train))


def test_a_pair_setting_is_at_the_rate_of_the_paper_and_another_seed_is_one_of_documents_too():
    setting = pair_setting("value", ("squared", "sgd"), 6000, seconds=1.0, l2=0.1, noise=0.5)
    assert setting.name == "value, squared, SGD"
    assert (setting.train.learning_rate, setting.train.l2, setting.toy.noise) == (0.01, 0.1, 0.5)
    shifted = short("b", seed=4).shifted(3)
    assert (shifted.seed, shifted.train.seed, shifted.label) == (3, 7, "b, seed 3")
    assert [s.name for s in choose([short("a"), short("b"), short("c")], ["c", "a"])] == ["a", "c"]


def test_with_a_folder_a_training_goes_on_from_its_checkpoint_and_is_repeated_for_other_settings(tmp_path):
    first = train_all([short()], folder=tmp_path)[0]
    again = train_all([short()], folder=tmp_path)[0]
    assert again.seconds == 0
    assert torch.equal(again.history.tensors["W_V"], first.history.tensors["W_V"])
    others = [short(l2=0.1), replace(short(), seed=1)]
    for setting in others:
        assert train_all([setting], folder=tmp_path)[0].history.train == setting.train
    assert len(list(tmp_path.iterdir())) == 1 + len(others)


def test_an_interrupted_training_ends_the_recipe_and_goes_on_from_its_checkpoint(tmp_path):
    def interrupt(model):
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        return {"nothing": 0.0}

    interrupted = []
    watched = short(measure_every=5)
    with pytest.raises(KeyboardInterrupt, match="interrupted at step 0 of 12"):
        train_all([watched], folder=tmp_path, watch={"it": interrupt})
    resumed = train_all([watched], folder=tmp_path, watch={"it": interrupt})[0]
    assert torch.equal(resumed.history.loss, train_all([short()])[0].history.loss)
