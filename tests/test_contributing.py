"""CONTRIBUTING and CHANGELOG name what is there."""

import re
from pathlib import Path

import pytest

import odb_nodes

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text()


@pytest.mark.parametrize("path", sorted(set(re.findall(r"[\w./]+/[\w./]+\.(?:py|md)", GUIDE))))
def test_a_file_that_the_guide_names_is_there(path: str) -> None:
    if not path.endswith("/mine.py"):  # what a contributor writes
        assert (ROOT / path).is_file()
    assert (ROOT / path).parent.is_dir()


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`?make (\w+)", GUIDE))))
def test_a_target_that_the_guide_names_is_there(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_changelog_has_this_version() -> None:
    assert f"## {odb_nodes.__version__}" in (ROOT / "CHANGELOG.md").read_text()
