"""Documents in every usual shape become the same batches, and nothing is lost without being counted."""

import time
import tracemalloc

import numpy as np
import pytest
import torch

from topic_probe.text import batches
from topic_probe.text.batches import token_batches
from topic_probe.text.documents import Counts, Document, cut_documents
from topic_probe.toy.world import Documents, World

WANTED = [[5, 6, 7], [8], [9, 10]]
IDS = torch.tensor([[5, 6, 7], [8, 0, 0], [9, 10, 0]])
MASK = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0]])
LEFT_IDS = torch.tensor([[5, 6, 7], [0, 0, 8], [0, 9, 10]])
LEFT_MASK = torch.tensor([[1, 1, 1], [0, 0, 1], [0, 1, 1]])


def read(documents, **options):
    """The documents of all batches as lists, in the order in which they came."""
    return [
        row[kept].tolist()
        for batch in token_batches(documents, **options)
        for row, kept in zip(batch.ids, batch.mask, strict=True)
    ]


# ------------------------------------------------------------------------------------------- every usual shape

SHAPES = {
    "lists": WANTED,
    "tuples": tuple(map(tuple, WANTED)),
    "generator": (row for row in WANTED),
    "arrays": [np.array(row) for row in WANTED],
    "arrays of int32": [np.array(row, dtype=np.int32) for row in WANTED],
    "arrays of uint16": [np.array(row, dtype=np.uint16) for row in WANTED],
    "object array": np.array([np.array(row) for row in WANTED], dtype=object),
    "tensors": [torch.tensor(row) for row in WANTED],
    "tensors of int32": [torch.tensor(row, dtype=torch.int32) for row in WANTED],
    "tensors of uint8": [torch.tensor(row, dtype=torch.uint8) for row in WANTED],
    "tensors that need gradients of nothing": [torch.tensor(row).requires_grad_(False) for row in WANTED],
    "ranges": [range(5, 8), range(8, 9), range(9, 11)],
    "ids and mask": (IDS, MASK),
    "ids and boolean mask": (IDS, MASK.bool()),
    "ids and float mask": (IDS, MASK.float()),
    "ids and mask as arrays": (IDS.numpy(), MASK.numpy()),
    "padded on the left": (LEFT_IDS, LEFT_MASK),
    "batches of ids and mask": [(IDS[:2], MASK[:2]), (IDS[2:], MASK[2:])],
    "what a data loader gives": [[IDS[:2], MASK[:2]], [IDS[2:], MASK[2:]]],
    "mapping": {"input_ids": IDS, "attention_mask": MASK},
    "mapping of lists": {"input_ids": IDS.tolist(), "attention_mask": MASK.tolist()},
    "mapping of left padded lists": {"input_ids": LEFT_IDS.tolist(), "attention_mask": LEFT_MASK.tolist()},
    "mapping without padding": {"input_ids": WANTED, "attention_mask": [[1] * len(row) for row in WANTED]},
    "mapping without mask": {"input_ids": WANTED},
    "rows of a dataset": [{"input_ids": row, "attention_mask": [1] * len(row)} for row in WANTED],
    "rows of a dataset without masks": [{"input_ids": row, "text": "…"} for row in WANTED],
    "rows of a dataset in tensors": [{"input_ids": torch.tensor(row)} for row in WANTED],
    "ids in a tensor and the mask in lists": {"input_ids": IDS, "attention_mask": MASK.tolist()},
    "documents": [Document(torch.tensor(row)) for row in WANTED],
    "object with ids and mask": Documents(IDS, MASK.bool()),
    "objects with ids and mask": iter([Documents(IDS[:1], MASK[:1].bool()), Documents(IDS[1:], MASK[1:].bool())]),
    "mixed": [WANTED[0], {"input_ids": IDS[1:2], "attention_mask": MASK[1:2]}, torch.tensor(WANTED[2])],
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_documents_in_any_usual_shape_mean_the_same(shape):
    (batch,) = token_batches(SHAPES[shape], pad_id=0, vocabulary_size=11)
    # Longest first, padded on the right.
    assert batch.ids.tolist() == [[5, 6, 7], [9, 10, 0], [8, 0, 0]]
    assert batch.mask.int().tolist() == [[1, 1, 1], [1, 1, 0], [1, 0, 0]]
    assert (batch.ids.dtype, batch.mask.dtype) == (torch.int64, torch.bool)
    assert not batch.special.any()
    assert batch.without_words.all()


@pytest.mark.parametrize("table", [IDS[:1], IDS[:1].numpy(), torch.tensor([[5, 6, 7]], dtype=torch.uint8)])
def test_a_table_without_padding_is_a_batch(table):
    assert read(table) == [[5, 6, 7]]
    assert read([table, table]) == [[5, 6, 7]] * 2


def test_two_tables_in_a_list_are_two_batches_unless_the_second_is_a_mask():
    assert read([IDS[:1], IDS[:1] + 1]) == [[5, 6, 7], [6, 7, 8]]
    assert read([torch.tensor([[5, 6]]), torch.tensor([[1, 0]])]) == [[5]]
    assert read([torch.tensor([[5, 6]]), torch.tensor([[1, 1, 1]])]) == [[1, 1, 1], [5, 6]]


def test_a_single_document_object_is_one_document():
    assert read(Document(torch.tensor([5, 6]))) == [[5, 6]]


def test_documents_of_a_world_are_read_with_their_mask():
    world = World(n_topics=3, words_per_topic=4, min_length=5, max_length=9)
    documents = world.documents(20, generator=torch.Generator().manual_seed(0))
    expected = [row[kept].tolist() for row, kept in zip(documents.ids, documents.mask, strict=True)]
    assert sorted(read(documents)) == sorted(expected)


def test_a_batch_carries_words_specials_and_keys():
    given = [
        Document(torch.tensor([101, 5, 6, 102]), torch.tensor([-1, 0, 0, -1]), torch.tensor([1, 0, 0, 1]).bool()),
        {"input_ids": [7, 8, 9], "word_index": [0, 1, None], "special_tokens_mask": [0, 0, 1]},
    ]  # fmt: skip
    (batch,) = token_batches(given, special_ids={8}, pad_id=3)
    assert batch.ids.tolist() == [[101, 5, 6, 102], [7, 8, 9, 3]]
    assert batch.word_index.tolist() == [[-1, 0, 0, -1], [0, -1, -1, -1]]
    assert batch.whole.int().tolist() == [[0, 0, 0, 0], [1, 0, 0, 0]]
    assert batch.without_words.tolist() == [False, False]
    assert batch.special.int().tolist() == [[1, 0, 0, 1], [0, 1, 1, 0]]
    assert batch.keys.tolist() == [Document(torch.tensor(row)).key for row in ([101, 5, 6, 102], [7, 8, 9])]


def test_of_bare_ids_every_token_is_a_word_and_that_is_counted():
    given = [Document(torch.tensor([5, 6, 7]), torch.tensor([0, 0, 1])), [7]]
    counts = Counts()
    (batch,) = token_batches(given, counts=counts)
    assert batch.word_index.tolist() == [[0, 0, 1], [0, -1, -1]]
    assert batch.whole.int().tolist() == [[0, 0, 1], [1, 0, 0]]
    assert batch.without_words.tolist() == [False, True]
    assert counts.without_words == 1


def test_padding_is_not_special_even_where_its_id_is():
    (batch,) = token_batches([[5, 0], [6]], special_ids={0})
    assert batch.special.int().tolist() == [[0, 1], [0, 0]]


def test_the_key_of_a_document_depends_on_its_content_alone():
    long = torch.arange(100)
    assert Document(long[10:13]).key == Document(torch.tensor([10, 11, 12])).key
    assert Document(torch.tensor([10, 11])).key != Document(torch.tensor([11, 10])).key
    # blake2b of the little-endian bytes, worked out beside this package.
    assert Document(torch.tensor([1, 2, 3])).key == int.from_bytes(
        __import__("hashlib").blake2b(np.array([1, 2, 3], dtype="<i8").tobytes(), digest_size=8).digest(),
        "little",
        signed=True,
    )


# ---------------------------------------------------------------------------------------- order and batches


def test_batches_hold_documents_of_similar_length_and_every_document_once():
    generator = np.random.default_rng(0)
    documents = [
        [number] * length for number, length in enumerate(generator.integers(1, 50, size=100), start=1)
    ]
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
    assert torch.equal(torch.cat([first.keys, second.keys]), batch.keys)


def test_halves_of_a_batch_keep_their_word_numbers():
    (batch,) = token_batches(
        [Document(torch.tensor([5, 6]), torch.tensor([0, 0])), Document(torch.tensor([7]), torch.tensor([0]))]
    )
    assert [half.word_index.tolist() for half in batch.halves()] == [[[0, 0]], [[0]]]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_stream_is_read_no_further_ahead_than_the_batches_that_are_sorted_together(batch_size):
    taken = 0

    def stream():
        nonlocal taken
        while True:
            taken += 1
            yield [taken % 7 + 1] * (taken % 5 + 1)

    ahead = batch_size * batches.BATCHES_PER_SORT
    for number, _ in enumerate(token_batches(stream(), batch_size=batch_size)):
        assert taken <= ahead * (number // batches.BATCHES_PER_SORT + 1)
        if number == 3 * batches.BATCHES_PER_SORT:
            break


def test_memory_stays_flat_however_long_the_stream():
    def peak(n):
        tracemalloc.start()
        for _ in token_batches(([5, 6, 7] * 20 for _ in range(n)), batch_size=4):
            pass
        (_, highest) = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    peak(200)
    assert peak(1200) < 1.5 * peak(300)


# ------------------------------------------------------------------------------------- what is left out, counted


def test_empty_documents_are_counted():
    counts = Counts()
    given = [[], [5], torch.zeros(0, dtype=torch.int64), {"input_ids": []}, (IDS, 0 * MASK)]
    assert read(given, counts=counts) == [[5]]
    assert counts.left_out == {"empty documents": 6}
    assert (counts.documents, counts.tokens) == (1, 1)


def test_nothing_at_all_gives_no_batch():
    assert read([]) == []
    assert read(torch.zeros(0, 5, dtype=torch.int64), pad_id=0) == []
    counts = Counts()
    assert read(torch.zeros(2, 0, dtype=torch.int64), pad_id=0, counts=counts) == []
    assert counts.left_out == {"empty documents": 2}


def test_long_documents_are_cut_and_what_is_cut_off_is_counted():
    counts = Counts()
    assert read([[5, 6, 7, 8, 9], [5, 6], [1, 2, 3, 4]], max_length=3, counts=counts) == [
        [5, 6, 7],
        [1, 2, 3],
        [5, 6],
    ]
    assert counts.left_out == {"documents cut at 3 tokens": 2, "tokens cut off": 3}
    assert (counts.documents, counts.tokens) == (3, 8)
    assert counts.summary() == {
        "texts": 0, "documents": 3, "tokens": 8, "without_words": 3,
        "left_out": {"documents cut at 3 tokens": 2, "tokens cut off": 3},
    }  # fmt: skip


def test_long_documents_are_chunked_between_words_and_each_piece_has_the_special_tokens():
    counts = Counts()
    document = Document(
        torch.tensor([1, 5, 6, 7, 8, 9, 2]),
        torch.tensor([-1, 0, 1, 1, 2, 3, -1]),
        torch.tensor([1, 0, 0, 0, 0, 0, 1]).bool(),
    )
    (batch,) = token_batches([document], max_length=4, long="chunk", counts=counts)
    # Room for two tokens; the word of 6 and 7 is not parted.
    assert batch.ids.tolist() == [[1, 6, 7, 2], [1, 8, 9, 2], [1, 5, 2, 0]]
    assert batch.word_index.tolist() == [[-1, 1, 1, -1], [-1, 2, 3, -1], [-1, 0, -1, -1]]
    assert batch.special.int().tolist() == [[1, 0, 0, 1], [1, 0, 0, 1], [1, 0, 1, 0]]
    assert set(batch.sources.tolist()) == {document.key}
    assert counts.left_out == {"documents cut into pieces of 4 tokens": 1}
    assert (counts.documents, counts.tokens) == (3, 11)


def test_bare_ids_are_chunked_by_the_special_ids_of_the_model():
    assert read([[1, 5, 6, 7, 2]], max_length=4, long="chunk", special_ids={1, 2}) == [
        [1, 5, 6, 2],
        [1, 7, 2],
    ]
    assert read([[5, 6, 7]], max_length=2, long="chunk") == [[5, 6], [7]]


@pytest.mark.parametrize("long", ["cut", "chunk"])
def test_a_word_that_a_cut_parts_is_no_word(long):
    # The word 1 is longer than the room, so it is parted: neither piece of it is a word.
    document = Document(torch.tensor([5, 6, 7, 8, 9]), torch.tensor([0, 1, 1, 1, 2]))
    parts = list(cut_documents([document], None, 2, long, Counts()))
    wanted = [([5], [0]), ([6, 7], [-1, -1]), ([8, 9], [-1, 2])][: 1 if long == "cut" else 3]
    assert [(part.ids.tolist(), part.word_index.tolist()) for part in parts] == wanted


def test_room_for_no_token_is_refused():
    with pytest.raises(
        ValueError, match="max_length must leave room for a token beside the 2 special ones, got 2"
    ):
        read([[1, 5, 6, 2]], max_length=2, special_ids={1, 2})


def test_documents_of_just_the_longest_length_are_left_alone():
    counts = Counts()
    for long in ("cut", "chunk"):
        assert read([[5, 6, 7]], max_length=3, long=long, counts=counts) == [[5, 6, 7]]
    assert not counts.left_out


def test_documents_that_are_not_kept_take_no_place():
    counts = Counts()
    (batch,) = token_batches([[5], [6, 7], [8]], keep=lambda document: 8 not in document.ids, counts=counts)
    assert batch.ids.tolist() == [[6, 7], [5, 0]]
    assert counts.documents == 3


def test_five_million_tokens_are_one_document_like_any_other():
    ids = np.arange(5_000_000) % 30_000
    start = time.process_time()
    counts = Counts()
    assert sum(batch.mask.sum() for batch in token_batches([ids], max_length=512, counts=counts)) == 512
    assert counts.left_out["tokens cut off"] == 5_000_000 - 512
    whole = token_batches([ids], max_length=512, long="chunk", vocabulary_size=30_000, batch_size=64)
    assert sum(int(batch.mask.sum()) for batch in whole) == 5_000_000
    assert time.process_time() - start < 10


# -------------------------------------------------------------------------------------------- bad documents


@pytest.mark.parametrize(
    "documents", ["a frog", b"bytes", ["a frog", "a toad"], [["a", "frog"]], {"input_ids": "a frog"}]
)
def test_texts_are_refused(documents):
    with pytest.raises(
        TypeError, match=r"encode texts first|needs token ids, .*; encode texts with encode_texts first"
    ):
        read(documents)


@pytest.mark.parametrize(
    ("documents", "match"),
    [
        (None, "documents must be an iterable of token-id lists, not NoneType"),
        (5, "documents must be an iterable of token-id lists, not int"),
        ([[5], None], "document 1 is None; leave missing documents out"),
        ({"text": ["a"]}, r"a batch given as a mapping needs input_ids; this one has \['text'\]"),
        ([5, 6, 7], "this looks like one document: wrap it in a list"),
        (torch.tensor([5, 6, 7]), "this looks like one document: wrap it in a list"),
        (np.array([5, 6, 7]), "this looks like one document: wrap it in a list"),
        ([[5.0, 6.0]], r"document 0 needs token ids, which are whole numbers, got 5\.0"),
        ([[5], np.array([1.5])], r"document 1 needs a row of whole ids, got float64"),
        ([[True, False]], "document 0 needs token ids, which are whole numbers, got True"),
        ([[5, None]], "document 0 needs token ids, which are whole numbers, got None"),
        ([[[5, 6], [7, 8]]], r"document 0 needs token ids, which are whole numbers, got \[5, 6\]"),
        ([[[5, 6], [7]]], r"document 0 needs token ids, which are whole numbers, got \[5, 6\]"),
        ([[5, True]], "document 0 needs token ids, which are whole numbers, got True"),
        ([{5, 6}], "document 0 needs token ids in their order, and a set has none"),
        ([bytearray(b"ab")], "document 0 needs a list of token ids"),
        ([np.ma.array([5, 6], mask=[0, 1])], "came as a masked array, whose mask would be lost"),
        (
            [torch.empty(2, dtype=torch.int64, device="meta")],
            "needs a dense tensor with its numbers in memory",
        ),
        ([torch.tensor([5, 6]).to_sparse()], "needs a dense tensor with its numbers in memory"),
        (torch.tensor(5), "an iterable of token-id lists, not Tensor"),
        ({"input_ids": None}, r"needs input_ids; this one has \['input_ids'\]"),
        ({"input_ids": 5}, "the parts of a batch must be rows of numbers, not int"),
        ({"input_ids": [[5]], "attention_mask": ["1"]}, "the mask of document 0 must be numbers, not '1'"),
        (
            {"input_ids": [[5]], "word_index": [[0.5]]},
            "word numbers of document 0 must be whole, not torch.float32",
        ),
        ([object()], "document 0 needs a list of token ids, got <object"),
        (torch.zeros(2, 3), "document 0 needs a row of whole ids, got torch.float32"),
    ],
)
def test_what_holds_no_token_ids_is_refused_by_name(documents, match):
    with pytest.raises(TypeError, match=match):
        read(documents)


@pytest.mark.parametrize(
    ("documents", "options", "match"),
    [
        ([[5], [5, -100]], {}, "document 1 holds the negative id -100; padding must be masked, not marked"),
        (
            [[5], [97]],
            {"vocabulary_size": 97},
            r"document 1 holds the token id 97, but the model knows 0\.\.96; was it",
        ),
        (
            IDS,
            {"pad_id": 0},
            r"a batch of shape \(3, 3\) came without a mask and has rows that begin or end with",
        ),
        (LEFT_IDS, {"pad_id": 0}, "came without a mask and has rows that begin or end with the padding id 0"),
        (
            IDS.numpy(),
            {"pad_id": 0},
            "came without a mask and has rows that begin or end with the padding id 0",
        ),
        ({"input_ids": IDS}, {"pad_id": 0}, "came without a mask and has rows that begin or end with"),
        (IDS.tolist(), {"pad_id": 0}, "document 1 begins or ends with two of the padding id 0"),
        ([[0, 0, 8, 9]], {"pad_id": 0}, "document 0 begins or ends with two of the padding id 0"),
        (
            {"input_ids": IDS.tolist()},
            {"pad_id": 0},
            "document 1 begins or ends with two of the padding id 0",
        ),
        ((IDS, MASK[:, :2]), {}, r"the mask must have the shape of the ids, \(3, 3\), not \(3, 2\)"),
        ((IDS, MASK[:2]), {}, r"the mask must have the shape of the ids, \(3, 3\), not \(2, 3\)"),
        ({"input_ids": IDS, "attention_mask": MASK[:, None, None]}, {}, r"\(3, 3\), not \(3, 1, 1, 3\)"),
        (
            {"input_ids": WANTED, "attention_mask": [[1, 1, 1], [1]]},
            {},
            r"shape of the ids, \(3,\), not \(2,\)",
        ),
        (
            {"input_ids": WANTED, "attention_mask": [[1, 1], [1], [1, 1]]},
            {},
            "the mask of document 0 must have an ent",
        ),
        (
            {"input_ids": IDS, "attention_mask": MASK[:2].tolist()},
            {},
            r"the mask must have the shape of the ids",
        ),
        (
            (IDS, (1.0 - MASK) * -1e9),
            {},
            "the mask must hold 1 on real tokens and 0 on padding; other values came",
        ),
        ((IDS, MASK + torch.nan), {}, "the mask must hold 1 on real tokens and 0 on padding"),
        ((IDS, 2 * MASK), {}, "the mask must hold 1 on real tokens and 0 on padding"),
        (
            (IDS[:1], torch.tensor([[1, 0, 1]])),
            {},
            "the mask of document 0 hides tokens in its middle; only padding",
        ),
        (
            [{"input_ids": [5, 6], "word_index": [0]}],
            {},
            "word numbers of document 0 must have an entry for each of its 2 ids",
        ),
    ],
)
def test_ids_and_masks_that_do_not_fit_are_refused_by_name(documents, options, match):
    with pytest.raises(ValueError, match=match):
        read(documents, **options)


def test_one_padding_id_at_an_end_may_be_a_token_that_ends_a_document():
    assert read([[5, 6, 0], [0, 0]], pad_id=0) == [[5, 6, 0], [0, 0]]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"batch_size": 0}, "batch_size and max_length must be at least 1, not 0 and None"),
        ({"max_length": 0}, "batch_size and max_length must be at least 1, not 32 and 0"),
    ],
)
def test_bad_options_are_refused_before_anything_is_read(options, match):
    with pytest.raises(ValueError, match=match):
        token_batches((1 / 0 for _ in range(1)), **options)


@pytest.mark.parametrize(
    ("parts", "error", "match"),
    [
        (
            (torch.tensor([[5]]),),
            TypeError,
            r"ids of a Document must be a row of torch.int64, not torch.int64 of shape \(1, 1\)",
        ),
        (
            (torch.tensor([5], dtype=torch.int32),),
            TypeError,
            "ids of a Document must be a row of torch.int64, not torch.int32",
        ),
        (
            (torch.tensor([5, 6]), torch.tensor([0])),
            ValueError,
            "word_index of a Document must have an entry for each",
        ),
        (
            (torch.tensor([5, 6]), None, torch.ones(3).bool()),
            ValueError,
            "special of a Document must have an entry",
        ),
    ],
)
def test_a_document_whose_parts_do_not_fit_is_refused(parts, error, match):
    with pytest.raises((error, TypeError), match=f"{match}|Type-check error"):
        Document(*parts)
    bare = object.__new__(Document)
    for name, part in zip(("ids", "word_index", "special"), (*parts, None, None), strict=False):
        object.__setattr__(bare, name, part)
    with pytest.raises(error, match=match):
        bare.__post_init__()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"special_ids": [True]}, "special_ids needs token ids, which are whole numbers, got True"),
        ({"special_ids": ["5"]}, "special_ids needs token ids, which are whole numbers, got '5'"),
        ({"special_ids": "5"}, "special_ids must be a list of whole numbers, got '5'"),
        ({"vocabulary_size": 0}, "vocabulary_size must be at least 1, got 0"),
        ({"vocabulary_size": 2**80}, "vocabulary_size is too large to count with"),
        ({"batch_size": "3"}, "batch_size must be a whole number, got '3'"),
        ({"max_length": True}, "max_length must be a whole number or None, got True"),
    ],
)
def test_options_of_wrong_types_are_named(options, match, unchecked):
    with pytest.raises((TypeError, ValueError), match=match):
        token_batches([[5]], **options)
