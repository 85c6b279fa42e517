"""The processes of this machine, as /proc tells of them."""

from pathlib import Path


def parents() -> dict[int, int]:
    """Parent of every process on this machine that is alive."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                found[int(entry.name)] = int(fields[1])
    return found
