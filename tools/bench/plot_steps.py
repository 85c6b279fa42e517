"""Draw steps over the exact minimum against the window, for both policies: docs/img/steps.png."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.data.workloads import WORKLOADS
from tools.simulate.world import Setting, deal, simulate

WINDOWS = (32, 64, 128, 256, 512, 1024)
RANKS = (1, 16)
SAMPLES_A_RANK = 2048


def ratios(name: str, ranks: int, policy: str) -> list[float]:
    """Steps over the exact minimum, one per window."""
    shares = deal(WORKLOADS[name].draw(SAMPLES_A_RANK * ranks), ranks)
    results = [simulate(shares, Setting(policy=policy, window=window)) for window in WINDOWS]
    return [result.steps / result.fewest_steps for result in results]


def draw(axes: Any, ranks: int) -> None:
    """One panel: all workloads on so many ranks."""
    for color, name in enumerate(WORKLOADS):
        for policy, style in (("tumbling", "--"), ("sliding", "-")):
            label = name if policy == "sliding" else None
            axes.plot(WINDOWS, ratios(name, ranks, policy), style, color=f"C{color}", label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(WINDOWS, WINDOWS)
    axes.set_xlabel("window (samples a rank)")
    axes.set_title(f"{ranks} rank" + "s" * (ranks > 1))
    axes.grid(alpha=0.3)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    parser = argparse.ArgumentParser(prog="python -m tools.bench.plot_steps", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/img/steps.png"))
    args = parser.parse_args(argv)
    figure, panels = pyplot.subplots(1, len(RANKS), figsize=(9, 3.6), sharey=True)
    for axes, ranks in zip(panels, RANKS, strict=True):
        draw(axes, ranks)
    panels[0].set_ylabel("steps / fewest possible")
    panels[0].plot([], [], "k-", label="sliding")
    panels[0].plot([], [], "k--", label="tumbling")
    panels[0].legend(fontsize=8)
    figure.tight_layout()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out, dpi=90)
    return 0


if __name__ == "__main__":
    sys.exit(main())
