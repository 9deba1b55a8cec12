"""Training a BERT on text: its start, its batches, what is recorded against a plain loop, its ends, bad input."""

from functools import cache

import pytest
import torch

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
AS_IT_IS = Masking(
    1.0, 1.0, 0.0
)  # every word is to be predicted and none is hidden, so what is shown says what is asked


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
    found = {"W_E": model.bert.embeddings.word_embeddings.weight}
    for layer, block in enumerate(model.bert.encoder.layer):
        own = block.attention.self
        found |= {
            f"W_K.{layer}": own.key.weight, f"W_Q.{layer}": own.query.weight, f"W_V.{layer}": own.value.weight
        }  # fmt: skip
    return found


def shown_to(model, documents, settings, **options):
    """The history, and what the model was called with: ids and mask of every batch."""
    calls = []
    handle = model.bert.register_forward_pre_hook(
        lambda _, given, named: calls.append((given[0].clone(), named["attention_mask"])), with_kwargs=True
    )
    history = train_text(model, documents, settings, **options)
    handle.remove()
    return history, calls


def is_special(ids):
    return torch.isin(ids, torch.tensor(tokenizer().all_special_ids))


@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_keys_queries_and_values_start_at_the_noise_and_all_else_as_in_bert(noise):
    state = torch.get_rng_state()
    model = bert(d_model=64, noise=noise)
    assert torch.equal(state, torch.get_rng_state())
    watched = hugging_face(model)
    attention = torch.cat([value.flatten() for name, value in watched.items() if name != "W_E"])
    assert attention.std().item() == pytest.approx(noise, rel=0.03)
    others = (
        model.bert.encoder.layer[0].attention.output.dense.weight,
        hugging_face(bert(init="usual"))["W_K.0"],
    )
    assert [other.std().item() for other in others] == pytest.approx([0.02, 0.02], rel=0.1)
    one, same, other = (hugging_face(bert(seed=seed))["W_K.0"] for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_losses_norms_and_rotations_are_those_of_a_plain_loop(optimizer):
    settings = config(optimizer=optimizer, learning_rate=0.01, masking=AS_IT_IS, seed=3)
    model, plain, past = bert(noise=0.01), bert(noise=0.01), []
    history, calls = shown_to(model, stream(), settings)
    torchs = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer](plain.parameters(), lr=0.01)
    assert len(history) == len(calls) == 15
    for row, (shown, mask) in enumerate(calls):
        past.append({name: value.detach().double().flatten() for name, value in hugging_face(plain).items()})
        labels = shown.masked_fill(is_special(shown) | (mask == 0), -100)
        loss = plain(input_ids=shown, attention_mask=mask, labels=labels).loss
        assert history.loss[row].item() == pytest.approx(loss.item(), rel=1e-5)
        norms = {name: value.norm().item() for name, value in past[row].items()}
        assert {name: norm[row].item() for name, norm in history.norms.items()} == pytest.approx(
            norms, rel=1e-4
        )
        for name, turned in history.rotations.items():
            before = past[row - 10][name] if row >= 10 else torch.tensor(torch.nan)
            expected = (1 - torch.cosine_similarity(past[row][name], before, dim=0)) / 2
            assert turned[row].item() == pytest.approx(expected.item(), rel=0.01, abs=1e-6, nan_ok=True)
        torchs.zero_grad()
        loss.backward()
        torchs.step()
    assert not all(mask.all() for _, mask in calls)  # padding takes part
    for name, value in hugging_face(model).items():  # 14 updates, and not the 15 that the plain loop made
        assert torch.equal(value, history.tensors[name])
        torch.testing.assert_close(value.flatten().double(), past[-1][name], rtol=1e-4, atol=1e-6)


def test_every_document_is_read_once_before_any_is_read_again():
    _, calls = shown_to(bert(), stream(), config(steps=4, masking=AS_IT_IS))
    read = [
        tuple(row[mask > 0].tolist())
        for shown, masks in calls
        for row, mask in zip(shown, masks, strict=True)
    ]
    assert [len(shown) for shown, _ in calls] == [4, 4, 4, 4, 2]
    assert sorted(read) == sorted(tuple(document.ids.tolist()) for document in stream())


def test_positions_are_masked_kept_or_random_in_their_shares_and_special_tokens_stay():
    documents, first = [[2, *[7] * 12, 3]] * 400, torch.zeros(len(tokenizer()))
    settings = config(batch_size=400, steps=9, learning_rate=1e-9, masking=Masking(0.5, 0.2, 0.3))
    _, calls = shown_to(bert(), documents, settings, tokenizer=tokenizer())
    shown = torch.cat([ids for ids, _ in calls])
    assert {*shown[:, 0].tolist(), *shown[:, -1].tolist()} == {2, 3}
    shares = torch.bincount(shown[:, 1:-1].flatten(), minlength=len(first)) / shown[:, 1:-1].numel()
    random = 0.5 * 0.3 / len(tokenizer())
    expected = torch.full_like(first, random)
    expected[tokenizer().mask_token_id] += 0.5 * 0.5
    expected[7] += 0.5 + 0.5 * 0.2
    torch.testing.assert_close(shares, expected, rtol=0, atol=0.005)


def test_a_bert_learns_from_context_and_any_measurement_takes_it_without_disturbing_it():
    topics = tp.Topics.from_word_lists({"war": ["army", "battle"], "music": ["song", "piano"]}, tokenizer())
    texts = ["army battle " * 5, "piano song " * 5] * 8
    settings = config(
        steps=100, batch_size=8, optimizer="adam", learning_rate=0.02, masking=Masking(0.3, 0.0, 0.0)
    )
    model, other = (bert(init="usual", n_layers=1) for _ in range(2))

    def measure(step, model):
        torch.rand(3)
        attention = tp.measure_attention(model, topics, stream(["army battle piano song"]), n_permutations=0)
        return {"step": step, "attention": attention.overall.same_topic}

    history = train_text(model, stream(texts), settings, measure=measure)
    # Who knows only how frequent words are cannot get below ln 4 = 1.4, who sees the topic below ln 2 = 0.7.
    assert history.loss[-10:].mean() < 0.8
    assert history.measured["step"].steps.tolist() == history.measured["step"].values.tolist() == [0, 100]
    assert torch.isfinite(history.measured["attention"].values).all()
    assert tp.measure_dynamics(history).layer == (0,)
    train_text(other, stream(texts), settings)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_the_seed_decides_everything_and_nothing_is_written_or_printed(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    state = torch.get_rng_state()
    one, same, other = (train_text(bert(), stream(), config(seed=seed), progress=False) for seed in (1, 1, 2))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(one.loss, same.loss)
    assert not torch.equal(one.loss, other.loss)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")
    loaded, ids = tp.load_report(one.save(tmp_path / "history")), torch.tensor([[2, 7, 8, 3]])
    assert torch.equal(loaded.model()(ids).logits, one.model()(ids).logits)


# How it ends


def test_the_rows_of_a_training_that_diverges_end():
    diverged = train_text(bert(), stream(), config(learning_rate=1e30))
    assert diverged.stopped.startswith("diverged: the loss of step 1 is nan")
    assert (diverged.last_step, len(diverged)) == (0, 1)


@pytest.mark.parametrize(
    ("documents", "options", "message"),
    [
        ([[7, 8]], None, "pass tokenizer="),
        ([], {}, "no word is to be predicted"),
        ([[7, 99]], {}, "ids 0..99, but the model knows"),
        ([[7] * 17], {}, "longest document has 17 tokens"),
        ([[7]], {"loss": "squared"}, "loss are options of the toy"),
        ([[7]], {"masking": Masking(0.0)}, "or p_mask is 0"),
        ([[2, 3]], {}, "no word is to be predicted"),
    ],
)
def test_bad_input_is_refused_with_what_was_needed(documents, options, message):
    given = None if options is None else tokenizer()
    with pytest.raises(ValueError, match=message):
        train_text(bert(), documents, config(**options or {}), tokenizer=given)
