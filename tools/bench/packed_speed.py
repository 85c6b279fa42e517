"""Measure what packed rows gain in real training steps: packed by cost, first-fit, and padded.

Every rank's steps are run, forward and backward, one rank after the other in this process, and
timed by its CPU clock, so that other work on the machine does not matter. A step takes as long as
its slowest rank; the sum over steps is the time of an epoch. Attention is evaluated per document.
"""

import argparse
import sys
import time
from collections.abc import Sequence

import torch
from torch.nn import functional
from tqdm import tqdm

from odb_nodes.pack import PackCollate
from tools.data.workloads import WORKLOADS
from tools.simulate.world import Setting, deal, simulate
from tools.train_ddp import MAX_TOKENS, VOCAB
from tools.train_packed import Model

COLUMNS = {
    "padded": Setting(policy="sliding", layout="padded"),
    "first-fit": Setting(policy="first-fit", layout="packed"),
    "packed": Setting(policy="sliding", layout="packed"),
}
SCALE = 4  # lengths are divided by this, so that rows fit a CPU


def step_seconds(model: Model, lengths: Sequence[int], *, padded: bool) -> float:
    """CPU seconds of a step on these documents; a padded one makes each as long as the longest."""
    sizes = [max(lengths)] * len(lengths) if padded else list(lengths)
    samples = [{"input_ids": [1] * n, "labels": [2] * n} for n in sizes]
    batch = PackCollate()(samples)
    started = time.process_time()
    logits = model(batch)
    functional.cross_entropy(logits, batch["labels"].flatten()).backward()
    return time.process_time() - started


def measured_slope(model: Model, tokens: int = MAX_TOKENS, repeat: int = 5) -> float:
    """Cost of a pair of tokens over that of a token: the same tokens as one document and as eight.

    With times ``a T + b T^2`` and ``a T + b T^2 / 8``, the difference is ``7 / 8 b T^2``.
    """
    one, eight = (
        min(step_seconds(model, sizes, padded=False) for _ in range(repeat))
        for sizes in ([tokens], [tokens // 8] * 8)
    )
    per_pair = max(0.0, one - eight) * 8 / 7 / tokens**2
    return per_pair / max(1e-12, one / tokens - per_pair * tokens)


def epoch_seconds(model: Model, shares: Sequence[Sequence[int]], setting: Setting) -> float:
    """Sum over the steps of an epoch of the slowest rank's CPU seconds."""
    result = simulate(shares, setting)
    groups = [rank.last(result.steps) for rank in result.ranks]
    total = 0.0
    for step in zip(*groups, strict=True):
        padded = setting.layout == "padded"
        total += max(step_seconds(model, g, padded=padded) for g in step if g)
    return total


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.packed_speed", description=__doc__)
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--samples", type=int, default=1000, help="of all ranks")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--budget", type=int, default=2048, help=f"tokens, of lengths / {SCALE}")
    parser.add_argument("--repeat", type=int, default=3, help="epochs of each; the least counts")
    parser.add_argument("--width", type=int, default=64, help="of the model, which has 2 layers")
    args = parser.parse_args(argv)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model(width=args.width)
    assert model.tokens.num_embeddings == VOCAB
    step_seconds(model, [MAX_TOKENS], padded=False)  # what is done once only
    slope = measured_slope(model)
    print(f"measured cost of a document of L tokens: L + {slope:.3g} L^2")
    print("| workload | packed s | over first-fit | over padded |")
    for name in tqdm(args.workloads, disable=not sys.stderr.isatty()):
        lengths = (WORKLOADS[name].draw(args.samples) // SCALE).clip(2, MAX_TOKENS)
        shares = [share.tolist() for share in deal(lengths, args.ranks)]
        seconds = dict.fromkeys(COLUMNS, float("inf"))
        for column in [*COLUMNS] * args.repeat:  # in turns: what else runs here comes and goes
            base = COLUMNS[column]
            setting = Setting(
                policy=base.policy,
                layout=base.layout,
                slope=slope,
                window=256,
                budget=args.budget,
            )
            seconds[column] = min(seconds[column], epoch_seconds(model, shares, setting))
        packed = seconds["packed"]
        print(
            f"| {name} | {packed:.1f} | {seconds['first-fit'] / packed:.3f} | "
            f"{seconds['padded'] / packed:.3f} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
