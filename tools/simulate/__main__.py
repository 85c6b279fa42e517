"""Command line; see ``tools.simulate.table``."""

import sys

from tools.simulate.table import main

if __name__ == "__main__":
    sys.exit(main())
