"""Read every row once before training, so that a bad one costs a second and not a night."""

import hashlib
import logging
import multiprocessing
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np
import torch.distributed as dist
from tqdm import tqdm

from titan_integration.data.checks import cache
from titan_integration.data.checks.cache import Checked
from titan_integration.data.checks.examine import Examiner, Findings
from titan_integration.data.checks.report import Report
from titan_integration.data.encoding.encoder import Encoder
from titan_integration.data.sources.index import counts_of
from titan_integration.data.sources.table import Table
from titan_integration.errors import UserError
from titan_integration.process_groups import gather

logger = logging.getLogger(__name__)
VERSION = 1  # Of what a check finds in the same rows; older results are not taken.
BLOCK = 1024  # Rows that a worker process examines at a time.
# Below this a check is over before worker processes have imported what they need.
FEW_ROWS = 20_000


def check_rows(
    table: Table,
    encoder: Encoder,
    *,
    skip_errors: bool,
    dp_rank: int,
    dp_world_size: int,
    group: dist.ProcessGroup | None,
    folder: Path | None = None,
) -> Checked:
    """Encode a share of the rows on every rank, and reach one verdict on all of them.

    Args:
        table: The rows.
        encoder: Of the run.
        skip_errors: Whether rows that need a decision are left out instead of ending the run.
        dp_rank: Of this rank.
        dp_world_size: Ranks that share the work.
        group: Them.
        folder: Keeps the result; the next check of the same rows by an encoder of the same
            settings is read from there.

    Raises:
        UserError: A row cannot be read, needs a decision or is too long for the model, or no row
            can be trained on. The first in file order is named, on all ranks alike.
    """
    key = _key(table, encoder, skip_errors) if folder is not None and dp_rank == 0 else ""
    known = cache.load(folder, key) if folder is not None and dp_rank == 0 else None
    found, *_ = gather(known, group)
    if isinstance(found, Checked):
        say(found.report, encoder, again=True)
        return found
    examiner = Examiner(table, encoder, skip_errors=skip_errors)
    share = range(dp_rank, len(table), dp_world_size)
    shares: list[Findings] = []
    for item in gather(_examine(examiner, share, show=dp_rank == 0), group):
        assert isinstance(item, Findings)
        shares.append(item)
    checked = _verdict(table, encoder, shares)
    if folder is not None and dp_rank == 0:
        cache.store(folder, key, checked)
    say(checked.report, encoder)
    return checked


def examine(table: Table, encoder: Encoder, indices: Sequence[int], *, show: bool) -> Report:
    """The report on some rows, in this process and its workers; errors are counted as drops."""
    examiner = Examiner(table, encoder, skip_errors=True)
    report = _examine(examiner, indices, show=show).report
    report.files = list(map(str, table.files))
    return report


def _examine(examiner: Examiner, indices: Sequence[int], *, show: bool) -> Findings:
    total = Findings()
    blocks = [indices[i : i + BLOCK] for i in range(0, len(indices), BLOCK)]
    size = _num_processes(len(indices))
    bar = tqdm(total=len(indices), desc="checking rows", unit=" rows", delay=2, disable=not show)
    with bar:
        for found in map(examiner, blocks) if size < 2 else _in_processes(examiner, blocks, size):
            total.report = total.report.merged(found.report)
            total.counts += found.counts
            total.columns |= found.columns
            bar.update(found.report.rows)
            if found.first_error is not None:
                total.first_error = found.first_error
                break
    return total


def _in_processes(examiner: Examiner, blocks: list[Sequence[int]], size: int) -> Iterator[Findings]:
    # Not forked: this process may hold threads of CUDA and of gloo.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(size, context, initializer=_start, initargs=(examiner,))
    waiting = iter(blocks)
    pending = [pool.submit(_work, block) for block in islice(waiting, 2 * size)]
    try:
        while pending:
            yield pending.pop(0).result()
            pending += [pool.submit(_work, block) for block in islice(waiting, 1)]
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start(examiner: Examiner) -> None:
    global _examiner
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # Each process has one core.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _examiner = examiner


def _end_with_parent() -> None:
    """End this process when the one that started it is gone, also if it was killed.

    The executor's own end would never come then: its workers wait for each other's pipes.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(block: Sequence[int]) -> Findings:
    return _examiner(block)


_examiner: Examiner  # Of a worker process.


def _num_processes(rows: int) -> int:
    if rows < FEW_ROWS:
        return 1
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return len(os.sched_getaffinity(0)) // ranks_here


def _verdict(table: Table, encoder: Encoder, shares: list[Findings]) -> Checked:
    errors = [share.first_error for share in shares if share.first_error is not None]
    if errors:
        raise UserError(min(errors)[1])
    report = shares[0].report
    for share in shares[1:]:
        report = report.merged(share.report)
    report.files = list(map(str, table.files))
    seen = set().union(*(share.columns for share in shares))
    for column in encoder.encoding.reading.columns.values():
        if column not in seen:
            raise UserError(f"data.columns must name columns of the rows, got {column!r}")
    if not report.samples:
        why = "; ".join(f"{n} x {reason}" for reason, n in report.dropped.most_common(3))
        raise UserError(
            f"no row of {', '.join(report.files)} can be trained on ({why or 'it is empty'}); "
            "see --data.format"
        )
    counts = counts_of([np.array(share.counts, np.int64) for share in shares], len(table))
    return Checked(report, None if (counts == 1).all() else counts)


def say(report: Report, encoder: Encoder, *, again: bool = False) -> None:
    """Tell a person what was found, on the log."""
    places, chunked = report.samples + report.dropped.total(), encoder.encoding.too_long == "chunk"
    if places > report.rows:
        why = "long texts are cut" if chunked else "the chat template rewrites earlier turns"
        logger.info(f"{report.rows:,} rows give {report.samples:,} samples: {why}")
    lengths = ", ".join(f"{name} {length:,}" for name, length in report.lengths.items())
    known = " (as found before)" if again else ""
    logger.info(
        f"checked {report.rows:,} rows{known}: {report.samples:,} samples, "
        f"{report.answers_trained:,} of {report.answers:,} answers trained on, "
        f"{report.target_tokens:,} of {report.tokens:,} tokens carry loss; lengths: {lengths}"
    )
    if encoder.encoding.vision is not None:
        logger.info(f"{report.pictures:,} pictures of {report.patches:,} patches in these samples")
    for reason, count in report.dropped.most_common():
        logger.warning(f"{count:,} left out: {reason} (as in {report.examples[reason]})")
    for name, count in report.unread_keys.most_common():
        logger.warning(f"nothing reads {name}, which {count:,} rows have")
    logger.info(f"a sample, trained on between [[ and ]]: {report.shown}")


def _key(table: Table, encoder: Encoder, skip_errors: bool) -> str:
    parts = (VERSION, table.fingerprint(), len(table), encoder.fingerprint(), skip_errors)
    return hashlib.blake2b("\0".join(map(str, parts)).encode(), digest_size=16).hexdigest()
