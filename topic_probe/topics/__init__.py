"""Which vocabulary entries belong to which topic."""

from topic_probe.topics.topics import Coverage as Coverage
from topic_probe.topics.topics import Topics as Topics
from topic_probe.topics.vocabulary import tokenizer_hash as tokenizer_hash
