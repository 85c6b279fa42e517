"""What holds for all tests: markers by folder, and one thread per process."""

import os
from pathlib import Path

import pytest

# Several processes share the cores of one machine; more threads in each would slow all of them
# down. Before torch is imported anywhere, as torch reads it only then.
os.environ.setdefault("OMP_NUM_THREADS", "1")

TESTS = Path(__file__).parent
BY_FOLDER = ("distributed", "titan")  # folders whose tests have the marker of the same name


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts ranks or needs torchtitan, so that ``-m`` can leave it out."""
    for item in items:
        for folder in set(item.path.relative_to(TESTS).parts) & set(BY_FOLDER):
            item.add_marker(folder)
