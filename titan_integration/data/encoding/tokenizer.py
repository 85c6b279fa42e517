"""torchtitan's tokenizer, for whatever chat templates the tokenizer's folder has."""

from dataclasses import dataclass
from typing import Any

from titan_integration.errors import UserError
from titan_integration.upstream import HuggingFaceTokenizer


class ChatTokenizer(HuggingFaceTokenizer):
    """Does not compile the chat template when it is built, as torchtitan's does.

    Which fails on a list of named templates and on ``{% generation %}`` blocks; the encoder reads
    the templates itself.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(HuggingFaceTokenizer.Config):
        pass

    def set_chat_template(self, template: Any) -> None:
        """Keep the template for :meth:`apply_chat_template`."""
        self._source = template

    def apply_chat_template(self, messages: list[dict[str, str]], **kwargs: Any) -> str:
        """As torchtitan's; compiles the template now."""
        if self._chat_template is None and isinstance(self._source, str):
            super().set_chat_template(self._source)
        text: str = super().apply_chat_template(messages, **kwargs)
        return text


def check_size(tokenizer: HuggingFaceTokenizer, vocab_size: int | None) -> None:
    """Raise UserError if a tokenizer has more tokens than the model; None is not known."""
    size = tokenizer.get_vocab_size()
    if vocab_size is not None and size > vocab_size:
        raise UserError(
            f"the tokenizer may have at most the model's {vocab_size} tokens, got {size}; "
            "set --hf_assets_path to the model's tokenizer"
        )
