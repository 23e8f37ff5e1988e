"""`python -m launch`, the same as the command `lookahead`."""

import sys

from launch.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
