"""Random conversations through every kind of template: each answer once, and nothing else."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.titan.data.chats import ALL, make_encoder, targets_of
from titan_integration.data.formats.document import RowError

WORDS = st.sampled_from(
    [
        "",
        " ",
        "\n",
        "\u00e9\u4e2d\U0001f600",
        "<|end|>",
        "<|assistant|>",
        "<|user|>",
        "]]",
        "{{ x }}",
    ]
)
TEXTS = st.lists(WORDS, max_size=4).map("".join)
ROLES = st.sampled_from(["user", "assistant", "assistant", "tool"])
TURNS = st.lists(st.tuples(ROLES, TEXTS, st.booleans(), st.booleans()), min_size=1, max_size=8)


def _conversation(turns: list[tuple[str, str, bool, bool]], system: bool) -> list[dict[str, Any]]:
    """Messages whose contents are told apart by a number: ``u0:...:``, ``a1:...:``."""
    row: list[dict[str, Any]] = [{"role": "system", "content": "s:"}] if system else []
    for i, (role, text, reasons, trained) in enumerate(turns):
        turn: dict[str, Any] = {"role": role, "content": f"{role[0]}{i}:{text}:"}
        if role == "assistant":
            turn["train"] = trained
            if reasons:
                turn["reasoning_content"] = f"r{i}:{text}:"
        row.append(turn)
    return row


@pytest.mark.parametrize("name", ALL)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(turns=TURNS, system=st.booleans())
def test_each_answer_is_a_target_once_and_no_other_text_is(
    tokenizer: Path,
    tmp_path: Path,
    name: str,
    turns: list[tuple[str, str, bool, bool]],
    system: bool,
) -> None:
    encoder = _encoder(tokenizer, tmp_path, name)
    row = _conversation(turns, system)
    wanted = [m["content"] for m in row if m["role"] == "assistant" and m["train"]]
    try:
        targets = targets_of(encoder, row)
    except RowError:
        assert not wanted or name == "moved"
        return
    # Two answers may stand side by side, and then are one run of tokens.
    assert len(targets) <= len(wanted)
    told = "".join(targets)
    assert [told.count(answer) for answer in wanted] == [1] * len(wanted)
    for m in row:
        if m["content"] not in wanted:
            assert m["content"] not in told
    marks = {"<think>", "</think>", "<|end|>", "<|tool|>", "\n"}
    rest = told
    for m in row:
        for text in (m["content"], m.get("reasoning_content")):
            rest = rest.replace(text, "") if text else rest
    for mark in marks:
        rest = rest.replace(mark, "")
    assert not rest


_made: dict[str, Any] = {}
_numbers = itertools.count()


def _encoder(tokenizer: Path, folder: Path, name: str) -> Any:
    if name not in _made:
        own = folder / str(next(_numbers))
        own.mkdir()
        _made[name] = make_encoder(tokenizer, own, ALL[name])
    return _made[name]
