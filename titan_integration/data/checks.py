"""Read every row once before training, so that a bad one costs a second and not a night."""

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch.distributed as dist

from titan_integration.data.encoding import Encoder
from titan_integration.data.formats import RowError
from titan_integration.data.sources.table import Table
from titan_integration.errors import UserError
from titan_integration.process_groups import gather

logger = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True)
class Findings:
    """What one rank saw in its share of the rows."""

    usable: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    first_error: tuple[int, str] | None = None


def check_rows(
    rows: Table,
    encoder: Encoder,
    *,
    skip_errors: bool,
    dp_rank: int,
    dp_world_size: int,
    group: dist.ProcessGroup | None,
) -> None:
    """Check a share of the rows on every rank and reach one verdict on all of them.

    Rows without an answer, of no known format, or refused by the chat template are reported by
    reason, with one place each; they will be dropped. Memory: independent of the rows.

    Raises:
        UserError: A row is not JSON, or its sample is longer than the model takes (unless such
            are cut, dropped or skipped), or no row is usable. The first in file order is named.
    """
    shares: list[Findings] = []
    for item in gather(
        _check_share(rows, encoder, range(dp_rank, len(rows), dp_world_size), skip_errors), group
    ):
        assert isinstance(item, Findings)
        shares.append(item)
    errors = [share.first_error for share in shares if share.first_error is not None]
    if errors:
        raise UserError(min(errors)[1])
    usable = sum(share.usable for share in shares)
    reasons: Counter[str] = sum((share.reasons for share in shares), Counter())
    examples = {reason: place for share in shares for reason, place in share.examples.items()}
    if not usable:
        paths = ", ".join(rows.files[:3])
        why = "; ".join(f"{n} x {reason}" for reason, n in reasons.most_common(3)) or "it is empty"
        raise UserError(f"no row of {paths} can be trained on ({why}); see --data.format")
    for reason, count in reasons.most_common():
        logger.warning("%d rows are left out: %s (as in %s)", count, reason, examples[reason])
    logger.info("%d of %d rows are usable", usable, len(rows))


def _check_share(
    rows: Table, encoder: Encoder, indices: Iterable[int], skip_errors: bool
) -> Findings:
    found = Findings()
    for index in indices:
        try:
            length = encoder.longest_possible(rows[index])
            too_long = length > encoder.max_len
            if too_long and encoder.too_long == "error" and not skip_errors:
                raise UserError(f"{rows.where(index)}: {encoder.too_long_message(length)}")
            found.usable += not (too_long and encoder.too_long == "drop")
        except RowError as error:
            found.reasons[error.reason] += 1
            found.examples.setdefault(error.reason, rows.where(index))
        except UserError as error:
            if not skip_errors:
                found.first_error = (index, str(error))
                break
            found.reasons["not JSON"] += 1
            found.examples.setdefault("not JSON", rows.where(index))
    return found
