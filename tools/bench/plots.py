"""The plots of the page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.bench.measure.results import Row, find, middle

_COLORS = {
    "ours": "tab:blue",
    "ours-tumbling": "tab:cyan",
    "reference": "tab:orange",
    "gmt": "tab:green",
}


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draw what there are rows for; returns the files."""
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for what, label, scale in (
        ("budget", "token budget", "log"),
        ("window", "window (samples)", "log"),
        ("short", "share of short samples", "linear"),
    ):
        found = find(rows, f"ablation-{what}")
        if found:
            drawn.append(_ablation(found, what, label, scale, folder))
    for measure in ("speed", "torchtitan", "training-cpu", "training-cuda"):
        found = find(rows, measure)
        if found:
            drawn.append(_bars(found, measure, folder))
    return drawn


def _ablation(rows: Sequence[Row], what: str, label: str, scale: str, folder: Path) -> Path:
    figure, axes = _figure(2)
    for column in dict.fromkeys(row.column for row in rows):
        mine = [row for row in rows if row.column == column]
        x = [row.values[what] for row in mine]
        color = _COLORS.get(column)
        axes[0].plot(
            x, [r.values["over_minimum"] for r in mine], "o-", label=column, color=color, ms=3
        )
        axes[1].plot(x, [100 * r.values["padding"] for r in mine], "o-", color=color, ms=3)
    for axis, title in zip(axes, ("batches / exact minimum", "padding %"), strict=True):
        axis.set(xlabel=label, ylabel=title, xscale=scale)
        axis.grid(alpha=0.3)
    axes[0].legend()
    return _save(figure, folder / f"bench-{what}.png")


def _bars(rows: Sequence[Row], measure: str, folder: Path) -> Path:
    """Ratios to Standard with their spread, a group of bars a workload."""
    names = list(dict.fromkeys(row.workload for row in rows))
    columns = list(dict.fromkeys(row.column for row in rows))
    figure, axes = _figure(1, width=11)
    for at, column in enumerate(columns):
        mine = [row for row in rows if row.column == column]
        ratios = [row.values["of_standard"] for row in mine]
        middles = [middle(value) for value in ratios]
        spans = [
            [m - r["low"] for m, r in zip(middles, ratios, strict=True)],
            [r["high"] - m for m, r in zip(middles, ratios, strict=True)],
        ]
        places = [names.index(row.workload) + (at + 0.5) / len(columns) * 0.85 for row in mine]
        axes[0].bar(places, middles, 0.8 / len(columns), yerr=spans, label=column)
    axes[0].set_xticks([at + 0.42 for at in range(len(names))], names)
    axes[0].set(ylabel="samples/s over standard-8", title=measure)
    axes[0].axhline(1, color="gray", lw=0.8)
    axes[0].legend(fontsize=7, ncols=2)
    return _save(figure, folder / f"bench-{measure}.png")


def _figure(count: int, width: float = 9) -> tuple[Any, Any]:
    import matplotlib.pyplot as plt

    return plt.subplots(1, count, figsize=(width, 3.6), squeeze=False)[0], plt.gcf().axes


def _save(figure: Any, path: Path) -> Path:
    import matplotlib.pyplot as plt

    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path
