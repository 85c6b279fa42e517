"""Training runs in which everything goes wrong: ``python -m tools.chaos --runs 100``.

One folder after the other is trained to its end, by runs with random ranks and settings to which
random things happen: signals, kills, damaged checkpoints, a full disk, other data, a second job.
The last line counts what must be 0: samples lost and repeated, checkpoints that were whole and are
not any more, and runs that ended neither well nor in one line.
"""

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tools.chaos.config import make_data
from tools.chaos.faults import FAULTS, undisturbed
from tools.chaos.preload import Preloaded
from tools.chaos.story import Story, Tally

MOST_RUNS = 12  # in one folder before it is left in peace


def tell(story: Story, runs: int) -> None:
    """Let a story run to its end, or to that many runs in all."""
    for _ in range(MOST_RUNS):
        if story.tally.runs >= runs:
            break
        [fault] = story.rng.choices(list(FAULTS), weights=list(FAULTS.values()))
        if fault(story) == 0:
            break
    while True:
        if undisturbed(story) == 0:
            break
        story.say("     an undisturbed run did not end well")
        if story.rng.random() < 0.3:
            break
    story.audit()


def main() -> int:
    """Command line: 0 if nothing was lost."""
    parser = argparse.ArgumentParser(prog="python -m tools.chaos", description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for the logs of all runs")
    args = parser.parse_args()
    rng, tally = random.Random(args.seed), Tally()

    def say(line: str) -> None:
        print(line, flush=True)

    with Preloaded() as server, tempfile.TemporaryDirectory(prefix="chaos-") as place:
        data = make_data(Path(place))
        stories = 0
        while tally.runs < args.runs:
            stories += 1
            story = Story(Path(place) / str(stories), data, str(server.python), rng, tally, say)
            try:
                tell(story, args.runs)
            finally:
                if args.keep is not None:
                    shutil.copytree(story.logs, args.keep / str(stories), dirs_exist_ok=True)
                    if (story.folder / "logs").exists():
                        shutil.copytree(story.folder / "logs", args.keep / f"{stories}-run")
                story.close()
    say(f"exit codes: {dict(sorted(tally.codes.items()))}")
    say(tally.line())
    bad = tally.lost + tally.repeated + tally.whole_checkpoints_lost + tally.unexplained
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
