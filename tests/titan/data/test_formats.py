"""Chat, instruction, preference, text and token rows as people write them."""

import json
from typing import Any

import pytest

from titan_integration.data.formats import detect, to_document
from titan_integration.data.formats.document import Document, Reading, Refused, RowError

CALL = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
CHOSEN = Reading(preference="chosen")


def _turn(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


PAIR = [_turn("user", "q"), _turn("assistant", "a")]


def _said(document: Document) -> str:
    """``user q|assistant a``; an answer that is not trained on has brackets around it."""
    return "|".join(
        f"({m['role']} {m['content']})"
        if i in document.untrained
        else f"{m['role']} {m['content']}"
        for i, m in enumerate(document.messages)
    )


@pytest.mark.parametrize(
    ("form", "row", "said"),
    [
        ("messages", {"messages": PAIR}, "user q|assistant a"),
        ("messages", PAIR, "user q|assistant a"),
        ("messages", {"messages": PAIR, "system": "s"}, "system s|user q|assistant a"),
        ("messages", {"messages": PAIR, "system_prompt": "s"}, "system s|user q|assistant a"),
        (
            "messages",
            {"messages": [_turn("system", "s"), *PAIR], "system": "s"},
            "system s|user q|assistant a",
        ),
        (
            "sharegpt",
            {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
            "user q|assistant a",
        ),
        ("sharegpt", {"conversations": PAIR, "system": "s"}, "system s|user q|assistant a"),
        ("alpaca", {"instruction": "i", "input": "x", "output": "a"}, "user i\n\nx|assistant a"),
        ("alpaca", {"instruction": "i", "input": "", "response": "a"}, "user i|assistant a"),
        (
            "alpaca",
            {"instruction": "i", "context": "c", "response": "a", "category": "qa"},
            "user i\n\nc|assistant a",
        ),
        (
            "alpaca",
            {"instruction": "i", "output": "a", "history": [["h", "g"]], "system": "s"},
            "system s|user h|assistant g|user i|assistant a",
        ),
        (
            "alpaca",
            {"instruction": "i", "instances": [{"input": "x", "output": "a"}]},
            "user i\n\nx|assistant a",
        ),
        ("prompt_response", {"question": "q", "answer": "a"}, "user q|assistant a"),
        ("prompt_response", {"question": "q", "answer": 5}, "user q|assistant 5"),
        ("prompt_response", {"prompt": "q", "completion": "a"}, "user q|assistant a"),
        (
            "prompt_response",
            {"query": "q", "context": "c", "answer": "a"},
            "user q\n\nc|assistant a",
        ),
        (
            "prompt_response",
            {"prompt": [*PAIR, _turn("user", "r")], "completion": [_turn("assistant", "b")]},
            "user q|(assistant a)|user r|assistant b",
        ),
    ],
)
def test_known_keys_are_read_and_detected(form: str, row: Any, said: str) -> None:
    assert _said(to_document(row, Reading(form=form))) == said
    assert _said(to_document(row)) == said
    assert detect(row) == form


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "q", "chosen": "a", "rejected": "b"}, "user q|assistant a"),
        ({"chosen": PAIR, "rejected": PAIR}, "user q|assistant a"),
        ({"prompt": "q", "chosen": PAIR, "rejected": PAIR}, "user q|assistant a"),
        ({"prompt": PAIR[:1], "chosen": PAIR[1:], "rejected": PAIR[1:]}, "user q|assistant a"),
        ({"conversations": PAIR[:1], "chosen": PAIR[1], "rejected": PAIR[1]}, "user q|assistant a"),
        ({"messages": PAIR, "label": True}, "user q|assistant a"),
        ({"prompt": "q", "completion": "a", "label": True}, "user q|assistant a"),
    ],
)
def test_good_answers_are_trained_on_by_choice_only(row: Any, said: str) -> None:
    assert detect(row) == "preference"
    assert _said(to_document(row, CHOSEN)) == said
    with pytest.raises(Refused, match=r"--data\.preference chosen"):
        to_document(row)
    with pytest.raises(Refused, match=r"--data\.preference chosen"):
        to_document(row, Reading(form="messages"))


def test_bad_answers_are_never_trained_on() -> None:
    with pytest.raises(RowError, match="labelled as a bad answer"):
        to_document({"messages": PAIR, "label": False}, CHOSEN)


def test_a_label_that_is_a_class_is_only_reported() -> None:
    assert to_document({"messages": PAIR, "label": 3}).unread == {"label"}


def test_what_nothing_reads_is_named() -> None:
    row = {"messages": PAIR, "id": 7, "source": "web", "empty": "", "null": None}
    assert to_document(row).unread == {"id", "source"}
    other = {"messages": [_turn("system", "s"), *PAIR], "system": "another"}
    assert to_document(other).unread == {"system (beside another system turn)"}
    two = {"instruction": "i", "instances": [{"output": "a"}, {"output": "b"}]}
    assert to_document(two).unread == {"instances after the first"}


def test_columns_and_roles_go_by_other_names() -> None:
    reading = Reading(columns={"prompt": "ask", "response": "say"}, roles={"kunde": "user"})
    assert _said(to_document({"ask": "q", "say": "a"}, reading)) == "user q|assistant a"
    turns = [{"from": "kunde", "value": "q"}, {"from": "gpt", "value": "a"}]
    assert _said(to_document({"conversations": turns}, reading)) == "user q|assistant a"
    with pytest.raises(RowError, match=r"no known role 'kunde'.*--data\.roles kunde=user"):
        to_document({"conversations": turns})


def test_plain_text_is_kept_as_it_is() -> None:
    assert to_document({"text": " a\n", "meta": 1}).text == " a\n"
    assert to_document("a").text == "a"


def test_null_and_typed_contents_become_text_reasoning_and_calls() -> None:
    parts = [
        {"type": "reasoning", "value": "why"},
        {"type": "text", "text": "a"},
        "b",
        {"type": "text", "value": "c"},
        {"type": "tool_call", "value": json.dumps({"name": "f", "arguments": {"a": 1}})},
    ]
    document = to_document([_turn("user", None), _turn("assistant", parts)])
    assert document.messages == [
        _turn("user", ""),
        _turn("assistant", "abc", tool_calls=[CALL], reasoning_content="why"),
    ]


@pytest.mark.parametrize(
    "turn",
    [
        _turn("assistant", None, tool_calls=[CALL]),
        _turn("assistant", None, tool_calls=[{"name": "f", "arguments": {"a": 1}}]),
        _turn("assistant", None, tool_calls=[{"function": {"name": "f", "arguments": '{"a": 1}'}}]),
        _turn("assistant", "", function_call={"name": "f", "arguments": '{"a":1}'}),
        {"from": "function_call", "value": '{"name": "f", "arguments": {"a": 1}}'},
        {"from": "function_call", "value": '[{"name": "f", "arguments": "{\\"a\\": 1}"}]'},
        _turn("assistant", [{"type": "tool_use", "name": "f", "input": {"a": 1}}]),
    ],
)
def test_tool_calls_of_every_shape_are_one_and_decoded_once(turn: Any) -> None:
    row = {"conversations": [{"from": "human", "value": "q"}, turn], "tools": '[{"name": "f"}]'}
    document = to_document(row)
    assert document.messages[1] == _turn("assistant", "", tool_calls=[CALL])
    assert document.tools == [{"type": "function", "function": {"name": "f"}}]


def test_keys_that_a_table_filled_with_nulls_are_absent() -> None:
    row = [{**turn, "tool_calls": None, "name": None, "weight": None} for turn in PAIR]
    assert to_document(row).messages == PAIR


@pytest.mark.parametrize("key", ["train", "weight", "loss", "loss_weight", "training"])
def test_a_message_says_whether_it_is_trained_on(key: str) -> None:
    row = [*PAIR, _turn("user", "r"), _turn("assistant", "b", **{key: 1})]
    row[1] = {**row[1], key: 0}
    assert _said(to_document(row)) == "user q|(assistant a)|user r|assistant b"
    assert to_document([{**PAIR[0], key: 1}, PAIR[1]]).unread == {"messages[].weight"}
    with pytest.raises(RowError, match="0 or 1"):
        to_document([PAIR[0], {**PAIR[1], key: 0.5}])
    with pytest.raises(RowError, match="none of its answers"):
        to_document([PAIR[0], {**PAIR[1], key: 0}])


def test_turns_after_the_last_trained_answer_are_cut() -> None:
    row = [*PAIR, _turn("user", "bye"), _turn("assistant", "b", train=False)]
    assert _said(to_document(row)) == "user q|assistant a"


@pytest.mark.parametrize(
    "row",
    [
        {"messages": PAIR, "images": ["a.jpg"]},
        {"messages": [_turn("user", "<image>what?"), PAIR[1]]},
        {"conversations": [{"from": "human", "value": "q <image>"}, {"from": "gpt", "value": "a"}]},
        [_turn("user", [{"type": "image"}]), PAIR[1]],
        [_turn("user", [{"type": "image_url", "image_url": {"url": "x"}}]), PAIR[1]],
        [_turn("user", [{"type": "video", "video": "x"}]), PAIR[1]],
        {"question": "q", "answer": "a", "image": "x.png"},
    ],
)
def test_pictures_are_refused_and_never_trained_on_as_text(row: Any) -> None:
    with pytest.raises(Refused, match=r"text only; take the rows with .* out"):
        to_document(row)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([_turn("user", "q"), _turn("assistant", "")], "no answer"),
        ([_turn("user", "q")], "no answer"),
        ({"messages": []}, "no answer"),
        ({"text": " \n"}, "empty text"),
        ({"other": 1}, r"no known keys; name them by --data\.columns"),
        (3, "neither an object nor a list of messages"),
        ({"conversations": [{"value": "q"}]}, "a message has no role"),
        ([["user", "q"]], "a message is not an object"),
        ({"prompt": {"a": {}}, "response": "a"}, "a message has no role"),
        ({"prompt": "q", "response": True}, "'response' is true or false, not text"),
        ({"messages": PAIR, "tools": "{"}, "'tools' is not JSON"),
        ({"conversations": [{"from": "function_call", "value": "f()"}]}, "a tool call is not JSON"),
        ([_turn("user", [{"type": "poem", "text": "x"}]), PAIR[1]], "part of type 'poem'"),
        ({"instruction": "i", "output": "a", "history": "h"}, "'history' is no list"),
        ({"input_ids": [1, 2], "labels": [1]}, "differ in length"),
        ({"input_ids": [1, 2], "labels": [1, 3]}, "neither its token's id nor -100"),
        ({"input_ids": [1, 2], "labels": [-100, -100]}, "no label"),
        ({"input_ids": [1, "2"]}, "no list of integers"),
    ],
)
def test_rows_that_cannot_be_trained_on_say_why(row: Any, reason: str) -> None:
    with pytest.raises(RowError, match=reason):
        to_document(row)


def test_a_named_format_is_not_guessed_around() -> None:
    with pytest.raises(RowError, match="no 'messages'"):
        to_document({"text": "a"}, Reading(form="messages"))
