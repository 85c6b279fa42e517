"""BufferedSample-out loss with dynamic batches and with torchtitan's fixed ones, at equal samples.

``python -m tools.quality`` trains the small model of ``configs/`` on the docstring corpus once per
seed and kind of batches, two runs at a time, and writes ``docs/quality.md`` with its plot.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

CORPUS = Path("outputs/corpus")
REPORT = Path("docs/quality.md")
PLOT = Path("docs/img/quality.png")
LABELS = {
    "odb": "dynamic batches, padded",
    "packed": "dynamic batches, packed",
    "stock": "fixed batches (packed by torchtitan)",
}
KINDS = tuple(LABELS)
MARKS = 4  # held-out losses taken along a run
TOKENS = 2048  # per step: the padded budget, and the fixed sequence length
LIMIT = 0.01


def main(argv: list[str] | None = None) -> int:
    """Command line; returns 1 if the two losses differ by more than 1 %."""
    parser = argparse.ArgumentParser(prog="tools.quality", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="runs of each kind (default 3)")
    parser.add_argument("--samples", type=int, default=1500, help="rows trained on (default 1500)")
    parser.add_argument("--child", nargs=3, metavar=("KIND", "SEED", "OUT"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        kind, seed, out = args.child
        _train(kind, int(seed), args.samples, Path(out))
        return 0
    if not (CORPUS / "corpus.jsonl").is_file():
        print(f"error: no {CORPUS}/corpus.jsonl; run: python -m tools.corpus --out {CORPUS}")
        return 2
    runs = _run_all(args.seeds, args.samples)
    gap = _report(runs, args.seeds, args.samples)
    print(f"held-out loss, dynamic against fixed: {gap:+.2%} (limit {LIMIT:.0%}); see {REPORT}")
    return 0 if abs(gap) <= LIMIT else 1


def _run_all(seeds: int, samples: int) -> list[dict[str, Any]]:
    jobs = [(kind, seed) for seed in range(seeds) for kind in KINDS]
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, tqdm(total=len(jobs), unit="run") as bar:
        running: dict[Path, subprocess.Popen[bytes]] = {}
        while jobs or running:
            while jobs and len(running) < 2:
                kind, seed = jobs.pop(0)
                out = Path(folder) / f"{kind}-{seed}.json"
                command = [sys.executable, "-m", "tools.quality", "--samples", str(samples)]
                command += ["--child", kind, str(seed), str(out)]
                with Path(f"{out}.log").open("wb") as log:
                    running[out] = subprocess.Popen(command, stdout=log, stderr=log)
            for out, process in list(running.items()):
                if process.poll() is not None:
                    del running[out]
                    if process.returncode:
                        raise SystemExit(Path(f"{out}.log").read_text()[-3000:])
                    found.append(json.loads(out.read_text()))
                    bar.update()
            time.sleep(0.2)
    return found


def _train(kind: str, seed: int, samples: int, out: Path) -> None:
    """One run in this process, a world of one; writes its held-out losses."""
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", OMP_NUM_THREADS="1")
    from titan_integration import cpu

    if cpu.is_cpu_only():
        cpu.patch()
    with tempfile.TemporaryDirectory() as folder:
        trainer = _build(kind, seed, samples, folder)
        trainer.train()
        result = {"kind": kind, "seed": seed, "steps": trainer.step, "curve": trainer.curve}
        trainer.close()
    out.write_text(json.dumps(result))


def _build(kind: str, seed: int, samples: int, folder: str) -> Any:
    from configs.debug import debug_config
    from configs.llama3 import small
    from configs.models import with_dense_flex
    from titan_integration.data.config import UNLIMITED_STEPS, DataConfig, OdbConfig
    from titan_integration.upstream import (
        CheckpointManager,
        DebugConfig,
        LRSchedulersContainer,
        MetricsProcessor,
        TrainingConfig,
    )

    data = DataConfig(
        path=[str(CORPUS / "corpus.jsonl")],
        max_samples=samples,
        too_long="drop",
        seed=seed,
        odb=OdbConfig(
            enable=kind != "stock",
            layout="packed" if kind == "packed" else "padded",
            token_budget=TOKENS,
            window=512,
        ),
    )
    steps = UNLIMITED_STEPS
    changes: dict[str, Any] = {}
    if kind == "stock":
        steps = _fixed_steps(data)
        changes["lr_scheduler"] = LRSchedulersContainer.Config(warmup_steps=max(1, steps // 20))
        changes["metrics"] = MetricsProcessor.Config(log_freq=50)
    config = debug_config(
        with_dense_flex(small()),
        data=data,
        dump_folder=folder,
        training=TrainingConfig(
            local_batch_size=1,
            seq_len=TOKENS,
            steps=steps,
            disable_cuda_graphs=True,
            mixed_precision_param="float32",
        ),
        checkpoint=CheckpointManager.Config(enable=False),
        debug=DebugConfig(seed=seed, enable_structured_logging=False),
        **changes,
    )
    return _probe(config, samples, steps)


def _fixed_steps(data: Any) -> int:
    """Packed sequences that one pass of torchtitan's own loader makes of the rows."""
    from titan_integration.data.stock import StockDataLoader

    loader = StockDataLoader(
        StockDataLoader.Config(data=data, infinite=False),
        dp_world_size=1,
        dp_rank=0,
        tokenizer=_tokenizer(),
        seq_len=TOKENS,
        local_batch_size=1,
    )
    return sum(1 for _ in loader)


def _tokenizer() -> Any:
    from titan_integration.upstream import HuggingFaceTokenizer

    return HuggingFaceTokenizer(tokenizer_path=str(CORPUS / "tokenizer"))


def _probe(config: Any, samples: int, steps: int) -> Any:
    """The configured trainer, taking the held-out loss ``MARKS`` times."""
    from titan_integration.training.trainer import OdbTrainer

    class Probe(OdbTrainer):
        curve: list[tuple[float, float]]

        def train_step(self, data_iterator: Any) -> None:
            super().train_step(data_iterator)
            done = self.step / steps if self.odb is None else self.odb.totals.samples / samples
            is_last = self.step == self.config.training.steps
            if is_last or done >= (len(self.curve) + 1) / MARKS:
                self.curve.append((min(1.0, done), held_out_loss(self.model_parts[0])))

    trainer = Probe(config)
    trainer.curve = []
    return trainer


def held_out_loss(model: Any) -> float:
    """Mean loss of the answers' tokens over ``heldout.jsonl``, each row for itself."""
    import torch

    model.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for tensors in _held_out_batches():
            ids, labels, positions = (tensors[k] for k in ("input_ids", "labels", "positions"))
            masks = model.get_attention_masks(positions=positions)
            logits = model(ids, attention_masks=masks, positions=positions)
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1).float(), labels.flatten(), reduction="sum"
            )
            total += float(loss)
            count += int((labels != -100).sum())
    model.train()
    return total / count


def _held_out_batches() -> Iterator[dict[str, Any]]:
    from odb_nodes import PadCollate, odb_loader
    from titan_integration.data.encoding.encoder import Encoder, Encoding
    from titan_integration.data.inputs.open import Inputs
    from titan_integration.data.sources.index import SampleIndex

    rows = Inputs(paths=[str(CORPUS / "heldout.jsonl")]).open()
    encoder = Encoder(_tokenizer(), Encoding(max_len=TOKENS, too_long="drop"))
    collate = PadCollate(positions=True)
    budget: dict[str, Any] = {"token_budget": 2 * TOKENS, "window": 512, "prefetch": 0}
    with odb_loader(SampleIndex(rows), encoder, shuffle=False, collate=collate, **budget) as loader:
        for batch in loader:
            yield batch.tensors


def _report(runs: list[dict[str, Any]], seeds: int, samples: int) -> float:
    """Write the page; returns the larger relative gap of the mean final losses."""
    finals = {k: [r["curve"][-1][1] for r in runs if r["kind"] == k] for k in KINDS}
    steps = {k: sorted({r["steps"] for r in runs if r["kind"] == k}) for k in KINDS}
    means = {k: statistics.mean(finals[k]) for k in KINDS}
    gaps: dict[str, float] = {k: means[k] / means["stock"] - 1 for k in KINDS if k != "stock"}
    lines = [
        "# The same loss as with fixed batches",
        "",
        f"`make quality` (that is `python -m tools.quality --seeds {seeds} --samples {samples}`) "
        "trains the small Llama of `configs/llama3.py` on the docstring corpus, once per seed and "
        "kind of batches, and takes the loss of the answers' tokens on 1 in 50 rows held out.",
        "",
        "| batches | steps | held-out loss by seed | mean |",
        "| --- | --- | --- | --- |",
    ]
    for kind in KINDS:
        each = ", ".join(f"{loss:.4f}" for loss in sorted(finals[kind]))
        each_steps = ", ".join(map(str, steps[kind]))
        lines.append(f"| {LABELS[kind]} | {each_steps} | {each} | {means[kind]:.4f} |")
    lines += ["", _differences(gaps), "", "![held-out loss](img/quality.png)"]
    lines += ["", *_FAIR]
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text("\n".join(lines) + "\n")
    _plot(runs)
    return max(gaps.values(), key=abs)


def _differences(gaps: dict[str, float]) -> str:
    told = "; ".join(f"{LABELS[kind]}: {gap:+.2%}" for kind, gap in gaps.items())
    return f"Difference of the means from fixed batches: {told}."


_FAIR = [
    "What is equal: model, its initial weights (by seed), rows, tokenizer, masks by document,",
    "optimizer, peak learning rate, warm-up (5 %) and linear decay over the run, and the number of",
    "samples: one pass over the same rows.",
    "",
    f"What differs: a fixed batch is one row of {TOKENS} tokens, packed greedily; a dynamic batch",
    f"has at most {TOKENS} tokens, padded (samples of similar length) or packed (the oldest first,",
    "then what fits best). So the number of steps and",
    "the tokens in a step differ by a few percent, and so does the order of the samples. Both",
    "divide the summed loss of a step by its number of answer tokens. The fixed loader counts a",
    "pass by the packed rows it makes, so it may repeat or leave out a part of the last row.",
]


def _plot(runs: list[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.6))
    for kind, colour in zip(KINDS, ("tab:blue", "tab:green", "tab:orange"), strict=True):
        for number, run in enumerate(r for r in runs if r["kind"] == kind):
            label = LABELS[kind] if number == 0 else None
            done, losses = zip(*run["curve"], strict=True)
            axes.plot(done, losses, color=colour, alpha=0.7, marker=".", label=label)
    axes.set_xlabel("fraction of the epoch")
    axes.set_ylabel("held-out loss (nats per answer token)")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.tight_layout()
    PLOT.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PLOT, dpi=110)


if __name__ == "__main__":
    sys.exit(main())
