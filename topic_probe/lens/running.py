"""How a model is run: one thread at a time, in evaluation mode, with all that it needs, and back as it was."""

import inspect
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from topic_probe.lens.sites import Inputs

_locks: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()
_tf32 = RLock()


def lock_of(model: nn.Module) -> Any:
    """The lock of a model, which a thread holds while it reads it; the model inside a host and its trunk have the same.

    A measurement changes modes, attention implementations and hooks for the length of a forward pass, and two at once
    would undo each other's changes.
    """
    while True:
        inside = getattr(model, "original_model", getattr(model, "base_model", None))
        if not isinstance(inside, nn.Module) or inside is model:
            return _locks.setdefault(model, RLock())
        model = inside


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients, in one thread; every module gets its own mode back, also after an exception.

    Dropout would otherwise sit inside the pattern, and rows would sum to anything between 0 and more than 1.
    """
    with lock_of(model):
        training = [(module, module.training) for module in every_module(model)]
        try:
            for module, _ in training:
                module.training = False
            with torch.no_grad():
                yield
        finally:
            for module, was_training in training:
                module.training = was_training


@contextmanager
def exact_products(model: nn.Module) -> Iterator[None]:
    """Products of float32 keep all their digits where a model is: no TF32, no autocast, no gradients.

    TF32 is a setting of the whole process, so that models on GPUs take turns.
    """
    kind = next(model.parameters()).device.type
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if torch.amp.is_autocast_available(kind):
            stack.enter_context(torch.autocast(kind, enabled=False))
        if kind != "cpu":
            for context in (lock_of(model), _tf32, _without_tf32()):
                stack.enter_context(context)
        yield


@contextmanager
def _without_tf32() -> Iterator[None]:
    matmul = torch.backends.cuda.matmul
    # Versions of torch that have the first of the two do not take a mixture of both.
    name, exact = ("fp32_precision", "ieee") if hasattr(matmul, "fp32_precision") else ("allow_tf32", False)
    before = getattr(matmul, name)
    setattr(matmul, name, exact)
    try:
        yield
    finally:
        setattr(matmul, name, before)


@contextmanager
def generators_as_they_were() -> Iterator[None]:
    """Afterwards the generators of Python, numpy and torch draw what they would have drawn without the block."""
    own = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002 (that of the user)
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    try:
        yield
    finally:
        random.setstate(own[0])
        np.random.set_state(own[1])  # noqa: NPY002
        torch.set_rng_state(own[2])
        if devices:
            torch.cuda.set_rng_state_all(devices)


def inside_of(model: Any) -> Any:
    """The Hugging Face model inside a hooked one; None in models of TransformerLens's own layers."""
    inside = getattr(model, "original_model", None)
    return inside if isinstance(inside, nn.Module) and hasattr(inside, "get_input_embeddings") else None


def is_a(model: Any, class_name: str) -> bool:
    """Whether a model is of a class of TransformerLens (4 has dropped some), or the one that `open_model` makes."""
    return any(cls.__name__ == class_name for cls in type(model).__mro__)


# Hugging Face models.


def every_module(model: nn.Module) -> list[nn.Module]:
    """The modules of a model, hooked or not; a bridge does not count those of the Hugging Face model inside."""
    inside = getattr(model, "original_model", None)
    roots = (model, inside) if isinstance(inside, nn.Module) else (model,)
    return list(dict.fromkeys(module for root in roots for module in root.modules()))


def configs(model: nn.Module) -> list[Any]:
    """Every configuration that some part of a Hugging Face model looks at."""
    known: dict[int, Any] = {}
    waiting: list[Any] = [getattr(module, "config", None) for module in every_module(model)]
    while waiting:
        config = waiting.pop()
        if hasattr(config, "_attn_implementation_internal") and id(config) not in known:
            known[id(config)] = config
            waiting.extend(getattr(config, part, None) for part in config.sub_configs)
    return list(known.values())


def takes_decoder_ids(model: nn.Module) -> bool:
    """Whether a model has a decoder beside its encoder that needs tokens of its own."""
    return "decoder_input_ids" in inspect.signature(model.forward).parameters


def decoder_start(config: Any) -> int:
    """The token that a decoder starts with, by a model's configuration."""
    for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
        if (value := getattr(config, name, None)) is not None:
            return int(value)
    return 0


def is_peft(model: nn.Module) -> bool:
    """Whether a model is one of PEFT's around a Hugging Face model."""
    return hasattr(model, "peft_config") and hasattr(model, "get_base_model")


def trunk(model: nn.Module) -> nn.Module:
    """The model without its head, which would compute scores over the vocabulary that nobody looks at.

    Adapters that PEFT has put into its layers stay there.
    """
    if is_peft(model):
        model = model.get_base_model()  # type: ignore[operator]
    base = getattr(model, "base_model", model)
    return base if isinstance(base, nn.Module) else model


def arguments(model: nn.Module, inputs: Inputs) -> dict[str, Any]:
    """The arguments of a forward pass; masks are always among them, because ids do not say what is padding."""
    given: dict[str, Any] = {"input_ids": inputs.ids, "attention_mask": inputs.mask.long()}
    if takes_decoder_ids(model):
        target_ids, target_mask = inputs.side("target")
        given |= {"decoder_input_ids": target_ids, "decoder_attention_mask": target_mask.long()}
    if "use_cache" in inspect.signature(model.forward).parameters:
        given["use_cache"] = False
    return given


def run(model: nn.Module, inputs: Inputs, **options: Any) -> Any:
    """One forward pass of a Hugging Face model."""
    with without_recorders(model):
        return model(**arguments(model, inputs), **options)


@contextmanager
def without_recorders(model: nn.Module) -> Iterator[None]:
    """Takes off again the hooks by which transformers collects patterns and states where a pass is asked for them."""
    before = [(module, _MARK in vars(module), set(module._forward_hooks)) for module in model.modules()]
    try:
        yield
    finally:
        for module, was_marked, hooks in before:
            for number in module._forward_hooks.keys() - hooks:
                del module._forward_hooks[number]
            if not was_marked:
                vars(module).pop(_MARK, None)


_MARK = "_output_capturing_hooks_installed"
