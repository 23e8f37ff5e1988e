"""`python -m launch`, the same as the command `lookahead`."""

import sys

from launch.command.main import main

if __name__ == "__main__":
    sys.exit(main())
