"""Four length workloads, seeded, and the fewest batches that any loader could make of them.

Each is a mixture of two log-normals, cut off at a longest sample. Their shapes are those of common
fine-tuning sets: short chats, captions, long-tailed multi-turn data, and a bimodal mix.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SHORTEST = 8
Lengths = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A mixture of two log-normals.

    Attributes:
        first: Share of the samples that the first part has.
        medians: Median length of either part, in tokens.
        sigmas: Standard deviation of the logarithm, of either part.
        longest: Longer draws are cut to this many tokens.
    """

    first: float
    medians: tuple[float, float]
    sigmas: tuple[float, float]
    longest: int

    def draw(self, count: int, seed: int = 0) -> Lengths:
        """``count`` lengths in tokens; equal arguments give equal lengths."""
        rng = np.random.default_rng(seed)
        part = (rng.random(count) >= self.first).astype(np.int64)
        logs = np.log(np.array(self.medians))[part]
        values = np.exp(rng.normal(logs, np.array(self.sigmas)[part]))
        return np.clip(values, SHORTEST, self.longest).astype(np.int64)


WORKLOADS = {
    "ultrachat": Workload(first=0.47, medians=(1000, 1163), sigmas=(0.476, 0.424), longest=4096),
    "llava": Workload(first=0.93, medians=(566, 822), sigmas=(0.246, 0.32), longest=2048),
    "sharegpt4o": Workload(first=0.55, medians=(1162, 918), sigmas=(0.839, 0.868), longest=14000),
    "mmmix": Workload(first=0.62, medians=(307, 1105), sigmas=(0.423, 0.404), longest=4906),
}


def fewest_groups(lengths: Lengths | Sequence[int], max_tokens: int) -> int:
    """Fewest groups of at most ``max_tokens`` padded tokens, all lengths known: sort and cut."""
    ordered = np.sort(np.asarray(lengths, np.int64))[::-1].tolist()
    groups = at = 0
    while at < len(ordered):
        at += max(1, max_tokens // ordered[at])
        groups += 1
    return groups


def fewest_steps(shares: Sequence[Lengths | Sequence[int]], max_tokens: int) -> int:
    """Fewest steps in which as many ranks can emit all samples, dealt out in any way."""
    groups = fewest_groups(
        np.concatenate([np.asarray(share, np.int64) for share in shares]), max_tokens
    )
    return -(-groups // len(shares))


def fewest_rows(tokens: Sequence[int], max_tokens: int) -> int:
    """Fewest steps in which packed rows can hold so many tokens per rank, dealt out in any way."""
    return -(-sum(tokens) // (len(tokens) * max_tokens))
