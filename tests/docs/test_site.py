"""The site builds without a warning, offline, and documents everything public."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import odb_nodes

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return folder


@pytest.mark.slow
def test_every_page_of_the_docs_is_a_page_of_the_site(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs").with_suffix(".html")).exists(), page


@pytest.mark.slow
def test_everything_public_is_in_the_reference(site: Path) -> None:
    reference = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    for name in odb_nodes.__all__:
        assert f'id="odb_nodes.{name}"' in reference, f"add ::: odb_nodes.{name} to docs/api"


def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        fetched = re.findall(
            r'<(?:script|img|link)[^>]+(?:src|href)="(https?:[^"]+)"', page.read_text()
        )
        assert not fetched, (page.name, fetched)
