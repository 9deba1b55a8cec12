"""Which keys a query may see, found in masks and in patterns: what a configuration says of it can be wrong."""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor


def visible_keys(mask: Tensor | None, batch: int, queries: int, keys: int) -> Bool[Tensor, "batch query key"]:
    """True where the mask of an attention call lets a query see a key.

    Raises:
        ValueError: where the heads of a layer see different keys.
    """
    if mask is None:
        return torch.ones(batch, queries, keys, dtype=torch.bool)
    allowed = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    if allowed.shape[1] > 1 and not bool((allowed == allowed[:, :1]).all()):
        raise ValueError(
            "the heads of a layer see different keys, so that none has one number of visible keys to compare with; "
            "only layers whose heads share a mask can be measured"
        )
    return allowed[:, 0].expand(batch, queries, -1)[..., :keys]


_DEPENDS_ON_WORDS = (
    "which keys a query of a layer may see depends on the words, as in sparse attention that chooses its keys, and "
    "whole patterns do not tell a key that was not chosen from one that got nothing; only through='rows' shows it, "
    "where the model runs on sdpa"
)


class SeenPairs:
    """Which pairs of positions every site lets see each other, as the patterns of the longest documents so far show.

    Most sites see a band of offsets: all of a document, what is before it, a window. One pair may underflow to exactly
    zero in every head; a whole diagonal of pairs does so only where a mask forbids. Where single pairs of a band are
    dark, the mask may be another (chunks, blocks), and only a document of one and the same word, in which nothing
    underflows, shows it.
    """

    def __init__(self) -> None:
        self._bands: dict[int, tuple[int, int, int]] = {}
        self._masks: dict[int, Bool[Tensor, "query key"]] = {}

    def look(self, site: int, pattern: Float[Tensor, "head query key"], *, one_word: bool = False) -> bool:
        """Takes what a document shows of a site; False where it does not show what is masked there.

        Raises:
            ValueError: where the document and the one of one word have different masks.
        """
        length = pattern.shape[-1]
        mask = self._masks.get(site)
        if mask is not None and length <= len(mask):
            if bool(((pattern > 0).any(0) & ~mask[:length, :length]).any()):
                raise ValueError(_DEPENDS_ON_WORDS)
            return True
        longest, low, high = self._bands.get(site, (0, 0, 0))
        if length <= longest:
            return True
        seen = (pattern > 0).any(0)
        lowest, highest = seen_offsets(seen)
        offset = torch.arange(length, device=seen.device) - torch.arange(length, device=seen.device)[:, None]
        whole = torch.equal(seen, (offset >= lowest) & (offset <= highest))
        if whole:
            self._bands[site] = length, min(low, lowest), max(high, highest)
            self._masks.pop(site, None)
        elif one_word:
            self._masks[site] = seen
        return whole or one_word

    def visible(
        self, site: int, index: Int64[Tensor, "batch row"], keys: Bool[Tensor, "batch key"]
    ) -> Bool[Tensor, "batch row key"]:
        """Which real keys the queries at ``index`` of a site may see, in documents no longer than those looked at."""
        if site in self._masks:
            mask = torch.zeros(keys.shape[1], keys.shape[1], dtype=torch.bool, device=keys.device)
            n = min(len(mask), len(self._masks[site]))
            mask[:n, :n] = self._masks[site][:n, :n]
            return mask[index] & keys[:, None, :]
        longest, low, high = self._bands.get(site, (0, 0, 0))
        # What reaches to the edge of the longest document has no limit that anyone has seen.
        lowest = -torch.inf if low == 1 - longest else float(low)
        highest = torch.inf if high == longest - 1 else float(high)
        return visible_by_offset(index, keys, (lowest, highest))


def visible_by_offset(
    index: Int64[Tensor, "batch row"], keys: Bool[Tensor, "batch key"], offsets: tuple[float, float]
) -> Bool[Tensor, "batch row key"]:
    """Which real keys lie within offsets of the queries at ``index``."""
    offset = torch.arange(keys.shape[1], device=index.device) - index[:, :, None]
    return (offset >= offsets[0]) & (offset <= offsets[1]) & keys[:, None, :]


def seen_offsets(seen: Bool[Tensor, "query key"]) -> tuple[int, int]:
    """Lowest and highest offset of a seen key from its query."""
    position = torch.arange(seen.shape[-1], device=seen.device)
    used = (position - position[:, None])[seen]
    return (int(used.min()), int(used.max())) if used.numel() else (0, 0)
