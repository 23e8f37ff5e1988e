"""Writes a model with random weights, to time steps of real sizes without real weights.

    python -m benchmarks.random_model FOLDER --config llama-130m

The model is written layer by layer, so it may be larger than memory. Its tokenizer is the demo model's. Its text means
nothing.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.shared.options import make_parser
from benchmarks.shared.random_weights import write_model
from benchmarks.shared.shapes import SHAPES, describe_shape, read_config
from lp.model.checkpoint import DTYPES


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("folder", type=Path, help="folder to write to; it must be empty or not exist yet")
    parser.add_argument(
        "--config", default="llama-130m", help=f"{', '.join(SHAPES)}, or a config.json (default %(default)s)"
    )
    parser.add_argument(
        "--dtype", choices=DTYPES, default="bfloat16", help="format of the weights (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights (default %(default)s)")
    arguments = parser.parse_args()
    if arguments.folder.exists() and any(arguments.folder.iterdir()):
        parser.error(f"{arguments.folder} is not empty; name another folder, or empty it")
    config = read_config(arguments.config)
    print(describe_shape(config))
    write_model(arguments.folder, config, DTYPES[arguments.dtype], arguments.seed)
    print(f"written to {arguments.folder}: random weights, for step times only")


if __name__ == "__main__":
    main()
