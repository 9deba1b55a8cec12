"""Whether models lie one behind the other, as the states of one training do; of distances alone.

A training moves its weights along a path. A checkpoint that is not of it lies far off both of its neighbours, while
these are close to each other; one that stands at another step than its own makes the path run back. Both are seen in
squared distances between all pairs of states: no weights are needed here.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from jaxtyping import Float64

# The sum of the distances to both neighbours is at most so many times that of the neighbours. On a straight line it is
# once, on a random walk √2 times.
MAX_DETOUR = 3.0
# A path runs back where a step points against it: the cosine of its angle with the whole of the path is below this. It
# is far from what rounding and sketched distances make of a right angle, to which the steps of a long random walk come
# close.
LEAST_COSINE = -0.15

Squared = Float64[np.ndarray, "state other"]


def off_the_path(squared: Squared, labels: Sequence[int]) -> dict[int, str]:
    """The states that cannot be where they are said to be, with the reason.

    Args:
        squared: squared distances between all pairs of states, in the order of their steps. States of distance 0 are
            copies: at most one of them is where it belongs.
        labels: the step of each, for the reasons.

    Returns:
        the place of each of these, and why. Of copies that fit in several places none is left, but for the first state
        of all, where weights may not have moved yet.
    """
    group = _copies(squared)
    single = [place for place in range(len(squared)) if group.count(group[place]) == 1]
    detours, back = _astray(squared, single)
    chain = [place for place in single if place not in detours and place not in back]
    found = {}
    for place, times in detours.items():
        found[place] = f"off the path: the way over it is {times:.3g} times that between its neighbours"
    for place in back:
        found[place] = f"out of order: its weights belong {_where(squared, chain, place, labels)}"
    for place, copy in _wrong_copies(squared, chain, group).items():
        found[place] = f"copy of step {labels[copy]}"
    return found


def _copies(squared: Squared) -> list[int]:
    """For every state the first one that it is a copy of, itself where it is none."""
    return [int(np.flatnonzero(row == 0)[0]) if (row == 0).any() else n for n, row in enumerate(squared)]


def detour(squared: Squared, before: int, place: int, after: int) -> float:
    """The way from one state over another to a third, relative to the direct one; infinite where there is none."""
    way = np.sqrt(squared[before, place]) + np.sqrt(squared[place, after])
    direct = np.sqrt(squared[before, after])
    return float(way / direct) if direct > 0 else float("inf")


def _along(squared: Squared, first: int, last: int) -> Float64[np.ndarray, " state"]:
    """How far along the line from one state to another every state is, times the length of the line."""
    return np.asarray((squared[first] - squared[last]) / 2)


def _points_back(squared: Squared, ends: tuple[int, int], one: int, next_one: int) -> bool:
    """Whether the way from a state to a later one points against that from end to end."""
    along = _along(squared, *ends)
    length = np.sqrt(squared[ends] * squared[one, next_one])
    return bool(along[next_one] - along[one] < LEAST_COSINE * length)


def _astray(squared: Squared, places: Sequence[int]) -> tuple[dict[int, float], list[int]]:
    """States off the path, with how long a detour each is, and those at another place along it than their step's.

    Beside a misplaced state those that are right look like a detour, so only what is one between any two states that
    follow each other is off the path. All others are put in their order along it. The path runs from the first to the
    last state, or between those that are farthest apart where that flags at most half as many: then one of the ends
    is misplaced.
    """
    chain, suspects = _without_detours(squared, list(places))
    pairs = list(pairwise(sorted(chain, key=lambda place: _along(squared, chain[0], chain[-1])[place])))
    foreign = {
        place: times
        for place, times in suspects.items()
        if all(detour(squared, one, place, other) > MAX_DETOUR for one, other in pairs)
    }
    rest = [place for place in places if place not in foreign]
    if len(rest) < 3:
        return suspects, []
    far = np.unravel_index(np.argmax(squared[np.ix_(rest, rest)]), (len(rest), len(rest)))
    one, other = (rest[int(place)] for place in far)
    ways = [_along_the_way(squared, rest, ends) for ends in ((rest[0], rest[-1]), (one, other), (other, one))]
    sizes = [len(detours) + len(back) for detours, back in ways]
    detours, back = ways[int(np.argmin(sizes)) if 2 * min(sizes) <= sizes[0] else 0]
    return {**foreign, **detours}, back


def _along_the_way(
    squared: Squared, places: Sequence[int], ends: tuple[int, int]
) -> tuple[dict[int, float], list[int]]:
    """Detours and misplaced states, where the path runs from one of the states to another one."""
    along = _along(squared, *ends)
    chain, detours = _without_detours(squared, sorted(places, key=lambda place: along[place]))
    back = _misplaced(squared, chain, ends)
    # One that is far off may come to lie beyond an end of the path.
    _, more = _without_detours(squared, [place for place in sorted(chain) if place not in back])
    return {**detours, **more}, back


def _without_detours(squared: Squared, chain: list[int]) -> tuple[list[int], dict[int, float]]:
    """The states without those that are a detour between their neighbours, which are taken out worst first."""
    found = {}
    while len(chain) > 2:
        detours = [detour(squared, *chain[k - 1 : k + 2]) for k in range(1, len(chain) - 1)]
        worst = int(np.argmax(detours))
        if detours[worst] <= MAX_DETOUR:
            break
        found[chain.pop(worst + 1)] = detours[worst]
    return chain, found


def _misplaced(squared: Squared, chain: Sequence[int], ends: tuple[int, int]) -> list[int]:
    """Of states in their order along the path those that stand elsewhere by their steps, and run back for it."""
    by_step = sorted(chain)
    turned = {
        place
        for number, one in enumerate(by_step)
        for later in by_step[number + 1 :]
        if _points_back(squared, ends, one, later)
        for place in (one, later)
    }
    return [own for own, there in zip(by_step, chain, strict=True) if own != there and own in turned]


def _fits(squared: Squared, chain: Sequence[int], place: int) -> bool:
    """Whether a state that is not part of a path is no detour and no way back where it stands."""
    before = [known for known in chain if known < place]
    after = [known for known in chain if known > place]
    if before and after and detour(squared, before[-1], place, after[0]) > MAX_DETOUR:
        return False
    ends = chain[0], chain[-1]
    return not (
        any(_points_back(squared, ends, known, place) for known in before[-1:])
        or any(_points_back(squared, ends, place, known) for known in after[:1])
    )


def _where(squared: Squared, chain: Sequence[int], place: int, labels: Sequence[int]) -> str:
    """Between which states of a path another one belongs."""
    if len(chain) < 2:
        return "elsewhere"
    along = _along(squared, chain[0], chain[-1])
    after = next((known for known in chain if along[known] > along[place]), None)
    if after is None:
        return f"behind step {labels[chain[-1]]}"
    if after == chain[0]:
        return f"before step {labels[after]}"
    return f"between steps {labels[chain[chain.index(after) - 1]]} and {labels[after]}"


def _wrong_copies(squared: Squared, chain: Sequence[int], group: Sequence[int]) -> dict[int, int]:
    """Copies that are not where they belong, and another place of the same weights."""
    found = {}
    for original in sorted(set(group)):
        places = [place for place, first in enumerate(group) if first == original]
        if len(places) == 1:
            continue
        fitting = [place for place in places if len(chain) > 1 and _fits(squared, chain, place)]
        right = fitting if len(fitting) == 1 else [place for place in places if place == 0]
        for place in places:
            if place not in right:
                found[place] = right[0] if right else next(other for other in places if other != place)
    return found
