"""Samples keep to the model's limit, begin and end as they should, and travel to processes."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.titan.data.chats import DEFAULT, STABLE, chat, make_encoder, samples_of, targets_of
from titan_integration.data.encoding.encoder import IGNORE_INDEX, Encoder, TooLongError
from titan_integration.data.encoding.tokenizer import ChatTokenizer
from titan_integration.data.formats.document import Refused, RowError
from titan_integration.errors import UserError

Make = Callable[..., Encoder]
LONG = "word " * 200


def _sample(encoder: Encoder, row: Any, part: int = 0) -> dict[str, Any]:
    sample = encoder((row, part))
    assert sample is not None
    return sample


def test_labels_are_the_next_tokens(encoder_for: Make) -> None:
    encoder = encoder_for()
    sample = _sample(encoder, {"text": "One two three."})
    assert sample["input_ids"][1:].tolist() == sample["labels"][:-1].tolist()
    assert sample["labels"][-1] == encoder.tokenizer.eos_id
    sample = _sample(encoder, chat("q", "a"))
    kept = sample["labels"] != IGNORE_INDEX
    assert encoder.decode(sample["labels"][kept].tolist()) == "a<|end|>"


def test_a_sample_of_just_the_limit_is_kept_whole(encoder_for: Make) -> None:
    row = chat("q", LONG)
    length = len(_sample(encoder_for(), row)["input_ids"])
    assert len(_sample(encoder_for(max_len=length), row)["input_ids"]) == length
    with pytest.raises(TooLongError, match=f"seq_len={length - 1} tokens, got {length}"):
        encoder_for(max_len=length - 1)((row, 0))


def test_too_long_samples_are_cut_or_dropped_on_request(encoder_for: Make) -> None:
    cut = encoder_for(max_len=50, too_long="truncate")
    assert len(_sample(cut, chat("q", LONG))["input_ids"]) == 50
    assert cut((chat(LONG, "a"), 0)) is None  # Nothing of the answer is left.
    assert encoder_for(max_len=50, too_long="drop")((chat("q", LONG), 0)) is None


def test_a_long_text_is_cut_into_samples_that_predict_each_token_once(encoder_for: Make) -> None:
    row = {"text": LONG}
    whole = _sample(encoder_for(), row)
    chunked = encoder_for(max_len=50, too_long="chunk")
    plan = chunked.plan(row)
    assert plan.count == len(plan.parts) == -(-len(whole["labels"]) // 50)
    pieces = [_sample(chunked, row, part) for part in range(plan.count)]
    assert [t for piece in pieces for t in piece["input_ids"]] == whole["input_ids"].tolist()
    assert [t for piece in pieces for t in piece["labels"]] == whole["labels"].tolist()
    with pytest.raises(TooLongError, match="at most"):
        chunked((chat("q", LONG), 0))


def test_texts_begin_and_end_with_their_tokens_once(tokenizer: Path, tmp_path: Path) -> None:
    folder = tmp_path / "with_bos"
    shutil.copytree(tokenizer, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "bos_token": "<|pad|>"}))
    encoder = Encoder(ChatTokenizer(tokenizer_path=str(folder)), DEFAULT)
    for text in ("a b", "<|pad|>a b", "a b<|end|>", "<|pad|>a b<|end|>"):
        assert samples_of(encoder, {"text": text}) == [[("<|pad|>", False), ("a b<|end|>", True)]]
    # A chat begins as its template says, which here is without that token.
    assert samples_of(encoder, chat("q", "a"))[0][0][0].startswith("<|user|>")


def test_a_template_without_an_end_gets_one(encoder_for: Make) -> None:
    encoder = encoder_for(STABLE.replace("<|end|>", ""))
    assert targets_of(encoder, chat("q", "a", "r", "b")) == ["a", "b<|end|>"]


def test_tokenized_rows_are_taken_as_they_are(encoder_for: Make) -> None:
    encoder = encoder_for()
    row = {"input_ids": [5, 6, 7, 8, 0], "labels": [-100, -100, 7, 8, -100]}
    sample = _sample(encoder, {**row, "attention_mask": [1, 1, 1, 1, 0]})
    assert sample["input_ids"].tolist() == [5, 6, 7]
    assert sample["labels"].tolist() == [-100, 7, 8]
    with pytest.raises(RowError, match="ids that the tokenizer does not have"):
        encoder.plan({"input_ids": [5, 10**6]})


def test_a_lone_surrogate_is_dropped_and_not_a_crash(encoder_for: Make) -> None:
    for row in (chat("q", "\ud83d"), {"text": "\ud83d"}):
        assert encoder_for()((row, 0)) is None


def test_an_encoder_travels_to_worker_processes(encoder_for: Make) -> None:
    encoder, row = encoder_for(), chat("q", "a")
    copy = pickle.loads(pickle.dumps(encoder))
    assert copy((row, 0))["labels"].tolist() == _sample(encoder, row)["labels"].tolist()
    assert copy.fingerprint() == encoder.fingerprint()


def test_without_a_check_a_row_of_several_samples_is_an_error(encoder_for: Make) -> None:
    encoder = encoder_for(max_len=50, too_long="chunk")
    encoder.one_each = True
    with pytest.raises(Refused, match=r"leave out --data\.no-check"):
        encoder(({"text": LONG}, 0))


def _config(folder: Path, tokenizer: Path, **changes: Any) -> ChatTokenizer:
    shutil.copytree(tokenizer, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, **changes}))
    return ChatTokenizer(tokenizer_path=str(folder))


def test_templates_go_by_name_and_rows_with_tools_have_their_own(
    tokenizer: Path, tmp_path: Path
) -> None:
    named = [
        {"name": "default", "template": "D{% for m in messages %}{{ m.content }}{% endfor %}"},
        {
            "name": "tool_use",
            "template": "T{% for m in messages %}{{ m.content }}{% endfor %}{{ tools }}",
        },
        {"name": "rag", "template": "R{% for m in messages %}{{ m.content }}{% endfor %}"},
    ]
    hf = _config(tmp_path / "named", tokenizer, chat_template=named)
    row = {"messages": chat("q", "a")}
    assert Encoder(hf, DEFAULT).plan(row).template.source[0] == "D"  # type: ignore[union-attr]
    with_tools = {**row, "tools": [{"name": "f"}]}
    plan = Encoder(hf, DEFAULT).plan(with_tools)
    assert plan.template is not None
    assert plan.template.source[0] == "T"
    path = tmp_path / "mine.jinja"
    path.write_text("M")
    for choice, start in (("rag", "R"), (str(path), "M")):
        encoder = Encoder(hf, DEFAULT.__class__(max_len=9, chat_template=choice))
        assert encoder._templates["default"].source[0] == start
    with pytest.raises(UserError, match=r"got 'none'.*has default, rag, tool_use"):
        Encoder(hf, DEFAULT.__class__(max_len=9, chat_template="none"))
    hf = _config(tmp_path / "undecided", tokenizer, chat_template=named[1:])
    with pytest.raises(UserError, match="no chat template is the default"):
        Encoder(hf, DEFAULT)


def test_chats_without_a_template_say_what_to_do(tokenizer: Path, tmp_path: Path) -> None:
    encoder = Encoder(_config(tmp_path / "none", tokenizer, chat_template=None), DEFAULT)
    with pytest.raises(Refused, match=r"has no chat template; give one by --data\.chat_template"):
        encoder((chat("q", "a"), 0))


def test_an_invalid_template_is_named_by_line(tokenizer: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not valid: line 2"):
        make_encoder(tokenizer, tmp_path, "{{ messages }}\n{% for %}")
