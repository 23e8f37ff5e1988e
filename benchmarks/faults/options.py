"""The command-line options of the benchmarks that kill ranks of a server."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.shared.options import add_output, make_parser, parse


def make_server_parser(description: str | None) -> argparse.ArgumentParser:
    parser = make_parser(description)
    parser.add_argument("--model", type=Path, default=Path("demo/python-11m"), help="folder (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random choices (default %(default)s)")
    parser.add_argument("--settings", nargs="*", default=[], metavar="KEY=VALUE", help="more settings of the server")
    add_output(parser)
    return parser


def parse_server_options(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parses the arguments and checks that the model is a folder."""
    arguments = parse(parser)
    if not arguments.model.is_dir():
        parser.error(f"--model {arguments.model} is not a folder")
    return arguments
