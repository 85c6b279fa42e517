"""Drawn pictures, rows that name them, and a tokenizer that knows them; made once a session."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.titan.conftest import CHAT_TEMPLATE, SPECIAL, docstrings
from tests.titan.vision.tiny import VOCAB

VISION = [
    "<|vision_start|>", "<|image_pad|>", "<|video_pad|>", "<|vision_end|>",
    "<|media_begin|>", "<|media_pad|>", "<|media_end|>",
]  # fmt: skip
SIZES = [(40, 64), (130, 90), (33, 200), (256, 256), (64, 32), (90, 90)]  # height and width


@pytest.fixture(scope="session")
def vision_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer folder with the tokens of all three families."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[*SPECIAL, *VISION],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text for _, text in docstrings()], trainer)
    folder = tmp_path_factory.mktemp("vision_tokenizer")
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|end|>",
        "pad_token": "<|pad|>",
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def picture_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``0.png`` to ``5.jpg``, of the sizes above."""
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for i, (height, width) in enumerate(SIZES):
        pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.{'png' if i % 2 else 'jpg'}")
    return folder


@pytest.fixture(scope="session")
def picture_name(picture_folder: Path) -> Callable[[int], str]:
    """Of the picture with a number."""
    names = sorted(path.name for path in picture_folder.iterdir())
    return lambda number: names[number % len(names)]


def chat_with(pictures: list[str], answer: str, question: str = "what is it?") -> dict[str, Any]:
    """A row as LLaMA-Factory has it."""
    turns = [
        {"role": "user", "content": "<image>" * len(pictures) + question},
        {"role": "assistant", "content": answer},
    ]
    return {"messages": turns, **({"images": pictures} if pictures else {})}


@pytest.fixture(scope="session")
def mixed_rows(picture_folder: Path, picture_name: Callable[[int], str]) -> Path:
    """60 rows beside the pictures: a third without any, one in six with two."""
    texts = [text[:200] for _, text in docstrings()[:60]]
    with (picture_folder.parent / "rows.jsonl").open("w") as file:
        for i, text in enumerate(texts):
            number = 0 if i % 3 == 0 else 2 if i % 6 == 1 else 1
            names = [f"{picture_folder.name}/{picture_name(i + k)}" for k in range(number)]
            file.write(json.dumps(chat_with(names, text)) + "\n")
    return picture_folder.parent / "rows.jsonl"
