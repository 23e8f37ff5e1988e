"""The source of the library of lp/platform/library.py.

Needs neither PyTorch nor numpy, so that compiling can begin before they are imported.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from lp.platform import build
from lp.platform.disk_cache import make_folder

FOLDER = Path(__file__).parent / "csrc"
# No fused multiply-add, which Python does not have either: trees depend on the last bit of a probability.
FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing",
         f"-DOBJECT_SIZE={object.__basicsize__}",
         *(("-Wl,-undefined,dynamic_lookup",) if sys.platform == "darwin" else ()))  # fmt: skip


def source() -> build.Source:
    """The library's source."""
    return build.Source("host", "host", (FOLDER / "host.cpp").read_text(encoding="utf-8"), FOLDER, FLAGS)


def begin() -> None:
    """Starts to compile the library, if it is missing, while the caller goes on."""
    with suppress(OSError, RuntimeError):  # lp.platform.library warns of a folder that cannot be made
        build.begin([source()], make_folder("compiled"))
