"""A sample as a person can check it: its text, with what is trained on between brackets."""

import re
from itertools import pairwise

import numpy as np

from titan_integration.data.encoding.encoder import Encoder

MOST = 3000  # Characters.
_REPEATED = re.compile(r"(<[^<>]+>)\1{2,}")  # a picture's tokens


def show(encoder: Encoder, ids: np.ndarray, targets: np.ndarray) -> str:
    """The text of a sample, with ``[[`` and ``]]`` around its targets; long ones without middle."""
    edges = np.flatnonzero(np.diff(targets, prepend=False, append=False)).tolist()
    cuts = [0, *edges, len(ids)]
    text = ""
    for begin, end in pairwise(cuts):
        if begin < end:
            part = _REPEATED.sub(_counted, encoder.decode(ids[begin:end].tolist()))
            text += f"[[{part}]]" if targets[begin] else part
    if len(text) > MOST:
        text = f"{text[: MOST // 2]}\n ...\n{text[-MOST // 2 :]}"
    return text


def _counted(found: re.Match[str]) -> str:
    return f"{found[1]} x {len(found[0]) // len(found[1])} "
