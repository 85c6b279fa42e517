"""Bad input ends before training with one line that says what to do."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from configs import deepseek_v3
from tests.titan.runs import Run
from tests.titan.tiny import tiny
from titan_integration.data.checks.check import check_rows
from titan_integration.data.encoding.encoder import Encoder, Encoding, TooLong
from titan_integration.data.inputs.open import Inputs
from titan_integration.errors import UserError
from titan_integration.training.trainer import OdbTrainer
from titan_integration.upstream import (
    BaseCheckpointManager,
    ChunkedLossWrapper,
    CrossEntropyLoss,
    HuggingFaceTokenizer,
    LocalTokenDispatcher,
    MinimalAsyncEPTokenDispatcher,
)

Change = Callable[[OdbTrainer.Config], None]


def _set(path: str, value: object) -> Change:
    def change(config: OdbTrainer.Config) -> None:
        *owners, name = path.split(".")
        owner: object = config
        for part in owners:
            owner = getattr(owner, part)
        setattr(owner, name, value)

    return change


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (_set("data.path", ["none.jsonl"]), "which is not there"),
        (_set("data.path", []), "data.path must name at least one file"),
        (_set("data.odb.token_budget", 0), "data.odb.token_budget must be at least 1, got 0"),
        (_set("data.odb.window", 0), "data.odb.window must be at least 1"),
        (_set("data.epochs", 0), "data.epochs must be at least 1"),
        (_set("data.sample_quota", -1), "data.sample_quota must be at least 1"),
        (_set("data.odb.timeout_s", 0.0), "data.odb.timeout_s must be positive"),
        (_set("data.odb.idle", "skip"), "data.odb.idle must be 'emit'"),
        (_set("data.odb.layout", "packed"), "needs flex or varlen attention"),
        (_set("training.disable_cuda_graphs", False), "--training.disable_cuda_graphs"),
        (_set("training.seq_len", 2**20), "training.seq_len must be at most 131072"),
        (_set("training.local_batch_size", 4), "training.local_batch_size must be 1"),
        (_set("parallelism.pipeline_parallel_degree", 2), "pipeline_parallel_degree must be 1"),
        (_set("parallelism.context_parallel_degree", 2), "context_parallel_degree must be 1"),
        (_set("data.odb.pad_to_multiple_of", 3), "training.seq_len must be a multiple of 3"),
        (_set("checkpoint", BaseCheckpointManager.Config()), "checkpoint must be a Checkpoint"),
        (_set("data.odb.enable", False), "set --training.steps"),
        (_set("data.validation_path", ["none.jsonl"]), "data.validation_path must name files"),
        (_set("data.validation_path", [__file__]), "set --validator.enable"),
    ],
)
def test_a_run_that_cannot_work_is_refused(rows: Path, change: Change, line: str) -> None:
    config = tiny()
    config.data.path = [str(rows)]
    config.validate()
    change(config)
    with pytest.raises(UserError, match=line) as caught:
        config.validate()
    assert "\n" not in str(caught.value)


def test_an_expert_dispatcher_of_bounded_capacity_bounds_the_token_budget(rows: Path) -> None:
    config = deepseek_v3.debug_odb()
    config.data.path = [str(rows)]
    assert config.model_spec is not None
    bounded = MinimalAsyncEPTokenDispatcher.Config(num_experts=8, top_k=2)
    places = list(config.model_spec.model.traverse(LocalTokenDispatcher.Config))
    assert places
    for _, _, parent, name in places:
        setattr(parent, str(name), bounded)
    config.data.odb.token_budget = config.training.seq_len
    config.validate()
    config.data.odb.token_budget += 1
    with pytest.raises(UserError, match=r"must be at most 8192 \(the expert dispatcher's capacity"):
        config.validate()


def test_lengths_are_padded_to_what_the_model_needs(rows: Path) -> None:
    config = tiny()
    config.data.path = [str(rows)]
    config.loss = ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config(), num_chunks=6)
    config.parallelism.tensor_parallel_degree = 4
    config.data.odb.pad_to_multiple_of = 5
    config.__post_init__()
    assert config.dataloader.pad_to_multiple_of == 60  # type: ignore[attr-defined]


GOOD = {"prompt": "q", "response": "a"}


@pytest.mark.parametrize(
    ("lines", "too_long", "message"),
    [
        (["{", GOOD], "error", r"rows\.jsonl:1 is not JSON"),
        ([GOOD, {"text": "word " * 99}], "error", r"rows\.jsonl:2: a sample may have at most"),
        ([], "error", "can be trained on .it is empty"),
        (
            [{"x": 1}, {"prompt": "q", "response": ""}],
            "error",
            "1 x no known keys.*; 1 x no answer",
        ),
        ([{"text": "word " * 99}], "drop", "can be trained on"),
    ],
)
def test_unusable_rows_are_found_before_training(
    tmp_path: Path, tokenizer: Path, lines: list[object], too_long: TooLong, message: str
) -> None:
    path = tmp_path / "rows.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(text + "\n" for text in texts))
    hf = HuggingFaceTokenizer(tokenizer_path=str(tokenizer))
    encoder = Encoder(hf, Encoding(max_len=64, too_long=too_long))
    with pytest.raises(UserError, match=message):
        check_rows(
            Inputs(paths=[str(path)]).open(),
            encoder,
            skip_errors=False,
            dp_rank=0,
            dp_world_size=1,
            group=None,
        )


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_command_says_one_line_and_exits_with_2(
    tmp_path: Path, data_args: list[str], ranks: int
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "fine"}\n\nnot json\n')
    args = [*data_args, "--data.path", str(bad)]
    result = Run(tmp_path / "run", *args, ranks=ranks).wait()
    assert result.code == 2
    assert f"error: {bad}:3 is not JSON: Expecting value" in result.err.splitlines()
    assert "Traceback" not in result.err
