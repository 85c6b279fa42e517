"""``python -m hf_integration.llamafactory train config.yaml odb_token_budget=8192``.

LLaMA-Factory's own command with ``odb_...`` keys beside its own, in the file or on the command
line: each is the field of that name of ``OdbArguments``. For several ranks start it by torchrun:

    torchrun --nproc_per_node=2 -m hf_integration.llamafactory train config.yaml

No file of LLaMA-Factory is changed: the name of its trainer is bound to one with the mixin before
it. Stages sft and pt, with DDP and DeepSpeed.
"""

import importlib
import sys
from typing import Any

from transformers import HfArgumentParser

from hf_integration.arguments import OdbArguments
from hf_integration.errors import Refusal
from hf_integration.trainer import OdbTrainerMixin

PREFIX = "odb_"
TRAINERS = {  # stage: where LLaMA-Factory looks up its trainer
    "sft": ("llamafactory.train.sft.workflow", "CustomSeq2SeqTrainer"),
    "pt": ("llamafactory.train.pt.workflow", "CustomTrainer"),
}
OFF = ("packing", "neat_packing", "streaming")
USAGE = "usage: python -m hf_integration.llamafactory train config.yaml [odb_token_budget=8192 ...]"


def split(config: dict[str, Any]) -> tuple[dict[str, Any], OdbArguments]:
    """LLaMA-Factory's keys and ours.

    Raises:
        Refusal: A key of ours is unknown or out of range, or one of theirs cannot be had with it.
    """
    own = {key[len(PREFIX) :]: config[key] for key in config if key.startswith(PREFIX)}
    theirs = {key: value for key, value in config.items() if not key.startswith(PREFIX)}
    try:
        (settings,) = HfArgumentParser(OdbArguments).parse_dict(own)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        known = ", ".join(PREFIX + name for name in OdbArguments.__dataclass_fields__)
        raise Refusal(f"{PREFIX}... keys: {error}; known are {known}") from None
    stage = theirs.get("stage", "sft")
    if stage not in TRAINERS:
        raise Refusal(f"stage must be one of {sorted(TRAINERS)}, got {stage!r}")
    for key in OFF:
        if theirs.get(key):
            raise Refusal(f"{key} must be false (samples keep their own rows), got {theirs[key]}")
    return theirs, settings


def bind(stage: str, settings: OdbArguments) -> None:
    """Have LLaMA-Factory build its trainer with the mixin before it."""
    module, name = TRAINERS[stage]
    workflow = importlib.import_module(module)
    stock: Any = getattr(workflow, name)

    class WithOdb(OdbTrainerMixin, stock):  # type: ignore[misc]
        """LLaMA-Factory's trainer with online dynamic batching."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, odb=settings, **kwargs)

    WithOdb.__name__ = name
    setattr(workflow, name, WithOdb)


def main() -> None:
    """Train as the command line says; bad input is one line and exit code 2."""
    if len(sys.argv) < 3 or sys.argv[1] != "train":
        print(USAGE, file=sys.stderr)
        sys.exit(2)
    del sys.argv[1]
    try:
        read_args = importlib.import_module("llamafactory.hparams.parser").read_args
        config = read_args()
        if not isinstance(config, dict):
            raise Refusal(f"a YAML or JSON file must come first, got {sys.argv[1]!r}; {USAGE}")
        theirs, settings = split(config)
        bind(theirs.get("stage", "sft"), settings)
        importlib.import_module("llamafactory.train.tuner").run_exp(theirs)
    except Refusal as refusal:
        print(f"error: {refusal}", file=sys.stderr)
        sys.exit(2)
    except ModuleNotFoundError as error:
        if error.name != "llamafactory":
            raise
        print("error: llamafactory is not installed here; try make llamafactory", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
