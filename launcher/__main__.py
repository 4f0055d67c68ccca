"""`python -m hostmesh.launcher`: the `launch` command, for whoever has it not on the PATH."""

import os
import sys

# The installed command does not have the current folder on its path. It stays where this package was found in it.
PACKAGES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
if not sys.flags.safe_path and not os.path.samefile(sys.path[0], PACKAGES):
    del sys.path[0]

from hostmesh.launcher.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
