"""What any model can be asked: each measurement is a function and the frozen report that it returns.

Documents go one way: `engine` takes them in batches through a reader (`patterns` scores the attention between words)
into `accumulators`, small objects with named sums; `runs` saves these, `processes` adds up those of several processes
(`shares` says which documents each of them measures), and `options` has what measurements share. On it stand
`attention`, `matched` (with `matching`: sums by class of the pair), and the states in `embeddings`; `text_attention`
reads one text. Words by themselves (`words` with `repeats`, `squares`, `matrix`) need no documents: `embeddings`,
`weights`. A module imports only from those before it:

    options, repeats, words, squares, accumulators, processes, shares, runs, engine, patterns, matrix, nulls, twins,
    matching, attention, embeddings, weights, matched, text_attention

What else is to be known of attention is an accumulator: any object with ``sums`` and ``add(scores)``, passed to
`measure_attention`. A new measurement is a module with its function, its accumulators and its report; CONTRIBUTING.md
shows one of each.
"""
