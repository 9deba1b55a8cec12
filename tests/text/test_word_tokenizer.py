"""The tokenizer of words that is made of texts."""

import pytest

from topic_probe.text.word_tokenizer import SPECIAL_TOKENS, word_tokenizer


def test_the_word_tokenizer_knows_the_most_frequent_words_equal_ones_in_alphabetical_order():
    tok = word_tokenizer(["b a c", "c b", "c d é"], n_words=4)
    # c three times, b twice, then once each: a, d, e (without its accent).
    assert [tok.convert_ids_to_tokens(i) for i in range(len(tok))] == [*SPECIAL_TOKENS, "c", "b", "a", "d"]
    assert tok("C é b")["input_ids"] == [2, 5, 1, 6, 3]
    assert tok.mask_token_id == 4


def test_the_word_tokenizer_refuses_what_it_cannot_read():
    with pytest.raises(TypeError, match=r"texts must be a list, got .*: put a single one into a list"):
        word_tokenizer("some text")
    with pytest.raises(ValueError, match="no words"):
        word_tokenizer(["", " "])
    with pytest.raises(ValueError, match="n_words"):
        word_tokenizer(["a"], n_words=0)
