"""Documents -> token ids and labels, by torchtitan's tokenizer and its chat template."""

from typing import Any, Literal

import numpy as np

from titan_integration.data.formats import Document, Format, Message, RowError, to_document
from titan_integration.upstream import HuggingFaceTokenizer

IGNORE_INDEX = -100
TooLong = Literal["error", "truncate", "drop"]


class Encoder:
    """Turn a row into ``{"input_ids": int64[L], "labels": int64[L]}``, or None to drop it.

    ``labels[i]`` is the token after ``input_ids[i]``, or -100 where it is not part of an answer.
    Works in threads and worker processes (a process loads the tokenizer itself).

    Args:
        tokenizer: With a chat template, unless all rows are plain text.
        max_len: The longest sample in tokens (the model's ``seq_len``).
        form: How to read rows.
        too_long: What happens to a longer sample: an error, its tail cut off, or no sample.
    """

    def __init__(
        self,
        tokenizer: HuggingFaceTokenizer,
        *,
        max_len: int,
        form: Format = "auto",
        too_long: TooLong = "error",
    ) -> None:
        self.tokenizer = tokenizer
        self.max_len = max_len
        self.form = form
        self.too_long = too_long

    def __call__(self, row: Any) -> dict[str, np.ndarray] | None:
        """Encode one row. Raises RowError on one too long, where ``too_long`` is "error"."""
        try:
            ids, is_target = self.encode(to_document(row, self.form))
        except RowError:
            return None  # unusable rows were reported, with their counts, before training
        if len(ids) - 1 > self.max_len:
            if self.too_long == "error":
                raise RowError(self.too_long_message(len(ids) - 1))
            if self.too_long != "truncate":
                return None
            ids, is_target = ids[: self.max_len + 1], is_target[: self.max_len + 1]
        labels = np.where(is_target[1:], ids[1:], IGNORE_INDEX)
        if not is_target[1:].any():
            return None
        return {"input_ids": ids[:-1], "labels": labels}

    def encode(self, document: Document) -> tuple[np.ndarray, np.ndarray]:
        """Token ids ``int64[n]`` and which of them are trained on ``bool[n]``."""
        if document.text is not None:
            tokens = self.tokenizer.encode(document.text, add_bos=True, add_eos=True)
            return np.array(tokens, np.int64), np.ones(len(tokens), bool)
        text, spans = self.render(document)
        # The template writes the special tokens; offsets tell which text a token came from.
        # As a batch of one: that, unlike a single text, lets other threads run meanwhile.
        [encoding] = self.tokenizer.tokenizer.encode_batch([text], add_special_tokens=False)
        ids = np.array(encoding.ids, np.int64)
        starts = np.array([start for start, _ in encoding.offsets], np.int64)
        is_target = np.zeros(len(ids), bool)
        for begin, end in spans:
            is_target |= (starts >= begin) & (starts < end)
        bos = self.tokenizer.bos_id
        if bos is not None and ids[0] != bos:  # torchtitan's convention: chats start with bos
            ids, is_target = np.insert(ids, 0, bos), np.insert(is_target, 0, False)
        return ids, is_target

    def render(self, document: Document) -> tuple[str, list[tuple[int, int]]]:
        """Conversation text and the character spans of its answers, end-of-turn included.

        Raises:
            RowError: The chat template refuses the conversation.
        """
        messages, tools = document.messages, document.tools
        text = self._template(messages, tools).rstrip("\n")
        answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        spans = []
        for i in answers:
            before = self._template(messages[:i], tools, add_generation_prompt=True)
            after = text
            if i + 1 < len(messages):
                after = self._template(messages[: i + 1], tools).rstrip("\n")
            # A template may rewrite earlier turns (drop their reasoning, say); then only turns
            # that stand in the text as the model would have written them are trained on.
            if text.startswith(before) and text.startswith(after):
                spans.append((len(before), len(after)))
        return text, spans

    def longest_possible(self, row: Any) -> int:
        """Tokens of the row's sample; exact above ``max_len``, an upper bound below it.

        A token covers at least one byte, so a text of few bytes needs no tokenizing. Raises
        RowError on an unusable row.
        """
        document = to_document(row, self.form)
        text = document.text
        if text is None:
            text = self._template(document.messages, document.tools)
        size = len(text.encode()) + 2  # bos and eos
        return size if size <= self.max_len else len(self.encode(document)[0]) - 1

    def too_long_message(self, length: int) -> str:
        """Rule, value and remedy for a sample longer than the model takes."""
        return (
            f"a sample may have at most training.seq_len={self.max_len} tokens, got {length}; "
            "raise --training.seq_len, or set --data.too_long truncate or drop"
        )

    def _template(self, messages: list[Message], tools: list[Any] | None, **flags: bool) -> str:
        tokenizer = self.tokenizer
        try:
            return tokenizer.apply_chat_template(
                messages,
                tools=tools,
                bos_token=tokenizer.bos_token or "",
                eos_token=tokenizer.eos_token or "",
                **flags,
            )
        except Exception as error:  # whatever a template raises is the template's verdict
            raise RowError("the chat template refuses it") from error

    def __getstate__(self) -> dict[str, Any]:
        # A compiled chat template cannot be pickled; its directory says it all.
        return {**self.__dict__, "tokenizer": self.tokenizer.tokenizer_path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.tokenizer = HuggingFaceTokenizer(tokenizer_path=state["tokenizer"])
