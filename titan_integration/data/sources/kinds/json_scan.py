"""A walk over JSON text that is too long for the memory: places of values, not the values."""

import codecs
import json
import re
from collections.abc import Collection, Iterator
from typing import Any, BinaryIO

from titan_integration.data.sources.files import BOM
from titan_integration.errors import UserError

_CHUNK = 4 << 20
LONGEST = 64 << 20  # characters of one value; bounds the memory, also in a file that is broken
_SPACE = re.compile(r"[ \t\r\n]*")
_CUT = 16  # an error so near to the end of the text read may be one of its being cut


class Scanner:
    """A position in the JSON text of an open file.

    Attributes:
        byte: Offset in the file of the character at the position.

    Raises:
        UserError: From every method, where the text is not JSON; with file and line.
    """

    def __init__(self, raw: BinaryIO, name: str) -> None:
        self._raw, self._name = raw, name
        self._decode = json.JSONDecoder().raw_decode
        self.rewind(len(BOM) if raw.read(len(BOM)) == BOM else 0)

    def rewind(self, byte: int) -> None:
        """Go to a byte that a character begins with."""
        self._raw.seek(byte)
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._text, self._at, self.byte = "", 0, byte

    def peek(self) -> str:
        """The next character that is no space, which the position moves to; "" at the end."""
        while True:
            match = _SPACE.match(self._text, self._at)
            assert match is not None
            self.byte += match.end() - self._at
            self._at = match.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._read_more():
                return ""

    def value(self) -> tuple[int, int, Any]:
        """First byte, bytes and content of the next value; the position moves behind it."""
        self.peek()
        while True:
            try:
                content, end = self._decode(self._text, self._at)
            except json.JSONDecodeError as error:
                cut = error.pos > len(self._text) - _CUT or "Unterminated" in error.msg
                if not cut or not self._read_more():
                    self._fail(f"is not JSON: {error.msg}", error.pos)
            except RecursionError:
                self._fail("is nested too deep", self._at)
            else:
                if end < len(self._text) or not self._read_more():  # a number may be cut
                    return self._pass(end, content)

    def ahead_of_list(self) -> Any:
        """Enter a list; its first element, which is still ahead, or None of an empty one."""
        self._take("[")
        if self.peek() == "]":
            return None
        byte = self.byte
        element = self.value()[2]
        self.rewind(byte)
        return element

    def elements(self) -> Iterator[tuple[int, int]]:
        """First byte and bytes of the elements of the list entered, to its end."""
        if self.peek() == "]":
            self._take("]")
            return
        while True:
            yield self.value()[:2]
            if self.peek() == "]":
                self._take("]")
                return
            self._take(",")

    def enter_list_under(self, keys: Collection[str]) -> bool:
        """Enter an object and the list under the first of ``keys`` in it; False if there is none.

        The list must hold something else than text or numbers: ``{"data": ["a"]}`` is a row.
        """
        self._take("{")
        while self.peek() == '"':
            key = self.value()[2]
            self._take(":")
            if key in keys and self.peek() == "[":
                return isinstance(self.ahead_of_list(), dict | list | None)
            self.value()
            if self.peek() != ",":
                break
            self._take(",")
        return False

    def leave_object(self) -> None:
        """Pass over the rest of the object that ``enter_list_under`` entered."""
        while self.peek() == ",":
            self._take(",")
            self.value()
            self._take(":")
            self.value()
        self._take("}")

    def expect_end(self, of: str) -> None:
        """Only space may follow."""
        if self.peek():
            self._fail(f"is not JSON: text after the end of {of}", self._at)

    def _take(self, char: str) -> None:
        if self.peek() != char:
            self._fail(f"is not JSON: {char!r} expected", self._at)
        self._at += 1
        self.byte += 1

    def _pass(self, end: int, content: Any) -> tuple[int, int, Any]:
        start, size = self.byte, len(self._text[self._at : end].encode())
        self._at, self.byte = end, start + size
        return start, size, content

    def _read_more(self) -> bool:
        """At least double the text ahead, or false at the end of the file."""
        ahead = len(self._text) - self._at
        if ahead > LONGEST:
            self._fail(f"has a value of more than {LONGEST >> 20} MB, or is not JSON", self._at)
        raw = self._raw.read(max(_CHUNK, ahead))
        try:
            more = self._utf8.decode(raw, final=not raw)
        except UnicodeDecodeError:
            self._text, self._at = self._text[self._at :], 0
            self._fail("is not UTF-8 text; convert it, e.g. with iconv -t UTF-8", len(self._text))
        self._text, self._at = self._text[self._at :] + more, 0
        return bool(raw)

    def _fail(self, what: str, at: int) -> None:
        self._raw.seek(0)
        left, lines = self.byte, 1
        while left > 0 and (block := self._raw.read(min(_CHUNK, left))):
            lines += block.count(b"\n")
            left -= len(block)
        lines += self._text.count("\n", self._at, at)
        raise UserError(f"{self._name}:{lines} {what}")
