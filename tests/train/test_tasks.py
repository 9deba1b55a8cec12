"""Training a BERT on text: its start, its loss against Hugging Face's, what is recorded, resuming, bad input."""

import signal
from functools import cache

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

import topic_probe as tp
from topic_probe import Masking, TextConfig, TrainConfig, build_bert, train_text

TEXTS = [
    "the army fought the battle and the soldiers won the war",
    "the band sang a song and the singer played music on the piano",
    "soldiers of the army lost a battle in the long war , said the singer",
    "music is a song without words , played on a piano by the band",
    "zebra",
] * 3
SIZES = {"n_layers": 2, "n_heads": 2, "d_model": 16, "max_length": 16}
PLACES = {f"W_{letter}.{layer}": (layer, place) for layer in (0, 1)
          for letter, place in (("K", "key"), ("Q", "query"), ("V", "value"))}  # fmt: skip


@cache
def tokenizer():
    return tp.word_tokenizer(TEXTS, n_words=30)


def stream(texts=TEXTS):
    return tp.Corpus.from_texts(texts).documents(tokenizer(), max_length=16, long="chunk")


def bert(seed=0, **options):
    return build_bert(TextConfig(vocabulary_size=len(tokenizer()), **{**SIZES, **options}), seed=seed)


def config(**options):
    return TrainConfig(**{"steps": 14, "batch_size": 4, "learning_rate": 0.1, **options})


def hugging_face(model):
    """The watched parameters where Hugging Face keeps them, by the names of a history."""
    found = {
        name: getattr(model.bert.encoder.layer[layer].attention.self, place).weight
        for name, (layer, place) in PLACES.items()
    }
    return {"W_E": model.bert.embeddings.word_embeddings.weight, **found}


def shown_to(model, documents, settings, **options):
    """The history, and what the model was called with: ids and mask of every batch."""
    calls = []
    handle = model.bert.register_forward_pre_hook(
        lambda _, given, named: calls.append((given[0], named.get("attention_mask"))), with_kwargs=True
    )
    history = train_text(model, documents, settings, **options)
    handle.remove()
    return history, calls


@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_keys_queries_and_values_start_at_the_noise_and_all_else_as_in_bert(noise):
    state = torch.get_rng_state()
    model = bert(d_model=64, d_mlp=96, noise=noise)
    assert torch.equal(state, torch.get_rng_state())
    watched = hugging_face(model)
    attention = torch.cat([watched[name].flatten() for name in PLACES])
    assert attention.std().item() == pytest.approx(noise, rel=0.03)
    other = model.bert.encoder.layer[0].attention.output.dense.weight
    assert other.std().item() == pytest.approx(0.02, rel=0.05)
    assert watched["W_E"].std().item() == pytest.approx(0.02, rel=0.05)
    assert watched["W_E"] is model.cls.predictions.decoder.weight
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "LayerNorm.weight")):
            assert (parameter == name.endswith("LayerNorm.weight")).all(), name
    assert hugging_face(bert(init="usual"))["W_K.0"].std() > 0.01
    one, same, other = (hugging_face(bert(seed=seed))["W_K.0"] for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def padded(documents):
    rows = [torch.tensor(ids) for ids in documents]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def test_loss_and_gradients_are_those_of_hugging_face_with_labels_for_all_words():
    """A batch that holds all documents has them in order, and here all words in it are masked."""
    model, documents = (
        bert(init="usual", scale=0.3),
        tokenizer()(TEXTS[:4], truncation=True, max_length=16)["input_ids"],
    )
    settings = config(steps=0, record_gradients=True, masking=Masking(1.0, 0.1, 0.3))
    history, [(shown, mask)] = shown_to(model, documents, settings, tokenizer=tokenizer())
    assert mask.tolist() == [[place < len(ids) for place in range(16)] for ids in documents]
    assert not mask.all()  # padding takes part
    special = torch.isin(padded(documents), torch.tensor(tokenizer().all_special_ids))
    assert torch.equal(shown[special], padded(documents)[special])
    labels = padded(documents).masked_fill(special | (mask == 0), -100)
    loss = model(input_ids=shown, attention_mask=mask, labels=labels).loss
    loss.backward()
    assert history.loss.item() == pytest.approx(loss.item(), rel=1e-5)
    expected = {name: parameter.grad.norm().item() for name, parameter in hugging_face(model).items()}
    assert {name: norm.item() for name, norm in history.gradients.items()} == pytest.approx(
        expected, rel=1e-4
    )


def test_positions_are_masked_kept_or_random_in_their_shares_and_random_words_are_no_special_tokens():
    documents, ordinary = [[7] * 12] * 400, set(range(len(tokenizer()))) - set(tokenizer().all_special_ids)
    settings = config(batch_size=400, steps=9, learning_rate=1e-9, masking=Masking(0.5, 0.2, 0.3))
    _, calls = shown_to(bert(), documents, settings, tokenizer=tokenizer())
    shown = torch.cat([ids for ids, _ in calls]).flatten()
    assert len(shown) == 10 * 400 * 12
    shares = torch.bincount(shown, minlength=len(tokenizer())) / len(shown)
    assert shares[tokenizer().mask_token_id].item() == pytest.approx(0.5 * 0.5, abs=0.01)
    assert shares[7].item() == pytest.approx(0.5 + 0.5 * (0.2 + 0.3 / len(ordinary)), abs=0.01)
    assert set(shares.nonzero()[:, 0].tolist()) == ordinary | {tokenizer().mask_token_id}


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_rows_hold_norms_and_rotations_of_the_hugging_face_parameters_which_torch_moves_alike(optimizer):
    model, other, kept = bert(noise=0.01), bert(noise=0.01), []
    make = torch.optim.Adam if optimizer == "adam" else torch.optim.SGD
    torchs = make(other.parameters(), lr=0.01, weight_decay=2 * 0.1)
    settings = config(
        optimizer=optimizer, learning_rate=0.01, l2=0.1, masking=Masking(1.0, 0.0, 0.0), batch_size=15
    )
    documents = tokenizer()(TEXTS[:3], truncation=True, max_length=16)["input_ids"]
    history, calls = shown_to(model, documents, settings, tokenizer=tokenizer())
    special = torch.isin(padded(documents), torch.tensor(tokenizer().all_special_ids))
    for shown, mask in calls:
        kept.append({name: p.detach().double().flatten() for name, p in hugging_face(other).items()})
        labels = padded(documents).masked_fill(special | (mask == 0), -100)
        torchs.zero_grad()
        other(input_ids=shown, attention_mask=mask, labels=labels).loss.backward()
        torchs.step()
    assert len(history) == len(kept) == 15
    assert set(history.norms) == {"W_E", *PLACES}
    for row, now in enumerate(kept):
        for name, norms in history.norms.items():
            assert norms[row].item() == pytest.approx(now[name].norm().item(), rel=1e-4)
        for name in ("W_V.0", "W_V.1"):
            cosine = (
                torch.cosine_similarity(now[name], kept[row - 10][name], dim=0)
                if row > 9
                else torch.tensor(torch.nan)
            )
            expected = ((1 - cosine) / 2).item()
            assert history.rotations[name][row].item() == pytest.approx(
                expected, rel=0.01, abs=1e-6, nan_ok=True
            )


def test_a_bert_learns_from_context_and_any_measurement_takes_it_without_disturbing_it():
    topics = tp.Topics.from_word_lists({"war": ["army", "battle"], "music": ["song", "piano"]}, tokenizer())
    texts = ["army battle " * 5, "piano song " * 5]
    settings = config(steps=60, optimizer="adam", learning_rate=0.02, masking=Masking(0.3, 0.0, 0.0))
    model, other = (bert(init="usual", n_layers=1, scale=0.1) for _ in range(2))

    def measure(model):
        attention = tp.measure_attention(model, topics, stream(["army battle piano song"]), n_permutations=0)
        cosine = tp.measure_embeddings(model, topics).cosine
        return {"cosine": cosine.same_topic, "attention": attention.overall.same_topic}

    history = train_text(model, stream(texts), settings, measure=measure)
    # Who knows only how frequent words are cannot get below ln 4 = 1.4, who sees the topic below ln 2 = 0.7.
    assert history.loss[-10:].mean() < 0.8
    assert history.measured["cosine"].steps.tolist() == [0, 60]
    assert torch.isfinite(history.measured["attention"].values).all()
    assert tp.measure_dynamics(history).layer == (0,)
    train_text(other, stream(texts), settings)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_dropout_is_off_while_training_and_back_on_after():
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    first, second = (
        BertForMaskedLM(BertConfig(vocab_size=len(tokenizer()), hidden_dropout_prob=0.5, **sizes)).train()
        for _ in range(2)
    )
    second.load_state_dict(first.state_dict())
    state = torch.get_rng_state()
    histories = [train_text(model, stream(), config()) for model in (first, second)]
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(histories[0].table.nan_to_num(-1), histories[1].table.nan_to_num(-1))
    assert first.training
    assert histories[0].toy.init == "given"


# Stopping and going on


def test_a_training_stopped_by_ctrl_c_and_continued_is_the_one_never_stopped_also_from_disk(tmp_path):
    schedule = ((2, ("W_V", "W_E", "bert", "cls")), (1, ("W_K", "W_Q")))
    settings = config(optimizer="adam", steps=20, learning_rate=0.01, schedule=schedule)
    whole = train_text(bert(), stream(), settings)
    for name, norms in whole.norms.items():
        moves = [(step % 3 == 2) == (name[:3] in ("W_K", "W_Q")) for step in range(20)]
        assert (norms.diff() != 0).tolist() == moves, name

    def stop(step, row):
        if step == 12:
            signal.raise_signal(signal.SIGINT)

    part = train_text(bert(), stream(), settings, checkpoint=tmp_path / "run", log=stop)
    assert part.stopped == "interrupted after step 13 of 20"
    model = bert(seed=5)  # whatever it starts from, the checkpoint has the rest
    rest = train_text(model, stream(), settings, checkpoint=tmp_path / "run")
    assert torch.equal(rest.table.nan_to_num(-1), whole.table.nan_to_num(-1))
    assert all(torch.equal(value, whole.tensors[name]) for name, value in rest.tensors.items())
    loaded, ids = tp.load_report(rest.save(tmp_path / "history")), torch.tensor([[2, 7, 8, 3]])
    assert (loaded.toy, loaded.columns) == (rest.toy, rest.columns)
    assert torch.equal(loaded.model()(ids).logits, model(ids).logits)
    with pytest.raises(ValueError, match="another text config: documents"):
        train_text(bert(), stream([*TEXTS, "one more text"]), settings, checkpoint=tmp_path / "run")


def test_n_documents_reads_the_first_documents():
    settings = config(n_documents=2, batch_size=2)
    two, all_but_two = (train_text(bert(), stream(texts), settings) for texts in (TEXTS, TEXTS[:2]))
    assert torch.equal(two.loss, all_but_two.loss)


@pytest.mark.parametrize(
    ("documents", "options", "message"),
    [
        ([[7, 8]], None, "pass tokenizer="),
        ([], {}, "no document to train on"),
        ([[7, 99]], {}, "ids 0..99, but the model knows"),
        ([[7] * 17], {}, "longest document has 17 tokens"),
        ([[7]], {"loss": "squared"}, "loss is an option of the toy"),
        ([[7]], {"remask": False}, "remask is an option of the toy"),
        ([[7]], {"masking": Masking(0.0)}, "nothing is masked"),
        ([[2, 3]], {}, "batches in a row had nothing masked"),
    ],
)
def test_bad_input_is_refused_with_what_was_needed(documents, options, message):
    given = None if options is None else tokenizer()
    with pytest.raises(ValueError, match=message):
        train_text(bert(), documents, config(**options or {}), tokenizer=given)


def test_other_models_are_refused():
    small = {"n_embd": 8, "n_layer": 1, "n_head": 1, "vocab_size": len(tokenizer()), "n_positions": 16}
    with pytest.raises(TypeError, match=r"transformers\.BertForMaskedLM"):
        train_text(GPT2LMHeadModel(GPT2Config(**small)), stream(), config())
    with pytest.raises(ValueError, match="multiple of n_heads"):
        TextConfig(10, d_model=10, n_heads=4)
    with pytest.raises(ValueError, match="no tensor of this model"):
        build_bert(TextConfig(10, **SIZES), tensors={"W_X": torch.zeros(1)})
