"""Documents in every usual shape become the same batches, and nothing is lost without being counted."""

import hashlib

import numpy as np
import pytest
import torch

from topic_probe.text import batches
from topic_probe.text.batches import token_batches
from topic_probe.text.documents import Counts, Document
from topic_probe.toy.world import Documents

WANTED = [[5, 6, 7], [8], [9, 10]]
IDS = torch.tensor([[5, 6, 7], [8, 0, 0], [9, 10, 0]])
MASK = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0]])
TORN = torch.tensor([[1, 0, 1]])


def read(documents, **options):
    """The documents of all batches as lists, in the order in which they came."""
    return [
        row[kept].tolist()
        for batch in token_batches(documents, **options)
        for row, kept in zip(batch.ids, batch.mask, strict=True)
    ]


@pytest.mark.parametrize(
    "documents",
    [
        iter(WANTED),
        [np.array(row, dtype=np.uint16) for row in WANTED],
        [torch.tensor(row, dtype=torch.int32) for row in WANTED],
        [Document(torch.tensor(row)) for row in WANTED],
        (IDS.numpy(), MASK.bool().numpy()),
        (IDS, MASK.float()),
        (torch.tensor([[5, 6, 7], [0, 0, 8], [0, 9, 10]]), torch.tensor([[1, 1, 1], [0, 0, 1], [0, 1, 1]])),
        {"input_ids": WANTED},
        [{"input_ids": row, "text": "…"} for row in WANTED],
        [[IDS[:2], MASK[:2]], [IDS[2:], MASK[2:]]],  # what a data loader gives
        [(IDS[:2], MASK[:2]), (IDS[2:], MASK[2:])],
        Documents(IDS, MASK.bool()),
        {"input_ids": IDS, "attention_mask": MASK.tolist()},
        [WANTED[0], {"input_ids": IDS[1:2], "attention_mask": MASK[1:2]}, torch.tensor(WANTED[2])],
    ],
)  # fmt: skip
def test_documents_in_any_usual_shape_mean_the_same(documents):
    (batch,) = token_batches(documents, pad_id=0, vocabulary_size=11)
    assert batch.ids.tolist() == [[5, 6, 7], [9, 10, 0], [8, 0, 0]]  # longest first, padded on the right
    assert batch.mask.int().tolist() == [[1, 1, 1], [1, 1, 0], [1, 0, 0]]
    assert (batch.ids.dtype, batch.mask.dtype) == (torch.int64, torch.bool)


def test_two_tables_in_a_list_are_two_batches_unless_the_second_is_a_mask():
    assert read([IDS[:1], IDS[:1] + 1]) == [[5, 6, 7], [6, 7, 8]]
    assert read([torch.tensor([[5, 6]]), torch.tensor([[1, 0]])]) == [[5]]
    assert read([torch.tensor([[5, 6]]), torch.tensor([[1, 1, 1]])]) == [[1, 1, 1], [5, 6]]
    assert read(Document(torch.tensor([5, 6]))) == [[5, 6]]


def test_a_batch_carries_words_specials_sinks_and_keys_and_of_bare_ids_every_token_is_a_word():
    given = [
        Document(torch.tensor([1, 5, 6, 2]), torch.tensor([-1, 0, 0, -1]), torch.tensor([1, 0, 0, 1]).bool()),
        {"input_ids": [7, 8, 9], "word_index": [0, 1, None], "special_tokens_mask": [0, 0, 1]},
        [7, 3],
    ]  # fmt: skip
    counts = Counts()
    (batch,) = token_batches(given, special_ids={3, 8}, pad_id=3, first_is_sink=True, counts=counts)
    assert batch.ids.tolist() == [[1, 5, 6, 2], [7, 8, 9, 3], [7, 3, 3, 3]]
    assert batch.word_index.tolist() == [[-1, 0, 0, -1], [0, -1, -1, -1], [0, -1, -1, -1]]
    assert batch.whole.int().tolist() == [[0, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]
    assert batch.without_words.tolist() == [False, False, True]
    assert batch.special.int().tolist() == [[1, 0, 0, 1], [0, 1, 1, 0], [0, 1, 0, 0]]  # padding is not
    assert batch.sinks.int().tolist() == [[1, 0, 0, 1], [1, 1, 1, 0], [1, 1, 0, 0]]
    assert counts.without_words == 1
    # blake2b of the little-endian bytes.
    keys = [
        hashlib.blake2b(np.array(ids, dtype="<i8").tobytes(), digest_size=8)
        for ids in ([1, 5, 6, 2], [7, 8, 9])
    ]
    assert batch.keys[:2].tolist() == [int.from_bytes(key.digest(), "little", signed=True) for key in keys]  # fmt: skip


def test_batches_hold_documents_of_similar_length_and_every_document_once():
    lengths = np.random.default_rng(0).integers(1, 50, size=100).tolist()
    documents = [[number] * length for number, length in enumerate(lengths, start=1)]
    found = list(token_batches(documents, batch_size=8))
    assert [len(batch) for batch in found] == [8] * 12 + [4]
    lengths = torch.cat([batch.mask.sum(1) for batch in found])
    assert torch.equal(lengths, lengths.sort(descending=True).values)
    assert sorted(read(documents, batch_size=8)) == sorted(documents)
    assert all(batch.mask[:, -1].any() for batch in found)  # no column of padding only


def test_a_batch_can_be_halved():
    (batch,) = token_batches([[5, 6, 7, 8], [9, 10], [11]], special_ids={11})
    first, second = batch.halves()
    assert first.ids.tolist() == [[5, 6, 7, 8]]
    assert second.ids.tolist() == [[9, 10], [11, 0]]
    assert second.mask.int().tolist() == [[1, 1], [1, 0]]
    assert second.special.int().tolist() == [[0, 0], [1, 0]]
    assert second.word_index.tolist() == [[0, 1], [-1, -1]]
    assert torch.equal(torch.cat([first.keys, second.keys]), batch.keys)


def test_a_stream_is_read_no_further_ahead_than_the_batches_that_are_sorted_together():
    taken = []
    stream = (taken.append(number) or [number % 7 + 1] * (number % 5 + 1) for number in range(10**9))
    ahead = 3 * batches.BATCHES_PER_SORT
    for number, _ in enumerate(token_batches(stream, batch_size=3)):
        assert len(taken) <= ahead * (number // batches.BATCHES_PER_SORT + 1)
        if number == 3 * batches.BATCHES_PER_SORT:
            break


def test_empty_documents_are_counted_and_those_not_kept_take_no_place():
    counts = Counts()
    given = [[], [5], torch.zeros(0, dtype=torch.int64), {"input_ids": []}, (IDS, 0 * MASK)]
    assert read(given, counts=counts) == [[5]]
    assert counts.left_out == {"empty documents": 6}
    assert (counts.documents, counts.tokens) == (1, 1)
    assert read([]) == read(torch.zeros(2, 0, dtype=torch.int64), pad_id=0) == []
    assert read([[5], [6, 7], [8]], keep=lambda document: 8 not in document.ids) == [[6, 7], [5]]


def test_long_documents_are_cut_and_what_is_cut_off_is_counted():
    counts = Counts()
    documents = [[5, 6, 7, 8, 9], [5, 6], [1, 2, 3, 4], [7, 8, 9]]
    assert read(documents, max_length=3, counts=counts) == [[5, 6, 7], [1, 2, 3], [7, 8, 9], [5, 6]]
    left_out = {"documents cut at 3 tokens": 2, "tokens cut off": 3}
    assert counts.summary() == {
        "texts": 0, "documents": 4, "tokens": 11, "without_words": 4, "left_out": left_out
    }  # fmt: skip


def test_long_documents_are_chunked_between_words_and_each_piece_has_the_special_tokens():
    counts = Counts()
    words = torch.tensor([-1, 0, 1, 1, 2, 3, -1])
    document = Document(
        torch.tensor([1, 5, 6, 7, 8, 9, 2]), words, torch.tensor([1, 0, 0, 0, 0, 0, 1]).bool()
    )
    (batch,) = token_batches([document], max_length=4, long="chunk", counts=counts)
    # Room for two tokens; the word of 6 and 7 is not parted.
    assert batch.ids.tolist() == [[1, 6, 7, 2], [1, 8, 9, 2], [1, 5, 2, 0]]
    assert batch.word_index.tolist() == [[-1, 1, 1, -1], [-1, 2, 3, -1], [-1, 0, -1, -1]]
    assert batch.special.int().tolist() == [[1, 0, 0, 1], [1, 0, 0, 1], [1, 0, 1, 0]]
    assert set(batch.sources.tolist()) == {document.key}
    assert counts.left_out == {"documents cut into pieces of 4 tokens": 1}
    assert (counts.documents, counts.tokens) == (3, 11)
    bare = read(
        [[1, 5, 6, 7, 2]], max_length=4, long="chunk", special_ids={1, 2}
    )  # the special ids of the model
    assert bare == [[1, 5, 6, 2], [1, 7, 2]]


def test_a_million_tokens_are_one_document_like_any_other():
    ids = np.arange(1_000_000) % 30_000
    whole = token_batches([ids], max_length=512, long="chunk", vocabulary_size=30_000, batch_size=64)
    assert sum(int(batch.mask.sum()) for batch in whole) == 1_000_000


REFUSED = [
    ("a frog", "encode texts first"),
    (["a frog", "a toad"], "encode texts first"),
    ([["a", "frog"]], "needs token ids, .*; encode texts with encode_texts first"),
    (5, "documents must be an iterable of token-id lists, not int"),
    ([[5], None], "document 1 is None; leave missing documents out"),
    ({"text": ["a"]}, r"a batch given as a mapping needs input_ids; this one has \['text'\]"),
    ([5, 6, 7], "this looks like one document: wrap it in a list"),
    (torch.tensor([5, 6, 7]), "this looks like one document: wrap it in a list"),
    ([[5.0, 6.0]], r"document 0 needs token ids, which are whole numbers, got 5\.0"),
    ([[5], np.array([1.5])], r"document 1 needs a row of whole ids, got float64"),
    ([[5, True]], "document 0 needs token ids, which are whole numbers, got True"),
    ([{5, 6}], "document 0 needs token ids in their order, and a set has none"),
    ([np.ma.array([5, 6], mask=[0, 1])], "came as a masked array, whose mask would be lost"),
    ([torch.tensor([5, 6]).to_sparse()], "needs a dense tensor with its numbers in memory"),
    ({"input_ids": [[5]], "word_index": [[0.5]]}, "word numbers of document 0 must be whole"),
    ([[5], [5, -100]], "document 1 holds the negative id -100; padding must be masked, not marked"),
    ([[5], [97]], r"document 1 holds the token id 97, but the model knows 0\.\.96; was it"),
    (IDS, r"a batch of shape \(3, 3\) came without a mask and has rows that begin or end with"),
    ({"input_ids": IDS.flip(1)}, "came without a mask and has rows that begin or end with the padding id 0"),
    ([[0, 0, 8, 9]], "document 0 begins or ends with two of the padding id 0"),
    ((IDS, MASK[:, :2]), r"the mask must have the shape of the ids, \(3, 3\), not \(3, 2\)"),
    ({"input_ids": WANTED, "attention_mask": [[1, 1], [1], [1, 1]]}, "the mask of document 0 must have an ent"),
    ((IDS, (1.0 - MASK) * -1e9), "the mask must hold 1 on real tokens and 0 on padding; other values"),
    ((IDS[:1], TORN), "the mask of document 0 hides tokens in its middle; only padding"),
    ([{"input_ids": [5, 6], "word_index": [0]}], "word numbers of document 0 must have an entry for each"),
]  # fmt: skip


def test_what_holds_no_token_ids_or_masks_that_do_not_fit_is_refused_by_name():
    for documents, match in REFUSED:
        with pytest.raises((TypeError, ValueError), match=match):
            read(documents, pad_id=0, vocabulary_size=97)


def test_one_padding_id_at_an_end_may_be_a_token_that_ends_a_document():
    assert read([[5, 6, 0], [0, 0]], pad_id=0) == [[5, 6, 0], [0, 0]]


def test_bad_options_are_refused_before_anything_is_read():
    for options in ({"batch_size": 0}, {"max_length": 0}):
        with pytest.raises(ValueError, match="batch_size and max_length must be at least 1, not"):
            token_batches((1 / 0 for _ in range(1)), **options)
    with pytest.raises(ValueError, match="room for a token beside the 2 special ones, got 2"):
        read([[1, 5, 6, 2]], max_length=2, special_ids={1, 2})
