"""Measures what a state costs to take and how large it is, at several window sizes."""

import sys
import timeit

import numpy as np

from odb_nodes import AlignNode, GroupingNode, SampleMapper, SamplerView, pack_states

_SAMPLES = 60_000
_BUDGET = 8192


class Lengths:
    """A map-style dataset with long-tailed lengths."""

    def __init__(self) -> None:
        lengths = np.random.default_rng(0).lognormal(5, 1, _SAMPLES)
        self._lengths = np.clip(lengths, 1, 4000).astype(int).tolist()

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {"input_ids": np.full(self._lengths[index], index)}


def measure(window: int) -> str:
    """One line of a Markdown table: microseconds, and bytes packed."""
    source = SampleMapper(SamplerView(_SAMPLES), Lengths())
    node = AlignNode(GroupingNode(source, _BUDGET, window=window))
    each, first = [], []
    for _ in range(6):
        next(node)
        # Of many, the fastest: what the machine does besides only ever adds.
        first.append(min(timeit.repeat(node.source.state_dict, number=5, repeat=20)) / 5 * 1e6)
        each.append(min(timeit.repeat(node.state_dict, number=5, repeat=20)) / 5 * 1e6)
    size = len(pack_states([node.state_dict()]))
    both = float(np.median(first) + np.median(each))
    return f"| {window:,} | {np.median(each):.0f} us | {both:.0f} us | {size:,} bytes |"


def main() -> int:
    """Command line."""
    for window in (256, 1024, 4096):
        print(measure(window), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
