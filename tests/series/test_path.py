"""Which states of a walk are not where they stand, of distances alone; walks are drawn, and broken on purpose."""

import numpy as np
import pytest

from topic_probe.series.path import MAX_DETOUR, detour, off_the_path

N = 12


def walk(n=N, *, drift=1.0, seed=0):
    """States of a training at log-spaced steps: so far in one direction, and a random walk beside it."""
    generator = np.random.default_rng(seed)
    lengths = np.diff(np.log1p(np.concatenate([[0], np.geomspace(1, 100, n - 1)])))[:, None]
    steps = drift * lengths * generator.normal(size=500) + np.sqrt(lengths) * generator.normal(
        size=(n - 1, 500)
    )
    return np.concatenate([np.zeros((1, 500)), np.cumsum(steps, axis=0)])


def squared(states):
    return ((states[:, None] - states) ** 2).sum(-1)


def wrong(states):
    return set(off_the_path(squared(states), range(len(states))))


@pytest.mark.parametrize("drift", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("n", [1, 2, 3, 6, 12, 40])
def test_a_walk_is_where_it_is(n, drift):
    for seed in range(5):
        assert off_the_path(squared(walk(n, drift=drift, seed=seed)), range(n)) == {}


def test_a_walk_back_and_forth_around_an_end_is_no_disorder():
    """Late in a training, weights go to and fro: across the path, and by less than a step before it."""
    states = walk(8)
    states = np.concatenate([states, states[-1] + 0.3 * np.random.default_rng(1).normal(size=(6, 500))])
    assert wrong(states) == set()


@pytest.mark.parametrize("drift", [0.0, 0.5, 2.0])
def test_all_that_a_shuffle_moves_is_found_and_only_that(drift):
    generator = np.random.default_rng(3)
    for seed in range(20):
        order = np.array([0, *(1 + generator.permutation(N - 2)), N - 1])
        assert wrong(walk(drift=drift, seed=seed)[order]) == set(np.flatnonzero(order != np.arange(N)))


def test_the_first_and_the_last_in_each_others_place_are_found():
    order = [N - 1, *range(1, N - 1), 0]
    assert wrong(walk()[order]) == {0, N - 1}


def test_states_of_another_training_are_off_the_path_and_all_that_are():
    states = walk()
    states[[3, 8]] = 6 * np.random.default_rng(1).normal(size=(2, 500))
    found = off_the_path(squared(states), range(0, 10 * N, 10))
    assert found.keys() == {3, 8}
    assert all(why.startswith("off the path: the way over it is ") for why in found.values())


def test_a_misplaced_state_says_where_it_belongs():
    states = walk(6)
    found = off_the_path(squared(states[[0, 1, 4, 3, 2, 5]]), [0, 10, 20, 30, 40, 50])
    assert found.keys() == {2, 4}
    # At step 20 stands what comes behind the state at 30, at step 40 what comes before it.
    assert found[2] == "out of order: its weights belong between steps 30 and 50"
    assert found[4] == "out of order: its weights belong between steps 10 and 30"


def test_of_copies_the_one_that_fits_stays():
    for one in range(1, N - 1):
        for other in {*range(1, N - 1)} - {one - 1, one, one + 1}:
            states = walk()
            states[other] = states[one]
            assert off_the_path(squared(states), range(N)) == {other: f"copy of step {one}"}


def test_a_detour_is_the_way_over_a_state_relative_to_the_direct_one():
    triangle = squared(np.array([[0.0, 0], [0, 4], [3, 4]]))
    assert detour(triangle, 0, 1, 2) == pytest.approx((4 + 3) / 5)
    assert detour(triangle, 0, 2, 0) == np.inf
    assert MAX_DETOUR == 3
