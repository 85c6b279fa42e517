"""Batches planned from all lengths before anything is loaded: what online batching cannot know."""

import numpy as np

from tools.bench.columns.data import Int64s

Batches = list[list[int]]
_BUCKETS_PER_DOUBLING = 3


def minimum_batches(lengths: Int64s, budget: int) -> Batches:
    """GMT, a global maximum of tokens: all samples by length, cut into the fewest batches."""
    order = np.argsort(-lengths, kind="stable").tolist()
    batches, start = [], 0
    while start < len(order):
        stop = start + max(1, budget // int(lengths[order[start]]))
        batches.append(order[start:stop])
        start = stop
    return batches


def bucketed_batches(lengths: Int64s, budget: int, seed: int) -> Batches:
    """BMT, a maximum of tokens by bucket: in random order, each batch out of one length bucket.

    Buckets are geometric, three a doubling of length. A batch is closed when its bucket's next
    sample would exceed the budget.
    """
    order = np.random.default_rng(seed).permutation(len(lengths)).tolist()
    buckets = np.floor(np.log2(lengths) * _BUCKETS_PER_DOUBLING).astype(int).tolist()
    batches: Batches = []
    held: dict[int, list[int]] = {}
    longest: dict[int, int] = {}
    for index in order:
        bucket = buckets[index]
        batch = held.setdefault(bucket, [])
        most = max(longest.get(bucket, 0), int(lengths[index]))
        if batch and (len(batch) + 1) * most > budget:
            batches.append(batch)
            held[bucket], most = [], int(lengths[index])
        held[bucket].append(index)
        longest[bucket] = most
    return batches + [batch for batch in held.values() if batch]


def length_sorted_batches(lengths: Int64s, window: int, size: int, seed: int) -> Batches:
    """Batches of ``size`` samples out of windows of a random order, each sorted by length."""
    order = np.random.default_rng(seed).permutation(len(lengths))
    batches: Batches = []
    for start in range(0, len(order), window):
        part = order[start : start + window]
        part = part[np.argsort(-lengths[part], kind="stable")]
        batches += [part[i : i + size].tolist() for i in range(0, len(part), size)]
    return batches


def deal(batches: Batches, world_size: int, seed: int) -> list[Batches]:
    """The same number of batches to every rank, in random order; the largest split if need be."""
    batches = [list(batch) for batch in batches]
    while len(batches) % world_size:
        at = max(range(len(batches)), key=lambda i: len(batches[i]))
        if len(batches[at]) == 1:
            batches.append(list(batches[0]))  # nothing to split: repeat one, as samplers do
            continue
        half = len(batches[at]) // 2
        batches.append(batches[at][half:])
        del batches[at][half:]
    # Neighbours in length meet in one step, so that no rank waits long for another.
    steps = [batches[i : i + world_size] for i in range(0, len(batches), world_size)]
    order = np.random.default_rng(seed).permutation(len(steps))
    return [[steps[i][rank] for i in order] for rank in range(world_size)]
