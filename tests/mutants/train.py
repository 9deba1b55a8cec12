"""Ways to break training: losses, optimizers, what is recorded, what is gone on with, and stages."""

from mutant import Mutant

TOY, HISTORY, STAGES, BERT, TEXT = (
    f"topic_probe/train/{name}.py" for name in ("toy", "history", "stages", "bert", "text")
)
OF_TOY, OF_TEXT, OF_STAGES = (f"tests/train/test_{name}.py" for name in ("toy", "text", "stages"))

# fmt: off
MUTANTS = [
    Mutant("the penalty has half its gradient", TOY,
           "config.learning_rate, 2 * config.l2", "config.learning_rate, config.l2", OF_TOY),
    Mutant("W_V is compared with itself nine steps before", TOY, "ROTATION_LAG = 10", "ROTATION_LAG = 9", OF_TOY),
    Mutant("fused optimizers get gradients in another order of memory", TOY,
           "else gradient.contiguous()", "else gradient", OF_TOY),
    Mutant("the loss is a mean over positions and not over documents", TOY,
           "1 / (n_chosen * (n_chosen > 0).sum(dim=1, keepdim=True))",
           "1 / (0 * n_chosen + n_chosen.sum(dim=1, keepdim=True))", OF_TOY),
    Mutant("documents without a loss count in the mean", TOY,
           "(n_chosen > 0).sum(dim=1, keepdim=True)", "(n_chosen >= 0).sum(dim=1, keepdim=True)", OF_TOY),
    Mutant("every chunk has the documents of the first", TOY,
           "SeedSequence((config.seed, chunk))", "SeedSequence((config.seed, 0))", OF_TOY),
    Mutant("rows go on behind a loss that is not finite", TOY, "last = step - 1", "last = step", OF_TOY),
    Mutant("what diverged is measured", TOY, "return [i for i in range(len(losses)) if i not in self.diverged]",
           "return [i for i in range(len(losses)) if len(self.diverged) < len(losses)]", OF_TOY),
    Mutant("b_K moves by the rounding of its gradient", TOY,
           'if name.startswith("b_K") else', 'if name == "b_k" else', OF_TOY),
    Mutant("the last step has no row", HISTORY, " == 0 or step == self.steps", " == 0", OF_TOY),
    Mutant("phases of a schedule begin one step early", HISTORY, "step % ends[-1])", "step % ends[-1] + 1)", OF_TOY),
    Mutant("all of a BERT begins near zero", BERT,
           "in filter(is_attention, parameters)", "in [n for n in parameters if parameters[n].ndim > 1]", OF_TEXT),
    Mutant("words that are kept are hidden", TEXT, "1 - masking.p_keep - masking.p_random", "1 - masking.p_random",
           OF_TEXT),
    Mutant("BERT attends to padding", TEXT,
           'attention_mask=batch["attention_mask"]', 'attention_mask=batch["attention_mask"] * 0 + 1', OF_TEXT),
    Mutant("a rotation is one minus the cosine", TOY,
           "(now * before).sum(1)) / 2)", "(now * before).sum(1)) / 1)", OF_TOY),
    Mutant("a tensor has started where it has a fifth of its smallest norm", STAGES,
           "max((1 + STARTED) * curve.min()", "max(STARTED * curve.min()", OF_STAGES),
    Mutant("a norm has started where it passes its threshold for the first time", STAGES,
           "steps[below[-1] + 1 :]", "steps[int(np.append(curve, np.inf).__gt__(threshold).argmax()) :]", OF_STAGES),
    Mutant("any end of a record is flat", STAGES, "steps[-1] - steps >= steps - start", "steps[-1] - steps >= 0",
           OF_STAGES),
    Mutant("a falling norm is flat", STAGES, "& (lowest >= (1 - FLAT) * curve)", "& (lowest <= curve)", OF_STAGES),
    Mutant("keys may start before values are flat", STAGES,
           "query_start)) < value_flat", "query_start)) < value_start", OF_STAGES),
    Mutant("the running median is twice as wide", STAGES, "2 * (len(steps) // 100) + 1", "2 * (len(steps) // 50) + 1",
           OF_STAGES),
    Mutant("growth until stage 2 is from its end", STAGES,
           "divide(value[begins], value[0])", "divide(value[-1], value[0])", OF_STAGES),
]
