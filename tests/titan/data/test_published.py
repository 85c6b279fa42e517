"""Real files and published templates, where their folder is there; see ``ODB_SHARED_DATA``.

Prints a table of file and template by ``pytest -s``.
"""

import importlib.util
import os
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from titan_integration.data.encoding.encoder import Encoder, Encoding
from titan_integration.data.encoding.tokenizer import ChatTokenizer
from titan_integration.data.formats.document import Reading, RowError
from titan_integration.data.inputs.open import Inputs

ROOT = Path(os.environ.get("ODB_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))
TEMPLATES = sorted((ROOT / "chat_templates").glob("*.jinja"))
FILES = sorted(ROOT.glob("*.json*"))
MOST_ROWS = 40  # Of a file, evenly spread.
# Reasons for which a row is rightly left out of a text-only run.
REFUSALS = (
    "the row has images",
    "labelled as a bad answer",
    "the chat template refuses it: Conversation roles must alternate",  # Gemma and tools
    "the chat template refuses it: System role not supported",  # Gemma
    "the chat template refuses it: After the optional system message",  # Mistral
    "the chat template refuses it: Tool call IDs should be",  # Mistral and OpenAI's ids
    "the chat template refuses it: This model only supports single tool-calls",  # Llama 3.1
    "the chat template leaves out",  # tool turns (Phi-3), calls, the text beside a call
)

pytestmark = pytest.mark.skipif(not TEMPLATES, reason="the folder of real files is not there")


@cache
def _encoder(template: Path) -> Encoder:
    hf = ChatTokenizer(tokenizer_path=str(ROOT / "tokenizers" / "titan_test"))
    reading = Reading(preference="chosen")
    return Encoder(hf, Encoding(max_len=10**6, chat_template=str(template), reading=reading))


def _some(file: Path) -> Iterator[Any]:
    rows = Inputs(paths=[str(file)]).open()
    return (rows[i] for i in range(0, len(rows), max(1, len(rows) // MOST_ROWS)))


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_every_answer_of_real_files_is_trained_on_or_the_row_says_why(
    file: Path, template: Path
) -> None:
    encoder, reasons = _encoder(template), Counter[str]()
    answers = trained = 0
    for row in _some(file):
        try:
            plan = encoder.plan(row)
        except RowError as error:
            reasons[error.reason[:70]] += 1
            continue
        answers += plan.answers
        for sample in encoder.tokenize(plan.parts):
            if plan.template is None:
                trained += 1
                continue
            ranges = zip(sample.owners, sample.ranges, strict=True)
            trained += len({owner for owner, (begin, end) in ranges if end > begin})
            _check_targets(encoder, row, sample)
    print(f"{template.stem:20} {file.stem[:24]:24} {answers:5} {trained:5} {dict(reasons)}")
    assert answers == trained
    for reason in reasons:
        assert reason.startswith(REFUSALS), reason


def _check_targets(encoder: Encoder, row: Any, sample: Any) -> None:
    """The decoded targets hold what the row answers, and the first token is none."""
    assert not sample.is_target()[0]
    if not isinstance(row, dict) or "output" not in row:
        return
    told = "".join(encoder.decode(sample.ids[a:b].tolist()) for a, b in sample.ranges)
    kept = encoder.tokenizer.encode(row["output"].strip(), add_bos=False, add_eos=False)
    assert encoder.decode(kept).strip() in told


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)
@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_tokens_and_masks_are_those_of_transformers(template: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    encoder = _encoder(template)
    if not encoder._templates["default"].has_marks:
        pytest.skip("the template does not mark what the model writes")
    theirs = PreTrainedTokenizerFast.from_pretrained(str(ROOT / "tokenizers" / "titan_test"))
    checked = 0
    for name in ("lf_kto_en_demo.json", "lf_v1_sft_demo.jsonl", "lf_glaive_toolcall_en_demo.json"):
        for row in _some(ROOT / name):
            try:
                plan = encoder.plan(row)
            except RowError:
                continue
            messages, tools = _read(encoder, row)
            expected = theirs.apply_chat_template(
                messages,
                tools=tools,
                chat_template=template.read_text(),
                tokenize=True,
                return_dict=True,
                return_assistant_tokens_mask=True,
            )
            [sample] = encoder.tokenize(plan.parts)
            assert sample.ids.tolist() == expected["input_ids"]
            assert sample.is_target().tolist() == [bool(m) for m in expected["assistant_masks"]]
            checked += 1
    assert checked > 50


def _read(encoder: Encoder, row: Any) -> tuple[Any, Any]:
    from titan_integration.data.formats import to_document

    document = to_document(row, encoder.encoding.reading)
    return document.messages, document.tools
