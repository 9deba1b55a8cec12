"""What any model can be asked: each measurement is a function and the frozen report that it returns.

How `measure_attention` goes: `attention` makes a question for each of the topics (`attention_sums`), with permuted
words (`permuted`), and `ask` asks them all. `documents` cuts and batches what is read; with a folder (`folder`,
`parts`) part by part. Of a batch, `pairs` says which tokens are words and what two of them are to each other; the host
streams the rows of attention at these tokens, site by site; the question keeps the scores between words and, when the
model is through, adds them up by relation, distance, source and permutation. What it adds is pending until then: a
batch that does not fit is halved, a document with NaN left out and the others asked again. `AttentionReport.of_sums`
makes a report of sums, from a pass or from the files of a folder: means, intervals over sources (and words,
`word_variance`), p-values. It keeps the sums, so reports are added up, have other intervals and are pooled (`pool`)
without a model. A module imports only from those before it:

    options, words, matrix, pairs, parts, folder, documents, ask, permuted, word_variance, heads, attention_sums,
    attention, pool, embeddings, weights, matched, text_attention, effects, interventions, same_words, comparison

What else is to be known of attention is a `Question`: sums, and what every batch adds to them. What is read of a model
otherwise, as states and effects, adds a batch at a time in the loop of `documents`. CONTRIBUTING.md shows one of each.
"""
