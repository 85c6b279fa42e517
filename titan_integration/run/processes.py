"""The processes of this machine, as the system lists them."""

from pathlib import Path


def parents() -> dict[int, int]:
    """Every process that is alive, and the one that started it; both by their ids."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            if fields[0] != "Z":
                found[int(entry.name)] = int(fields[1])
    return found
