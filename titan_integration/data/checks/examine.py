"""The rows of one share through the real encoder, counted."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from titan_integration.data.checks.report import Report
from titan_integration.data.checks.show import show
from titan_integration.data.encoding.encoder import Encoder, Fitted, Plan
from titan_integration.data.encoding.tokenize import Encoded
from titan_integration.data.formats.document import Refused, RowError
from titan_integration.data.sources.table import Table
from titan_integration.errors import UserError

BATCH = 64  # Rows that are tokenized together, on all cores.


@dataclass(kw_only=True, slots=True)
class Findings:
    """What was seen in a share of the rows.

    Attributes:
        report: The counts.
        counts: Samples of each row, in the order of the share.
        columns: The columns named by the run that some row has.
        first_error: Number of the first row that ends the run, and why it does.
    """

    report: Report = field(default_factory=Report)
    counts: list[int] = field(default_factory=list)
    columns: set[str] = field(default_factory=set)
    first_error: tuple[int, str] | None = None


class Examiner:
    """Reads, encodes and counts rows; picklable, for worker processes.

    Args:
        table: The rows.
        encoder: The encoder of the run.
        skip_errors: Whether rows that need a decision are left out instead of ending the run.
    """

    def __init__(self, table: Table, encoder: Encoder, *, skip_errors: bool) -> None:
        self.table = table
        self.encoder = encoder
        self.skip_errors = skip_errors

    def __call__(self, indices: Sequence[int]) -> Findings:
        """The findings in these rows, up to the first error."""
        found = Findings()
        rows = iter(indices)
        while found.first_error is None and (batch := list(islice(rows, BATCH))):
            plans = [self._plan(found, index) for index in batch]
            for index, plan, samples in zip(batch, plans, self._tokenized(plans), strict=True):
                if found.first_error is None:
                    self._count(found, index, plan, samples)
        return found

    def _plan(self, found: Findings, index: int) -> Plan | Exception:
        try:
            row = self.table[index]
            self._note_columns(found, row)
            return self.encoder.plan(row)
        except (RowError, UserError) as error:
            return error

    def _tokenized(self, plans: list[Plan | Exception]) -> Iterator[list[Encoded] | RowError]:
        """The samples of each plan; tokenized in one go unless a text in it is broken."""
        parts = [part for plan in plans if isinstance(plan, Plan) for part in plan.parts]
        try:
            samples = iter(self.encoder.tokenize(parts))
        except RowError:
            for plan in plans:
                yield self._alone(plan)
            return
        for plan in plans:
            number = len(plan.parts) if isinstance(plan, Plan) else 0
            yield list(islice(samples, number))

    def _alone(self, plan: Plan | Exception) -> list[Encoded] | RowError:
        try:
            return self.encoder.tokenize(plan.parts) if isinstance(plan, Plan) else []
        except RowError as error:
            return error

    def _count(
        self,
        found: Findings,
        index: int,
        plan: Plan | Exception,
        samples: list[Encoded] | RowError,
    ) -> None:
        report = found.report
        report.rows += 1
        if isinstance(plan, Exception) or isinstance(samples, Exception):
            error = plan if isinstance(plan, Exception) else samples
            assert isinstance(error, Exception)
            found.counts.append(1)
            self._drop(found, index, error)
            return
        found.counts.append(plan.count)
        report.answers += plan.answers
        report.unread_keys.update(plan.unread)
        for sample in samples:
            try:
                fitted = self.encoder.fitted(sample)
            except RowError as error:
                self._drop(found, index, error)
                continue
            ids, targets, _ = fitted
            self._add(report, plan, sample, fitted)
            if not report.shown:
                report.shown = f"{self.table.where(index)}\n{show(self.encoder, ids, targets)}"

    def _add(self, report: Report, plan: Plan, sample: Encoded, fitted: Fitted) -> None:
        targets = fitted.targets
        report.samples += 1
        report.pictures += len(fitted.pictures)
        report.patches += sum(math.prod(picture.grid) for picture in fitted.pictures)
        report.histogram[len(targets) - 1] += 1
        report.target_tokens += int(targets.sum())
        if plan.template is None:
            report.answers_trained += 1
            return
        owners = zip(sample.owners, sample.ranges, strict=True)
        report.answers_trained += len({o for o, (a, b) in owners if targets[a:b].any()})

    def _drop(self, found: Findings, index: int, error: Exception) -> None:
        ends_the_run = not isinstance(error, RowError) or isinstance(error, Refused)
        if ends_the_run and not self.skip_errors:
            where = self.table.where(index)
            message = f"{where}: {error}" if isinstance(error, RowError) else str(error)
            found.first_error = found.first_error or (index, message)
            return
        reason = error.reason if isinstance(error, RowError) else "cannot be read"
        found.report.drop(reason, self.table.where(index))

    def _note_columns(self, found: Findings, row: Any) -> None:
        columns = self.encoder.encoding.reading.columns
        if columns and isinstance(row, dict):
            found.columns |= set(columns.values()) & row.keys()
