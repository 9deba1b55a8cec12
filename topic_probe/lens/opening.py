"""Opens any transformer as a hooked model, without changing what was given."""

import copy
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any
from warnings import warn

import torch
from torch import nn

from topic_probe.lens.host import is_hooked
from topic_probe.lens.points import huggingface_host
from topic_probe.lens.running import inside_of, is_peft, lock_of, trunk
from topic_probe.options import check_whole, checked
from topic_probe.remote import fetch_model
from topic_probe.text.encoder import begins_with_token
from topic_probe.topics.lookup import check_tokenizer

_log = logging.getLogger(__name__)

# Held where weights are drawn: torch's generator is one for all threads.
_drawing = RLock()


@checked
def open_model(
    source: Any,
    *,
    tokenizer: Any = None,
    revision: str | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Any:
    """A hooked model whose attention, embeddings and weights can be measured.

    What is given is not changed: a hooked model comes back as it is, and a Hugging Face model is wrapped in a way
    that shares its weights and leaves its modules, mode and configuration alone. The model around it has hook points
    under TransformerLens's names, whatever the architecture.

    Args:
        source: a hooked model (TransformerBridge, HookedTransformer, HookedEncoder), a Hugging Face model, a folder
            that `save_pretrained` has written, or a name on the Hugging Face hub.
        tokenizer: the model's tokenizer; loaded beside the model where ``source`` is a folder or a name.
        revision: the commit, branch or tag of a model on the hub, by default its newest commit. All files are of one
            commit, which reports name.
        device: where a model that is loaded here is put, such as "cuda:1", by default on the CPU. A given model stays
            where it is.
        dtype: the type of the weights of a model that is loaded here, such as float32, by default that of the
            checkpoint. A given model keeps its own.

    The model is tried on a few tokens. Where its attention cannot be read, its embeddings can be measured, and
    measuring its attention says why. What you change of it afterwards but for weights and hooks (layers, settings, its
    attention implementation) is not tried again: open it again. Threads may measure one model, and take turns.

    Raises:
        TypeError: where ``source`` is none of these.
        OSError: where files are missing, or the hub does not give them. The message says what came and what to do.
        ValueError: where a model has no word embeddings, or a checkpoint lacks weights.

    Example:
        >>> toy = tp.build_toy(tp.ToyConfig(world=tp.World(n_topics=2, words_per_topic=2)))
        >>> tp.open_model(toy) is toy  # a hooked model already
        True

        A Hugging Face model, and outputs of its heads [batch, position, head, d_head]:

        >>> import torch, transformers
        >>> small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
        >>> model = tp.open_model(transformers.BertModel(transformers.BertConfig(vocab_size=9, **small)))
        >>> ids = torch.tensor([[3, 4, 5]])
        >>> _, cache = model.run_with_cache(ids, torch.ones_like(ids))
        >>> list(cache["blocks.0.attn.hook_z"].shape)
        [1, 3, 2, 4]
    """
    if tokenizer is not None:
        check_tokenizer(tokenizer)
    if is_hooked(source):
        _check_has_numbers(source)
        return source
    if isinstance(source, str | os.PathLike):
        source, tokenizer = _load(source, tokenizer, revision, dtype)
        if device is not None:
            source = source.to(device)
    if not isinstance(source, nn.Module) or not hasattr(source, "get_input_embeddings"):
        raise TypeError(
            "open_model needs a hooked model, a Hugging Face model, a folder or a name on the hub, "
            f"not {type(source).__name__}"
        )
    _check(source)
    # Building may draw weights that are overwritten later.
    with lock_of(source), _drawing, torch.random.fork_rng(devices=[]):
        opened: Any = huggingface_host()(source, tokenizer)
    begin = getattr(tokenizer, "bos_token", None)
    causal = opened.trial is not None and opened.trial.is_causal
    if causal and begin is not None and begins_with_token(tokenizer) is False:
        warn(
            f"the tokenizer of this {type(source).__name__} has a begin token ({begin}) and puts it before no text: "
            "where the model was trained with it, encode texts with begin_token=True. Without it the first position is "
            "a sink of attention, whatever word stands there, and counts as no word",
            stacklevel=3,
        )
    return opened


def _check(model: Any) -> None:
    """Refuses Hugging Face models whose word embeddings cannot be read, and those that put something before words."""
    name = type(model).__name__
    try:
        table = model.get_input_embeddings().weight
    except (AttributeError, NotImplementedError):
        table = None
    if callable(table):
        raise ValueError(
            f"the word embeddings of {name} are quantised, so there is no table to read: leave them as they are when "
            "you quantise the rest (nn.Linear only)"
        )
    if getattr(table, "ndim", 0) != 2:
        raise ValueError(
            f"{name} has no table of word embeddings. If a part of it reads text, open that part (such as "
            "model.text_model)"
        )
    _check_has_numbers(model)
    if is_peft(model) and any(config.is_prompt_learning for config in model.peft_config.values()):
        raise ValueError(
            f"{name} puts learned prompts before the words of a document, where no words are: measure the model "
            "without them (get_base_model())"
        )


def _check_has_numbers(model: nn.Module) -> None:
    weights = list(model.parameters())
    if n := sum(weight.is_meta for weight in weights):
        raise ValueError(
            f"{n} of {len(weights)} weights of {type(model).__name__} are on the meta device, where tensors have no "
            "numbers: load it without offloading to disk"
        )


def _load(source: Any, tokenizer: Any, revision: str | None, dtype: torch.dtype | None) -> tuple[Any, Any]:
    """A Hugging Face model with its tokenizer (None where there is none) from a folder or the hub."""
    import transformers
    from safetensors import SafetensorError

    name = os.path.expanduser(source)  # noqa: PTH111 (a name on the hub is no path)
    folder = Path(name)
    looks_local = folder.is_absolute() or name.startswith(".") or name.count("/") > 1
    if (looks_local or folder.is_dir()) and not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"there is no folder {name!r} that holds a config.json; give one that save_pretrained has written, or a "
            "hub name"
        )
    on_hub = not folder.is_dir()
    if on_hub:
        folder = fetch_model(name, revision)
    try:
        classes = getattr(transformers.AutoConfig.from_pretrained(folder), "architectures", None) or [""]
        model_class = getattr(transformers, classes[0], transformers.AutoModel)
        # Loading changes the default type of tensors and how weights are drawn, for all threads.
        with _drawing, quiet_transformers(progress=False):
            model, info = model_class.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    except (OSError, SafetensorError) as error:
        raise OSError(
            f"cannot load {name!r}: {error}\nGive a folder that save_pretrained has written, or a name on the Hugging "
            "Face hub"
        ) from error
    if on_hub:
        model.config._name_or_path, model.config._commit_hash = name, folder.name
    tokenizer = _tokenizer(folder) if tokenizer is None else tokenizer
    return _without_fresh_weights(model, info["missing_keys"], name).eval(), tokenizer


@contextmanager
def quiet_transformers(*, progress: bool) -> Iterator[None]:
    """Context manager: transformers logs errors alone, because what matters is said by this package."""
    from transformers.utils import logging

    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not progress:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


def _without_fresh_weights(model: Any, missing: Any, name: str) -> Any:
    """The model, without its head where the checkpoint has none: its scores would be random.

    A pooler may be fresh, because nothing that is measured depends on it.
    """
    missing = sorted(key for key in missing if "pooler" not in key)
    if not missing:
        return model
    base = trunk(model)
    needed = {id(tensor) for tensor in base.state_dict(keep_vars=True).values()}
    tensors = model.state_dict(keep_vars=True)
    lacking = [key for key in missing if id(tensors.get(key)) in needed]
    if lacking:
        raise ValueError(
            f"the checkpoint {name!r} lacks {len(lacking)} weights of {type(model).__name__} (such as {lacking[0]!r}); "
            "they would be random, so it is not measured. Save the model again with save_pretrained, or load it "
            "with its own class and pass the object"
        )
    _log.info("%s has no weights for the head of %s; it is opened without", name, type(model).__name__)
    return base


def load_tokenizer(name: str, revision: str | None = None) -> Any:
    """The tokenizer in a folder or under a name on the hub, or None where there is none that can be loaded.

    Raises:
        OSError: where the hub has no such name or revision, or its files do not come.
    """
    return _tokenizer(Path(name) if Path(name).is_dir() else fetch_model(name, revision, weights=False))


def _tokenizer(folder: Path) -> Any:
    """The tokenizer of files that are on this machine, or None where there is none that can be loaded."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # tokenizers without files fail in many ways
        _log.info("%s has no tokenizer that can be loaded: %s", folder, error)
        return None
    # Where there are no files, most come without any word instead.
    words = set(tokenizer.get_vocab()) - {*tokenizer.all_special_tokens, "▁"}
    return tokenizer if words else None


@checked
def random_init(model: Any, *, seed: int = 0) -> Any:
    """The same architecture with fresh weights, hooked: the untrained twin of a model.

    The weights are drawn as the architecture initialises them before training, in the dtype and on the device of
    the model. The model itself and the global random generators stay as they are.

    Args:
        model: anything that `open_model` takes; names and folders are opened for their configuration.
        seed: seed of the fresh weights.

    Example:
        >>> config = tp.ToyConfig(world=tp.World(n_topics=2, words_per_topic=2))
        >>> twin = tp.random_init(tp.build_toy(config, seed=0), seed=1)
        >>> bool((tp.toy_tensors(twin)["W_E"] == tp.toy_tensors(tp.build_toy(config, seed=1))["W_E"]).all())
        True
    """
    model = open_model(model)
    with lock_of(model), _drawing, torch.random.fork_rng(devices=[]), torch.no_grad():
        # Not torch.manual_seed, which would also seed the generators of every GPU.
        torch.default_generator.manual_seed(check_whole("seed", seed, 0))
        return _fresh(model, seed).train(model.training)


def _fresh(model: Any, seed: int) -> Any:
    parameter = next(model.parameters())
    place: Any = {"device": parameter.device, "dtype": parameter.dtype}
    inside = inside_of(model)
    if inside is not None:
        twin = _untrained(inside).to(**place)
        fresh = open_model(twin)
        # Set afterwards, because a begin token that it leaves out was told of when the model was opened.
        fresh.tokenizer = getattr(model, "tokenizer", None)
        return fresh
    if hasattr(model, "untrained_twin"):
        # Module's own `to`, because TransformerLens's prints, and does not know these names in 3.9.
        return nn.Module.to(model.untrained_twin(seed=seed), **place)
    if hasattr(model, "init_weights"):
        return nn.Module.to(_redrawn(model), **place)
    raise ValueError(
        f"{type(model).__name__} does not say how its weights are initialised; build an untrained twin and open it"
    )


def _untrained(inside: Any) -> Any:
    """A Hugging Face model as it is before training; one of PEFT with a fresh adapter."""
    if not is_peft(inside):
        return type(inside)(copy.deepcopy(inside.config))
    name = inside.active_adapter
    return type(inside)(_untrained(inside.get_base_model()), copy.deepcopy(inside.peft_config[name]), name)


def _redrawn(model: Any) -> Any:
    """A copy of a model of TransformerLens's own layers with its weights drawn again, on the CPU."""
    twin = copy.deepcopy(model)
    twin.reset_hooks(including_permanent=True)
    nn.Module.to(twin, device="cpu", dtype=torch.float32)
    for name, parameter in twin.named_parameters():
        # TransformerLens draws the matrices only, because everything else is as it was built in a new model.
        last = name.rpartition(".")[2]
        if not last.startswith("W"):
            nn.init.constant_(parameter, float(last == "w"))
    twin.cfg.seed = None  # it would win over the seed that was asked for
    twin.init_weights()
    return twin
