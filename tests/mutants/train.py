"""Ways to break training: losses, optimizers, what is recorded, what is gone on with, and stages."""

from mutant import Mutant

LOOP, HISTORY, TASKS, STACK, STAGES, BERT = (
    f"topic_probe/train/{name}.py" for name in ("loop", "history", "tasks", "stack", "stages", "bert")
)
OF_LOOP, OF_STACK, OF_TASKS, OF_STAGES = (
    f"tests/train/test_{name}.py" for name in ("loop", "stack", "tasks", "stages")
)

# fmt: off
MUTANTS = [
    Mutant("the penalty has half its gradient", LOOP, "alpha=2 * l2", "alpha=l2", OF_LOOP),
    Mutant("biases have no penalty", LOOP,
           "torch._foreach_add(gradients, self.tensors, alpha=2 * l2)",
           "torch._foreach_add(gradients, [t * (t.ndim > 1) for t in self.tensors], alpha=2 * l2)", OF_LOOP),
    Mutant("Adam forgets squares ten times as fast", LOOP, "0.9, 0.999, 1e-8", "0.9, 0.99, 1e-8", OF_LOOP),
    Mutant("Adam corrects for steps in which its tensors stood still", LOOP,
           "(1 - beta2**count) ** 0.5", "(1 - beta2 ** (step + 1)) ** 0.5", OF_LOOP),
    Mutant("Adam does not correct its first moment", LOOP, "-rate / (1 - beta1**count)", "-rate", OF_LOOP),
    Mutant("SGD takes a step of one percent less", LOOP, "alpha=-rate)", "alpha=-0.99 * rate)", OF_LOOP),
    Mutant("the recorded penalty is of norms that are not squared", LOOP,
           "sum(norm * norm for norm in norms)", "sum(norm for norm in norms)", OF_LOOP),
    Mutant("the recorded penalty is also of frozen tensors", LOOP,
           "sum(norm * norm for norm in norms)", "sum(norm * norm for norm in self.norms.values())", OF_LOOP),
    Mutant("W_V is compared with itself nine steps before", LOOP, "ROTATION_LAG = 10", "ROTATION_LAG = 9", OF_LOOP),
    Mutant("a rotation is one minus the cosine", LOOP,
           "torch.dot(units[name], before[name])) / 2)", "torch.dot(units[name], before[name])) / 1)", OF_LOOP),
    Mutant("second moments come back as first ones", LOOP,
           'moments[f"{order}.{name}"])', 'moments[f"0.{name}"])', OF_LOOP),
    Mutant("a training goes on with other documents", LOOP,
           'self.task.generator.set_state(tensors["resume.generator"])', "self.task.generator.get_state()", OF_LOOP),
    Mutant("a diverged model keeps its last update", LOOP,
           "torch._foreach_copy_(self.trained, self.before)",
           "torch._foreach_copy_(self.before, self.trained)", OF_LOOP),
    Mutant("the last step has no row", HISTORY, " == 0 or step == self.steps", " == 0", OF_LOOP),
    Mutant("phases of a schedule begin one phase late", HISTORY,
           "max(rest - (end - length), 0)", "max(rest - end, 0)", OF_LOOP),
    Mutant("a fixed set is masked once where it should be anew", TASKS,
           "None if config.remask else", "None if not config.remask else", OF_LOOP),
    Mutant("a batch may have a document twice", TASKS,
           "torch.randperm(n, generator=self.generator)[:size]",
           "torch.randint(n, (size,), generator=self.generator)", OF_LOOP),
    Mutant("empty batches are not counted", TASKS, "            self.n_empty += 1\n", "", OF_LOOP),
    Mutant("empty batches beside others are not counted", STACK, "                task.n_empty += 1\n", "", OF_STACK),
    Mutant("every toy of a stack has the first one's documents", STACK,
           "Draws(*(task.generator for task in tasks))",
           "Draws(*(torch.Generator().set_state(tasks[0].generator.get_state()) for _ in tasks))", OF_STACK),
    Mutant("special tokens are masked", TASKS, "maskable=mask & ~self.special[ids]", "maskable=mask", OF_TASKS),
    Mutant("BERT attends to padding", TASKS, "attention_mask=batch.mask.long()", "attention_mask=None", OF_TASKS),
    Mutant("random words may be special tokens", TASKS,
           "words=self.words", "words=torch.arange(len(self.special))", OF_TASKS),
    Mutant("all of a BERT begins near zero", BERT,
           'config.init == "near-zero" and is_attention(name)', 'config.init == "near-zero"', OF_TASKS),
    Mutant("a tensor has started where it has a fifth of its smallest norm", STAGES,
           "max((1 + started) * curve.min()", "max(started * curve.min()", OF_STAGES),
    Mutant("a norm has started where it passes its threshold for the first time", STAGES,
           "first = int(below[-1]) + 1", "first = int(np.append(curve, np.inf).__gt__(threshold).argmax())", OF_STAGES),
    Mutant("any end of a record is flat", STAGES,
           "steps[-1] - steps >= steps - steps[start]", "steps[-1] - steps >= 0", OF_STAGES),
    Mutant("a falling norm is flat", STAGES, "& (lowest >= (1 - flat) * curve)", "& (lowest <= curve)", OF_STAGES),
    Mutant("keys may start before values are flat", STAGES,
           "if first < value_flat:", "if first < value_start:", OF_STAGES),
    Mutant("the running median is twice as wide", STAGES, "half = window // 2", "half = window", OF_STAGES),
    Mutant("growth until stage 2 is from its end", STAGES,
           "divide(value[row], value[0])", "divide(value[-1], value[0])", OF_STAGES),
]
