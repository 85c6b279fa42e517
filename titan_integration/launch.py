"""torchrun that lets a one-line message stand: ``python -m titan_integration.launch [torchrun's]``.

torchrun answers every failed worker with a report and a stack trace of its own, and exit code 1.
Where the workers refused their input (exit code 2), or a person stopped the run, that buries the
line that matters; here it is left out and the exit code kept. Otherwise this is torchrun.
"""

import logging
import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args, run

BAD_INPUT = 2


def main() -> None:
    """Launch as ``sys.argv`` says; all of torchrun's arguments apply."""
    agent = logging.getLogger("torch.distributed.elastic.multiprocessing.api")
    agent.addFilter(lambda record: f"(exitcode: {BAD_INPUT})" not in record.getMessage())
    try:
        run(parse_args(sys.argv[1:]))
    except SignalException as stop:
        sys.exit(128 + int(stop.sigval))
    except ChildFailedError as error:
        # The others were ended because of the first one.
        if error.get_first_failure()[1].exitcode != BAD_INPUT:
            raise
        sys.exit(BAD_INPUT)


if __name__ == "__main__":
    main()
