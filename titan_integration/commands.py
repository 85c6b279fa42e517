"""What the commands that an installation leaves on the path run: ``odb-train`` and others.

``python -m`` looks for modules in the current folder, a script on the path does not: here it does,
so that ``odb-train --module my_configs`` finds a file of one's own.
"""

import os
import sys
from collections.abc import Callable


def train() -> None:
    """``odb-train``: one process of a training run; see :mod:`titan_integration.train`."""
    from titan_integration.train import main

    _run(main)


def launch() -> None:
    """``odb-launch``: torchrun's command line; see :mod:`titan_integration.launch`."""
    from titan_integration.launch import main

    _run(main)


def inspect() -> None:
    """``odb-inspect``: what is in a checkpoint; see :mod:`titan_integration.run.inspection`."""
    from titan_integration.run.inspection import main

    _run(main)


def plan() -> None:
    """``odb-plan``: what a run on some rows will look like; see ``titan_integration.plan``."""
    from titan_integration.plan.command import main

    _run(main)


def _run(main: Callable[[], object]) -> None:
    sys.path.insert(0, os.getcwd())
    sys.exit(main())  # type: ignore[arg-type]
