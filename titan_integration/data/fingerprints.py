"""What samples are made from, as digests in a checkpoint: a resume notices that something changed.

Of files up to a gibibyte every byte counts; of larger ones, 4096 blocks of 64 KiB spread evenly
over the file. The ranks share the reading. A digest of a file's first bytes tells rows that were
appended from rows that are others.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed as dist

from titan_integration.process_groups import gather

_WHOLE = 1 << 30  # bytes; larger files are sampled
_BLOCK = 1 << 20
_SAMPLES, _SAMPLE = 4096, 64 << 10
# Fields of the data section that say which rows come when, not what a row becomes.
NOT_OF_SAMPLES = {
    *("path", "max_samples", "epochs", "sample_quota", "shuffle", "seed", "streaming", "odb"),
    *("validation_path", "validation_split", "cache_dir", "check", "audit_log"),
    *("accept_changed", "stop_after_s", "stop_within_s"),
}
_TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt", "tokenizer.model")
_TOKENIZER_KEYS = ("bos_token", "eos_token", "add_bos_token", "add_eos_token")


@dataclass(kw_only=True, slots=True)
class Inputs:
    """What the samples of a run are made from.

    Attributes:
        files: ``{"name", "bytes", "digest"}`` of each file, in their order.
        tokenizer: Digest of its vocabulary and special tokens.
        chat_template: Digest of its text.
        options: Settings that change samples.
        samples: All there are, once they are known.
    """

    files: list[dict[str, Any]] = field(default_factory=list)
    tokenizer: str = ""
    chat_template: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    samples: int = 0


@dataclass(kw_only=True, slots=True)
class Change:
    """What is not as it was.

    Attributes:
        reasons: Of samples that may be others, each a part of a sentence.
        grown: Files that had rows appended, the first ones being the same.
    """

    reasons: list[str] = field(default_factory=list)
    grown: list[str] = field(default_factory=list)


def inputs_of(
    paths: Sequence[Path],
    tokenizer_path: str,
    options: Mapping[str, Any],
    *,
    rank: int,
    group: dist.ProcessGroup | None,
) -> Inputs:
    """Read what there is now; all ranks together.

    Args:
        paths: Data files.
        tokenizer_path: Folder.
        options: Settings that change samples; a value that names a file counts with its content.
        rank: That shares the reading.
        group: Of the ranks that read the same data.
    """
    files = []
    for path in paths:
        size = path.stat().st_size
        digest = digest_of(path, size, rank, group)
        files.append({"name": path.name, "bytes": size, "digest": digest})
    return Inputs(
        files=files,
        tokenizer=_tokenizer(Path(tokenizer_path)),
        chat_template=_chat_template(Path(tokenizer_path)),
        options={name: _with_content(value) for name, value in options.items()},
    )


def digest_of(path: Path, size: int, rank: int, group: dist.ProcessGroup | None) -> str:
    """Digest of the first ``size`` bytes; all ranks of the group together."""
    world = 1 if group is None else dist.get_world_size(group)
    own = []
    with path.open("rb") as file:
        for offset, length in _blocks(size)[rank::world]:
            file.seek(offset)
            own.append(hashlib.blake2b(file.read(length), digest_size=16).hexdigest())
    shares: list[Any] = gather(own, group)
    in_order = [""] * sum(map(len, shares))
    for first, share in enumerate(shares):
        in_order[first::world] = share
    return _digest(size, *in_order)


def _blocks(size: int) -> list[tuple[int, int]]:
    """(offset, length) of the parts that count."""
    if size <= _WHOLE:
        return [(at, min(_BLOCK, size - at)) for at in range(0, size, _BLOCK)]
    return [((size - _SAMPLE) * i // (_SAMPLES - 1), _SAMPLE) for i in range(_SAMPLES)]


def compare(
    then: Inputs, now: Inputs, paths: Sequence[Path], rank: int, group: dist.ProcessGroup | None
) -> Change:
    """What changed since a state was saved; all ranks together.

    Args:
        then: Of the state.
        now: Of this run.
        paths: The data files, as in ``now``.
        rank: That shares the reading.
        group: Of the ranks that read the same data.
    """
    change = Change()
    for old, new, path in zip(then.files, now.files, paths, strict=False):
        if new["bytes"] < old["bytes"]:
            change.reasons.append(f"{path} is shorter than it was")
        elif new["bytes"] > old["bytes"]:
            same = digest_of(path, old["bytes"], rank, group) == old["digest"]
            (change.grown if same else change.reasons).append(
                str(path) if same else f"{path} has other rows"
            )
        elif new["digest"] != old["digest"]:
            change.reasons.append(f"{path} has other rows")
    if len(now.files) < len(then.files):
        missing = [file["name"] for file in then.files[len(now.files) :]]
        change.reasons.append(f"{', '.join(missing)} is no longer among the files")
    change.grown += [str(path) for path in paths[len(then.files) :]]
    if then.tokenizer != now.tokenizer:
        change.reasons.append("the tokenizer is another one")
    if then.chat_template != now.chat_template:
        change.reasons.append("the chat template is another one")
    for name in then.options.keys() & now.options.keys():
        if then.options[name] != now.options[name]:
            change.reasons.append(
                f"{name} was {_plain(then.options[name])} and is {_plain(now.options[name])}"
            )
    if change.grown and not _only_the_end_grew(then, now):
        change.reasons += [
            f"{name} has more rows, before those of other files" for name in change.grown
        ]
        change.grown = []
    return change


def _only_the_end_grew(then: Inputs, now: Inputs) -> bool:
    """Whether the old rows still come first, in their order."""
    same = zip(then.files[:-1], now.files, strict=False)
    return all(old["bytes"] == new["bytes"] for old, new in same)


def _tokenizer(folder: Path) -> str:
    config = _read_config(folder)
    parts = [(name, _content(folder / name)) for name in _TOKENIZER_FILES]
    return _digest(*parts, *((key, config.get(key)) for key in _TOKENIZER_KEYS))


def _chat_template(folder: Path) -> str:
    text = _content(folder / "chat_template.jinja")
    return _digest(text if text is not None else _read_config(folder).get("chat_template"))


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        loaded = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _with_content(value: Any) -> Any:
    """The value as JSON has it; with the digest of the file that it names, if it does."""
    if isinstance(value, str) and 0 < len(value) < 4096 and Path(value).is_file():
        return [value, _digest(_content(Path(value)))]
    return json.loads(json.dumps(value, default=str))


def _plain(value: Any) -> str:
    return repr(value[0] if isinstance(value, list) and len(value) == 2 else value)


def _content(path: Path) -> str | None:
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return None


def _digest(*parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()
