"""Tries every causal language model family of transformers, and writes their table.

    python -m benchmarks.families              tries all families (about half an hour on two cores)
    python -m benchmarks.families llama mamba  tries these, and leaves the others' rows as they are

Each family is tried as a tiny model with random weights in float32, in a process of its own. Four decoding methods
continue two prompts, and their tokens are compared with those of transformers' greedy `generate`; so are those of two
ranks that split the model's tensors (tp) or layers (pp). The table is in docs/reference/models.md. It is written after
each family. Exit status 1: a family crashes, or gives other tokens.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from transformers.utils import logging as transformers_logging

from benchmarks.families.check import FamilyResult, check_family
from benchmarks.families.checkpoints import FAMILIES
from benchmarks.families.processes import ProcessEnded, call_in_processes
from benchmarks.families.table import PAGE, read_results, write_results
from benchmarks.shared.options import make_parser
from benchmarks.shared.report import progress


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("families", nargs="*", metavar="NAME", help="model types (default: all of transformers)")
    parser.add_argument(
        "--page", type=Path, default=PAGE, help="the page with the table (default docs/reference/models.md)"
    )
    parser.add_argument("--limit-s", type=float, default=600.0, help="most seconds for a family (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="compile, split and quantise nothing")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.families) - set(FAMILIES)):
        parser.error(f"transformers has no causal language model of type {', '.join(unknown)}")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    known = read_results(arguments.page)
    results = {name: known.get(name, FamilyResult(name, "untried")) for name in FAMILIES}
    tried = list(dict.fromkeys(arguments.families)) or FAMILIES
    for name in progress(tried, "families", unit="family"):
        results[name] = try_family(name, arguments.limit_s, arguments.quick)
        write_results(arguments.page, results)
        print(f"{name}: {results[name].decoding} {results[name].reason}", flush=True)
    if faults := [name for name in tried if results[name].decoding in ("wrong", "crash")]:
        raise SystemExit(f"wrong or crashed: {', '.join(faults)}")


def try_family(name: str, limit_s: float, is_quick: bool = False) -> FamilyResult:
    """What is found for a family, in a process of its own, which may crash or hang."""
    try:
        return call_in_processes([partial(check_family, name, is_quick)], limit_s)[0]
    except ProcessEnded as error:
        return FamilyResult(name, "crash", reason=str(error))


if __name__ == "__main__":
    main()
