"""Every configuration is built and checked; the small ones of each family train on a CPU."""

from pathlib import Path

import pytest

from configs import deepseek_v3, gpt_oss, llama3, qwen3
from tests.titan.runs import Run, summary
from titan_integration.training.trainer import OdbTrainer


@pytest.mark.parametrize(
    "make",
    [
        llama3.debug_odb,
        llama3.debug_flex,
        llama3.llama3_8b_sft,
        qwen3.debug_odb,
        qwen3.qwen3_8b_sft,
        deepseek_v3.debug_odb,
        gpt_oss.debug_odb,
    ],
    ids=lambda make: f"{make.__module__}.{make.__name__}",
)
def test_configurations_are_valid_and_can_be_written_down(make, rows: Path) -> None:  # type: ignore[no-untyped-def]
    config: OdbTrainer.Config = make()
    config.data.path = [str(rows)]
    config.__post_init__()
    config.validate()
    written = config.to_dict()
    assert written["data"]["odb"]["token_budget"] == config.data.odb.token_budget


@pytest.mark.parametrize("family", ["qwen3", "deepseek_v3", "gpt_oss"])
def test_models_of_other_families_train(tmp_path: Path, data_args: list[str], family: str) -> None:
    args = [*data_args, "--module", f"configs.{family}", "--data.max_samples", "2"]
    result = Run(tmp_path, *args, config="debug_odb").wait()
    assert result.code == 0, (result.out + result.err)[-4000:]
    assert summary(tmp_path)["coverage"] == "exact"
