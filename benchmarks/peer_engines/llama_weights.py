"""GGUF files in float32 and bfloat16, made of the same GGUF file that this project unpacks."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from benchmarks.peer_engines.base import Unavailable
from benchmarks.peer_engines.llama_build import cache_folder
from lp.platform import disk_cache

TYPES = {"float32": "F32", "bfloat16": "BF16"}


def make_weights(programs: Path, source: Path, dtype: str) -> Path:
    """The weights of a GGUF file in another format, made once by llama.cpp's own program. Raises Unavailable.

    dtype: float32 or bfloat16.
    """
    if source.suffix != ".gguf":
        raise Unavailable(f"its weights are made of a GGUF file, and {source.name} is none")
    if dtype not in TYPES:
        raise Unavailable(f"its weights are made in {' and '.join(TYPES)} only, not in {dtype}")
    stat = source.stat()
    name = disk_cache.digest([source.name, stat.st_size, stat.st_mtime_ns])
    made = cache_folder() / f"{name}-{TYPES[dtype]}.gguf"
    if made.is_file():
        return made
    partial = made.with_suffix(".partial")
    command = [programs / "llama-quantize", "--allow-requantize", source, partial, TYPES[dtype]]
    try:
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, errors="replace")
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no reason given"]
            raise Unavailable(f"llama-quantize cannot make {TYPES[dtype]} of {source.name}: {lines[-1]}")
        os.replace(partial, made)
    except OSError as error:
        raise Unavailable(f"the weights cannot be made: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return made
