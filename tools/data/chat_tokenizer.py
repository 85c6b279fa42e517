"""A byte-level BPE tokenizer with a chat template, in the layout Hugging Face tokenizers have."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

import jinja2
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 8192

# Padding comes first: id 0 is what input_ids are padded with by default.
PAD, BOS, END = "<|pad|>", "<|bos|>", "<|end|>"
SPECIAL_TOKENS = (PAD, BOS, END, "<|system|>", "<|user|>", "<|assistant|>")
VISION_TOKENS = (  # of Qwen and Muse Glimmer, and of Kimi
    "<|vision_start|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|vision_end|>",
    "<|media_begin|>",
    "<|media_pad|>",
    "<|media_end|>",
)

# No BOS here: the tokenizer adds it when it encodes. END closes every turn and is also the
# end-of-sequence token, so a prompt is a prefix of its conversation, token by token.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('role must be system, user or assistant, got ' + message['role']) }}"
    "{% endif %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": BOS,
    "eos_token": END,
    "pad_token": PAD,
    "add_bos_token": True,
    "add_eos_token": False,
    "chat_template": CHAT_TEMPLATE,
}

Conversation = Mapping[str, Sequence[Mapping[str, str]]]


def train_tokenizer(texts: Iterable[str], *, more: Sequence[str] = ()) -> Tokenizer:
    """Train a BPE of up to ``VOCAB_SIZE`` tokens; every text survives a round trip through it.

    Args:
        texts: To train on.
        more: Special tokens beside the usual ones.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[*SPECIAL_TOKENS, *more],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=sys.stderr.isatty(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def tokenizer_files(tokenizer: Tokenizer) -> dict[str, str]:
    """The tokenizer's folder: file names and what is in them."""
    return {
        "tokenizer.json": tokenizer.to_str(),
        "tokenizer_config.json": json.dumps(CONFIG, indent=2) + "\n",
    }


def token_lengths(rows: Sequence[Conversation], tokenizer: Tokenizer) -> Iterator[int]:
    """Yield each row's length in tokens as it is trained on: chat-templated, BOS included."""
    template = jinja2.Environment().from_string(CHAT_TEMPLATE)
    for start in range(0, len(rows), 1000):  # Batches are encoded on all cores.
        texts = [template.render(row) for row in rows[start : start + 1000]]
        for encoding in tokenizer.encode_batch_fast(texts):
            yield 1 + len(encoding.ids)


def can_be_encoded(text: str) -> bool:
    """Whether the text is valid Unicode and holds none of the template's own tokens."""
    try:
        text.encode()
    except UnicodeEncodeError:  # A lone surrogate, as a "\\ud800" escape in source gives.
        return False
    return not any(token in text for token in SPECIAL_TOKENS)
