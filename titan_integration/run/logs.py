"""What is printed, and what goes to a file: a console for people, a log in the dump folder for all.

torchtitan and torch log some sixty lines before the first step, most of them by the root logger.
The file gets every line of every rank; the console gets ours, on rank 0, and everybody's errors.
"""

import logging
import logging.handlers
import sys
from pathlib import Path

from tqdm import tqdm

FOLDER = "logs"
_UPSTREAM = ("root", "torch", "torchtitan", "torchao", "torchdata", "py", "datasets", "fsspec")
_BUFFER = 10_000  # records before the file is known


class Logs:
    """The process's logging: set up at once, the file follows when its folder is known.

    Args:
        rank: Global rank.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.path: Path | None = None
        self._console = _Console(rank)
        self._buffer = logging.handlers.MemoryHandler(
            _BUFFER, flushLevel=logging.CRITICAL + 1, flushOnClose=False
        )
        root = logging.getLogger()
        root.setLevel(logging.INFO)
        root.handlers[:] = [self._console, self._buffer]
        logging.captureWarnings(True)

    def show_upstream(self) -> None:
        """Print what torchtitan says too: where its own trainer runs, its lines are the ones."""
        self._console.upstream = True

    def write_to(self, dump_folder: str | Path) -> None:
        """Write to ``dump_folder/logs/rank{rank}.log``, what was logged so far first.

        Where that cannot be written the console has to do.
        """
        if self.path is not None:
            return
        path = Path(dump_folder) / FOLDER / f"rank{self.rank}.log"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = _File(path, encoding="utf-8")
        except OSError:
            return
        file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self.path = path
        self._buffer.setTarget(file)
        self._buffer.close()
        root = logging.getLogger()
        root.handlers[:] = [self._console, file]

    def note_trace(self, error: BaseException) -> str:
        """Write the error's trace to the file; returns where to look, for a message, or ""."""
        if self.path is None:
            return ""
        record = logging.LogRecord(
            __name__, logging.DEBUG, __file__, 0, "how the run ended", None, None
        )
        record.exc_info = (type(error), error, error.__traceback__)
        logging.getLogger().handlers[-1].handle(record)
        return f"; trace in {self.path}"


current: Logs | None = None


class _Console(logging.Handler):
    """Lines on stdout, above the progress bar if there is one."""

    def __init__(self, rank: int) -> None:
        super().__init__(logging.INFO if rank == 0 else logging.ERROR)
        self.upstream = False
        self.addFilter(self._is_shown)

    def emit(self, record: logging.LogRecord) -> None:
        stamp = logging.Formatter("%(asctime)s", "%H:%M:%S").format(record).partition("\n")[0]
        kind = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        try:
            tqdm.write(f"{stamp} {kind}{record.getMessage()}", file=sys.stdout)
            sys.stdout.flush()
        except (OSError, ValueError):
            pass  # a closed terminal must not end the run

    def _is_shown(self, record: logging.LogRecord) -> bool:
        upstream = record.name.split(".")[0] in _UPSTREAM
        # Losses of validations are torchtitan's to print, and what a person looks for.
        wanted = record.levelno >= logging.ERROR or "validate step" in record.getMessage()
        return self.upstream or not upstream or wanted


class _File(logging.FileHandler):
    """A log file; a full disk ends the log, not the run."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Nothing: what cannot be written is lost, and the next save says why."""
