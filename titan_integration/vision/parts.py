"""Parts of vision-language models that can be kept as they are while others are trained."""

from collections.abc import Iterable, Sequence

from torch import nn

from titan_integration.errors import UserError

# Beginnings of the names of parameters, the longest that fits decides.
_PARTS = {
    "vision_encoder.": "tower",
    "vision_encoder.merger.": "projector",
    "vision_encoder.projector.": "projector",
    "vision_adapter.": "projector",
    "vision_projection.": "projector",
    "perception_emb_norm.": "projector",
    "": "language_model",
}
NAMES = ("tower", "projector", "language_model")


def part_of(name: str) -> str:
    """The part that a parameter of this name belongs to."""
    plain = name.replace("_checkpoint_wrapped_module.", "").replace("_orig_mod.", "")
    return _PARTS[max((start for start in _PARTS if plain.startswith(start)), key=len)]


def check_parts(parts: Sequence[str]) -> None:
    """Raise UserError on what is no part, or leaves nothing to train."""
    for part in parts:
        if part not in NAMES:
            raise UserError(f"freeze must be of {', '.join(NAMES)}, got {part!r}")
    if set(parts) == set(NAMES):
        raise UserError("freeze names all parts of the model: nothing is left to train")


def freeze(models: Iterable[nn.Module], parts: Sequence[str]) -> None:
    """Keep parts as they are: their parameters get no gradient, and optimizers leave them alone."""
    for model in models:
        for name, parameter in model.named_parameters():
            if part_of(name) in parts:
                parameter.requires_grad_(False)
