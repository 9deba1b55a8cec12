"""Documents in every shape become the same batches, and nothing is lost without being counted."""

import hashlib

import numpy as np
import pytest
import torch

from topic_probe.text.batches import token_batches
from topic_probe.text.documents import Counts, Document, cut_documents, read_documents
from topic_probe.toy.world import Documents

WANTED = [[5, 6, 7], [8], [9, 10]]
IDS = torch.tensor([[5, 6, 7], [8, 0, 0], [9, 10, 0]])
MASK = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0]])


def read(documents, pad_id=None, vocabulary_size=None):
    """The ids of documents as they are read and checked."""
    read = read_documents(documents, pad_id=pad_id)
    return [one.ids.tolist() for one in cut_documents(read, vocabulary_size, None, "cut", Counts())]


@pytest.mark.parametrize(
    "documents",
    [
        iter(WANTED),
        [torch.tensor(row, dtype=torch.int32) for row in WANTED],
        [Document(torch.tensor(row)) for row in WANTED],
        {"input_ids": WANTED},
        [{"input_ids": row, "text": "…"} for row in WANTED],
        {"input_ids": IDS, "attention_mask": MASK.float()},
        {"input_ids": [[5, 6, 7], [0, 0, 8], [0, 9, 10]], "attention_mask": [[1, 1, 1], [0, 0, 1], [0, 1, 1]]},
        [{"input_ids": IDS[:2], "attention_mask": MASK[:2]}, {"input_ids": IDS[2], "attention_mask": MASK[2]}],
        Documents(IDS, MASK.bool()),
    ],
)  # fmt: skip
def test_documents_in_any_of_three_shapes_mean_the_same(documents):
    assert read(documents, pad_id=0, vocabulary_size=11) == WANTED


REFUSED = [
    ("a frog", "three shapes.*encode_texts"),
    (["a frog", "a toad"], "got 'a frog'.*encode_texts"),
    ([["a", "frog"]], "document 0 needs a row of token ids"),
    (5, "got 5"),
    ({"text": ["a"]}, r"got {'text': \['a'\]}"),
    ([5, 6, 7], "got 5"),
    (torch.tensor([5, 6, 7]), r"got tensor\(5\)"),
    ((IDS, MASK), r"(?s)got tensor.*'attention_mask': mask"),
    ([[5.0, 6.0]], r"document 0 needs a row of token ids, which are whole numbers, got \[5\.0"),
    ([[5], [5, -100]], "document 1 holds the negative id -100; padding must be masked, not marked"),
    ([[5], [97]], r"document 1 holds the token id 97, but the model knows 0\.\.96; was it"),
    (IDS, "document 1 begins or ends with two of the padding id 0 and came without a mask"),
    ({"input_ids": IDS.flip(1)}, "document 1 begins or ends with two of the padding id 0"),
    ({"input_ids": IDS, "attention_mask": MASK[:2]}, "shorter"),
    ({"input_ids": IDS, "attention_mask": MASK[:, :2]}, "attention_mask of document 0 must hold 1 on its tokens"),
    ({"input_ids": IDS, "attention_mask": (1.0 - MASK) * -1e9}, "attention_mask of document 1 must hold 1"),
]  # fmt: skip


@pytest.mark.parametrize(("documents", "match"), REFUSED)
def test_what_holds_no_token_ids_or_masks_that_do_not_fit_is_refused_by_name(documents, match):
    with pytest.raises((TypeError, ValueError), match=match):
        read(documents, pad_id=0, vocabulary_size=97)


def test_a_batch_carries_words_specials_sinks_and_keys_and_of_bare_ids_every_token_is_a_word():
    given = [
        Document(torch.tensor([1, 5, 6, 2]), torch.tensor([-1, 0, 0, -1]), torch.tensor([1, 0, 0, 1]).bool()),
        Document(torch.tensor([7, 8, 9]), torch.tensor([0, 1, -1]), torch.tensor([0, 0, 1]).bool()),
        Document(torch.tensor([7, 3])),
    ]  # fmt: skip
    (batch,) = token_batches(given, special_ids={3, 8}, pad_id=3, first_is_sink=True)
    assert batch.ids.tolist() == [[1, 5, 6, 2], [7, 8, 9, 3], [7, 3, 3, 3]]
    assert batch.mask.int().tolist() == [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]]
    assert batch.word_index.tolist() == [[-1, 0, 0, -1], [0, -1, -1, -1], [0, -1, -1, -1]]
    assert batch.whole.int().tolist() == [[0, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]
    assert batch.without_words.tolist() == [False, False, True]
    assert batch.special.int().tolist() == [[1, 0, 0, 1], [0, 1, 1, 0], [0, 1, 0, 0]]  # padding is not
    assert batch.sinks.int().tolist() == [[1, 0, 0, 1], [1, 1, 1, 0], [1, 1, 0, 0]]
    key = hashlib.blake2b(np.array([1, 5, 6, 2], dtype="<i8").tobytes(), digest_size=8).digest()
    assert batch.keys[0] == int.from_bytes(key, "little", signed=True)
    first, second = batch.halves()
    assert first.ids.tolist() == [[1, 5, 6, 2]]
    assert second.ids.tolist() == [[7, 8, 9], [7, 3, 3]]
    assert torch.equal(torch.cat([first.keys, second.keys]), batch.keys)


def test_batches_hold_documents_of_similar_length_and_every_document_once():
    lengths = np.random.default_rng(0).integers(1, 50, size=100).tolist()
    documents = [[number] * length for number, length in enumerate(lengths, start=1)]
    found = list(token_batches(read_documents(documents), batch_size=8))
    assert [len(batch) for batch in found] == [8] * 12 + [4]
    lengths = torch.cat([batch.mask.sum(1) for batch in found])
    assert torch.equal(lengths, lengths.sort(descending=True).values)
    rows = [row[kept].tolist() for batch in found for row, kept in zip(batch.ids, batch.mask, strict=True)]
    assert sorted(rows) == sorted(documents)
    assert all(batch.mask[:, -1].any() for batch in found)  # no column of padding only


def test_long_documents_are_cut_empty_ones_left_out_and_both_are_counted():
    counts = Counts()
    documents = [[5, 6, 7, 8, 9], [5, 6], [], [1, 2, 3, 4], [7, 8, 9], {"input_ids": []}]
    cut = cut_documents(read_documents(documents), None, 3, "cut", counts)
    assert [one.ids.tolist() for one in cut] == [[5, 6, 7], [5, 6], [1, 2, 3], [7, 8, 9]]
    left_out = {"documents cut at 3 tokens": 2, "empty documents": 2, "tokens cut off": 3}
    assert counts.summary() == {
        "texts": 0, "documents": 4, "tokens": 11, "without_words": 4, "left_out": left_out
    }  # fmt: skip


def test_pieces_of_long_documents_have_the_special_tokens_and_are_counted():
    counts = Counts()
    words = torch.tensor([-1, 0, 1, 1, 2, 3, -1])
    document = Document(
        torch.tensor([1, 5, 6, 7, 8, 9, 2]), words, torch.tensor([1, 0, 0, 0, 0, 0, 1]).bool()
    )
    pieces = list(cut_documents([document], None, 4, "chunk", counts))
    # Room for two tokens; the word of 6 and 7 is not parted.
    assert [piece.ids.tolist() for piece in pieces] == [[1, 5, 2], [1, 6, 7, 2], [1, 8, 9, 2]]
    assert counts.left_out == {"documents cut into pieces of 4 tokens": 1}
    assert (counts.documents, counts.tokens) == (3, 11)
    bare = cut_documents(read_documents([[1, 5, 6, 7, 2]]), None, 4, "chunk", counts, special_ids={1, 2})
    assert [piece.ids.tolist() for piece in bare] == [[1, 5, 6, 2], [1, 7, 2]]
