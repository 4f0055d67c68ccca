"""`python -m launcher`: the `launch` command, for whoever has it not on the PATH."""

import os
import sys

# As the installed command does without the current folder on the path, where anything may be called `worker`.
if not sys.flags.safe_path and not os.path.samefile(sys.path[0], os.path.dirname(os.path.dirname(__file__))):
    del sys.path[0]

from launcher.cli import main

if __name__ == "__main__":
    main()
