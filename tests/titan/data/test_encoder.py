"""Answers carry loss and nothing else does; lengths keep to the model's limit."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from titan_integration.data.encoding import IGNORE_INDEX, Encoder
from titan_integration.data.formats import RowError
from titan_integration.upstream import HuggingFaceTokenizer

LONG = "word " * 200


@pytest.fixture(scope="module")
def hf(tokenizer: Path) -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(tokenizer_path=str(tokenizer))


def _chat(*contents: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]


def _trained_on(hf: HuggingFaceTokenizer, encoded: dict[str, Any]) -> str:
    labels = encoded["labels"]
    return hf.decode(labels[labels != IGNORE_INDEX].tolist(), skip_special_tokens=False)


def test_every_answer_and_its_end_carries_loss(hf: HuggingFaceTokenizer) -> None:
    encoded = Encoder(hf, max_len=512)(_chat("How?", "So.", "And then?", "Thus.\n"))
    assert encoded is not None
    assert _trained_on(hf, encoded) == "So.<|end|>Thus.\n<|end|>"
    whole = hf.decode(encoded["input_ids"].tolist(), skip_special_tokens=False)
    turns = ["<|user|>How?", "<|assistant|>So.", "<|user|>And then?", "<|assistant|>Thus.\n"]
    assert whole == "<|end|>\n".join(turns)


def test_labels_are_the_next_tokens(hf: HuggingFaceTokenizer) -> None:
    encoded = Encoder(hf, max_len=512)({"text": "One two three."})
    assert encoded is not None
    assert encoded["input_ids"][1:].tolist() == encoded["labels"][:-1].tolist()
    assert encoded["labels"][-1] == hf.eos_id


def test_a_sample_of_just_the_limit_is_kept_whole(hf: HuggingFaceTokenizer) -> None:
    row = _chat("q", LONG)
    length = len(Encoder(hf, max_len=10**6)(row)["input_ids"])  # type: ignore[index]
    assert len(Encoder(hf, max_len=length)(row)["input_ids"]) == length  # type: ignore[index]
    with pytest.raises(RowError, match=f"seq_len={length - 1} tokens, got {length}"):
        Encoder(hf, max_len=length - 1)(row)


def test_too_long_samples_are_cut_or_dropped_on_request(hf: HuggingFaceTokenizer) -> None:
    cut = Encoder(hf, max_len=50, too_long="truncate")
    assert len(cut(_chat("q", LONG))["input_ids"]) == 50  # type: ignore[index]
    assert cut(_chat(LONG, "a")) is None  # nothing of the answer is left
    assert Encoder(hf, max_len=50, too_long="drop")(_chat("q", LONG)) is None


def test_the_quick_length_is_exact_above_the_limit_and_no_less_below(
    hf: HuggingFaceTokenizer,
) -> None:
    row = _chat("q", LONG)
    exact = len(Encoder(hf, max_len=10**6)(row)["input_ids"])  # type: ignore[index]
    assert Encoder(hf, max_len=10).longest_possible(row) == exact
    assert exact <= Encoder(hf, max_len=10**6).longest_possible(row)


def test_an_encoder_travels_to_worker_processes(hf: HuggingFaceTokenizer) -> None:
    encoder = Encoder(hf, max_len=512)
    row = _chat("q", "a")
    copy = pickle.loads(pickle.dumps(encoder))
    assert copy(row)["labels"].tolist() == encoder(row)["labels"].tolist()  # type: ignore[index]
