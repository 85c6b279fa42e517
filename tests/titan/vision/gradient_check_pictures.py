"""A training run on pictures that compares each step's gradient with a float64 reference.

The reference sees the step's samples one by one on one process, without filler: rows without a
picture go through the model as texts. Rank 0 writes to ``gradients.json``, for every step, the
largest relative error of a parameter's gradient, of all gradients together, and the size of the
tower's gradient beside that of the whole.
"""

from typing import Any

import torch
import torch.nn.functional as F

from titan_integration import cpu, upstream

cpu.patch()

from tests.titan import gradient_check  # noqa: E402
from titan_integration.data.batching import make_collate, model_inputs  # noqa: E402

NEGLIGIBLE = 1e-3  # of the whole gradient's size: below it float32 has few digits left


class CheckedOnPictures(gradient_check.CheckedTrainer):
    """As its base, with towers."""

    def _reference(
        self, weights: dict[str, torch.Tensor], indices: list[int]
    ) -> dict[str, torch.Tensor]:
        model = self.model_config.build()
        model.init_weights(buffer_device=None)
        model.double()
        biases = {n: b for n, b in self.model_parts[0].named_buffers() if n.endswith("expert_bias")}
        missing = model.load_state_dict({**weights, **biases}, strict=False)
        assert not missing.unexpected_keys
        before = upstream.find("torchtitan.distributed.utils", "get_spmd_backend")()
        change = upstream.find("torchtitan.distributed.utils", "set_spmd_backend")
        change("partial_dtensor")  # the reference is on no mesh
        try:
            total = self._backward(model, indices)
        finally:
            change(before)
        zero = torch.zeros(())
        return {
            name: (zero if p.grad is None else p.grad) / total
            for name, p in model.named_parameters()
        }

    def _backward(self, model: Any, indices: list[int]) -> int:
        """Gradients of the sum over tokens with loss, whose number is returned."""
        assert self.odb is not None
        total = 0
        for index in indices:
            sample = self.odb.encoder(self.odb.samples[index])
            assert sample is not None
            inputs, labels = self._alone(sample)
            tokens = inputs.pop("input")
            masks = model.get_attention_masks(positions=inputs["positions"])
            logits = model(tokens, attention_masks=masks, **inputs)[0]
            F.cross_entropy(logits.double(), labels[0], reduction="sum").backward()
            total += int((labels != -100).sum())
        return total

    def _alone(self, sample: dict[str, object]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """One sample as the model takes it; a text as a text."""
        odb = self.odb
        assert odb is not None
        assert self.tower_inputs is not None
        collate = make_collate(odb.config.data.odb, odb._rounding(), odb.encoder)
        batch = collate([sample])
        given = self.tower_inputs(model_inputs(batch, odb._positions, odb.config.vision))
        if not sample["pictures"]:
            size = len(sample["input_ids"])  # type: ignore[arg-type]
            given = {
                key: value[:, :size]
                for key, value in given.items()
                if key in ("input", "positions")
            }
            given["special_tokens"] = self.tower_inputs.special_tokens
            return given, batch["labels"][:, :size]
        given["pixel_values"] = given["pixel_values"].double()
        return given, batch["labels"]

    def _note(self, wanted: dict[str, torch.Tensor], grads: dict[str, torch.Tensor]) -> None:
        whole = sum(float(g.square().sum()) for g in wanted.values()) ** 0.5
        worst, tower = 0.0, 0.0
        for name, grad in wanted.items():
            found = grads[name]
            if name.startswith("vision_encoder."):
                tower = max(tower, float(found.abs().max()))
            size = max(float(grad.double().norm()), NEGLIGIBLE * whole)
            worst = max(worst, float((found.double() - grad).norm()) / size)
        self.report.setdefault("worst", []).append(worst)
        self.report.setdefault("tower", []).append(tower)


if __name__ == "__main__":
    gradient_check.main(CheckedOnPictures)
