"""What the tests of a run's surroundings share."""

import re
from pathlib import Path

from tests.titan.job.said import CASES
from tests.titan.runs import Result, summary, train

NUM_ROWS = 240
EVERY_ROW_ONCE = [(0, index) for index in range(NUM_ROWS)]


def check(key: str, result: Result) -> None:
    """The run ended as the table says: its line, its exit code, no trace, no second line."""
    case = CASES[key]
    said = result.err if case.code else result.out
    lines = [line for line in said.splitlines() if re.search(case.pattern(), line)]
    assert len(lines) == 1, f"{case.pattern()}\n{(result.out + result.err)[-3000:]}"
    assert result.code == case.code, (result.out + result.err)[-3000:]
    if case.code:
        assert result.err.splitlines() == lines, result.err
    assert "Traceback" not in result.out + result.err


def finish(folder: Path, *args: str, ranks: int = 2) -> Result:
    """Go on to the end, which must be exact."""
    result = train(folder, *args, ranks=ranks)
    assert summary(folder)["coverage"] == "exact"
    return result
