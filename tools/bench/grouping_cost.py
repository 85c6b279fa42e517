"""Measure what grouping costs a sample: microseconds of CPU, insertion included.

"sliding": the window is full, and rounds of groups are taken and topped up again. "tumbling": the
window is filled, cut, and all of its groups are taken. Packed groups are cut to a cost target.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from itertools import count, islice, product
from statistics import median

from odb_nodes.batching.budget import TokenBudget
from odb_nodes.batching.cost import Cost
from odb_nodes.batching.layouts import LAYOUTS, find_layout
from odb_nodes.batching.window import Window, make_key
from odb_nodes.protocol.policies import POLICIES
from tools.data.workloads import WORKLOADS

WINDOWS = (256, 1024, 4096, 16384, 65536)
COST = Cost(1.0, 1.75e-5)  # of an 8B model
_BUDGET = 16384
_CHUNK = 2048


def cost_us(
    name: str, policy_name: str, layout: str, window: int, samples: int = 32768
) -> list[float]:
    """CPU time of propose and settle, a sample, once the window has been filled for the first time.

    Args:
        name: Workload.
        policy_name: "sliding" or "tumbling".
        layout: "padded" or "packed".
        window: Samples buffered.
        samples: How many to measure at least.
    Returns:
        Microseconds a sample, one value per ``_CHUNK`` samples or tumbling window.
    """
    lengths = iter(WORKLOADS[name].draw(3 * window + 2 * samples).tolist())
    keys = map(make_key, lengths, count())
    policy = POLICIES[policy_name]
    held = Window(TokenBudget(_BUDGET), layout=find_layout(layout, cost=COST))
    held.aim(1.05 * _BUDGET if layout == "packed" else None)

    def refill(held: Window) -> bool:
        for key in islice(keys, window - len(held)):
            held.add(key)
        return len(held) == window

    if policy_name == "sliding":
        refill(held)
        held.take_best()  # the first order of a whole window is start-up, not steady state
    costs, done, total, started = [], 0, 0, time.process_time()
    while total < samples:
        offer = policy.propose(held, refill, None)
        done += sum(map(len, offer.settle(held, len(offer.groups))))
        if done >= _CHUNK:
            now = time.process_time()
            costs.append((now - started) / done * 1e6)
            total, done, started = total + done, 0, now
    return costs


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.grouping_cost", description=__doc__
    )
    parser.add_argument("--repeat", type=int, default=3, help="times each measurement is made")
    args = parser.parse_args(argv)
    print("us a sample, median (least), of chunks of samples")
    print("| layout | policy | window |", " | ".join(WORKLOADS), "|")
    for layout, policy, window in product(LAYOUTS, POLICIES, WINDOWS):
        cells = []
        for name in WORKLOADS:
            costs = [c for _ in range(args.repeat) for c in cost_us(name, policy, layout, window)]
            cells.append(f"{median(costs):.2f} ({min(costs):.2f})")
        print(f"| {layout} | {policy} | {window} |", " | ".join(cells), "|", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
