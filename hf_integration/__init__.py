"""Hugging Face's Trainer, and those built on it, with online dynamic batching.

    trainer = OdbTrainer(
        model=..., args=..., train_dataset=..., odb=OdbArguments(token_budget=8192)
    )

May import ``odb_nodes`` and the counts and the summary that ``titan_integration`` shares with it.
"""

from hf_integration.arguments import OdbArguments
from hf_integration.data.pictures import PictureCollate, geometry_of
from hf_integration.errors import Refusal
from hf_integration.trainer import OdbTrainer, OdbTrainerMixin

__all__ = [
    "OdbArguments",
    "OdbTrainer",
    "OdbTrainerMixin",
    "PictureCollate",
    "Refusal",
    "geometry_of",
]
