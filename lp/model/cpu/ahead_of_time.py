"""Forwards compiled ahead of time for the CPU, with prepacked weights, by torch.export and AOTInductor.

One library serves every number of rows from 2 on, so that there is one copy of its packed weights. A step of one row
multiplies matrices by vectors, which is best done by other code, so it has a library of its own. Libraries hold weights
and machine code. They are kept on disk under a digest of all that they depend on, and all processes of a machine map
the same file. Knows nothing of when compiling pays.

    R rows of all sequences, N of them with logits
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

import torch
import transformers
from torch import Tensor
from torch._C._aoti import AOTIModelContainerRunnerCpu
from torch.export import Dim, export

from lp.model.causal import CausalModel, answered_rows
from lp.model.cpu.traced import TracedForward, under_way
from lp.model.errors import one_line
from lp.model.fast_forward import FastForward, SequenceRows
from lp.platform.disk_cache import checksum, locked, trim, use

log = logging.getLogger("lookahead")

# To be raised when a library with an unchanged digest would have other content.
FORMAT = 3
# The number of values of each weight that go into the digest, at least; smaller weights go in whole.
NUM_SAMPLES = 64
# Sizes that the forward is traced with: rows, and rows with logits. Neither of them is special.
ROWS, ANSWERED = 16, 8
# The bounds of both; the compiler would treat a size of 1 as a constant.
LEAST, LARGEST = 2, 1 << 20

Forward = Callable[..., Tensor]


class CompilationFailed(RuntimeError):
    """The forward cannot be compiled here. The message says why, on one line."""


class AheadOfTime(FastForward):
    """For the CPU: one compiled forward for single rows, one for all others."""

    def __init__(self, model: CausalModel, one_row: Forward, any_rows: Forward):
        self._to_device = model.to_device
        self._one_row = one_row
        self._any_rows = any_rows

    @torch.inference_mode()
    def __call__(self, given: Sequence[SequenceRows]) -> Tensor:
        """See FastForward."""
        step, tokens = self._to_device(given)
        answered = torch.from_numpy(answered_rows(given))
        forward, least = (self._one_row, 1) if len(tokens) == 1 else (self._any_rows, LEAST)
        asked = torch.cat([answered, answered.new_zeros(max(0, least - len(answered)))])
        with under_way(step) as number:
            return forward(tokens, step.positions, asked, number)[: len(answered)]


def compile_ahead(model: CausalModel, folder: Path, fresh: bool = False) -> AheadOfTime:
    """Loads the compiled forward of a model on the CPU from the folder, and compiles it first if it is not there.

    Compiling takes up to a minute; of several ranks that need the same forward, one compiles and the others wait.

    fresh: compile anew whatever the folder holds. Raises CompilationFailed.
    """
    name = f"{type(model.model).__name__}-{_digest(model)}"
    traced = TracedForward(model.model, model.attention_kind)
    forwards = {}
    for which, num_rows in (("any-rows", ROWS), ("one-row", 1)):
        kept = folder / f"{name}-{which}"
        use(kept)
        with locked(kept, "compile the forward"):
            if fresh:
                shutil.rmtree(kept, ignore_errors=True)
            forwards[which] = _load_or_compile(kept, traced, num_rows)
    return AheadOfTime(model, forwards["one-row"], forwards["any-rows"])


def _load_or_compile(kept: Path, traced: TracedForward, num_rows: int) -> Forward:
    """The forward in the folder `kept`, which is made if it is missing or corrupt. Raises CompilationFailed."""
    if kept.exists():
        try:
            return _load(kept)
        except Exception as error:  # a corrupt file can raise anything
            log.warning("%s cannot be used (%s); compiling anew", kept, one_line(error))
    log.info(
        "compiling the forward for %s (once for this model and machine)", "one row" if num_rows == 1 else "any rows"
    )
    try:
        with TemporaryDirectory(dir=kept.parent) as temporary:
            _unpack(_compile(Path(temporary) / "forward.pt2", traced, num_rows), Path(temporary) / kept.name)
            shutil.rmtree(kept, ignore_errors=True)
            os.replace(Path(temporary) / kept.name, kept)
        trim()
        return _load(kept)
    except Exception as error:  # a compiler can raise anything, too
        raise CompilationFailed(one_line(error)) from error


def _compile(path: Path, traced: TracedForward, num_rows: int) -> str:
    """Compiles the forward into a package of AOTInductor; returns the package's path."""
    options: dict[str, Any] = {"freezing": True}
    if num_rows == 1 and traced.model.dtype == torch.float32:
        # Inductor's own matrix-vector product reads weights twice as fast as the library that it calls otherwise.
        options |= {"max_autotune": True, "max_autotune_gemm_backends": "CPP"}
    with torch.inference_mode(False), torch.no_grad():
        inputs = _example(num_rows)
        program = export(traced, inputs, dynamic_shapes=_dynamic_sizes(num_rows), strict=False)
        return torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=options)


def _unpack(package: str, folder: Path) -> None:
    """Extracts a package's library and its description, and names both by the library's checksum."""
    with ZipFile(package) as archive:
        members = [name for name in archive.namelist() if name.endswith((".wrapper.so", ".wrapper.json"))]
        archive.extractall(folder, members)
    library, description = (next(folder.glob(f"**/*.wrapper{suffix}")) for suffix in (".so", ".json"))
    name = checksum(library)
    library.rename(folder / f"{name}.so")
    description.rename(folder / f"{name}.json")


def _load(kept: Path) -> Forward:
    """Loads a library straight from its folder, while torch's own loader unpacks a copy for each process.

    So ranks that map the same file share one copy of the weights, in memory and in the processor's caches; a rank that
    is killed leaves no copy behind; and no call has to read the structure of inputs and outputs again.

    The checksum is compared first, as loading a truncated library would end the process. Raises any exception.
    """
    library = next(kept.glob("*.so"))
    if checksum(library) != library.stem:
        raise ValueError(f"{library.name} is corrupt")
    runner = AOTIModelContainerRunnerCpu(str(library), 1)

    def forward(*inputs: Tensor) -> Tensor:
        (logits,) = runner.run(list(inputs))
        return logits

    return forward


def _example(num_rows: int) -> tuple[Tensor, ...]:
    """Inputs to trace the forward with."""
    rows = torch.arange(num_rows)
    # Every input is a tensor of its own: if one were passed twice, the traced forward would read only one of the two.
    return rows, rows.clone(), rows[:ANSWERED].clone(), torch.tensor(0)


def _dynamic_sizes(num_rows: int) -> tuple[Any, ...] | None:
    """The sizes of the inputs that may change from call to call, as torch.export takes them."""
    if num_rows == 1:
        return None
    rows, answered = (Dim(name, min=LEAST, max=LARGEST) for name in ("R", "N"))
    return {0: rows}, {0: rows}, {0: answered}, None


def _digest(model: CausalModel) -> str:
    """A digest of samples of the weights, the configuration, the machine and the versions of libraries."""
    digest = hashlib.sha256()
    facts = (
        FORMAT, torch.__version__, transformers.__version__, platform.machine(),
        torch.backends.cpu.get_cpu_capability(), torch.get_num_threads(), str(model.dtype),
        str(model.attention_kind),
    )  # fmt: skip
    config = {key: value for key, value in model.model.config.to_dict().items() if key != "_name_or_path"}
    digest.update(json.dumps([facts, config], default=str, sort_keys=True).encode())
    for name, weight in model.model.state_dict().items():
        flat = weight.flatten()
        sample = flat[:: max(1, flat.numel() // NUM_SAMPLES)].double()
        digest.update(f"{name} {tuple(weight.shape)}".encode() + sample.numpy().tobytes())
    return digest.hexdigest()[:20]
