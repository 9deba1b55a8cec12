"""From text to batches of token ids, and what can be learnt of texts alone: topics and co-occurrence.

A text comes from a place (`sources`, `hub`), is read as a stream that is opened again where it breaks (`corpus`),
becomes documents in the one `encoder`, which reads off the text which tokens are words (`topic_probe.words`), and
documents of any shape become padded batches (`documents`, `batches`); `same_texts` reads a text with several
tokenizers, as far as all come. `parts` says into which parts documents fall, `sums` what is known of some of them.
`lda` fits topics to documents, `cooccurrence` counts which words meet in them, `word_tokenizer` makes a
tokenizer. A module imports only from those before it:

    documents, batches, encoder, same_texts, sources, hub, corpus, parts, sums, lda, cooccurrence,
    word_tokenizer

A new kind of source is a subclass of `sources.Source` and a constructor of `corpus.Corpus`. A new shape of documents
is a case in `documents.read_documents`; everything that measures, fits or counts then takes it.
"""
