"""The plan: every way to batch on a sample of the lengths, and the budget to take."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from odb_nodes.batching.cost import Cost
from titan_integration.plan.epoch import Epoch, cost_of_model, measure
from titan_integration.plan.methods import (
    Lengths,
    Steps,
    fixed,
    greedy_packed,
    length_sorted,
    online,
)

FEWEST_SAMPLES = 20_000  # drawn to simulate; more where windows are large
WINDOWS_DRAWN = 6  # times all windows: their filling and draining must not be all there is
MOST_RANKS = 16  # simulated; padding and waiting hardly change beyond
FEWEST_STEPS = 100  # per epoch that a recommended budget leaves
ROUND_TO = 256
DIM = 4096  # of a model that is not known
OURS = "ours, padded"
OURS_PACKED = "ours, packed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What a plan is made for.

    Attributes:
        gpus: Data-parallel ranks.
        budgets: Tokens per rank and step to try, ascending.
        windows: Samples buffered per rank to try, ascending.
        cost: Of groups.
        seed: Draws the lengths.
    """

    gpus: int
    budgets: tuple[int, ...]
    windows: tuple[int, ...]
    cost: Cost = field(default_factory=lambda: cost_of_model(DIM))
    seed: int = 0

    @property
    def ranks(self) -> int:
        """Ranks to simulate."""
        return min(self.gpus, MOST_RANKS)


def draw(histogram: Mapping[int, int], count: int, seed: int = 0) -> Lengths:
    """``count`` lengths in random order, in the proportions of a histogram of lengths.

    All of them where there are no more, so that small data is simulated as it is.
    """
    values = np.array(sorted(histogram), np.int64)
    counts = np.array([histogram[int(value)] for value in values], np.int64)
    total = int(counts.sum())
    rng = np.random.default_rng(seed)
    if total <= count:
        return rng.permutation(np.repeat(values, counts))
    # Evenly spaced ranks of the sorted lengths: the tail is never drawn too often or too rarely.
    ranks = ((np.arange(count) + 0.5) * total / count).astype(np.int64)
    return rng.permutation(values[np.searchsorted(np.cumsum(counts), ranks, side="right")])


def simulate(histogram: Mapping[int, int], question: Question) -> Iterator[Epoch]:
    """Epochs of every method, budget and window; the real numbers of steps and tokens.

    Args:
        histogram: Length in tokens -> samples of it.
        question: What to try.
    """
    total, ranks = sum(histogram.values()), question.ranks
    wanted = max(FEWEST_SAMPLES, WINDOWS_DRAWN * max(question.windows) * ranks)
    lengths = draw(histogram, wanted, question.seed)
    for budget in question.budgets:
        for way in _ways(lengths, question, budget, longest=max(histogram)):
            epoch = measure(
                way.name,
                way.steps(),
                budget=budget,
                cost=question.cost,
                window=way.window,
                packed=way.packed,
                least=way.least,
            )
            yield _scaled(epoch, total, question)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Way:
    """A way to batch, and how its groups are to be measured; see ``measure``."""

    name: str
    steps: Callable[[], Steps]
    window: int = 0
    packed: bool = False
    least: int = 0


def _ways(lengths: Lengths, question: Question, budget: int, *, longest: int) -> Iterator[_Way]:
    take, size = (lengths, question.ranks), max(1, budget // longest)
    yield _Way(name=f"fixed, {size} each", steps=partial(fixed, *take, batch_size=size))
    yield _Way(name=f"sorted, {size} each", steps=partial(length_sorted, *take, batch_size=size))
    packed = partial(greedy_packed, *take, budget=budget)
    yield _Way(name="packed greedily", steps=packed, packed=True, least=budget)
    for layout, name in (("padded", OURS), ("packed", OURS_PACKED)):
        for window in question.windows:
            steps = partial(online, *take, budget=budget, window=window, layout=layout)
            yield _Way(name=name, steps=steps, window=window, packed=layout == "packed")


def num_epochs(question: Question) -> int:
    """How many epochs ``simulate`` gives."""
    return len(question.budgets) * (3 + 2 * len(question.windows))


def pick_window(epochs: Sequence[Epoch], budget: int) -> int:
    """The smallest window that wastes at most a hundredth more of the work than the best does."""
    ours = [epoch for epoch in epochs if epoch.method == OURS and epoch.budget == budget]
    best = max(epoch.efficiency for epoch in ours)
    return min(epoch.window for epoch in ours if epoch.efficiency >= best - 0.01)


def _scaled(epoch: Epoch, total: int, question: Question) -> Epoch:
    """The simulated epoch for all samples and all GPUs."""
    factor = total / max(1, epoch.samples)
    return replace(
        epoch,
        steps=max(1, round(epoch.steps * factor * question.ranks / question.gpus)),
        samples=total,
        real_tokens=round(epoch.real_tokens * factor),
        batch_tokens=round(epoch.batch_tokens * factor),
        work=epoch.work * factor * question.ranks / question.gpus,
        ideal_work=epoch.ideal_work * factor * question.ranks / question.gpus,
    )


def recommend(fits: int | None, histogram: Mapping[int, int], gpus: int) -> tuple[int, str]:
    """A token budget, and the reason for it.

    Args:
        fits: Tokens per GPU and step that the memory takes; None if that is not known.
        histogram: Length in tokens -> samples of it.
        gpus: Data-parallel ranks.
    """
    tokens = sum(length * count for length, count in histogram.items())
    longest = max(histogram)
    useful = max(ROUND_TO, tokens // (gpus * FEWEST_STEPS) // ROUND_TO * ROUND_TO)
    least = -(-longest // ROUND_TO) * ROUND_TO
    if fits is None:
        fits, what = 4 * least, "four of the longest samples (--memory_gb and a model tell more)"
    else:
        what = "what the memory takes"
    if fits < least:
        return fits, (
            f"what the memory takes, less than the longest sample of {longest:,} tokens, which "
            "then is a batch of its own: cut or drop such, or take more GPUs or recomputation"
        )
    if useful < least:
        return least, f"the longest sample; fewer than {FEWEST_STEPS} steps per epoch are left"
    if useful < fits:
        return useful, f"for {FEWEST_STEPS} steps per epoch; at most it is {what}"
    return fits, what
