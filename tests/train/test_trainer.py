"""Small models of every architecture: their tasks, their trainings, and how far they have come."""

import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import topic_probe as tp
from topic_probe.train.architectures import ARCHITECTURES, NOTHING, TOKENIZERS, SmallConfig, Task, build_small
from topic_probe.train.tasks import TrainingText
from topic_probe.train.trainer import HeldOut, Rows, SmallTraining, fast_precision, held_out, train_small

WORDS = "army band battle river music soldier drum flute water boat fish cannon song trumpet".split()  # noqa: SIM905
TEXTS = [" ".join(random.Random(number).choices(WORDS, k=20)) for number in range(12)]
SMALL = SmallConfig(n_layers=2, n_heads=2, d_model=16, max_length=24)
SIZES = {"wordpiece": 120, "unigram": 80, "byte-level": 330, "byte-level without ends": 330}
SHORT = SmallTraining(steps=6, batch_size=4, seed=3)


@pytest.fixture(scope="module")
def texts():
    found = {}
    for kind, size in SIZES.items():
        tokenizer = tp.subword_tokenizer(TEXTS, kind, n_tokens=size)
        documents = tp.encode_texts(TEXTS, tokenizer, max_length=24)
        found[kind] = TrainingText.read(documents, tokenizer)
    return found


def batch_of(text, name, n=6):
    task = Task(name, text.tokenizer, SMALL.max_length)
    rows = [Rows(text, task, 50, seed=1)[number] for number in range(n)]
    return task, {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


@pytest.mark.filterwarnings("ignore:`loss_type=None`")
@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name != "electra"])
def test_the_loss_is_the_one_that_transformers_has_for_the_same_labels(name, texts):
    task, batch = batch_of(texts[TOKENIZERS[name]], name)
    model = build_small(name, task.tokenizer, SMALL, seed=1)
    theirs = model(**{key: batch[key] for key in ("input_ids", "attention_mask", "labels")}).loss
    torch.testing.assert_close(task.loss(model, batch), theirs)


def test_the_joint_loss_of_electra_is_that_of_its_two_models(texts):
    task, batch = batch_of(texts["wordpiece"], "electra")
    pair = build_small("electra", task.tokenizer, SMALL, seed=1)
    with torch.no_grad():
        for parameter in pair.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
        torch.manual_seed(5)
        ours = task.predicted(pair, batch)
        logits = pair.generator(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        masked = batch["labels"] != NOTHING
        torch.testing.assert_close(ours.loss, cross_entropy(logits[masked], batch["labels"][masked]))
        torch.manual_seed(5)
        shown = batch["input_ids"].clone()
        shown[masked] = torch.multinomial(logits[masked].softmax(-1), 1)[:, 0]
        scores = pair.discriminator(input_ids=shown, attention_mask=batch["attention_mask"]).logits
        wrong = masked & (shown != batch["labels"])
        real = batch["attention_mask"].bool()
        by_hand = torch.where(wrong, scores.sigmoid(), 1 - scores.sigmoid()).log().neg()[real].mean()
        torch.testing.assert_close(ours.found, by_hand)
        assert ours.replaced == pytest.approx(float(wrong.sum() / real.sum()))
        torch.manual_seed(5)
        torch.testing.assert_close(task.loss(pair, batch), ours.loss + by_hand)


def test_the_pair_has_one_table_of_embeddings_and_saves_it_once(texts):
    pair = build_small("electra", texts["wordpiece"].tokenizer, SMALL)
    tables = [part.get_input_embeddings().weight for part in (pair.generator, pair.discriminator)]
    assert tables[0] is tables[1] is pair.generator.get_output_embeddings().weight
    saved = pair.state_dict()
    assert len({tensor.data_ptr() for tensor in saved.values()}) == len(saved)
    other = build_small("electra", texts["wordpiece"].tokenizer, SMALL, seed=9)
    other.load_state_dict(saved)
    assert all(torch.equal(a, b) for a, b in zip(pair.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("number", range(20))
def test_putting_the_hidden_spans_back_gives_the_text(number, texts):
    text = texts["byte-level"]
    task, ids = Task("bart", text.tokenizer, 24), text.ids[text.starts[3] : text.starts[4]]
    row = task.row(ids, np.random.default_rng(number))
    shown, hidden = row["input_ids"][row["attention_mask"].bool()].tolist(), row["hidden"].numpy()
    mask = text.tokenizer.mask_token_id
    assert (shown[0], shown[-1]) == (ids[0], ids[-1])
    assert [token for token in shown if token != mask] == ids[~hidden[: len(ids)]].tolist()
    assert hidden.sum() == round(0.3 * (len(ids) - 2))
    # A mask stands behind as many shown tokens as the span that it hides, and one more for every span that is empty.
    of_masks = [n - shown[:n].count(mask) for n, token in enumerate(shown) if token == mask]
    begins = np.flatnonzero(np.diff(hidden.astype(int), prepend=0) == 1)
    assert {int((~hidden[:begin]).sum()) for begin in begins} <= set(of_masks)
    assert len(set(of_masks)) == len(of_masks)


def test_three_of_ten_tokens_are_picked_and_of_these_so_many_masked_as_bert_has_it(texts):
    text = texts["wordpiece"]
    rows = Rows(text, Task("bert", text.tokenizer, 24), 3000, seed=0)
    every = [rows[number] for number in range(3000)]
    labels, ids = (torch.stack([row[name] for row in every]) for name in ("labels", "input_ids"))
    real = torch.stack([row["attention_mask"] for row in every]).bool()
    picked = labels != NOTHING
    words = int(real.sum()) - 2 * len(every)  # without [CLS] and [SEP]
    masked = ids[picked] == text.tokenizer.mask_token_id
    assert float(picked.sum()) / words == pytest.approx(0.3, abs=0.012)  # one is picked where none would be
    assert float(masked.float().mean()) == pytest.approx(0.8, abs=0.02)
    assert float((ids[picked] == labels[picked]).float().mean()) == pytest.approx(0.1, abs=0.02)
    assert not np.isin(ids[~real & ~picked], text.tokenizer.all_special_ids, invert=True).any()


@pytest.mark.parametrize("name", ["bert", "electra", "bart"])
def test_a_training_that_was_killed_goes_on_to_the_same_weights(name, texts, tmp_path):
    import transformers

    class Killed(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step == 4:
                raise KeyboardInterrupt

    text = texts[TOKENIZERS[name]]
    whole = train_small(name, text, SMALL, SHORT, folder=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train_small(name, text, SMALL, SHORT, folder=tmp_path / "killed", callbacks=[Killed()])
    # What a kill in the middle of writing leaves is no checkpoint.
    (tmp_path / "killed" / "checkpoint-5").mkdir()
    (tmp_path / "killed" / "checkpoint-5" / "trainer_state.json").write_text('{"global_st')
    assert (tmp_path / "killed" / "checkpoint-3" / "trainer_state.json").exists()
    again = train_small(name, text, SMALL, SHORT, folder=tmp_path / "killed")
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True))
    first = build_small(name, text.tokenizer, SMALL, seed=3)
    assert not all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))


def test_generators_stay_and_nothing_is_printed(texts, tmp_path, capsys, unchecked):
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    train_small("gpt2", texts["byte-level without ends"], SMALL, SHORT, folder=tmp_path)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    assert (before[2] == np.random.get_state()[1]).all()  # noqa: NPY002
    assert capsys.readouterr() == ("", "")


def test_checkpoints_of_another_training_are_refused(texts, tmp_path):
    text = texts["wordpiece"]
    train_small("bert", text, SMALL, SmallTraining(steps=1, batch_size=2), folder=tmp_path)
    with pytest.raises(ValueError, match="other settings: choose another folder"):
        train_small("bert", text, SMALL, SmallTraining(steps=2, batch_size=2), folder=tmp_path)


def test_a_model_that_knows_only_how_often_tokens_occur_gains_nothing(texts):
    """GPT-2 with states of 0 and an output bias by hand has the cross-entropy of its distribution, whatever it sees."""
    text = texts["byte-level without ends"]
    model = build_small("gpt2", text.tokenizer, SMALL)
    counts = np.bincount(text.ids, minlength=len(text.tokenizer))
    logits = torch.tensor(np.log(np.maximum(counts, 1e-9) / counts.sum()), dtype=torch.float32)

    class Unigram(torch.nn.Module):
        def forward(self, states):
            return logits.expand(len(states), -1)

    model.lm_head = Unigram()
    found = held_out(model, "gpt2", text, length=24)
    shares = counts[counts > 0] / counts.sum()
    assert found.entropy == pytest.approx(float(-(shares * np.log(shares)).sum()))
    seen = np.concatenate(
        [text.ids[a + 1 : b] for a, b in zip(text.starts[:-1], text.starts[1:], strict=True)]
    )
    assert found.tokens == len(seen)
    assert found.loss == pytest.approx(
        float(-logits.double()[torch.from_numpy(seen).long()].mean()), rel=1e-5
    )
    assert not found.far_enough


def test_a_bert_that_copies_what_it_sees_gains_nothing(texts):
    """It knows how often tokens occur; one picked token of ten stands there as it is, and is not counted."""
    text = texts["wordpiece"]
    counts = np.bincount(text.ids, minlength=len(text.tokenizer))
    counts[text.tokenizer.all_special_ids] = 0
    known = torch.tensor(np.log(np.maximum(counts, 1e-9) / counts.sum()), dtype=torch.float32)
    mask = text.tokenizer.mask_token_id

    class Head(torch.nn.Module):
        def forward(self, ids):
            copied = 100 * torch.nn.functional.one_hot(ids, len(known)).float()
            return torch.where((ids == mask)[:, None], known, copied)

    copier = torch.nn.Module()
    copier.base_model = lambda input_ids, **_: SimpleNamespace(last_hidden_state=input_ids)
    copier.cls = Head()
    found = held_out(copier, "bert", text, length=24, seed=2)
    rows = Rows(text, Task("bert", text.tokenizer, 24), len(text), seed=2)
    every = [rows[number] for number in range(len(text))]
    shown, labels = (torch.cat([row[name] for row in every]) for name in ("input_ids", "labels"))
    assert 0 < found.tokens == int((shown == mask).sum()) < int((labels != NOTHING).sum())
    assert found.loss == pytest.approx(float(-known.double()[labels[shown == mask]].mean()), rel=1e-5)
    assert abs(found.gain) < 0.3  # of copies counted in, it would be a tenth of the entropy lower


def test_products_in_bfloat16_train_nearly_the_same_weights_and_go_on(texts, tmp_path, unchecked):
    text, half = texts["wordpiece"], replace(SHORT, precision="bfloat16")
    exact = train_small("bert", text, SMALL, SHORT, folder=tmp_path / "exact")
    model = train_small("bert", text, SMALL, half, folder=tmp_path / "half")
    begun = build_small("bert", text.tokenizer, SMALL, seed=3)
    weights = [
        torch.cat([one.flatten() for one in some.parameters()]).detach() for some in (exact, model, begun)
    ]
    assert {one.dtype for one in weights} == {torch.float32}
    assert 0 < float((weights[1] - weights[0]).norm()) < 0.3 * float((weights[0] - weights[2]).norm())
    assert model.config._attn_implementation == begun.config._attn_implementation == "sdpa"
    (tmp_path / "half" / "checkpoint-6").rename(tmp_path / "away")
    again = train_small("bert", text, SMALL, half, folder=tmp_path / "half")
    assert torch.equal(torch.cat([one.flatten() for one in again.parameters()]), weights[1])
    with pytest.raises(ValueError, match="precision must be one of 'float32', 'bfloat16', got 'half'"):
        SmallTraining(precision="half")


@pytest.mark.parametrize(
    ("known", "precision"),
    [({"avx512_bf16": True}, "bfloat16"), ({"bf16": True}, "bfloat16"), ({"avx2": True}, "float32"), ({}, "float32")],
)  # fmt: skip
def test_bfloat16_is_taken_where_the_processor_multiplies_it_itself(known, precision, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known, raising=False)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert fast_precision() == precision
    monkeypatch.delattr(torch.cpu, "get_capabilities")  # as of older versions
    assert fast_precision() == "float32"


def test_half_a_nat_below_is_far_enough_and_a_discriminator_has_to_beat_guessing():
    assert HeldOut(5.5, 6.0, 100).far_enough
    assert not HeldOut(5.6, 6.0, 100).far_enough
    assert HeldOut(5.5, 6.0, 100, found=0.3, guessed=0.31).far_enough
    assert not HeldOut(5.5, 6.0, 100, found=0.31, guessed=0.31).far_enough
