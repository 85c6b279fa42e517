"""A few SVG elements as text, so that pictures need no plotting library and render offline."""

from html import escape

INK, FAINT, PAPER = "#1f2430", "#6b7280", "#ffffff"
REAL, PADDING, ALERT, SOFT = "#3f51b5", "#f6c9b7", "#c62828", "#eef0f8"
FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"


def picture(width: float, height: float, title: str, parts: list[str]) -> str:
    """A whole picture on white, so that it is readable on dark pages too."""
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" font-family="{FONT}" role="img">\n'
        f"<title>{escape(title)}</title>\n{rect(0, 0, width, height, PAPER, radius=8)}\n{body}\n"
        "</svg>\n"
    )


def rect(
    x: float,
    y: float,
    width: float,
    height: float,
    fill: str,
    *,
    stroke: str = "none",
    radius: float = 0,
) -> str:
    """A filled rectangle."""
    rounded = f' rx="{radius:g}"' if radius else ""
    line = f' stroke="{stroke}" stroke-width="1.5"' if stroke != "none" else ""
    size = f'width="{width:.5g}" height="{height:.5g}"'
    return f'<rect x="{x:.5g}" y="{y:.5g}" {size} fill="{fill}"{line}{rounded}/>'


def text(
    x: float,
    y: float,
    words: str,
    *,
    size: float = 15,
    fill: str = INK,
    anchor: str = "start",
    bold: bool = False,
    mono: bool = False,
) -> str:
    """One line of text; ``anchor`` is "start", "middle" or "end"."""
    style = ' font-weight="600"' if bold else ""
    style += " font-family=\"'DejaVu Sans Mono', Menlo, Consolas, monospace\"" if mono else ""
    place = f'x="{x:.5g}" y="{y:.5g}" font-size="{size:g}" text-anchor="{anchor}"'
    return f'<text {place} fill="{fill}"{style}>{escape(words, quote=False)}</text>'


def arrow(
    x1: float, y1: float, x2: float, y2: float, *, fill: str = FAINT, dashed: bool = False
) -> str:
    """A line with a head at its end; horizontal or vertical."""
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    line = f'stroke="{fill}" stroke-width="2"{dash}'
    shaft = f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" {line}/>'
    if y1 == y2:
        back = 8 if x2 < x1 else -8
        corners = [(x2, y2), (x2 + back, y2 - 5), (x2 + back, y2 + 5)]
    else:
        back = 8 if y2 < y1 else -8
        corners = [(x2, y2), (x2 - 5, y2 + back), (x2 + 5, y2 + back)]
    points = " ".join(f"{x:g},{y:g}" for x, y in corners)
    return f'{shaft}<polygon points="{points}" fill="{fill}"/>'
