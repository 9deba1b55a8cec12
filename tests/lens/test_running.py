"""Threads that measure one model, and measurements from within its forward pass."""

import copy
import pickle
import sys
import threading
import time

import pytest
import torch
import zoo

import topic_probe as tp
from topic_probe.lens import capture, running
from topic_probe.text.cooccurrence import count_cooccurrence

TOPICS = tp.Topics.from_token_ids(
    {str(topic): range(5 + 10 * topic, 15 + 10 * topic) for topic in range(6)}, vocabulary_size=zoo.VOCABULARY
)
IDS, MASK = zoo.documents((20, 9, 14, 18, 7), seed=1)
DOCUMENTS = [row[real].tolist() for row, real in zip(IDS, MASK, strict=True)]
QUICK = {"n_resamples": 0, "batch_size": 2}


def everything(*models):
    """All of a model that a measurement changes for a moment, and what it could leave on one."""
    return [
        (name, module.training, len(module._forward_hooks), len(module._forward_pre_hooks))
        for model in models
        for name, module in model.named_modules()
    ] + [
        *(config._attn_implementation_internal for model in models for config in running.configs(model)),
        *(
            sorted(vars(module))
            for model in models
            if not capture.is_hooked(model)
            for module in model.modules()
        ),
        *(parameter.requires_grad for model in models for parameter in model.parameters()),
        torch.is_grad_enabled(),
    ]


def used(model):
    """A model that was run once, because a bridge puts hooks of its own on itself then, and tried once."""
    model(IDS, attention_mask=MASK.long())
    capture.view(model)
    return model


def numbers(report):
    if isinstance(report, tp.ModelCheck):
        return repr(report)
    parts = (
        [report.heads, report.matched] if isinstance(report, tp.AttentionReport) else report.layers.values()
    )
    return [
        getattr(part, mean).tobytes() for part in parts for mean in ("same_topic", "different_topic", "ratio")
    ]


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
    if failed:
        raise failed[0]


@pytest.fixture
def restless():
    """Threads are changed as often as Python can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize(("threads", "turns"), [(4, 4), pytest.param(8, 15, marks=pytest.mark.slow)])
def test_threads_get_the_reports_of_one_after_the_other_bit_for_bit(restless, threads, turns):
    given = zoo.make("bert").train()
    bridge, host = zoo.bridge(given), tp.open_model(given)
    settings = [
        lambda: tp.measure_attention(bridge, TOPICS, DOCUMENTS, **QUICK, n_permutations=3),
        lambda: tp.measure_attention(bridge, TOPICS, DOCUMENTS, **QUICK, n_permutations=0, through="hooks"),
        lambda: tp.measure_attention(host, TOPICS, DOCUMENTS, n_resamples=0, batch_size=3, n_permutations=3),
        lambda: tp.measure_attention(
            host, TOPICS, DOCUMENTS[::-1], **QUICK, n_permutations=0, through="hooks"
        ),
        lambda: tp.measure_embeddings(bridge, TOPICS, DOCUMENTS, **QUICK),
        lambda: tp.measure_embeddings(host, TOPICS, DOCUMENTS, **QUICK),
        lambda: tp.measure_attention(given, TOPICS, DOCUMENTS[:2], **QUICK, n_permutations=0),
        lambda: tp.check_model(host),
    ]
    alone = [numbers(measure()) for measure in settings]
    before = everything(given, bridge, host)

    def measure(thread):
        for turn in range(turns):
            number = (thread + turn) % len(settings)
            assert numbers(settings[number]()) == alone[number]

    in_threads(measure, threads)
    assert everything(given, bridge, host) == before
    assert pickle.dumps(given)
    assert everything(copy.deepcopy(given)) == everything(given)


def sharing():
    """Pairs that are one model, which cannot be measured twice at once."""
    whole = zoo.make("bert")
    yield "a model and its host", whole, tp.open_model(whole)
    yield "two hosts", tp.open_model(whole), tp.open_model(whole)
    bridge = zoo.bridge(whole)
    yield "a bridge and the model inside", bridge, tp.open_model(bridge.original_model)
    yield "a model and its trunk", whole, whole.bert


@pytest.mark.parametrize(("one", "other"), [pytest.param(*pair, id=name) for name, *pair in sharing()])
def test_one_model_is_measured_by_one_thread_after_the_other(one, other):
    entered = threading.Event()

    def enter():
        with running.by_itself(other):
            entered.set()

    thread = threading.Thread(target=enter, daemon=True)
    with running.by_itself(one):
        with running.by_itself(one):  # a thread may enter again
            thread.start()
        assert not entered.wait(0.2)
    assert entered.wait(10)
    thread.join()


def test_models_that_share_nothing_are_measured_at_once():
    one, other = zoo.make("bert"), zoo.make("bert", seed=1)

    def enter(_):
        with running.by_itself(other):
            pass

    with running.by_itself(one):
        in_threads(enter, 1)


MEASUREMENTS = {
    "open_model": lambda model: tp.open_model(model.original_model),
    "check_model": tp.check_model,
    "show_attention": lambda model: tp.show_attention(model, TOPICS, DOCUMENTS[0]),
    "measure_attention": lambda model: tp.measure_attention(model, TOPICS, DOCUMENTS, **QUICK),
    "measure_matched": lambda model: tp.measure_matched(
        model, TOPICS, DOCUMENTS, cooccurrence=count_cooccurrence(DOCUMENTS, TOPICS), min_documents=1, **QUICK
    ),
    "measure_embeddings": lambda model: tp.measure_embeddings(model, TOPICS, DOCUMENTS, **QUICK),
    "random_init": tp.random_init,
}
REFUSED = "asked for within a forward pass of the model that it is about, by a hook on"


@pytest.mark.parametrize("measure", MEASUREMENTS.values(), ids=MEASUREMENTS)
@pytest.mark.parametrize("kind", ["bridge", "huggingface"])
def test_a_hook_that_measures_its_own_model_is_told_so(measure, kind):
    model = used(zoo.hosted(zoo.make("bert"), kind))
    before = everything(model)
    hook = capture.sites(model)[0].hook_name, lambda pattern, hook: measure(model)
    with pytest.raises(RuntimeError, match=f"{REFUSED} HookPoint"), model.hooks(fwd_hooks=[hook]):
        model(IDS, attention_mask=MASK.long())
    assert everything(model) == before


@pytest.mark.parametrize("name", ["bert", "mpnet"])
def test_a_hook_that_is_met_by_a_measurement_or_its_trial_cannot_measure_either(name):
    given = zoo.make(name)
    before = everything(given)
    layer = given.base_model.encoder.layer[0]
    handle = layer.register_forward_hook(lambda *_: tp.measure_attention(given, TOPICS, DOCUMENTS, **QUICK))
    with pytest.raises(RuntimeError, match=f"{REFUSED} {type(layer).__name__}"):
        tp.measure_attention(given, TOPICS, DOCUMENTS, **QUICK)
    handle.remove()
    assert everything(given) == before


def test_a_hook_may_measure_another_model():
    model, other = (tp.open_model(zoo.make("bert", seed=seed)) for seed in (0, 1))
    reports = []

    def hook(pattern, hook):
        reports.append(tp.measure_attention(other, TOPICS, DOCUMENTS, **QUICK))

    with model.hooks(fwd_hooks=[(capture.sites(model)[0].hook_name, hook)]):
        model(IDS, attention_mask=MASK.long())
    assert numbers(reports[0]) == numbers(tp.measure_attention(other, TOPICS, DOCUMENTS, **QUICK))


def test_a_slow_pass_of_another_thread_is_waited_for():
    given = zoo.make("bert")
    host, other = (tp.open_model(given) for _ in range(2))
    alone = numbers(tp.measure_attention(host, TOPICS, DOCUMENTS, **QUICK))
    embed, slow = given.get_input_embeddings(), threading.Event()
    forward = embed.forward

    def sleepily(ids):
        slow.set()
        time.sleep(0.3)
        return forward(ids)

    embed.forward = sleepily
    capture.view(other)
    slow.clear()
    with_care = []

    def measure(thread):
        with_care.append(numbers(tp.measure_attention(other, TOPICS, DOCUMENTS, **QUICK)))

    in_threads(measure, 2)
    del embed.forward
    assert with_care == [alone] * 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("kind", ["bridge", "huggingface"])
def test_nothing_stays_behind_of_a_measurement_that_is_stopped(error, kind):
    given = zoo.make("bert").train()
    model = zoo.hosted(given, kind)
    capture.view(model)
    before = everything(given, model)

    def stop(*_):
        raise error("stopped")

    def measure(_):
        inputs = capture.view(model).inputs(IDS, MASK)
        with pytest.raises(error, match="stopped"):
            capture.hidden_states(model, inputs, stop)
        with pytest.raises(error, match="stopped"):
            capture.view(model).attention_rows(
                inputs, {"source": torch.zeros(len(IDS), 1, dtype=torch.int64)}, stop
            )
        assert everything(given, model) == before

    measure(0)
    in_threads(measure, 1)


def test_different_models_in_different_threads_do_not_disturb_each_other(restless):
    names = ("bert", "gpt2", "mpnet")
    models = {name: tp.open_model(zoo.make(name)) for name in names}
    alone = {
        name: numbers(tp.measure_attention(model, TOPICS, DOCUMENTS, **QUICK, n_permutations=2))
        for name, model in models.items()
    }
    twins = [tp.random_init(models["bert"], seed=seed).W_E for seed in range(3)]
    generator = torch.get_rng_state()

    def measure(number):
        model = models[names[number]]
        report = tp.measure_attention(model, TOPICS, DOCUMENTS, **QUICK, n_permutations=2)
        assert numbers(report) == alone[names[number]]
        assert torch.equal(tp.random_init(models["bert"], seed=number).W_E, twins[number])

    in_threads(measure, 3)
    assert torch.equal(torch.get_rng_state(), generator)
