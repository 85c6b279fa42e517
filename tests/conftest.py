"""What holds for all tests: markers by folder, one thread per process, no process left behind."""

import gc
import multiprocessing
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

# Several processes share the cores of one machine; more threads in each would slow all of them
# down. Before torch is imported anywhere, as torch reads it only then.
os.environ.setdefault("OMP_NUM_THREADS", "1")

TESTS = Path(__file__).parent
BY_FOLDER = ("distributed", "titan", "hf")  # folders whose tests have the marker of the same name


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts ranks or needs torchtitan, so that ``-m`` can leave it out."""
    for item in items:
        for folder in set(item.path.relative_to(TESTS).parts) & set(BY_FOLDER):
            item.add_marker(folder)


@pytest.fixture(autouse=True)
def no_worker_process_is_left_behind() -> Iterator[None]:
    """Fail a test that leaves processes of ``multiprocessing`` to the tests after it."""
    before = set(multiprocessing.active_children())
    yield
    deadline = time.monotonic() + 10
    while (left := set(multiprocessing.active_children()) - before) and time.monotonic() < deadline:
        gc.collect()  # a DataLoader keeps its workers for as long as it is there
        time.sleep(0.05)
    assert not left
