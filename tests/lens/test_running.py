"""Threads that measure one model, and measurements that break off."""

import sys
import threading
from contextlib import nullcontext

import pytest
import torch
import zoo

import topic_probe as tp
from topic_probe.lens.host import hidden_states, host_of

TOPICS = tp.Topics.from_token_ids({"a": range(5, 40), "b": range(40, 97)}, vocabulary_size=zoo.VOCABULARY)
DOCUMENTS = zoo.lists((20, 9, 14, 18, 7), seed=1)
QUICK = {"batch_size": 2}


def attention(model, **options):
    means = tp.measure_attention(model, TOPICS, DOCUMENTS, **QUICK, n_permutations=0, **options).heads
    return means.same_topic.tobytes(), means.different_topic.tobytes()


def in_threads(work, n):
    """Runs ``work(number)`` in threads and raises what any of them raised."""
    failed = []

    def run(number):
        try:
            work(number)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(500)
        assert not thread.is_alive()
    assert not failed


def test_threads_get_the_reports_of_one_after_the_other_bit_for_bit():
    given, other = zoo.make("bert").train(), tp.open_model(zoo.make("gpt2"))
    bridge, host = zoo.bridge(given), tp.open_model(given)
    bridge(*zoo.documents()[:1])  # a bridge puts hooks of its own on itself in its first pass
    settings = [
        lambda: attention(bridge), lambda: attention(host, include_self=False), lambda: attention(other),
        lambda: repr(tp.measure_embeddings(host, TOPICS, DOCUMENTS, **QUICK)),
        lambda: repr(tp.check_model(host)),
    ]  # fmt: skip
    alone = [measure() for measure in settings]
    before, seconds = zoo.state_of(given, bridge, host), sys.getswitchinterval()

    def measure(thread):
        for turn in range(2):
            number = (thread + turn) % len(settings)
            assert settings[number]() == alone[number]

    sys.setswitchinterval(1e-4)
    try:
        in_threads(measure, 3)
    finally:
        sys.setswitchinterval(seconds)
    assert zoo.state_of(given, bridge, host) == before


@pytest.mark.generation
@pytest.mark.parametrize(("host", "error"), [("bridge", KeyboardInterrupt), ("huggingface", ValueError)])
def test_nothing_stays_behind_of_a_measurement_that_is_stopped(host, error):
    given = zoo.make("bert").train()
    model = zoo.hosted(given, host)
    view = host_of(model)
    inputs, before = view.inputs(*zoo.documents()), zoo.state_of(given, model)

    def stop(*_):
        raise error("stopped")

    for block in (nullcontext(), zoo.at_hook_points(model)):
        with pytest.raises(error, match="stopped"), block:
            view.attention_rows(inputs, {"source": torch.zeros(3, 1, dtype=torch.int64)}, stop)
    with pytest.raises(error, match="stopped"):
        hidden_states(model, inputs, stop)
    assert zoo.state_of(given, model) == before
