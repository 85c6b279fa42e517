"""Rows -> samples of token ids and labels: everything between a row and a batch."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple

import numpy as np

from odb_nodes.vision import Picture
from titan_integration.data.encoding.answers import Conversation, Rendered
from titan_integration.data.encoding.chat_template import ChatTemplate, find_templates
from titan_integration.data.encoding.control_tokens import ControlTokens
from titan_integration.data.encoding.guard import guarded
from titan_integration.data.encoding.pictures import PictureTokens
from titan_integration.data.encoding.tokenize import Encoded, Tokenize, encode_batch
from titan_integration.data.encoding.tokenizer import ChatTokenizer
from titan_integration.data.formats import to_document
from titan_integration.data.formats.document import Document, Reading, Refused, RowError
from titan_integration.data.pictures.vision import Vision
from titan_integration.upstream import HuggingFaceTokenizer

IGNORE_INDEX = -100
TooLong = Literal["error", "truncate", "drop", "chunk"]
TrainOn = Literal["all", "last"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoding:
    """What is done to rows, as the ``data`` section says; part of what a cached check is of.

    Attributes:
        reading: How rows are read.
        max_len: The longest sample in tokens (the model's ``seq_len``).
        too_long: What happens to a longer one: an error, its tail cut off, no sample, or, if it
            is plain text, several samples.
        train_on: All answers of a conversation, or its last one.
        chat_template: A file, or the name of one of the tokenizer's templates.
        vision: How the model takes pictures; None if it takes texts only.
    """

    reading: Reading = field(default_factory=Reading)
    max_len: int
    too_long: TooLong = "error"
    train_on: TrainOn = "all"
    chat_template: str | None = None
    vision: Vision | None = None


class TooLongError(Refused):
    """A sample is longer than the model takes, and the run does not say what to do with it."""


class Fitted(NamedTuple):
    """A sample that is not longer than the model takes: ``int64[n]``, ``bool[n]``, pictures."""

    ids: np.ndarray
    targets: np.ndarray
    pictures: tuple[Picture, ...]


class Encoder:
    """Turn ``(row, part)`` into ``{"input_ids": int64[L], "labels": int64[L]}``, or None.

    ``labels[i]`` is the token after ``input_ids[i]``, or -100 where it is not part of an answer.
    For a model that takes pictures, ``pictures`` are those of the sample, headers read and pixels
    not.
    A row gives several parts where the chat template rewrites earlier turns (each answer is one),
    or where a long text is cut into pieces; most rows have part 0 only. None is given for rows
    that cannot be trained on, which the check before training reports.

    Works in threads and worker processes (a process loads the tokenizer itself).

    Args:
        tokenizer: Of the model.
        encoding: What to do.

    Attributes:
        one_each: Whether every row is taken to give one sample, as no check has counted them.

    Raises:
        UserError: The chat template is not valid, or not there.
    """

    def __init__(self, tokenizer: HuggingFaceTokenizer, encoding: Encoding) -> None:
        self.encoding = encoding
        self.one_each = False
        self._now = datetime.now()
        self._load(tokenizer)

    def __call__(self, item: tuple[Any, int]) -> dict[str, Any] | None:
        """Encode one sample.

        Raises:
            Refused: The row needs a decision; the check before training asks for it.
        """
        row, part = item
        try:
            plan = self.plan(row, only=part)
            if self.one_each and plan.count > 1:
                raise Refused(
                    f"a row gives {plan.count} samples, which the check before training has to "
                    "count; leave out --data.no-check"
                )
            [sample] = self.tokenize(plan.parts)
            return self.labelled(sample)
        except Refused:
            raise
        except RowError:
            return None

    def plan(self, row: Any, only: int | None = None) -> "Plan":
        """What a row is made into, up to tokenizing.

        Args:
            row: The parsed row.
            only: Make no more than this part.

        Raises:
            RowError: The row cannot be trained on, or has no such part.
        """
        document = to_document(row, self.encoding.reading)
        if document.messages:
            return self._chat_plan(document, only, row)
        ids, ranges = self._plain(document)
        pieces = self._pieces(ids, ranges)
        parts = pieces if only is None else pieces[only : only + 1]
        return Plan(parts=parts, count=len(pieces), answers=1, unread=document.unread)

    def tokenize(self, parts: Sequence[Rendered | Encoded]) -> list[Encoded]:
        """Tokenize the parts of several plans; all cores take part where there are many.

        Raises:
            RowError: A text is no valid Unicode.
        """
        done = iter(self._tokenize([part for part in parts if isinstance(part, Rendered)]))
        samples = [next(done) if isinstance(part, Rendered) else part for part in parts]
        if self._pictures is None:
            return samples
        pairs = zip(samples, parts, strict=True)
        return [self._pictures.expanded(sample, part.pictures) for sample, part in pairs]

    def labelled(self, sample: Encoded) -> dict[str, Any]:
        """Ids, labels and, for a model that takes them, pictures, not longer than it takes.

        Raises:
            TooLongError: The sample is too long, and ``too_long`` does not say what to do.
            RowError: It is to be dropped, or nothing to train on is left.
        """
        ids, targets, pictures = self.fitted(sample)
        labels = np.where(targets[1:], ids[1:], IGNORE_INDEX)
        made: dict[str, Any] = {"input_ids": ids[:-1], "labels": labels}
        return made if self._pictures is None else {**made, "pictures": list(pictures)}

    def fitted(self, sample: Encoded) -> Fitted:
        """Ids with ``n - 1 <= max_len``; raises likewise."""
        ids, targets, most = sample.ids, sample.is_target(), self.encoding.max_len
        pictures = sample.pictures
        if len(ids) - 1 > most:
            if self.encoding.too_long == "drop":
                raise RowError(f"longer than {most} tokens")
            if self.encoding.too_long != "truncate":
                raise TooLongError(self._too_long_message(len(ids) - 1, pictures))
            cut = most + 1
            if self._pictures is not None:
                cut, kept = self._pictures.cut(ids, cut, pictures)
                pictures = pictures[:kept]
            ids, targets = ids[:cut], targets[:cut]
        if not targets.any():
            raise RowError(f"no answer within the first {most} tokens")
        return Fitted(ids, targets, pictures)

    @property
    def vision(self) -> Vision:
        """How the model takes pictures; only of one that does."""
        assert self.encoding.vision is not None
        return self.encoding.vision

    @property
    def image_id(self) -> int:
        """Of the token that stands for a picture; only of a model that takes some."""
        assert self._pictures is not None
        return self._pictures.image_id

    def fingerprint(self) -> str:
        """Digest of all that decides what a row becomes."""
        templates = {name: t.source for name, t in self._templates.items()}
        parts = (repr(self.encoding), json.dumps(templates), self.tokenizer.tokenizer.to_str())
        return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, control tokens included."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def _chat_plan(self, document: Document, only: int | None, row: Any) -> "Plan":
        template = self._template_for(document.tools)
        messages = template.adapted(document.messages)
        tools = document.tools
        if self._control.occur_in(messages) or self._control.occur_in(tools):
            if self._pictures is not None:
                self._pictures.check_words(self._control.names_in(messages))
            messages, tools = guarded(template, self._control, messages, tools)
        answers = [i for i in document.answers if i not in document.untrained]
        if self.encoding.train_on == "last":
            answers = answers[-1:]
        conversation = Conversation(template, messages, tools, answers)
        # A part after the first exists only where each answer is a sample of its own.
        whole = None if only else conversation.whole()
        wanted = answers if only is None else answers[only : only + 1]
        parts = [conversation.alone(i) for i in wanted] if whole is None else [whole]
        if document.pictures and self._pictures is not None:
            parts = [self._pictures.placed(p, document.pictures, row, template) for p in parts]
        return Plan(
            parts=[*parts],
            count=len(answers) if whole is None else 1,
            answers=len(document.answers),
            unread=document.unread | template.unread(document.messages, document.tools),
            template=template,
        )

    def _plain(self, document: Document) -> tuple[np.ndarray, np.ndarray]:
        """Ids and targets of a text, with BOS and EOS exactly once, or of a tokenized row."""
        if document.tokens is not None:
            ids, labels = (np.array(values, np.int64) for values in document.tokens)
            if ids.min() < 0 or ids.max() >= self.tokenizer.get_vocab_size():
                raise RowError("'input_ids' holds ids that the tokenizer does not have")
            return ids, labels != IGNORE_INDEX
        assert document.text is not None
        bos, eos = self.tokenizer.bos_token, self.tokenizer.eos_token
        text = document.text.removeprefix(bos or "").removesuffix(eos or "")
        [encoding] = encode_batch(self.tokenizer.tokenizer, [text])
        before: list[int] = [] if self.tokenizer.bos_id is None else [self.tokenizer.bos_id]
        after = [] if self.tokenizer.eos_id is None else [self.tokenizer.eos_id]
        ids = np.array([*before, *encoding.ids, *after], np.int64)
        return ids, np.ones(len(ids), bool)

    def _pieces(self, ids: np.ndarray, targets: np.ndarray) -> list[Rendered | Encoded]:
        """The whole, or pieces of ``max_len`` tokens; each predicts the first of the next."""
        size = self.encoding.max_len if self.encoding.too_long == "chunk" else len(ids)
        pieces: list[Rendered | Encoded] = []
        for begin in range(0, max(1, len(ids) - 1), max(1, size)):
            part = ids[begin : begin + size + 1]
            marked = targets[begin : begin + size + 1].nonzero()[0]
            ranges = tuple((int(i), int(i) + 1) for i in marked)
            pieces.append(Encoded(part, ranges, (0,) * len(ranges)))
        return pieces

    def _template_for(self, tools: list[Any] | None) -> ChatTemplate:
        if not self._templates:
            raise Refused(
                f"the rows are chats, and the tokenizer in {self.tokenizer.tokenizer_path} has no "
                "chat template; give one by --data.chat_template FILE"
            )
        return self._templates.get("tool_use" if tools else "default", self._templates["default"])

    def _too_long_message(self, length: int, pictures: Sequence[Picture]) -> str:
        """Rule, value and remedy for a sample longer than the model takes."""
        smaller = ""
        if pictures and self.encoding.vision is not None:
            tokens = sum(self.encoding.vision.geometry.tokens(one.grid) for one in pictures)
            smaller = f" ({tokens} of {len(pictures)} pictures: lower --data.max_pixels)"
        return (
            f"a sample may have at most training.seq_len={self.encoding.max_len} tokens, "
            f"got {length}{smaller}; raise --training.seq_len, or set --data.too_long truncate or "
            "drop (or chunk, for plain text)"
        )

    def _load(self, tokenizer: HuggingFaceTokenizer) -> None:
        self.tokenizer = tokenizer
        config = tokenizer._hf_config or {}
        special = {
            key: value["content"] if isinstance(value, dict) else value
            for key, value in config.items()
            if key.endswith("_token") and isinstance(value, str | dict)
        }
        special = {"bos_token": "", "eos_token": "", **special}
        sources = find_templates(tokenizer.tokenizer_path, config, self.encoding.chat_template)
        self._templates = {
            name: ChatTemplate(source, name=name, special=special, now=self._now)
            for name, source in sources.items()
        }
        # torchtitan adds all tokens of the configuration as special ones.
        added = config.get("added_tokens_decoder", {}).values()
        plain = frozenset(token["content"] for token in added if not token.get("special", True))
        self._control = ControlTokens(tokenizer.tokenizer, plain)
        self._tokenize = Tokenize(tokenizer.tokenizer, self._control, tokenizer.eos_id)
        vision = self.encoding.vision
        self._pictures = None if vision is None else PictureTokens(vision, tokenizer.tokenizer)

    def __getstate__(self) -> dict[str, Any]:
        # A compiled chat template cannot be pickled; the tokenizer's folder says it all.
        return {
            "encoding": self.encoding,
            "one_each": self.one_each,
            "_now": self._now,
            "tokenizer": self.tokenizer.tokenizer_path,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.encoding, self.one_each = state["encoding"], state["one_each"]
        self._now = state["_now"]
        self._load(ChatTokenizer(tokenizer_path=state["tokenizer"]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a row is made into.

    Attributes:
        parts: The samples, tokenized or still to be; all of them, or the one that was asked for.
        count: Samples of the row.
        answers: Answers in the row, those that are not trained on included; a text is one.
        unread: Keys that neither the format nor the chat template reads.
        template: Of a conversation.
    """

    parts: list[Rendered | Encoded]
    count: int
    answers: int
    unread: frozenset[str]
    template: ChatTemplate | None = None
