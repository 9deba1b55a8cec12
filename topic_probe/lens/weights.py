"""The weights of heads, and what leads from words into the stream and back, of any hooked model."""

from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from topic_probe.lens.running import inside_of, is_a
from topic_probe.lens.sites import Site


@dataclass(frozen=True)
class HeadWeights:
    """Projections of every head at one site; keys and values shared by several heads are repeated for each."""

    W_Q: Float[Tensor, "head d_model d_head"]
    W_K: Float[Tensor, "head d_model d_head"]
    W_V: Float[Tensor, "head d_model d_head"]
    W_O: Float[Tensor, "head d_head d_model"]


# What architectures call their query, key, value and output projections.
_SEPARATE = (
    ("query", "key", "value"),
    ("q_proj", "k_proj", "v_proj"),
    ("q_lin", "k_lin", "v_lin"),
    ("q", "k", "v"),
    ("Wq", "Wk", "Wv"),
)
_OUTPUT = ("out_proj", "o_proj", "out_lin", "o", "c_proj", "dense", "Wo")
# One matrix for all three: in blocks (all queries, then all keys …) or head by head (q, k, v of head 0, then of 1 …).
_FUSED = ("c_attn", "Wqkv", "qkv_proj", "query_key_value")
# What leads from narrow word embeddings into the residual stream.
_WIDENING = ("embedding_hidden_mapping_in", "embeddings_project", "project_in")


def _of_attention(model: nn.Module, module: nn.Module, n_heads: int) -> HeadWeights:
    """The projections of every head of one attention layer of a Hugging Face model, detached."""
    query, key, value = _three_projections(module, n_heads)
    projection = output_projection(model, module)
    if projection is None:
        raise ValueError(f"the output projection of {type(module).__name__} is not known to this package")
    output = _matrix(projection)
    d_head = query.shape[0] // n_heads
    shared = len(key) == len(value) and len(key) % d_head == 0 and n_heads % (len(key) // d_head) == 0
    if not shared or output.shape[1] != len(query) or getattr(module, "head_dim", d_head) != d_head:
        raise ValueError(
            f"{type(module).__name__} has more in its query, key and value projections than heads of one size (gates, "
            "heads of two sizes), which this package cannot take apart; its attention and embeddings can be measured"
        )
    q, k, v = (
        _for_each_head(
            rearrange(matrix, "(head d_head) d_model -> head d_model d_head", d_head=d_head), n_heads
        )
        for matrix in (query, key, value)
    )
    o = rearrange(output, "d_model (head d_head) -> head d_head d_model", head=n_heads)
    return HeadWeights(q, k, v, o)


def _for_each_head(shared: Float[Tensor, "group ..."], n_heads: int) -> Float[Tensor, "head ..."]:
    """What several heads share, repeated for each."""
    return shared.repeat_interleave(n_heads // len(shared), dim=0)


def _three_projections(module: nn.Module, n_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    for names in _SEPARATE:
        if all(hasattr(module, name) for name in names):
            query, key, value = (_matrix(getattr(module, name)) for name in names)
            return query, key, value
    for name in _FUSED:
        if hasattr(module, name):
            fused = _matrix(getattr(module, name))
            # GPT-BigCode goes head by head where its heads do not share keys and values.
            by_head = name == "query_key_value" or getattr(module, "multi_query", None) is False
            return _taken_apart(fused, n_heads, getattr(module, "head_dim", None), by_head)
    raise ValueError(
        f"the query, key and value projections of {type(module).__name__} are not known to this package; its attention "
        "and embeddings can still be measured"
    )


def _taken_apart(
    fused: Float[Tensor, "out d_model"], n_heads: int, d_head: int | None, by_head: bool
) -> tuple[Tensor, Tensor, Tensor]:
    if by_head:
        heads = fused.reshape(n_heads, 3, -1, fused.shape[1])
        query, key, value = (heads[:, part].reshape(-1, fused.shape[1]) for part in range(3))
        return query, key, value
    n_query = n_heads * d_head if d_head is not None else len(fused) // 3
    n_value = (len(fused) - n_query) // 2
    return fused[:n_query], fused[n_query : n_query + n_value], fused[n_query + n_value :]


def output_projection(model: nn.Module, module: nn.Module) -> nn.Module | None:
    """What the heads of an attention layer are put together by; None where this package does not know it."""
    for name in _OUTPUT:
        if isinstance(getattr(module, name, None), nn.Module):
            return getattr(module, name)  # type: ignore[no-any-return]
    # BERT and its kin keep it beside the module that attends: attention.self and attention.output.dense.
    path = next(name for name, part in model.named_modules() if part is module)
    beside = model.get_submodule(path.rpartition(".")[0])
    return getattr(getattr(beside, "output", None), "dense", None)


def _matrix(layer: nn.Module) -> Float[Tensor, "out in"]:
    weight: Any = layer.weight
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        raise ValueError(
            f"the weights of {type(layer).__module__}.{type(layer).__name__} are quantised, so matrices of heads "
            "cannot be read off them: measure the weights of the model before it is quantised. Attention can "
            "be measured of the quantised one"
        )
    # GPT-2 keeps its matrices the other way round.
    return weight.detach().T if type(layer).__name__ == "Conv1D" else weight.detach()


# Of a hooked model.


def head_weights(model: Any, site: Site) -> HeadWeights:
    """The projections of every head at one site, detached."""
    if not is_a(model, "HuggingFaceHost"):  # where TransformerLens puts them
        attention = model
        for part in site.hook_name.removesuffix(".hook_pattern").split("."):
            attention = attention[int(part)] if part.isdigit() else getattr(attention, part)
        q, k, v, o = (getattr(attention, name).detach() for name in ("W_Q", "W_K", "W_V", "W_O"))
        return HeadWeights(*(_for_each_head(matrix, len(q)) for matrix in (q, k, v, o)))
    inside = model.original_model
    if model.calls is None:
        raise ValueError(
            f"{type(inside).__name__} hides its attention layers, so the weights of its heads cannot be read"
        )
    n_heads = model.trial.n_heads[model.trial.sites.index(site)]
    return _of_attention(inside, model.calls.modules[model.calls.sites.index(site)], n_heads)


def word_embeddings(model: Any, *, check: bool = True) -> Float[Tensor, "vocabulary d_embed"]:
    """The raw word embedding table of a hooked model, detached; its width need not be the hidden size."""
    inside = inside_of(model)
    table: Tensor = (model.W_E if inside is None else inside.get_input_embeddings().weight).detach()
    if check and not is_a(model, "HuggingFaceHost") and is_centred(table):
        raise ValueError(
            f"the word embeddings of this {type(model).__name__} were centred by weight processing "
            "(enable_compatibility_mode, center_writing_weights), so their cosines are not the model's own; load it "
            "without (from_pretrained_no_processing, or enable_compatibility_mode(no_processing=True))"
        )
    return table


def is_centred(table: Float[Tensor, "vocabulary d_embed"]) -> bool:
    """Whether every row of a table has mean 0 to rounding."""
    sample = table[: min(len(table), 1000)].double()
    # Rounding errors of single numbers average out over a row.
    rounding = 2 * torch.finfo(table.dtype).eps * sample.abs().max() / table.shape[1] ** 0.5
    return table.shape[1] > 1 and bool(sample.any()) and bool(sample.mean(1).abs().max() < rounding)


def embedding_in_residual(model: Any) -> Float[Tensor, "vocabulary d_model"]:
    """What every word brings into the residual stream, positions and normalisation aside.

    That is the word embedding itself, or its projection where embeddings are narrower than the model (ALBERT, ELECTRA).
    A factor that some architectures multiply all embeddings by is left out.
    """
    table, inside = word_embeddings(model), inside_of(model)
    if inside is None:
        return table
    for name, module in inside.named_modules():
        module = getattr(module, "original_component", module)  # a bridge puts its own around it
        if name.rpartition(".")[2] in _WIDENING and isinstance(module, nn.Linear):
            bias = 0 if module.bias is None else module.bias.detach()
            return table @ module.weight.detach().T + bias
    width = getattr(inside.config, "hidden_size", table.shape[1])
    if width != table.shape[1]:
        raise ValueError(
            f"the word embeddings of {type(inside).__name__} have {table.shape[1]} numbers and its residual stream "
            f"{width}; how one becomes the other is not known to this package"
        )
    return table


def unembedding(model: Any) -> Float[Tensor, "d_model vocabulary"]:
    """The matrix from the residual stream to scores over the vocabulary; a transformation before it is left out."""
    inside = inside_of(model)
    if inside is None:
        return model.W_U.detach()  # type: ignore[no-any-return]
    layer, d_model = inside.get_output_embeddings(), embedding_in_residual(model).shape[1]
    if layer is None:
        raise ValueError(
            f"{type(inside).__name__} has no head that scores the vocabulary, so it has no OV circuit to words"
        )
    weight = _matrix(layer)
    if weight.shape[1] != d_model:
        raise ValueError(
            f"the head of {type(inside).__name__} reads {weight.shape[1]} numbers behind a nonlinear layer, not the "
            f"{d_model} of the residual stream, so OV circuits cannot be written in words"
        )
    return weight.T
