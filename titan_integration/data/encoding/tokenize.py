"""Texts with spans -> token ids and which of them are trained on."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Encoding, Tokenizer

from odb_nodes.vision import Picture
from titan_integration.data.encoding.answers import Rendered
from titan_integration.data.encoding.control_tokens import GUARD, ControlTokens
from titan_integration.data.formats.document import RowError

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Encoded:
    """One sample before its labels are shifted.

    Attributes:
        ids: ``int64[n]`` token ids.
        ranges: Begin and end of each answer, in tokens.
        owners: What each range belongs to, as in ``Rendered``.
        pictures: Those of the sample, in order.
    """

    ids: np.ndarray
    ranges: tuple[Span, ...]
    owners: tuple[int, ...]
    pictures: tuple[Picture, ...] = ()

    def is_target(self) -> np.ndarray:
        """``bool[n]``: the tokens that are trained on; the first one never is."""
        mask = np.zeros(len(self.ids), bool)
        for begin, end in self.ranges:
            mask[begin:end] = True
        mask[:1] = False
        return mask


class Tokenize:
    """Tokenizes rendered conversations, several at a time where cores are free.

    Args:
        tokenizer: The tokenizer.
        control: Its control tokens.
        eos: Id of the token that ends every sample, as in torchtitan; None for none.
    """

    def __init__(self, tokenizer: Tokenizer, control: ControlTokens, eos: int | None) -> None:
        self._tokenizer = tokenizer
        self._control = control
        self._eos = eos

    def __call__(self, batch: Sequence[Rendered]) -> list[Encoded]:
        """Raises RowError where a text is no valid Unicode."""
        direct = [item.text for item in batch if GUARD not in item.text]
        # As a batch, also of one: that, unlike a single text, lets other threads run meanwhile.
        encodings = iter(encode_batch(self._tokenizer, direct))
        return [
            self._guarded(item) if GUARD in item.text else self._finish(item, next(encodings))
            for item in batch
        ]

    def _finish(self, item: Rendered, encoding: Encoding) -> Encoded:
        if item.own_marks:
            ranges = [_covered(encoding, item.text, span) for span in item.spans]
            return Encoded(np.array(encoding.ids, np.int64), tuple(ranges), item.owners)
        ids, ranges = self._cut(self._tokenizer, item.text, item.spans, encoding)
        return self._ended(ids, ranges, item.owners)

    def _guarded(self, item: Rendered) -> Encoded:
        text, at, added = self._control.tokenizable(item.text)
        sums = np.concatenate([[0], np.cumsum(added)])
        moved = [tuple(p + int(sums[np.searchsorted(at, p)]) for p in span) for span in item.spans]
        spans = [(begin, end) for begin, end in moved]
        copy = self._control.copy
        [encoding] = encode_batch(copy, [text])
        if item.own_marks:
            ids, ranges = encoding.ids, [_covered(encoding, text, span) for span in spans]
        else:
            ids, ranges = self._cut(copy, text, spans, encoding)
        ids = [self._control.ids.get(token, token) for token in ids]
        if item.own_marks:
            return Encoded(np.array(ids, np.int64), tuple(ranges), item.owners)
        return self._ended(ids, ranges, item.owners)

    def _ended(self, ids: list[int], ranges: list[Span], owners: tuple[int, ...]) -> Encoded:
        if self._eos is not None and (not ids or ids[-1] != self._eos):
            ids = [*ids, self._eos]
            ranges = [*ranges[:-1], (ranges[-1][0], len(ids))]
        return Encoded(np.array(ids, np.int64), tuple(ranges), owners)

    def _cut(
        self, tokenizer: Tokenizer, text: str, spans: Sequence[Span], encoding: Encoding
    ) -> tuple[list[int], list[Span]]:
        """Tokens and ranges, such that no token holds both context and answer.

        The model never writes a token that begins in its prompt: where ``\\n`` of the prompt and
        ``\\n`` of the answer became one token, the parts are tokenized apart.
        """
        if not any(_straddles(encoding, text, span) for span in spans):
            return encoding.ids, [_covered(encoding, text, span) for span in spans]
        starts = [0, *(begin for begin, _ in spans)]
        ends = [*starts[1:], len(text)]
        pieces = [text[a:b] for a, b in zip(starts, ends, strict=True)]
        encodings = encode_batch(tokenizer, pieces)
        ids, ranges = list(encodings[0].ids), []
        for piece, found, (begin, end) in zip(pieces[1:], encodings[1:], spans, strict=True):
            _, stop = _covered(found, piece, (0, end - begin))
            ranges.append((len(ids), len(ids) + stop))
            ids += found.ids
        return ids, ranges


def encode_batch(tokenizer: Tokenizer, texts: list[str]) -> list[Encoding]:
    """Tokenize texts as they stand, special tokens in them included.

    Raises:
        RowError: A text holds half of a surrogate pair.
    """
    try:
        encodings: list[Encoding] = tokenizer.encode_batch(texts, add_special_tokens=False)
    except (UnicodeEncodeError, TypeError) as error:
        raise RowError("a text holds half of a surrogate pair, which is no character") from error
    return encodings


def _covered(encoding: Encoding, text: str, span: Span) -> Span:
    """The tokens that hold characters of a span."""
    begin, end = span
    first = _token_from(encoding, begin, len(text))
    # An empty span has no tokens; a token that ends in the next text is not part of it either.
    return first, max(first, _token_from(encoding, end, len(text)))


def _token_from(encoding: Encoding, at: int, length: int) -> int:
    """The token of a character, or of the next one that has a token."""
    while at < length:
        token = encoding.char_to_token(at)
        if token is not None:
            return int(token)
        at += 1
    return len(encoding)


def _straddles(encoding: Encoding, text: str, span: Span) -> bool:
    begin, _ = span
    if not 0 < begin < len(text):
        return False
    token = _token_from(encoding, begin, len(text))
    if token == len(encoding):
        return False
    # Offsets may leave out the space before a word, which is in its token nevertheless.
    held = encoding.token_to_chars(token)
    return (held is not None and held[0] < begin) or text[begin - 1] == " "
