"""Tells what is in a checkpoint and whether it is whole; see titan_integration.run.inspection."""

import sys

from titan_integration.run.inspection import main

if __name__ == "__main__":
    sys.exit(main())
