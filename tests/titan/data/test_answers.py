"""Each answer is trained on in the context in which the model would write it."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.titan.data.chats import (
    ALL,
    ENDED,
    MARKED,
    MOVED,
    OPENED,
    STABLE,
    THINKING,
    chat,
    samples_of,
    targets_of,
)
from titan_integration.data.encoding.encoder import Encoder
from titan_integration.data.formats.document import RowError

Make = Callable[..., Encoder]


@pytest.mark.parametrize("name", ALL)
def test_every_answer_is_trained_on_whatever_the_template_does(
    encoder_for: Make, name: str
) -> None:
    targets = targets_of(encoder_for(ALL[name]), chat("one", "two", "three", "four", "five", "six"))
    assert len(targets) == 3
    for answer, target in zip(("two", "four", "six"), targets, strict=True):
        assert answer in target
        assert not any(word in target for word in ("one", "three", "five"))


def test_a_stable_template_gives_one_sample(encoder_for: Make) -> None:
    [sample] = samples_of(encoder_for(STABLE), chat("q", "a", "r", "b"))
    assert sample == [
        ("<|user|>q<|end|>\n<|assistant|>", False),
        ("a<|end|>", True),
        ("\n<|user|>r<|end|>\n<|assistant|>", False),
        ("b<|end|>", True),
    ]


def test_a_template_that_rewrites_turns_gives_a_sample_for_each_answer(encoder_for: Make) -> None:
    row = chat("q", "a", "r", "b")
    row[1]["reasoning_content"] = "why"
    assert samples_of(encoder_for(THINKING), row) == [
        [("<|user|>q<|end|>\n<|assistant|>", False), ("<think>why</think>a<|end|>", True)],
        [
            ("<|user|>q<|end|>\n<|assistant|>a<|end|>\n<|user|>r<|end|>\n<|assistant|>", False),
            ("<think></think>b<|end|>", True),
        ],
    ]


@pytest.mark.parametrize(
    ("answer", "target"),
    [("a", "\n</think>\n\na<|end|>"), ("<think>\nwhy\n</think>a", "why\n</think>\n\na<|end|>")],
)
def test_a_prompt_that_opens_the_reasoning_has_it_closed(
    encoder_for: Make, answer: str, target: str
) -> None:
    [sample] = samples_of(encoder_for(OPENED), chat("q", answer))
    assert sample == [("<|user|>q<|end|><|assistant|><think>\n", False), (target, True)]


def test_what_only_ends_the_text_is_part_of_the_last_answer(encoder_for: Make) -> None:
    assert targets_of(encoder_for(ENDED), chat("q", "a", "r", "b")) == [
        "a<|tool|>",
        "b<|tool|>\n<|end|>",
    ]


def test_a_system_text_stands_where_the_model_sees_it(encoder_for: Make) -> None:
    row = [{"role": "system", "content": "S"}, *chat("q", "a", "r", "b")]
    first, second = samples_of(encoder_for(MOVED), row)
    assert first == [("<|user|>S q<|assistant|>", False), ("a<|end|>", True)]
    assert second[0] == ("<|user|>q<|assistant|>a<|end|><|user|>S r<|assistant|>", False)


def test_generation_marks_are_taken_as_they_are(encoder_for: Make) -> None:
    [sample] = samples_of(encoder_for(MARKED), chat("q", "a", "r", "b"))
    assert [text for text, target in sample if target] == ["a<|end|>\n", "b<|end|>\n"]


@pytest.mark.parametrize("name", ["stable", "thinking", "marked"])
def test_a_chat_may_begin_with_an_answer(encoder_for: Make, name: str) -> None:
    row = [{"role": "assistant", "content": "hello"}, *chat("q", "a")]
    assert ["hello" in text for text in targets_of(encoder_for(ALL[name]), row)] == [True, False]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("train_on", "flags", "expected"),
    [
        ("last", {}, ["b"]),
        ("all", {1: 0}, ["b"]),
        ("all", {3: 0}, ["a"]),
        ("all", {1: 1}, ["a", "b"]),
    ],
)
def test_only_the_answers_that_the_run_and_the_row_want_are_trained_on(
    encoder_for: Make, name: str, train_on: str, flags: dict[int, int], expected: list[str]
) -> None:
    row = chat("q", "a", "r", "b")
    for i, weight in flags.items():
        row[i]["weight"] = weight
    targets = targets_of(encoder_for(ALL[name], train_on=train_on), row)
    assert [t.replace("</think>", "").strip("\n")[0] for t in targets] == [
        e if name not in ("thinking",) else "<" for e in expected
    ] or [any(e in t for t in targets) for e in expected] == [True] * len(expected)
    assert len(targets) == len(expected)


LEAVES_OUT = "{% for m in messages if m.role != 'tool' %}" + STABLE.partition("%}")[2]
CALL = {"function": {"name": "look", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("template", "row", "reason"),
    [
        (
            STABLE,
            [*chat("q"), {"role": "assistant", "tool_calls": [CALL]}],
            "leaves out tool calls",
        ),
        (
            STABLE.replace("m.content", "m.content[:2]"),
            chat("q", "long"),
            "leaves out the text of an answer",
        ),
        (
            "{{ raise_exception('alternate, please') }}",
            chat("q", "a"),
            "the chat template refuses it: alternate, please",
        ),
        (
            "{{ messages[9].content.x }}",
            chat("q", "a"),
            "the chat template refuses it: list object has no element 9",
        ),
    ],
)
def test_what_a_template_cannot_say_is_refused_in_words(
    encoder_for: Make, template: str, row: Any, reason: str
) -> None:
    with pytest.raises(RowError, match=reason):
        encoder_for(template).plan(row)


def test_a_token_never_spans_prompt_and_answer(encoder_for: Make) -> None:
    template = STABLE.replace("<|assistant|>", "answer:").replace(
        "<|{{ m.role }}|>", "{{ m.role }}:"
    )
    encoder = encoder_for(template.replace("assistant:", "answer:"))
    for answer in ("", "\n", " x", "\nx", ":x"):
        [sample] = samples_of(encoder_for(STABLE), chat("q", f"{answer}word"))
        assert sample[-1] == (f"{answer}word<|end|>", True)
    assert encoder.plan(chat("q", "a")).count == 1


def test_rendering_grows_with_the_number_of_turns_only(encoder_for: Make) -> None:
    encoder = encoder_for(STABLE)
    template = encoder._templates["default"]
    rendered = []
    render = template.render
    template.render = lambda *a, **k: rendered.append(len(a[0])) or render(*a, **k)  # type: ignore
    for turns in (20, 200):
        rendered.clear()
        encoder.plan(chat(*("word" for _ in range(turns))))
        assert sum(rendered) <= 3 * turns
