"""A sample as a person can check it: its text, with what is trained on between brackets."""

import re
from itertools import pairwise

import numpy as np

from titan_integration.data.encoding.encoder import Encoder

MOST_OF_A_PART = 240  # characters of what is trained on, or not, in one go
MOST_PARTS = 8
_GAP = " ... "
_REPEATED = re.compile(r"(<[^<>]+>)\1{2,}")  # a picture's tokens


def show(encoder: Encoder, ids: np.ndarray, targets: np.ndarray) -> str:
    """The text of a sample, with ``[[`` and ``]]`` around its targets.

    Long parts are shown without their middle, and so are long conversations, so that a person sees
    where the targets of a sample begin and end, whatever its length:
    ``user: Please tell me ... of it. assistant: [[Gladly: ... end.</s>]]``.
    """
    edges = np.flatnonzero(np.diff(targets, prepend=False, append=False)).tolist()
    parts = [
        f"[[{part}]]" if targets[begin] else part
        for begin, end in pairwise([0, *edges, len(ids)])
        if begin < end and (part := _shortened(encoder.decode(ids[begin:end].tolist())))
    ]
    if len(parts) > MOST_PARTS:
        half = MOST_PARTS // 2
        parts = [*parts[:half], f"\n{_GAP.strip()}\n", *parts[-half:]]
    return "".join(parts)


def _shortened(text: str) -> str:
    half = MOST_OF_A_PART // 2
    text = _REPEATED.sub(_counted, text)
    return text if len(text) <= MOST_OF_A_PART else text[:half] + _GAP + text[-half:]


def _counted(found: re.Match[str]) -> str:
    return f"{found[1]} x {len(found[0]) // len(found[1])} "
