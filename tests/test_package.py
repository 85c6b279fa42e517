"""The wheel, built from the sdist and installed where nothing of this checkout can be seen.

The environment is bare but for one ``.pth`` file, which lends it the packages of the one that runs
the tests: torch is not downloaded again. That file does not lend it the checkout, since what an
editable install leaves is not followed from there.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

import odb_nodes

ROOT = Path(__file__).parents[1]
SOURCES = ("odb_nodes", "titan_integration", "hf_integration", "configs", "tools", "tests")
FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Environment:
    """An environment with nothing but one distribution, and the lent packages."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        [packages] = folder.glob("lib/python*/site-packages")
        (packages / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
        pip += ["--disable-pip-version-check", "install", "-q", "--no-deps", "--no-index"]
        pip += ["--ignore-installed"]  # what is lent may hold a checkout of the same version
        subprocess.run([*pip, *options], check=True)

    def run(self, command: str, *args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run a command of the environment as a user would, who has no PYTHONPATH."""
        hidden = ("PYTHONPATH", "VIRTUAL_ENV")
        return subprocess.run(
            [str(self.folder / "bin" / command), *args],
            cwd=cwd,
            env={name: value for name, value in os.environ.items() if name not in hidden},
            capture_output=True,
            text=True,
        )

    def evaluate(self, code: str, cwd: Path) -> str:
        """What ``code`` prints; it must not fail."""
        done = self.run("python", "-c", code, cwd=cwd)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is here, which building may write to."""
    folder = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        if (ROOT / name).exists():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in FILES:
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    """Built from the sdist, so that it shows that all is in there too."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist"]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    [built] = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("environment"), str(wheel))


def test_a_wheel_claims_our_names_only(wheel: Path) -> None:
    files = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in files}
    ours = {name for name in SOURCES[:3] if (ROOT / name).exists()}
    assert {name for name in tops if not name.endswith(".dist-info")} == ours
    for folder in (*ours, "configs"):
        home = folder.replace("configs", "titan_integration/configs")
        for path in (ROOT / folder).rglob("*.py"):
            assert f"{home}/{path.relative_to(ROOT / folder)}" in files
    assert {f"{name}/py.typed" for name in ours} <= set(files)


def test_the_version_is_that_of_the_library(wheel: Path) -> None:
    assert f"odb_nodes-{odb_nodes.__version__}-" in wheel.name


def test_an_installed_wheel_loads_batches(installed: Environment, tmp_path: Path) -> None:
    code = """
import importlib.metadata, importlib.util, odb_nodes
from odb_nodes import odb_loader
rows = [{"input_ids": [1] * n, "labels": [1] * n} for n in (3, 9, 4, 4, 7)]
with odb_loader(rows, token_budget=16) as loader:
    print(sum(batch.info.num_samples for batch in loader))
print(odb_nodes.__file__)
print([name for name in ("configs", "tools", "tests") if importlib.util.find_spec(name)])
"""
    samples, where, strangers = installed.evaluate(code, tmp_path).splitlines()
    assert samples == "5"
    assert Path(where).is_relative_to(installed.folder)
    assert strangers == "[]"


def test_the_full_size_configurations_are_in_the_wheel(
    installed: Environment, tmp_path: Path
) -> None:
    code = """
from titan_integration.configs import llama3, qwen3
for make in (llama3.llama3_8b_sft, qwen3.qwen3_8b_sft):
    config = make()
    print(config.data.odb.enable, config.data.odb.token_budget > 0)
"""
    assert installed.evaluate(code, tmp_path).split() == ["True"] * 4


@pytest.mark.parametrize("command", sorted(PROJECT["scripts"]))
def test_a_command_on_the_path_says_how_it_is_used(
    installed: Environment, tmp_path: Path, command: str
) -> None:
    done = installed.run(command, "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.lower().startswith("usage")


def test_a_command_on_the_path_trains_a_configuration_of_ones_own(
    installed: Environment, tmp_path: Path
) -> None:
    """From a module in the current folder, which builds on the installed configurations."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"text": "a b"}) + "\n")
    (tmp_path / "mine.py").write_text(
        "from titan_integration.configs.llama3 import debug_odb as small\n"
    )
    args = ["--module", "mine", "--config", "small", "--data.path", str(rows)]
    done = installed.run("odb-train", *args, "--data.epochs", "0", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: data.epochs must be at least 1")


def test_an_editable_install_reads_the_checkout(
    source: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    options = ("--no-build-isolation", "--editable", str(source))
    environment = Environment(tmp_path_factory.mktemp("editable"), *options)
    code = """
import configs.llama3, odb_nodes, titan_integration.configs.llama3
for module in (odb_nodes, configs.llama3, titan_integration.configs.llama3):
    print(module.__file__)
"""
    for path in environment.evaluate(code, source).splitlines():
        assert Path(path).is_relative_to(source)
