"""The plan as one picture: lengths, padding, steps, and useful work by window."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from titan_integration.errors import UserError
from titan_integration.plan.epoch import Epoch
from titan_integration.plan.plan import OURS, OURS_PACKED

_BINS = 40


def save(path: Path, histogram: Mapping[int, int], epochs: Sequence[Epoch], budget: int) -> None:
    """Draw to ``path`` (PNG, or what its suffix says).

    Args:
        path: File to write.
        histogram: Length in tokens -> samples of it.
        epochs: All simulated ones.
        budget: The one that the bars are of.

    Raises:
        UserError: There is no matplotlib, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("the picture needs matplotlib: pip install matplotlib") from None
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    axes = figure.subplots(2, 2)
    chosen = _one_window(epochs, budget)
    _draw_lengths(axes[0][0], histogram)
    names = [epoch.method for epoch in chosen]
    _draw_bars(axes[0][1], names, [100 * epoch.padding for epoch in chosen], "padding, % of tokens")
    _draw_bars(axes[1][0], names, [epoch.steps for epoch in chosen], "steps per epoch")
    _draw_windows(axes[1][1], epochs)
    figure.suptitle(f"{sum(histogram.values()):,} samples, {budget:,} tokens per GPU and step")
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot write the picture {path}: {error}") from error


def _one_window(epochs: Sequence[Epoch], budget: int) -> list[Epoch]:
    """Each method once at this budget, ours with its largest window."""
    return list({e.method: e for e in epochs if e.budget == budget}.values())


def _draw_lengths(axes: Any, histogram: Mapping[int, int]) -> None:
    lengths = np.array(list(histogram), float)
    edges = np.geomspace(max(1, lengths.min()), lengths.max() + 1, _BINS)
    axes.hist(lengths, bins=edges, weights=list(histogram.values()), color="tab:blue")
    axes.set(xscale="log", xlabel="length, tokens", ylabel="samples", title="lengths")


def _draw_bars(axes: Any, names: list[str], values: Sequence[float], title: str) -> None:
    colors = ["tab:orange" if name in (OURS, OURS_PACKED) else "tab:gray" for name in names]
    bars = axes.barh(names[::-1], values[::-1], color=colors[::-1])
    axes.bar_label(bars, fmt="{:,.4g}", padding=3)
    axes.margins(x=0.15)
    axes.set_title(title)


def _draw_windows(axes: Any, epochs: Sequence[Epoch]) -> None:
    for budget in sorted({epoch.budget for epoch in epochs}):
        ours = [e for e in epochs if e.budget == budget and e.method == OURS]
        axes.plot(
            [epoch.window for epoch in ours],
            [100 * epoch.efficiency for epoch in ours],
            marker="o",
            label=f"{budget:,} tokens",
        )
    windows = sorted({epoch.window for epoch in epochs if epoch.window})
    axes.set(xscale="log", xlabel="window, samples per GPU", title="useful work of ours, %")
    axes.set_xticks(windows, [f"{window:,}" for window in windows])
    axes.minorticks_off()
    axes.legend()
