"""From text to batches of token ids, and what can be learnt of texts alone: topics and co-occurrence.

`corpus` reads the texts of lists, files and data sets, and gives them to the one `encoder`, which reads off the text
which tokens are words (`topic_probe.words`); `documents` has what comes of them, and how they are checked, cut and
counted; `batches` pads them; `same_texts` reads a text with several tokenizers, as far as all come. `lda`
fits topics to documents, `cooccurrence` counts which words meet in them, `word_tokenizer` makes a tokenizer. A module
imports only from those before it:

    documents, batches, encoder, same_texts, corpus, lda, cooccurrence, word_tokenizer

A new kind of source is a constructor of `corpus.Corpus` that says how its texts are read and what stands in the
provenance.
"""
