"""The picture of docs/concepts.md: how the default policy cuts a window into groups."""

from odb_nodes.batching.budget import TokenBudget
from odb_nodes.batching.window import Window, age_of, length_of, make_key
from tools.data.workloads import WORKLOADS
from tools.docs.svg import FAINT, PADDING, REAL, picture, rect, text

BUDGET, SAMPLES, SHOWN = 8192, 40, 3
FILLS = (REAL, "#00897b", "#8e24aa")
LEFT, BASE, BAR, SCALE = 70, 300, 21, 0.085


def groups() -> tuple[list[int], list[list[int]]]:
    """Keys of a full window in order of length, and the first groups taken from it."""
    window = Window(TokenBudget(BUDGET))
    lengths = WORKLOADS["ultrachat"].draw(SAMPLES, seed=3)
    keys = [make_key(int(length), age) for age, length in enumerate(lengths)]
    for key in keys:
        window.add(key)
    return sorted(keys), [window.take_best() for _ in range(SHOWN)]


def draw() -> str:
    """The picture as SVG."""
    keys, taken = groups()
    place = {key: at for at, key in enumerate(keys)}
    parts = [
        text(LEFT, 34, f"A window of {SAMPLES} samples by length; budget {BUDGET:,}", size=17),
        text(LEFT, 56, "Each group takes the range around the oldest sample left that has the"
             " most real tokens.", size=14, fill=FAINT),
    ]  # fmt: skip
    for number, group in enumerate(taken):
        parts += _outline(number, group, place)
    for key in keys:
        parts += _bar(key, place[key], taken)
    parts += [_tick(tokens) for tokens in (1000, 2000)]
    return picture(LEFT + SAMPLES * BAR + 30, 366, "How groups are cut from a window", parts)


def _outline(number: int, group: list[int], place: dict[int, int]) -> list[str]:
    """What the group costs: its samples, all padded to its longest."""
    keys = sorted(group)
    top = BASE - length_of(keys[-1]) * SCALE
    parts = [
        rect(LEFT + place[key] * BAR, top, BAR - 3, BASE - top, PADDING) for key in keys
    ]  # a group of later ones skips the bars of those before
    middle = LEFT + (place[keys[0]] + place[keys[-1]] + 1) / 2 * BAR
    told = f"group {number + 1}: {len(keys)} x {length_of(keys[-1]):,}"
    row = BASE + 42 + 18 * (number % 2)
    parts.append(text(middle, row, told, size=14, fill=FILLS[number], anchor="middle", bold=True))
    return parts


def _bar(key: int, at: int, taken: list[list[int]]) -> list[str]:
    number = next((n for n, group in enumerate(taken) if key in group), None)
    height = length_of(key) * SCALE
    x, fill = LEFT + at * BAR, "#c5c9d6" if number is None else FILLS[number]
    parts = [rect(x, BASE - height, BAR - 3, height, fill)]
    if number is not None and age_of(key) == min(map(age_of, taken[number])):
        parts.append(text(x + BAR / 2 - 1.5, BASE + 18, "oldest", size=12, anchor="middle"))
    return parts


def _tick(tokens: int) -> str:
    return text(
        LEFT - 10, BASE - tokens * SCALE + 5, f"{tokens:,}", size=13, fill=FAINT, anchor="end"
    )
