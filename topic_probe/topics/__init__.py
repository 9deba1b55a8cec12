"""Which vocabulary entries belong to which topic: the table that every measurement looks up.

What a user gives is checked and made uniform (`lists`: ids, words, the matrix of a topic model), words are looked up
with a tokenizer (`lookup`), and all of it becomes `Topics`, which knows for every entry its topics, the group of
entries with the same topics, and the form that it shares with other spellings of the same word. Which groups share a
topic says their `Incidence`. A module imports only from those before it: builtin, incidence, lists, lookup, topics.

A new way to make topics is a constructor of `topics.Topics` that ends in `topics._assemble`.
"""

from topic_probe.topics.lookup import tokenizer_hash as tokenizer_hash
from topic_probe.topics.topics import Topics as Topics
