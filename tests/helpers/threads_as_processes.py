"""Processes played by threads of a test, which costs nothing to start."""

import threading

import numpy as np

from topic_probe.processes import Processes


class Threads(Processes):
    """Processes played by threads, which meet at a barrier."""

    def __init__(self, index, size, table, barrier):
        super().__init__(index, size)
        self.table, self.barrier = table, barrier

    def gather(self, value):
        self.table[self.index] = value
        self.barrier.wait(20)
        values = list(self.table)
        self.barrier.wait(20)
        return values

    def add(self, array):
        return np.sum(self.gather(array.copy()), axis=0, dtype=array.dtype)


def in_threads(size, work):
    """What ``work`` returns in each of several processes."""
    table, barrier, found = [None] * size, threading.Barrier(size), [None] * size

    def one(index):
        found[index] = work(Threads(index, size, table, barrier))

    threads = [threading.Thread(target=one, args=(index,)) for index in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found
