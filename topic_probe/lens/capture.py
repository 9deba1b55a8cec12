"""The names of `host` that other rooms still call."""

from topic_probe.lens.host import Facts as Facts
from topic_probe.lens.host import Host as View
from topic_probe.lens.host import facts as facts
from topic_probe.lens.host import hidden_states as hidden_states
from topic_probe.lens.host import host_of as view
from topic_probe.lens.host import n_states as n_states
from topic_probe.lens.host import patterns as patterns
from topic_probe.lens.host import sites as sites
from topic_probe.lens.weights import embedding_in_residual as embedding_in_residual
from topic_probe.lens.weights import head_weights as head_weights
from topic_probe.lens.weights import unembedding as unembedding
from topic_probe.lens.weights import word_embeddings as word_embeddings

__all__ = ["View", "view"]
