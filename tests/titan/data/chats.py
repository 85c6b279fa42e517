"""A tokenizer and chat templates of the kinds that there are, small enough to read."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from titan_integration.data.encoding.encoder import Encoder, Encoding
from titan_integration.data.encoding.tokenizer import ChatTokenizer
from titan_integration.data.formats.document import Reading

# Written the same way whether a turn is the last or not.
STABLE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# As Qwen3: reasoning is written for answers after the last question only.
THINKING = """
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}
{%- set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
    {%- set text = m.content.split('</think>')[-1] %}
    {%- if m.role == 'assistant' and loop.index0 > ns.last %}
        {{- '<|assistant|><think>' + (m.reasoning_content or '') + '</think>' }}
        {{- text + '<|end|>\n' }}
    {%- else %}
        {{- '<|' + m.role + '|>' + text + '<|end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""
# As DeepSeek-R1: the model is asked to think, and its thoughts are not written.
OPENED = """
{%- for m in messages %}{{ '<|' + m.role + '|>' + m.content.split('</think>')[-1] + '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|><think>\n' }}{% endif %}"""
# As Phi-3: an end of text that only the last turn has.
ENDED = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|tool|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% else %}{{ eos_token }}{% endif %}"
)
# As Mistral: the system text goes to the last question.
MOVED = """
{%- set system = messages[0].content if messages[0].role == 'system' else '' %}
{%- for m in messages if m.role != 'system' %}
    {%- if m.role == 'user' %}{{ '<|user|>' + (system + ' ' if loop.last else '') + m.content }}
    {%- else %}{{ '<|assistant|>' + m.content + '<|end|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""
# Tells itself what the model writes.
MARKED = """
{%- for m in messages %}
    {{- '<|' + m.role + '|>' }}
    {%- if m.role == 'assistant' %}
        {%- generation %}{{ m.content + '<|end|>\n' }}{% endgeneration %}
    {%- else %}{{ m.content + '<|end|>\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""
ALL = {
    "stable": STABLE,
    "thinking": THINKING,
    "opened": OPENED,
    "ended": ENDED,
    "moved": MOVED,
    "marked": MARKED,
}
DEFAULT = Encoding(max_len=10**6)


def chat(*contents: str) -> list[dict[str, Any]]:
    """A question, its answer, and so on."""
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]


def make_encoder(
    tokenizer: Path,
    folder: Path,
    template: str = STABLE,
    *,
    reading: Reading | None = None,
    **changes: Any,
) -> Encoder:
    """An encoder for a template's source."""
    path = folder / "template.jinja"
    path.write_text(template)
    encoding = replace(DEFAULT, chat_template=str(path), reading=reading or Reading(), **changes)
    return Encoder(ChatTokenizer(tokenizer_path=str(tokenizer)), encoding)


def samples_of(encoder: Encoder, row: Any) -> list[list[tuple[str, bool]]]:
    """Each sample as pieces of text, and whether they are trained on."""
    found = []
    for sample in encoder.tokenize(encoder.plan(row).parts):
        targets, pieces, begin = sample.is_target(), [], 0
        for i in range(1, len(targets) + 1):
            if i == len(targets) or targets[i] != targets[begin]:
                pieces.append((encoder.decode(sample.ids[begin:i].tolist()), bool(targets[begin])))
                begin = i
        found.append(pieces)
    return found


def targets_of(encoder: Encoder, row: Any) -> list[str]:
    """What is trained on, of all samples in order."""
    return [text for sample in samples_of(encoder, row) for text, target in sample if target]
