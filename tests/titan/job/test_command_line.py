"""The command line: help, unknown flags, wrong values, and every input that a run can name."""

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import configs.llama3
from tests.titan.job import said
from tests.titan.job.runs import check
from tests.titan.runs import Run
from titan_integration.errors import UserError
from titan_integration.run.command_line import configurations, parse
from titan_integration.training.trainer import OdbTrainer

pytestmark = pytest.mark.timeout(600)
TINY = ["--module", "tests.titan.tiny", "--config", "tiny"]


def _help(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    with pytest.raises(SystemExit) as ended:
        parse(args, OdbTrainer.Config)
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("args", [[], TINY])
def test_help_is_short_and_begins_with_the_data(
    capsys: pytest.CaptureFixture[str], args: list[str]
) -> None:
    lines = _help(capsys, *args, "--help").splitlines()
    assert len(lines) < 100
    flags = [line.split()[0] for line in lines if line.startswith("  --")]
    assert flags[0] == "--hf_assets_path"
    assert flags.index("--data.path") < flags.index("--training.seq_len")
    assert "--data.odb.token_budget" in flags
    assert max(map(len, lines)) <= 110


def test_all_flags_are_behind_another_flag_without_duplicates(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = _help(capsys, "--module", "configs.llama3", "--config", "debug_odb", "--help-all")
    assert "--parallelism.tensor-parallel-degree" in out
    assert "--data.odb.token-budget" in out
    assert "--dataloader." not in out.replace("--validator.dataloader.", "")
    assert "dataloader.data." not in out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--data.odb.token_budge", "3"], "did you mean --data.odb.token_budget"),
        (["--token_budget", "3"], "did you mean --data.odb.token_budget"),
        (["--training.stepz=3"], "did you mean --training.steps"),
        (["--data.odb.token_budget", "x"], "invalid literal for int"),
        (["--data.odb.policy", "x"], "invalid choice 'x'"),
        (["stray"], "Unrecognized options: stray"),
        (["--dataloader.data.odb.window", "3"], "set --data.odb.window"),
        (["--validator.dataloader.data.seed=3"], "--data.seed"),
        (["--checkpoint.interval", "0"], "interval needs to be at least 1"),
    ],
)
def test_a_wrong_flag_is_one_line_that_says_what_to_do(
    rows: Path, args: list[str], words: str
) -> None:
    with pytest.raises(UserError) as caught:
        parse([*TINY, "--data.path", str(rows), *args], OdbTrainer.Config)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "--module is missing"),
        (["--module", "configs.llama3"], "--config is missing"),
        (["--module", "configs.nothing", "--config", "x"], "configs.nothing does not exist"),
        (["--module", "configs.llama3", "--config", "debug_odp"], "did you mean debug_odb?"),
    ],
)
def test_a_configuration_that_is_not_there_is_one_line(args: list[str], words: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(args, OdbTrainer.Config)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_list_of_configurations_holds_configurations_only() -> None:
    module: ModuleType = configs.llama3
    assert configurations(module) == ["debug_odb", "debug_flex", "debug_packed", "llama3_8b_sft"]


def test_the_command_says_one_line_on_two_ranks(tmp_path: Path, data_args: list[str]) -> None:
    check("unknown flag", Run(tmp_path, *data_args, "--data.odb.token_budge", "3", ranks=2).wait())


@pytest.mark.parametrize(
    ("key", "args"),
    [
        ("no tokenizer", ["--hf_assets_path", "/nowhere"]),
        ("not built", ["--training.global_batch_size", "3"]),
    ],
)
def test_an_input_that_torchtitan_refuses_is_one_line(
    tmp_path: Path, data_args: list[str], key: str, args: list[str]
) -> None:
    check(key, Run(tmp_path, *data_args, *args, ranks=2).wait())


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: ["--hf_assets_path", str(folder)],
        lambda folder: ["--checkpoint.initial_load_path", "/nowhere"],
        lambda folder: ["--checkpoint.load_step", "5"],
        lambda folder: ["--checkpoint.exclude_from_loading", "nothing"],
        lambda folder: ["--parallelism.data_parallel_shard_degree", "3"],
        lambda folder: ["--optimizer.implementation", "x"],
        lambda folder: ["--training.seq_len", "-1"],
        lambda folder: ["--override.imports", "nowhere.nothing"],
    ],
)
def test_every_other_input_is_one_line_with_exit_code_2(
    tmp_path: Path, data_args: list[str], make: Callable[[Path], list[str]]
) -> None:
    (tmp_path / "empty").mkdir()
    result = Run(tmp_path / "run", *data_args, *make(tmp_path / "empty")).wait()
    assert result.code == 2, result.out + result.err
    assert len(result.err.splitlines()) == 1, result.err
    assert result.err.startswith("error: ")


def test_the_first_lines_say_what_is_trained_on_what(saved: Path) -> None:
    lines = (saved / "out.txt").read_text().splitlines()
    before = lines[: next(i for i, line in enumerate(lines) if " step 1 " in line)]
    assert sum(bool(re.match(r"\d\d:\d\d:\d\d ", line)) for line in before) <= 7
    said_first = "\n".join(before)
    for words in (
        "46,176 parameters",
        "240 samples of rows.jsonl",
        "2 data-parallel ranks",
        str(saved),
    ):
        assert words in said_first
    assert (saved / "err.txt").read_text() == ""
    assert "Building device mesh" in (saved / "logs" / "rank0.log").read_text()


def test_the_documented_table_is_what_the_tests_look_for() -> None:
    page = Path("docs/troubleshooting.md").read_text()
    assert said.table() in page
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    for key in said.CASES:
        assert f'"{key}"' in tests, f"no test brings a run into the state {key!r}"
