"""What any model can be asked: each measurement is a function and the frozen report that it returns.

Documents go one way: `engine` takes them in batches through a reader (`patterns` scores the attention between words)
into `accumulators`, small objects with named sums. `scores` are those of a batch, where the model runs: what is known
of pairs is made before a pass, sums are made of scores behind it, and only these come to the host. `parts` says into
which parts documents fall, `sums` what is known of some of them, `folder` keeps these and makes reports of them;
`options` has what measurements share. On it stand
`attention`, `matched` (with `matching`: sums by class of the pair), and the states in `embeddings`. What is done to a
model is asked of an outcome (`outcomes`), which
`effects` compares before and after: `ablation` and `knockout`. Several models are asked about the same words
(`same_words`) and stand side by side in `comparison`. Words by themselves (`words` with `pair_sums` and `matrix`) need
no documents: `embeddings`, `weights`. A module imports only from those before it:

    options, words, pair_sums, matrix, scores, sums, accumulators, parts, folder, engine, heads, patterns, nulls,
    matching, attention, embeddings, weights, matched, outcomes, effects, ablation, knockout,
    same_words, comparison

What else is to be known of attention is an accumulator: any object with ``sums`` and ``add(scores)``, passed to
`measure_attention`. A new measurement is a module with its function, its accumulators and its report; CONTRIBUTING.md
shows one of each.
"""
