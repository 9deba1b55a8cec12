"""The weights of single heads, and the ways from words into the residual stream and back, on every host."""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from topic_probe.lens import capture
from topic_probe.lens.huggingface import Probe
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


def head_weights(model: Any, site: Site) -> HeadWeights:
    """The projections of every head at one site, detached.

    Raises:
        ValueError: where the projections of this architecture cannot be told apart.
    """
    if isinstance(seen := getattr(model, "probe", None), Probe):
        return _of_huggingface(model, seen, site)
    module = model
    for part in site.hook_name.removesuffix(".hook_pattern").split("."):
        module = getattr(module, part) if not part.isdigit() else module[int(part)]
    found = [getattr(module, name).detach() for name in ("W_Q", "W_K", "W_V", "W_O")]
    heads = found[0].shape[0]
    return HeadWeights(*(matrix.repeat_interleave(heads // matrix.shape[0], dim=0) for matrix in found))


def _of_huggingface(model: Any, seen: Probe, site: Site) -> HeadWeights:
    inside = model.original_model
    if not seen.modules:
        raise ValueError(
            f"{type(inside).__name__} hides its attention layers, so the weights of its heads cannot be read"
        )
    number = [known.hook_name for known in seen.sites].index(site.hook_name)
    module, n_heads = seen.modules[number], seen.n_heads[number]
    query, key, value = _three_projections(module, n_heads)
    output = _output_projection(inside, module)
    d_head = query.shape[0] // n_heads
    shared = len(key) == len(value) and len(key) % d_head == 0 and n_heads % (len(key) // d_head) == 0
    if not shared or output.shape[1] != len(query) or getattr(module, "head_dim", d_head) != d_head:
        raise ValueError(
            f"{type(module).__name__} has more in its query, key and value projections than heads of one size (gates, "
            "heads of two sizes), which this package cannot take apart; its attention and embeddings can be measured"
        )
    q, k, v = (_by_head(matrix, n_heads, d_head) for matrix in (query, key, value))
    return HeadWeights(q, k, v, output.T.reshape(n_heads, d_head, -1))


def _by_head(
    matrix: Float[Tensor, "out d_model"], n_heads: int, d_head: int
) -> Float[Tensor, "head d_model d_head"]:
    heads = matrix.reshape(-1, d_head, matrix.shape[1]).transpose(1, 2)
    return heads.repeat_interleave(n_heads // len(heads), dim=0)


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


def _output_projection(inside: nn.Module, module: nn.Module) -> Tensor:
    for name in _OUTPUT:
        if isinstance(getattr(module, name, None), nn.Module):
            return _matrix(getattr(module, name))
    # BERT and its kin keep it beside the module that attends: attention.self and attention.output.dense.
    path = next(name for name, part in inside.named_modules() if part is module)
    beside = inside.get_submodule(path.rpartition(".")[0])
    output = getattr(getattr(beside, "output", None), "dense", None)
    if output is None:
        raise ValueError(f"the output projection of {type(module).__name__} is not known to this package")
    return _matrix(output)


def _matrix(layer: nn.Module) -> Float[Tensor, "out in"]:
    weight: Tensor = getattr(layer, "weight").detach()  # noqa: B009  (a Module's attributes have no known type)
    return (
        weight.T if type(layer).__name__ == "Conv1D" else weight
    )  # GPT-2 keeps its matrices the other way round


def embedding_in_residual(model: Any) -> Float[Tensor, "vocabulary d_model"]:
    """What every word brings into the residual stream, positions and normalisation aside.

    That is the word embedding itself, or its projection where embeddings are narrower than the model (ALBERT, ELECTRA).
    A factor that some architectures multiply all embeddings by is left out.

    Raises:
        ValueError: where words come into the stream in a way that is not known.
    """
    table = capture.word_embeddings(model)
    inside = capture.huggingface_model(model)
    if inside is None:
        return table
    for name, module in inside.named_modules():
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
    """The matrix from the residual stream to scores over the vocabulary; a transformation before it is left out.

    Raises:
        ValueError: where the model has no head, or its head is not a matrix on the residual stream.
    """
    inside = capture.huggingface_model(model)
    if inside is None:
        return model.W_U.detach()  # type: ignore[no-any-return]
    layer = inside.get_output_embeddings()
    if layer is None:
        raise ValueError(
            f"{type(inside).__name__} has no head that scores the vocabulary, so it has no OV circuit to words"
        )
    weight: Tensor = layer.weight.detach()
    width = embedding_in_residual(model).shape[1]
    if weight.shape[1] != width:
        raise ValueError(
            f"the head of {type(inside).__name__} reads {weight.shape[1]} numbers behind a nonlinear layer, not the "
            f"{width} of the residual stream, so OV circuits cannot be written in words"
        )
    return weight.T
