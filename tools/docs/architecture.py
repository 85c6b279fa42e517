"""The picture of docs/architecture.md: the layers, as data flows through them."""

from tools.docs.svg import FAINT, PAPER, REAL, SOFT, arrow, picture, rect, text

NODES = (
    ("SamplerView", "which sample", "is next"),
    ("SampleMapper", "dataset[i],", "transform"),
    ("GroupingNode", "window of", "samples"),
    ("AlignNode", "same steps on", "every rank"),
    ("Mapper", "collate", "to tensors"),
    ("Prefetcher", "batches", "ahead"),
)
ASKED = (  # x, width, folder, what for, what is in it
    (40, 170, "state/", "what is saved", "cursors, counters,", "schema, resharding"),
    (222, 180, "samples/", "what runs your code", "transform, buffers,", "the steps of a round"),
    (414, 160, "batching/", "what forms a batch", "budgets, window,", "cutting, layouts"),
    (586, 270, "protocol/", "how the ranks agree", "facts, policies, exchange,", "transports"),
)
WIDTH, BOX, GAP = 1000, 132, 18


def draw() -> str:
    """The picture as SVG."""
    parts = [*_outside(), *_library(), *_flow(), *_asked(), *_base()]
    return picture(WIDTH, 600, "The layers of odb-nodes, as data flows through them", parts)


def _box(x: float, y: float, width: float, height: float, stroke: str = FAINT) -> str:
    return rect(x, y, width, height, PAPER, stroke=stroke, radius=6)


def _badge(x: float, y: float, number: int) -> list[str]:
    return [
        rect(x - 11, y - 11, 22, 22, "#c2410c", radius=11),
        text(x, y + 5, str(number), size=14, fill=PAPER, anchor="middle", bold=True),
    ]


def _outside() -> list[str]:
    """What stands around the library: rows before it, a trainer behind it."""
    return [
        _box(24, 20, 330, 84),
        text(40, 46, "titan_integration/data", size=15, mono=True, bold=True),
        text(40, 68, "rows, formats, encoding, checks:", size=14, fill=FAINT),
        text(40, 87, "files become a dataset and a transform", size=14, fill=FAINT),
        *_badge(338, 38, 2),
        _box(646, 20, 330, 84),
        text(662, 46, "titan_integration/training", size=15, mono=True, bold=True),
        text(662, 68, "torchtitan's trainer around the loader;", size=14, fill=FAINT),
        text(662, 87, "or a script of your own", size=14, fill=FAINT),
        *_badge(960, 38, 5),
        arrow(189, 104, 189, 150),
        arrow(811, 150, 811, 104),
        text(
            500, 52, "configs/   tools/   tests/", size=15, mono=True, anchor="middle", fill=FAINT
        ),
        text(500, 74, "on top of everything", size=14, anchor="middle", fill=FAINT),
    ]


def _library() -> list[str]:
    return [
        rect(24, 150, 952, 430, SOFT, radius=10),
        text(40, 176, "odb_nodes", size=16, mono=True, bold=True, fill=REAL),
        text(140, 176, "build.py connects the nodes; users meet build, loader, types, errors, loss,"
             " collate", size=14, fill=FAINT),
    ]  # fmt: skip


def _flow() -> list[str]:
    """The nodes from left to right, and the calls that they make."""
    parts = [
        rect(40, 192, 920, 126, PAPER, radius=8),
        text(54, 214, "nodes/", size=15, mono=True, bold=True),
        text(
            122, 214, "hold state and threads, and decide nothing themselves", size=14, fill=FAINT
        ),
    ]
    for at, (name, first, second) in enumerate(NODES):
        x = 54 + at * (BOX + GAP + 1.6)
        parts += [
            rect(x, 228, BOX, 76, SOFT, stroke=REAL, radius=6),
            text(x + BOX / 2, 251, name, size=14.5, anchor="middle", bold=True),
            text(x + BOX / 2, 271, first, size=13, anchor="middle", fill=FAINT),
            text(x + BOX / 2, 288, second, size=13, anchor="middle", fill=FAINT),
        ]
        if at:
            parts.append(arrow(x - GAP - 1, 266, x - 1, 266, fill=REAL))
    return parts


def _asked() -> list[str]:
    """The folders that decide, and who asks them."""
    parts = []
    for x, width, name, what, *lines in ASKED:
        parts += [
            _box(x, 366, width, 104, REAL),
            text(x + 14, 390, name, size=15, mono=True, bold=True),
            text(x + 14, 411, what, size=14),
        ]
        parts += [
            text(x + 14, 432 + 19 * at, line, size=13, fill=FAINT) for at, line in enumerate(lines)
        ]
    questions = (
        (90, "which position?"),
        (290, "its tokens?"),
        (440, "which group?"),
        (612, "how many steps?"),
    )
    for x, question in questions:
        parts += [
            arrow(x, 304, x, 366, dashed=True),
            text(x + 12, 344, question, size=13, fill=FAINT),
        ]
    return [
        *parts,
        *_badge(556, 384, 4),
        *_badge(810, 384, 1),
        *_badge(838, 384, 3),
        arrow(880, 440, 856, 440),
        arrow(880, 440, 904, 440),
        text(912, 437, "other", size=14),
        text(912, 454, "ranks", size=14),
        text(40, 500, "Dashed: who asks whom. samples may import state, protocol state and"
            " batching, nodes all of them.",
            size=13, fill=FAINT),
    ]  # fmt: skip


def _base() -> list[str]:
    return [
        _box(40, 516, 920, 46),
        text(54, 544, "types.py, errors.py, arguments.py", size=15, mono=True, bold=True),
        text(360, 544, "views, samples, steps, batches; every module may import them", size=14,
             fill=FAINT),
    ]  # fmt: skip
