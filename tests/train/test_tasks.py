"""Training a BERT on text: its start, its loss against Hugging Face's, what is recorded, resuming, bad input."""

import signal
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

from topic_probe.measure.attention import measure_attention
from topic_probe.measure.embeddings import measure_embeddings
from topic_probe.text.corpus import Corpus
from topic_probe.text.documents import Document
from topic_probe.text.word_tokenizer import SPECIAL_TOKENS, word_tokenizer
from topic_probe.topics import Topics
from topic_probe.toy.masking import MaskedBatch, Masking
from topic_probe.toy.model import ToyConfig, build_toy, toy_tensors
from topic_probe.train.bert import TextConfig, bert_parameters, build_bert
from topic_probe.train.history import History, TrainConfig
from topic_probe.train.loop import train_text, train_toy
from topic_probe.train.stages import measure_dynamics
from topic_probe.train.tasks import TextTask, TrainingText, masked_loss

TEXTS = [
    "the army fought the battle and the soldiers won the war",
    "the band sang a song and the singer played music on the piano",
    "soldiers of the army lost a battle in the long war , said the singer",
    "music is a song without words , played on a piano by the band",
    "zebra",
] * 3
SIZES = {"n_layers": 2, "n_heads": 2, "d_model": 16, "max_length": 16}


@cache
def tokenizer():
    return word_tokenizer(TEXTS, n_words=30)


def stream(texts=TEXTS):
    return Corpus.from_texts(texts).documents(tokenizer(), max_length=16, long="chunk")


def bert(seed=0, **options):
    return build_bert(TextConfig(vocabulary_size=len(tokenizer()), **{**SIZES, **options}), seed=seed)


def config(**options):
    return TrainConfig(**{"steps": 14, "batch_size": 4, "learning_rate": 0.1, **options})


def attention_weight(model, layer, place):
    """A projection where Hugging Face keeps it."""
    return getattr(model.bert.encoder.layer[layer].attention.self, place).weight


# The model


@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_keys_queries_and_values_start_at_the_noise_and_all_else_as_in_bert(noise):
    model = bert(d_model=64, d_mlp=96, noise=noise)
    attention = torch.cat(
        [attention_weight(model, i, p).flatten() for i in (0, 1) for p in ("key", "query", "value")]
    )
    assert attention.std().item() == pytest.approx(noise, rel=0.03)
    assert attention.abs().max() <= 6 * noise
    other = model.bert.encoder.layer[0].attention.output.dense.weight
    assert other.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.bert.embeddings.word_embeddings.weight.std().item() == pytest.approx(0.02, rel=0.05)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        if name.endswith("LayerNorm.weight"):
            assert (parameter == 1).all(), name
    assert bert(init="usual").bert.encoder.layer[0].attention.self.key.weight.std() > 0.01


def test_a_seed_decides_the_model_and_global_random_numbers_are_left_alone():
    before = torch.get_rng_state()
    one, same, other = bert(seed=1), bert(seed=1), bert(seed=2)
    assert torch.equal(before, torch.get_rng_state())
    pairs = zip(one.parameters(), same.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(attention_weight(one, 0, "key"), attention_weight(other, 0, "key"))


def test_every_parameter_has_one_name_and_the_tied_embedding_one_place():
    model = bert()
    named = bert_parameters(model)
    assert {id(p) for p in named.values()} == {id(p) for p in model.parameters()}
    assert named["W_E"] is model.cls.predictions.decoder.weight
    assert named["W_V.1"] is attention_weight(model, 1, "value")
    assert "W_K" in bert_parameters(bert(n_layers=1))


# The loss


@pytest.mark.parametrize("seed", range(3))
def test_the_loss_is_the_one_hugging_face_has_with_labels_for_the_masked_positions(seed):
    model = bert(seed=seed, init="usual", scale=0.3)
    task = TextTask(model, stream(), config(seed=seed))
    batch = task.draw()
    assert not batch.mask.all()  # padding takes part
    labels = batch.target.masked_fill(~batch.chosen, -100)
    theirs = model(input_ids=batch.shown, attention_mask=batch.mask.long(), labels=labels).loss
    ours = masked_loss(model, batch)
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-5)
    wanted = torch.autograd.grad(theirs, list(model.parameters()), materialize_grads=True)
    found = torch.autograd.grad(ours, list(model.parameters()), materialize_grads=True)
    for a, b in zip(found, wanted, strict=True):
        assert (a - b).abs().max() <= 1e-5


def test_a_batch_with_nothing_masked_has_no_loss():
    ids = torch.full((1, 3), 7)
    nothing = torch.zeros(1, 3, dtype=torch.bool)
    assert masked_loss(bert(), MaskedBatch(ids, ids, ~nothing, nothing)) is None


def test_special_tokens_are_never_masked_and_never_shown_as_random_words():
    tok = tokenizer()
    task = TextTask(bert(), stream(), config(masking=Masking(1.0, 0.1, 0.5), batch_size=100))
    special = torch.tensor(tok.all_special_ids)
    shown = torch.zeros(len(tok), dtype=torch.bool)
    for _ in range(20):
        batch = task.draw()
        is_special = torch.isin(batch.target, special)
        assert is_special.any()
        # Everything that is a word of a document is masked, and nothing else.
        assert torch.equal(batch.chosen, batch.mask & ~is_special)
        assert torch.equal(batch.shown[is_special], batch.target[is_special])
        replaced = batch.shown[batch.chosen]
        shown[replaced] = True
    ordinary = torch.ones(len(tok), dtype=torch.bool)
    ordinary[special] = False
    assert shown[ordinary].all()
    assert shown.nonzero()[:, 0].tolist() == sorted({tok.mask_token_id, *ordinary.nonzero()[:, 0].tolist()})


def test_masked_positions_are_kept_random_or_mask_in_the_shares_asked_for():
    documents = [Document(torch.full((12,), 7)) for _ in range(400)]
    task = TextTask(bert(), documents, config(masking=Masking(0.5, 0.2, 0.3), batch_size=400), tokenizer())
    batches = [task.draw() for _ in range(10)]
    chosen = torch.cat([b.shown[b.chosen] for b in batches])
    assert len(chosen) / (10 * 400 * 12) == pytest.approx(0.5, abs=0.01)
    assert (chosen == tokenizer().mask_token_id).double().mean().item() == pytest.approx(0.5, abs=0.01)
    n = len(tokenizer()) - len(SPECIAL_TOKENS)
    assert (chosen == 7).double().mean().item() == pytest.approx(0.2 + 0.3 / n, abs=0.01)
    assert all((b.shown[~b.chosen] == 7).all() for b in batches)


# What is recorded


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_rows_hold_the_norms_and_rotations_of_the_hugging_face_parameters_of_their_step(optimizer):
    model, kept = bert(noise=0.01), []
    places = {"K": "key", "Q": "query", "V": "value"}

    def copy(model):
        kept.append(
            {
                (letter, i): attention_weight(model, i, place).detach().double().clone()
                for letter, place in places.items()
                for i in (0, 1)
            }
        )
        return 0.0

    history = train_text(model, stream(), config(optimizer=optimizer, measure_every=1), measure=copy)
    assert history.stopped == "finished"
    assert len(history) == len(kept) == 15
    for row, tensors in enumerate(kept):
        for (letter, i), tensor in tensors.items():
            found = float(history.norms[f"W_{letter}.{i}"][row])
            assert found == pytest.approx(torch.linalg.norm(tensor).item(), rel=1e-9)
        for i in (0, 1):
            turned = float(history.rotations[f"W_V.{i}"][row])
            if row < 10:
                assert np.isnan(turned)
                continue
            now, then = tensors["V", i].flatten(), kept[row - 10]["V", i].flatten()
            cosine = (now @ then / (now.norm() * then.norm())).item()
            assert turned == pytest.approx((1 - cosine) / 2, abs=1e-9)
    assert set(history.norms) == {"W_E", *(f"W_{w}.{i}" for w in "KQV" for i in (0, 1))}


def test_rows_hold_the_norms_of_the_gradients_that_hugging_face_parameters_have():
    model, settings = bert(), config(steps=0, record_gradients=True)
    history = train_text(model, stream(), settings)
    masked_loss(model, TextTask(model, stream(), settings).draw()).backward()
    places = {"K": "key", "Q": "query", "V": "value"}
    expected = {
        f"W_{letter}.{i}": attention_weight(model, i, place).grad.norm().item()
        for letter, place in places.items()
        for i in (0, 1)
    }
    expected["W_E"] = model.bert.embeddings.word_embeddings.weight.grad.norm().item()
    assert {name: norm.item() for name, norm in history.gradients.items()} == pytest.approx(expected)


def test_a_value_matrix_that_is_turned_by_hand_has_the_rotation_worked_out_by_hand():
    model = bert()
    weight = attention_weight(model, 1, "value")
    history = train_text(model, stream(), config(steps=10, learning_rate=1e-30), log=quarter_turn(weight))
    # From one axis to another: the cosine is 0, and (1 - 0) / 2 = 1/2.
    assert history.rotations["W_V.1"][10].item() == pytest.approx(0.5)
    assert history.rotations["W_V.0"][10].item() == pytest.approx(0.0)
    assert history.norms["W_V.1"][1].item() == pytest.approx(3.0)


def quarter_turn(weight):
    def turn(step, row):
        if step == 0:
            weight.detach().zero_()[0, 1] = 3.0

    first = torch.zeros_like(weight)
    first[0, 0] = 2.0
    weight.data.copy_(first)
    return turn


def test_a_bert_learns_from_context_and_any_measurement_takes_it_without_disturbing_it():
    topics = Topics.from_word_lists({"war": ["army", "battle"], "music": ["song", "piano"]}, tokenizer())
    texts = ["army battle " * 5, "piano song " * 5]
    settings = config(steps=60, optimizer="adam", learning_rate=0.02, masking=Masking(0.3, 0.0, 0.0))
    model, other = (bert(init="usual", n_layers=1, scale=0.1) for _ in range(2))

    def measure(model):
        attention = measure_attention(model, topics, stream(["army battle piano song"])).overall
        return {
            "cosine": measure_embeddings(model, topics).cosine.same_topic,
            "attention": attention.same_topic,
        }

    history = train_text(model, stream(texts), settings, measure=measure)
    # Who knows only how frequent words are cannot get below ln 4 = 1.4, who sees the topic below ln 2 = 0.7.
    assert history.loss[-10:].mean() < 0.8
    assert history.measured["cosine"].steps.tolist() == [0, 60]
    assert torch.isfinite(history.measured["attention"].values).all()
    assert measure_dynamics(history).layer == (0,)
    train_text(other, stream(texts), settings)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_dropout_is_off_while_training_and_back_on_after():
    sizes = BertConfig(
        vocab_size=len(tokenizer()), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=16, hidden_dropout_prob=0.5,
    )  # fmt: skip
    first = BertForMaskedLM(sizes).train()
    second = BertForMaskedLM(sizes).train()
    second.load_state_dict(first.state_dict())
    state = torch.get_rng_state()
    histories = [train_text(model, stream(), config()) for model in (first, second)]
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(histories[0].table.nan_to_num(-1), histories[1].table.nan_to_num(-1))
    assert first.training
    assert histories[0].toy.init == "given"


def test_a_history_of_text_comes_back_from_disk_with_its_model(tmp_path):
    model = bert(noise=0.01)
    history = train_text(model, stream(), config())
    loaded = History.load(history.save(tmp_path / "history"))
    assert (loaded.toy, loaded.columns) == (history.toy, history.columns)
    ids = torch.tensor([[2, 7, 8, 3]])
    assert torch.equal(loaded.model()(ids).logits, model(ids).logits)


@pytest.mark.parametrize(("n_layers", "n_heads"), [(1, 2), (3, 2)])
def test_the_toy_has_norms_of_every_layer_with_its_heads_together(n_layers, n_heads):
    toy = build_toy(ToyConfig(regime="full", d_model=8, n_layers=n_layers, n_heads=n_heads, residual=True))
    history = train_toy(toy, TrainConfig(steps=11, batch_size=4))
    names = [f"W_{w}{'' if n_layers == 1 else f'.{i}'}" for w in "KQV" for i in range(n_layers)]
    assert set(history.norms) >= set(names)
    for name in names:
        heads = toy_tensors(toy)[name].detach().double()
        assert heads.shape[0] == n_heads
        together = torch.cat(list(heads))  # as the paper has it: the heads of a layer concatenated
        assert history.norms[name][-1].item() == pytest.approx(torch.linalg.norm(together).item(), rel=1e-9)
    assert measure_dynamics(history).layer == tuple(range(n_layers))


# Stopping and going on


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_training_stopped_by_ctrl_c_and_continued_is_the_one_never_stopped(tmp_path, optimizer):
    settings, path = config(optimizer=optimizer, steps=30, learning_rate=0.01), tmp_path / "checkpoint"
    whole_model = bert()
    whole = train_text(whole_model, stream(), settings)

    def stop(step, row):
        if step == 13:
            signal.raise_signal(signal.SIGINT)

    part = train_text(bert(), stream(), settings, checkpoint=path, log=stop)
    assert part.stopped.startswith("interrupted")
    assert part.last_step < 30
    model = bert(seed=5)  # whatever it starts from, the checkpoint has the rest
    rest = train_text(model, stream(), settings, checkpoint=path)
    assert torch.equal(rest.table.nan_to_num(-1), whole.table.nan_to_num(-1))
    for one, other in zip(model.parameters(), whole_model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_checkpoint_of_other_text_is_refused(tmp_path):
    path = tmp_path / "checkpoint"
    train_text(bert(), stream(), config(), checkpoint=path)
    with pytest.raises(ValueError, match="another text config: documents"):
        train_text(bert(), stream([*TEXTS, "one more text"]), config(), checkpoint=path)


def test_divergence_stops_with_the_last_state_that_had_a_finite_loss():
    model = bert()
    history = train_text(model, stream(), config(learning_rate=1e30, steps=20))
    assert history.stopped.startswith("diverged")
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert torch.isfinite(history.loss).all()


# Documents


def test_a_schedule_takes_turns_between_values_and_keys_with_queries(tmp_path):
    schedule = ((2, ("W_V", "W_E", "bert", "cls")), (1, ("W_K", "W_Q")))
    settings = config(steps=8, optimizer="adam", schedule=schedule)
    history = train_text(bert(), stream(), settings)
    for name, norms in history.norms.items():
        with_values = [step % 3 < 2 for step in range(8)]
        expected = [not moves for moves in with_values] if name[:3] in ("W_K", "W_Q") else with_values
        assert (norms.diff() != 0).tolist() == expected, name
    train_text(bert(), stream(), replace(settings, steps=4), checkpoint=tmp_path / "run")
    again = train_text(bert(seed=5), stream(), settings, checkpoint=tmp_path / "run")
    assert all(torch.equal(value, history.tensors[name]) for name, value in again.tensors.items())


def test_n_documents_reads_the_first_documents_and_text_that_was_read_can_be_used_again():
    text = TrainingText.read(stream())
    # Three times four texts that fit, one that is cut in two (17 tokens with special ones), and one of a word.
    assert (len(text), text.longest) == (18, 16)
    zebra = int((np.diff(text.starts) == 3).argmax())
    ids, lengths = text.batch(torch.tensor([zebra, 0]), pad_id=0)
    first = tokenizer()(TEXTS[0])["input_ids"]
    assert ids[1, : lengths[1]].tolist() == first
    assert lengths.tolist() == [3, len(first)]
    assert not ids[0, 3:].any()
    two = TrainingText.read(text, n_documents=2)
    assert len(two) == 2
    assert two.fingerprint == TrainingText.read(stream(TEXTS[:2])).fingerprint
    assert two.fingerprint != text.fingerprint
    assert len(TextTask(bert(), text, config(n_documents=2)).text) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"documents": [[7, 8]]}, "pass tokenizer="),
        ({"documents": [], "tokenizer": True}, "no document to train on"),
        ({"documents": [[7, 99]], "tokenizer": True}, "ids 0..99, but the model knows"),
        ({"documents": [[7] * 17], "tokenizer": True}, "longest document has 17 tokens"),
        ({"config": {"loss": "squared"}}, "loss is an option of the toy"),
        ({"config": {"remask": False}}, "remask is an option of the toy"),
        ({"config": {"masking": Masking(0.0)}}, "nothing is masked"),
        ({"documents": [[2, 3]], "tokenizer": True}, "batches in a row had nothing masked"),
    ],
)
def test_bad_input_is_refused_with_what_was_needed(change, message):
    documents, options = change.get("documents", stream()), change.get("config", {})
    given = tokenizer() if change.get("tokenizer") else None
    with pytest.raises(ValueError, match=message):
        train_text(bert(), documents, config(**options), tokenizer=given)


def test_other_models_are_refused():
    small = {"n_embd": 8, "n_layer": 1, "n_head": 1, "vocab_size": len(tokenizer()), "n_positions": 16}
    with pytest.raises(TypeError, match=r"transformers\.BertForMaskedLM"):
        train_text(GPT2LMHeadModel(GPT2Config(**small)), stream(), config())
    with pytest.raises(ValueError, match="multiple of n_heads"):
        TextConfig(10, d_model=10, n_heads=4)
    with pytest.raises(ValueError, match="no tensor of this model"):
        build_bert(TextConfig(10, **SIZES), tensors={"W_X": torch.zeros(1)})
