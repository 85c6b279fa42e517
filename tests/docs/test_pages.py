"""The documentation is right: its code runs, its links lead somewhere, its pictures are current."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from odb_nodes import describe_state, unpack_states
from tools.docs import drawings
from tools.docs.blocks import blocks_of, pictures_of

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_CODE = [page for page in PAGES if any(blocks_of(page.read_text()))]
CODE_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_the_code_of_a_page_runs_and_prints_what_the_page_says(page: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.docs.blocks", str(page)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_python_block_is_run_or_says_why_not(page: Path) -> None:
    text = page.read_text()
    shown = [block for block in blocks_of(text) if "\n" + block.code in text]
    fences = len(re.findall(r"^```python", text, re.MULTILINE))
    assert fences <= len(shown), f"{name_of(page)}: a block of Python is not found by its runner"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files(page: Path) -> None:
    text = CODE_FENCE.sub("", page.read_text())
    for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        assert (page.parent / link).exists(), (page.name, link)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_a_page_names_exist(page: Path) -> None:
    """Paths from the root in backticks; a path with a name in capitals is one to be written."""
    for path in re.findall(
        r"`((?:odb_nodes|titan_integration|tools|tests)/[\w/.]*)`", page.read_text()
    ):
        assert "NAME" in path or (ROOT / path).exists(), (page.name, path)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_modules_that_a_page_runs_exist(page: Path) -> None:
    for module in re.findall(r"-m ((?:tools|titan_integration|configs)[\w.]*)", page.read_text()):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


def test_the_pictures_are_what_the_numbers_say_now() -> None:
    assert drawings.main(["--check"]) == 0


def test_pictures_that_pages_draw_are_there() -> None:
    drawn = [page.parent / name for page in WITH_CODE for name in pictures_of(page.read_text())]
    assert drawn
    assert all(picture.exists() for picture in drawn)


def run_script(script: Path, ranks: int, stop_after: int | None = None) -> list[str]:
    """Lines that the script prints on ``ranks`` ranks; killed after ``stop_after`` of them."""
    process = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={ranks}"]
        + ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", str(script)],
        cwd=script.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    lines: list[str] = []
    try:
        for line in process.stdout:
            lines.append(line)
            if len(lines) == stop_after:
                kill_all(process.pid)
        assert process.wait(timeout=120) == (0 if stop_after is None else -9)
    finally:
        if process.poll() is None:
            kill_all(process.pid)
    return lines


def kill_all(pid: int) -> None:
    """Kill torchrun and its ranks, which it puts into sessions of their own."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for child in [pid, *map(int, children)]:
        os.kill(child, signal.SIGKILL)


@pytest.mark.slow
def test_the_whole_script_trains_each_sample_once_through_a_kill_and_other_ranks(
    tmp_path: Path,
) -> None:
    """Killed in the second epoch on two ranks, it goes on on one from its last checkpoint."""
    page = (ROOT / "docs" / "pytorch.md").read_text()
    code = [block.code for block in blocks_of(page) if "dist.init_process_group" in block.code]
    (tmp_path / "train.py").write_text(code[-1])
    whole = run_script(tmp_path / "train.py", 2)
    samples = {epoch: sum_samples(whole, epoch) for epoch in (0, 1)}
    assert samples == {0: 1000, 1: 1000}
    (tmp_path / "last.pt").unlink()
    steps = sum("epoch 0" in line for line in whole)
    begun = run_script(tmp_path / "train.py", 2, stop_after=steps + 7)
    saved = torch.load(tmp_path / "last.pt", weights_only=True)
    told = describe_state(unpack_states(bytes(saved["data"].tolist()))[0])
    assert told["epoch"] == 1
    assert 0 < told["total_emitted"] < 1000
    rest = run_script(tmp_path / "train.py", 1)
    assert sum_samples(begun, 0) == 1000
    assert sum_samples(rest, 0) == 0
    assert told["total_emitted"] + sum_samples(rest, 1) == 1000


def sum_samples(lines: list[str], epoch: int) -> int:
    """Samples of an epoch in lines such as "epoch 0 samples [31, 8]"."""
    return sum(
        sum(map(int, re.findall(r"\d+", line.partition("[")[2])))
        for line in lines
        if line.startswith(f"epoch {epoch} ")
    )
