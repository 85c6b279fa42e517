"""How much to measure: the full run, the quick one, and a tiny one that only tries everything."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tools.data.workloads import WORKLOADS

FULL_BUDGET = 16384
TITAN = "torchtitan"  # needs another torch than the reference: always in the main environment
SECTIONS = (
    "shape",
    "speed",
    "overlap",
    "memory",
    "ranks",
    "states",
    "scale",
    "ablations",
    "training",
    TITAN,
)
TRAIN_SCALE = 8  # training runs on lengths and a budget that much smaller


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Sizes of all measures.

    Attributes:
        size: "full", "quick" or "tiny".
        count: Samples of a data-path epoch.
        repeats: Repeats of what is timed; the columns take turns within each.
        workloads: Names of synthetic workloads.
        timed: The workloads among them that are timed.
        windows: Windows to compare, in samples a rank.
        worlds: Numbers of gloo ranks.
        budget: Padded tokens a batch and rank, at full length.
        trained_on: The workloads of the training runs.
        train_count: Samples of a training run.
        train_repeats: Repeats of each.
        trained: Columns of the training loop.
        model: Name of a model in ``tools.bench.columns.model``.
        device: "cpu" or "cuda", for the training loop.
        big_view: Samples of the largest view that is opened.
        texts: JSONL file whose rows are tokenized, or "".
        tokenizer: ``tokenizer.json`` for it, or "".
        num_texts: Rows of it.
    """

    size: str = "full"
    count: int = 2048
    repeats: int = 3
    workloads: tuple[str, ...] = tuple(WORKLOADS)
    timed: tuple[str, ...] = tuple(WORKLOADS)
    windows: tuple[int, ...] = (64, 256, 1024)
    worlds: tuple[int, ...] = (2, 4)
    budget: int = FULL_BUDGET
    trained_on: tuple[str, ...] = tuple(WORKLOADS)
    train_count: int = 256
    train_repeats: int = 2
    trained: tuple[str, ...] = ("standard-8", "sorted", "packing", "gmt", "reference", "ours")
    model: str = "small"
    device: str = "cpu"
    big_view: int = 1_000_000_000
    texts: str = ""
    tokenizer: str = ""
    num_texts: int = 1024

    @staticmethod
    def quick() -> "Settings":
        """Everything once over, in under two minutes on two cores."""
        return Settings(
            size="quick",
            count=320,
            repeats=2,
            workloads=("ultrachat", "mmmix"),
            timed=("ultrachat",),
            windows=(64, 256),
            worlds=(2,),
            trained_on=("mmmix",),
            train_count=96,
            train_repeats=1,
            num_texts=256,
        )

    @staticmethod
    def tiny() -> "Settings":
        """For a test: the numbers mean nothing."""
        return Settings(
            size="tiny",
            count=48,
            repeats=1,
            workloads=("mmmix",),
            timed=("mmmix",),
            windows=(16,),
            worlds=(2,),
            trained_on=("mmmix",),
            train_count=12,
            train_repeats=1,
            trained=("standard-8", "ours"),
            model="tiny",
            big_view=100_000,
            num_texts=24,
        )

    def with_texts(self, corpus: Path, tokenizer: Path) -> "Settings":
        """The same, with real texts if these files are there."""
        if not (corpus.is_file() and tokenizer.is_file()):
            return self
        return replace(self, texts=str(corpus), tokenizer=str(tokenizer))

    def dumps(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def loads(text: str) -> "Settings":
        """Inverse of ``dumps``."""
        values = json.loads(text)
        lists = ("workloads", "timed", "windows", "worlds", "trained", "trained_on")
        return Settings(**{**values, **{name: tuple(values[name]) for name in lists}})
