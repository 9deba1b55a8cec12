"""Sums of shards: parts of a measurement that know nothing of each other, until `merge_sums` adds up what they saved.

Whatever starts processes (a shell, a job array, datatrove, torchrun) gives each the number of its shard. Sources fall
by a hash into blocks, always the same ones, and a shard has every n-th block. Batches hold documents of one block, sums
are kept block by block, and blocks are added up in their order: so nothing depends on which shard a block is in, and
any number of shards gives the bits of one process. This costs the sums of every block, and a few documents of each that
wait for more of it, so a measurement without shards does not go by blocks; its numbers differ from these by rounding.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from topic_probe.contrast import SourceSums
from topic_probe.text.documents import Document
from topic_probe.text.shares import BLOCKS, OwnDocuments
from topic_probe.text.sums import Share, Sum, add_sums

# Documents of a block wait until there are so many batches of them, which are then sorted by length, or so many tokens:
# enough for little padding, few enough for all blocks to wait at once.
_BATCHES_THAT_WAIT, _TOKENS_THAT_WAIT = 8, 2**16


class BlockSums:
    """The sums of every block of a shard: accumulators add up a batch, which is then taken over into its block."""

    def __init__(self, share: Share, own: Mapping[str, Sum]) -> None:
        self.share, self.own = share, own
        self.by_block: dict[int, dict[str, Sum]] = {
            block: {name: _empty(values) for name, values in own.items()} for block in share.blocks
        }

        # Sources whose keys are equal modulo this may come to share a row, so they are in one block.
        limits = [values.limit for values in own.values() if isinstance(values, SourceSums)]
        self.limit = min(limits, default=4096)

    @property
    def flat(self) -> dict[str, Sum]:
        """All of them, by block and name."""
        return {
            f"{block} {name}": values
            for block, sums in self.by_block.items()
            for name, values in sums.items()
        }

    def take(self, block: int) -> None:
        """Takes over what the accumulators have."""
        add_sums(self.by_block[block], self.own)
        for values in self.own.values():
            if isinstance(values, SourceSums):
                values.clear()
            else:
                values[...] = 0

    def give_back(self) -> None:
        """Gives the accumulators the sums of all blocks."""
        for sums in self.by_block.values():
            add_sums(self.own, sums)


def _empty(values: Sum) -> Sum:
    """Sums of a block, which has one in so many sources."""
    return values.part(BLOCKS) if isinstance(values, SourceSums) else np.zeros_like(values)


def in_groups_of_blocks(own: OwnDocuments, batch_size: int) -> Iterator[tuple[int, list[Document]]]:
    """Some documents of a block, and of which one, as they come together; what is left over at the end."""
    waiting: dict[int, list[Document]] = {}
    n_tokens: Counter[int] = Counter()
    for block, document in own:
        few = waiting.setdefault(block, [])
        few.append(document)
        n_tokens[block] += len(document)
        if len(few) == batch_size * _BATCHES_THAT_WAIT or n_tokens[block] >= _TOKENS_THAT_WAIT:
            del n_tokens[block]
            yield block, waiting.pop(block)
    yield from sorted(waiting.items())
