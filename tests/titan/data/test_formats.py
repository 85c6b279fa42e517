"""Chat, instruction and text rows as people write them."""

import json
from typing import Any

import pytest

from titan_integration.data.formats import RowError, detect, to_document

IMAGE = [{"type": "image"}]
CALLS = [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]


def _said(row: Any, form: Any = "auto") -> list[tuple[str, str]]:
    return [(m["role"], m["content"]) for m in to_document(row, form).messages]


def _turn(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


PAIR = [_turn("user", "q"), _turn("assistant", "a")]


@pytest.mark.parametrize(
    ("form", "row", "said"),
    [
        (
            "messages",
            {"messages": [_turn("user", "q"), _turn("assistant", "a")]},
            "user q|assistant a",
        ),
        ("messages", PAIR, "user q|assistant a"),
        (
            "sharegpt",
            {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
            "user q|assistant a",
        ),
        ("alpaca", {"instruction": "i", "input": "x", "output": "a"}, "user i\n\nx|assistant a"),
        ("alpaca", {"instruction": "i", "input": "", "response": "a"}, "user i|assistant a"),
        (
            "alpaca",
            {"instruction": "i", "instances": [{"input": "x", "output": "a"}]},
            "user i\n\nx|assistant a",
        ),
        ("prompt_response", {"question": "q", "answer": "a"}, "user q|assistant a"),
        ("prompt_response", {"prompt": "q", "completion": "a"}, "user q|assistant a"),
    ],
)
def test_known_keys_are_read_and_detected(form: str, row: Any, said: str) -> None:
    wanted = [tuple(turn.split(" ", 1)) for turn in said.split("|")]
    assert _said(row, form) == wanted
    assert _said(row) == wanted
    assert detect(row) == form


def test_plain_text_is_kept_as_it_is() -> None:
    assert to_document({"text": " a\n", "meta": 1}).text == " a\n"


def test_null_and_typed_contents_become_text() -> None:
    parts = [{"type": "text", "text": "a"}, "b", {"type": "text", "text": "c"}]
    row = [_turn("user", None), _turn("assistant", parts)]
    assert _said(row) == [("user", ""), ("assistant", "abc")]


def test_tool_calls_and_tools_reach_the_template() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": CALLS}
    row = {"messages": [_turn("user", "q"), call], "tools": json.dumps([{"name": "f"}])}
    document = to_document(row)
    assert document.messages[1]["tool_calls"] == CALLS
    assert document.tools == [{"name": "f"}]


def test_turns_after_the_last_answer_are_cut() -> None:
    row = [_turn("user", "q"), _turn("assistant", "a"), _turn("user", "bye")]
    assert _said(row)[-1] == ("assistant", "a")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([_turn("user", "q"), _turn("assistant", "")], "no answer"),
        ([_turn("user", "q")], "no answer"),
        ({"messages": []}, "no answer"),
        ({"text": " \n"}, "empty text"),
        ({"other": 1}, "no known keys"),
        (3, "neither an object nor a list of messages"),
        (
            [_turn("user", IMAGE), _turn("assistant", "a")],
            "a content part is not text",
        ),
        ({"conversations": [{"from": "alien", "value": "q"}]}, "a message has no known role"),
        ([["user", "q"]], "a message is not an object"),
    ],
)
def test_rows_that_cannot_be_trained_on_say_why(row: Any, reason: str) -> None:
    with pytest.raises(RowError, match=reason):
        to_document(row)


def test_a_named_format_is_not_guessed_around() -> None:
    with pytest.raises(RowError, match="no 'messages'"):
        to_document({"text": "a"}, "messages")
