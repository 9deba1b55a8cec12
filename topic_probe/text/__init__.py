"""From text to batches of token ids, and what can be learnt of texts alone: topics and co-occurrence.

A text comes from a place (`sources`, `hub`), is read as often as wanted, split over processes and cached (`corpus`,
`cache`), becomes documents in the one `encoder`, which reads off the text which tokens are words (`topic_probe.words`),
and documents of any shape become padded batches (`documents`, `batches`); `same_texts` reads a text with several
tokenizers, as far as all come. `shares` says which process or shard has
which documents, `sums` keeps what is added up over them. `bags`, `variational`, `lda` and `stability` fit topics to
documents, `cooccurrence` counts which words meet in them, `word_tokenizer` makes a tokenizer. A module imports only
from those before it:

    documents, batches, encoder, same_texts, sources, hub, cache, corpus, shares, sums, bags, variational, lda,
    stability, cooccurrence, word_tokenizer

A new kind of source is a subclass of `sources.Source` and a constructor of `corpus.Corpus`. A new shape of documents
is a case in `documents.read_documents`; everything that measures, fits or counts then takes it.
"""
