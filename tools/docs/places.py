"""The picture of docs/state.md: where samples are, and what a state says."""

from tools.docs.svg import FAINT, PADDING, REAL, arrow, picture, rect, text

PLACES = (
    (300, "#c5c9d6", "delivered", "counted, and a digest"),
    (90, REAL, "pending", "listed"),
    (150, "#7986cb", "in the window", "listed, 8 bytes each"),
    (110, PADDING, "in workers", "not listed"),
    (250, "#eef0f8", "not read", "the cursor says it all"),
)
LEFT, TOP, HEIGHT = 30, 74, 46


def draw() -> str:
    """The picture as SVG."""
    parts = [text(LEFT, 34, "One rank's share of an epoch, and what a state says of it", size=17)]
    x: float = LEFT
    for width, fill, name, saved in PLACES:
        parts += [
            rect(x, TOP, width - 3, HEIGHT, fill, radius=3),
            text(x + 4, TOP - 10, name, size=14, bold=True),
            text(x + 4, TOP + HEIGHT + 22, saved, size=13, fill=FAINT),
        ]
        x += width
    cursor = LEFT + sum(place[0] for place in PLACES[:3]) - 1.5
    handed = LEFT + PLACES[0][0] - 1.5
    for at, told in ((handed, "the batch returned last"), (cursor, "the cursor: views taken")):
        parts.append(arrow(at, TOP + HEIGHT + 62, at, TOP + HEIGHT + 2))
        parts.append(text(at + 8, TOP + HEIGHT + 60, told, size=14))
    return picture(960, 210, "Where the samples of an epoch are, and what a state lists", parts)
