"""Pages of code drawn from installed source files, each with the docstring that belongs to it."""

import ast
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from tools.data.docstrings import Compound, Definition, Function, SourceFile, stable_hash

MOST_LINES, MOST_COLUMNS = 70, 110
SHORTEST_ANSWER = 30  # characters
# Points; drawn by a hash of the code, so that sizes spread over 0.02 to 6 megapixels.
FONT_SIZES = (8, 9, 10, 11, 12, 12, 14, 14, 16, 18, 22, 28, 44)
COLORS = (  # ink and paper
    ((20, 20, 20), (255, 255, 255)),
    ((15, 40, 90), (250, 248, 240)),
    ((90, 20, 20), (240, 245, 250)),
    ((230, 230, 220), (30, 32, 38)),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class CodePage:
    """A function's code without its docstring, and the docstring."""

    name: str
    code: str
    docstring: str


def code_pages(file: SourceFile) -> Iterator[CodePage]:
    """Functions of a file that have a docstring and code to show; none if it does not parse."""
    try:
        source = file.path.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    for name, node in _functions(tree.body, file.module):
        page = _page(name, node, source.splitlines())
        if page is not None:
            yield page


def _functions(body: Sequence[ast.AST], prefix: str) -> Iterator[tuple[str, Function]]:
    for node in body:
        if isinstance(node, Function):
            yield f"{prefix}.{node.name}", node
        elif isinstance(node, Definition):
            yield from _functions(node.body, f"{prefix}.{node.name}")
        elif isinstance(node, Compound):
            yield from _functions(node.body, prefix)


def _page(name: str, node: Function, lines: list[str]) -> CodePage | None:
    docstring = ast.get_docstring(node) or ""
    if len(docstring) < SHORTEST_ANSWER or len(node.body) < 2 or not docstring.isascii():
        return None
    said = node.body[0]
    kept = lines[node.lineno - 1 : said.lineno - 1] + lines[said.end_lineno : node.end_lineno]
    code = textwrap.dedent("\n".join(line.rstrip() for line in kept)).strip("\n")
    shown = code.splitlines()
    fits = 2 <= len(shown) <= MOST_LINES and max(map(len, shown)) <= MOST_COLUMNS
    if not fits or not code.isascii():
        return None
    return CodePage(name=name, code=code.expandtabs(4), docstring=docstring)


def draw(page: CodePage) -> Image.Image:
    """The code in a font, colours and margins that a hash of it chooses."""
    number = stable_hash(page.code)
    size = FONT_SIZES[number % len(FONT_SIZES)]
    ink, paper = COLORS[number % len(COLORS)]
    font, margin = _font(size), size * (1 + number // 7 % 3)
    measure = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    _, _, width, height = measure.multiline_textbbox((0, 0), page.code, font=font, spacing=4)
    image = Image.new("RGB", (int(width) + 2 * margin, int(height) + 2 * margin), paper)
    pen = ImageDraw.Draw(image)
    pen.multiline_text((margin, margin), page.code, fill=ink, font=font, spacing=4)
    return image


@cache
def _font(size: int) -> Any:
    """A font of fixed width where matplotlib brings one, else PIL's own."""
    try:
        import matplotlib

        path = Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSansMono.ttf")
        return ImageFont.truetype(str(path), size)
    except (ImportError, OSError):
        return ImageFont.load_default(size)
