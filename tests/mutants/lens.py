"""Ways to break what reads and edits models, each with the file of tests that has to notice."""

from mutant import Mutant

CONTRACT, EDIT, HEADS = (f"tests/lens/test_{name}.py" for name in ("contract", "edit", "heads"))
POINTS, OPENING, SILENT = (f"tests/lens/test_{name}.py" for name in ("points", "opening", "silent_failures"))
LENS = "topic_probe/lens/"

MUTANTS = [
    Mutant(
        "a decoder reads the word that it is to predict",
        f"{LENS}host.py",
        "Inputs(ids, mask, torch.cat([start, ids[:, :-1]], 1), mask.clone())",
        "Inputs(ids, mask, torch.cat([start, ids[:, 1:]], 1), mask.clone())",
        CONTRACT,
    ),
    Mutant(
        "a key with a negative bias of position is no visible key",
        f"{LENS}sites.py",
        "mask > torch.finfo(mask.dtype).min / 2",
        "mask >= 0",
        CONTRACT,
    ),
    Mutant(
        "wanted rows come in the order of positions",
        f"{LENS}sites.py",
        "document.index_select(1, rows) for",
        "document.index_select(1, rows.sort().values) for",
        CONTRACT,
    ),
    Mutant(
        "a sink beside the keys is lost where scores are hooked",
        f"{LENS}points.py",
        "sinks = scores[..., self.n_keys :]",
        "sinks = scores[..., scores.shape[3] :]",
        POINTS,
    ),
    Mutant(
        "untrained twins are all of one seed",
        f"{LENS}opening.py",
        'manual_seed(check_whole("seed", seed, 0))',
        "manual_seed(0)",
        OPENING,
    ),
    Mutant(
        "dropout stays on while attention is read",
        f"{LENS}running.py",
        "                module.training = False\n",
        "                pass\n",
        SILENT,
    ),
    Mutant(
        "a key that nobody may see in a text of one word is visible all the same",
        f"{LENS}host.py",
        "seen = (pattern[0] > 0).any(0) | (site.stack",
        "seen = (pattern[0] >= 0).any(0) | (site.stack",
        CONTRACT,
    ),
    Mutant(
        "the layer behind is read for the layer before in a bridge",
        f"{LENS}hooked.py",
        '(f"{stack}.{layer}.hook_resid_pre", lambda',
        '(f"{stack}.{layer}.hook_resid_post", lambda',
        CONTRACT,
    ),
    Mutant(
        "a document may be one token longer than the positions of RoBERTa",
        f"{LENS}trial.py",
        "[table.padding_idx + 1 for table",
        "[table.padding_idx for table",
        CONTRACT,
    ),
    Mutant(
        "rows beside the fused kernel are computed without the mask",
        f"{LENS}interface.py",
        "mask = None if attention_mask is None else _additive(at(attention_mask), query.dtype)",
        "mask = None",
        CONTRACT,
    ),
    Mutant(
        "a changed pattern is shown and not used",
        f"{LENS}interface.py",
        "output, pattern = _product(used, value), used",
        "pattern = used",
        POINTS,
    ),
    Mutant(
        "cut edges leave the rest of a row as it was",
        f"{LENS}edit.py",
        "kept / left.masked_fill(left == 0, 1)",
        "kept",
        EDIT,
    ),
    Mutant(
        "a row of which everything is cut puts out what it did",
        f"{LENS}edit.py",
        "return pattern.masked_fill(emptied.pop(), 0)",
        "return pattern",
        EDIT,
    ),
    Mutant(
        "weights behind the softmax are cut and the rest gets their mass",
        f"{LENS}edit.py",
        "return table.masked_fill(_fitting(edges, table), 0)",
        "return torch.nn.functional.normalize(table.masked_fill(_fitting(edges, table), 0), p=1, dim=-1)",
        EDIT,
    ),
    Mutant(
        "weights that heads share are dealt out in turn",
        f"{LENS}weights.py",
        "shared.repeat_interleave(n_heads // len(shared), dim=0)",
        "shared.repeat(n_heads // len(shared), 1, 1)",
        HEADS,
    ),
    Mutant(
        "the bias that widens embeddings is dropped",
        f"{LENS}weights.py",
        "table @ module.weight.detach().T + bias",
        "table @ module.weight.detach().T",
        HEADS,
    ),
    Mutant(
        "rows of the output projection are mixed among heads",
        f"{LENS}weights.py",
        '"d_model (head d_head) -> head d_head d_model"',
        '"d_model (d_head head) -> head d_head d_model"',
        HEADS,
    ),
    Mutant(
        "centring of the other axis is taken for weight processing",
        f"{LENS}weights.py",
        "bool(sample.mean(1).abs().max() < rounding)",
        "bool(sample.mean(0).abs().max() < rounding)",
        SILENT,
    ),
    Mutant(
        "documents that change what is beside them share a batch",
        f"{LENS}trial.py",
        "if whole > 100 * rounding:",
        "if whole > 1e6 * rounding:",
        SILENT,
    ),
    Mutant(
        "the difference of outputs is no share of their length",
        f"{LENS}trial.py",
        "(ours - theirs).norm(dim=-1) / length",
        "(ours - theirs).norm(dim=-1)",
        SILENT,
    ),
    Mutant(
        "a head that the checkpoint lacks is kept with random weights",
        f"{LENS}opening.py",
        "    return base\n",
        "    return model\n",
        OPENING,
    ),
    Mutant(
        "the mean over rows hides one that does not sum to one",
        f"{LENS}trial.py",
        "row_error=float(torch.stack(rows).max())",
        "row_error=float(torch.stack(rows).min())",
        "tests/lens/test_check.py",
    ),
]
