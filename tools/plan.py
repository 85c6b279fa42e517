"""What a run on these rows will look like: ``python -m tools.plan PATH... --hf_assets_path DIR``.

The same as ``odb-plan``, which an installed package has.
"""

import sys

from titan_integration.plan.command import main

if __name__ == "__main__":
    sys.exit(main())
