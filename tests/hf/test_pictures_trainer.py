"""The Trainer with the mixin on rows with pictures: exact, whole, and resumed."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainerCallback

from hf_integration import OdbTrainerMixin, PictureCollate, Refusal, geometry_of
from odb_nodes import PackCollate, PadCollate
from tests.hf import tiny
from tests.hf.gradients import Checked, odb
from tests.hf.picture_models import (
    GEOMETRY,
    MODELS,
    PROCESSOR,
    PictureRows,
    reference,
    worst_difference,
)
from tests.hf.worlds import world
from tests.vision.drawn import IMAGE_ID

pytestmark = pytest.mark.timeout(600)
KINDS = "0120010020110002102010"


class CheckedOnPictures(Checked, Trainer):
    """The gradients of the step against those of its rows one by one."""

    def note(self, got: dict[str, Any], model: Any) -> None:
        indices = self.step_indices()
        self.report.samples += len(indices)
        if self.args.process_index == 0:
            wanted = reference(model, self.train_dataset, indices)
            self.report.errors.append(max(worst_difference(got, wanted)))


def collate(layout: str) -> PictureCollate:
    text = PadCollate() if layout == "padded" else PackCollate(form="position_ids")
    return PictureCollate(text, GEOMETRY, IMAGE_ID)


def train(rank: int, size: int, folder: Path) -> dict[str, Any]:
    reports = {}
    cases = {"padded": (KINDS, 1), "packed": (KINDS, 3), "a text and IDLE": ("0", 2)}
    for name, (kinds, accumulation) in cases.items():
        trainer = CheckedOnPictures(
            model=MODELS["Qwen3-VL" if name == "padded" else "Qwen2.5-VL"](),
            args=tiny.arguments(
                folder / name,
                max_grad_norm=0.0,
                gradient_accumulation_steps=accumulation,
                do_eval=True,
                eval_strategy="epoch",
            ),
            train_dataset=PictureRows(kinds),
            eval_dataset=PictureRows("01020", seed=5),
            data_collator=collate("packed" if name == "packed" else "padded"),
            odb=odb(token_budget=100, window=8),
        )
        trainer.train()
        reports[name] = trainer.report
    return reports


def test_gradients_are_those_of_one_process_padded_packed_and_with_short_ends(
    tmp_path: Path,
) -> None:
    ranks = world(train, 2, tmp_path)
    for name, report in ranks[0].items():
        assert report.samples == (1 if name == "a text and IDLE" else len(KINDS))
        assert max(report.errors) <= 1e-5, (name, report.errors)
    assert sum(rank["a text and IDLE"].idle for rank in ranks) > 0


class Stops(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        control.should_training_stop = state.global_step == 3
        return control


class Plain(OdbTrainerMixin, Trainer):  # type: ignore[misc]
    pass


def test_a_resume_trains_the_rest_and_the_summary_says_so(tmp_path: Path) -> None:
    def trainer() -> Any:
        arguments = tiny.arguments(tmp_path, save_strategy="steps", save_steps=3)
        return Plain(
            model=MODELS["Qwen3-VL"](),
            args=arguments,
            train_dataset=PictureRows(KINDS),
            data_collator=collate("padded"),
            odb=odb(token_budget=100, window=8),
        )

    first = trainer()
    first.add_callback(Stops())
    first.train()
    last = trainer()
    last.train(resume_from_checkpoint=True)
    summary = json.loads((tmp_path / "odb_summary.json").read_text())
    assert summary["resumed_from"] == 3
    assert summary["samples_emitted"] == len(KINDS)
    assert summary["coverage"] == "exact"
    lengths = [len(PictureRows(KINDS)[i]["input_ids"]) for i in range(len(KINDS))]
    assert summary["real_tokens"] == sum(lengths)


def test_the_geometry_is_read_off_the_processor() -> None:
    assert GEOMETRY.grid(64, 48) == tuple(
        PROCESSOR([PictureRows("1").images(0)[0].resize((48, 64))], return_tensors="pt")[
            "image_grid_thw"
        ][0].tolist()
    )
    assert geometry_of(PROCESSOR, max_pixels=1024).max_pixels == 1024
    with pytest.raises(Refusal, match="Qwen2-VL to Qwen3-VL, got object"):
        geometry_of(object())


def test_packed_rows_in_a_form_that_no_such_model_knows_are_refused() -> None:
    with pytest.raises(Refusal, match='form="position_ids"'):
        PictureCollate(PackCollate(), GEOMETRY, IMAGE_ID)


def test_what_moves_to_the_device_are_bytes() -> None:
    made = collate("padded")
    batch = made([PictureRows("1")[0]])
    assert batch["patches"].dtype == torch.uint8
    inputs = made.model_inputs(batch)
    assert inputs["pixel_values"].numel() == batch["patches"].numel() * GEOMETRY.frames
    assert "patches" not in inputs
