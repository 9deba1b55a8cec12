"""Threads take turns with what they share."""

import sys
import threading

import pytest
import small_language

from topic_probe import turns
from topic_probe.text.encoder import encode_texts
from topic_probe.turns import in_turn


def test_nobody_else_is_in_a_block_with_any_of_the_same_objects():
    one, two, three = object(), object(), object()
    inside, most = [], []

    def work(*shared):
        for _ in range(200):
            with in_turn(*shared), in_turn(two):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [
        threading.Thread(target=work, args=pair) for pair in ((one, two), (two, three), (two,), (three, two))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert len(most) == 800
    assert not turns._holder


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_turn_ends_with_an_error_inside_or_while_waiting(error):
    thing = object()

    def fail():
        raise error

    with pytest.raises(error), in_turn(thing):
        fail()
    with pytest.raises(error), in_turn(thing, busy=fail):
        pass
    assert not turns._holder


def test_only_the_outer_block_of_a_thread_gives_its_objects_back():
    thing, other = object(), object()
    with in_turn(thing):
        with in_turn(thing, other):
            assert set(turns._holder) == {id(thing), id(other)}
        assert set(turns._holder) == {id(thing)}
    assert not turns._holder


def test_threads_may_share_a_tokenizer_that_cuts():
    tokenizer = small_language.tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(7)
    texts = small_language.texts(20)
    before, lengths = sys.getswitchinterval(), []

    def encode():
        for text in texts:
            lengths.extend(map(len, encode_texts([text, text], tokenizer)))

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=encode) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert lengths == [52] * 240  # 50 words and two special tokens
    assert tokenizer.backend_tokenizer.truncation["max_length"] == 7
