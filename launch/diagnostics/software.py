"""What is installed that makes this project faster or gives it more, and what lies in its caches."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

import torch
from packaging.requirements import Requirement

from launch.diagnostics.findings import Finding
from lp.model.errors import one_line
from lp.model.gpu.flash import PACKAGES
from lp.model.gpu.prompts import LayerKind, describe, try_kernels
from lp.model.kernels import LayerAttention
from lp.platform import disk_cache
from lp.platform.build import CannotBuild, find_compiler, missing_triton
from lp.platform.disk_cache import KINDS, find_entries, most_bytes
from lp.platform.library import library

SECTION, CACHES = "software", "caches"
PROJECT = "lookahead-parallel"
# What each extra of the package is for.
EXTRAS = {
    "serve": "the HTTP server",
    "grammar": "JSON schemas, regular expressions and grammars",
    "ray": "Ray clusters",
    "bench": "sweeps and their reports",
}

# That of Llama 3.1 8B.
USUAL_LAYER = LayerKind(8, 4, 128, 128, LayerAttention(128**-0.5))


def inspect() -> Iterator[Finding]:
    cuda = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "for the CPU"
    yield Finding(SECTION, "Python", platform.python_version())
    yield Finding(SECTION, "torch", f"{torch.__version__}, built {cuda}", torch.__version__)
    yield Finding(SECTION, "transformers", version("transformers"))
    yield from compiler()
    has_gpu = torch.cuda.is_available()
    yield triton(has_gpu)
    yield prompts(has_gpu)
    for name in EXTRAS:
        yield extra(name)


def compiler() -> Iterator[Finding]:
    """The C++ compiler, and the library of the host's work that it compiles."""
    try:
        found = find_compiler()
    except CannotBuild as error:
        advice = (
            "install g++: without a C++ compiler the forward on a CPU is not compiled, and decode=auto drafts from "
            "fewer sources and takes longer for it"
        )
        yield Finding(SECTION, "compiler", str(error), "", advice)
        return
    yield Finding(SECTION, "compiler", " ".join(found))
    if library() is None:
        yield Finding(
            SECTION, "drafting", "the library cannot be made; the reason is logged above", False, is_broken=True
        )
    else:
        yield Finding(SECTION, "drafting", "compiled C++", True)


def triton(has_gpu: bool) -> Finding:
    missing = missing_triton()
    if missing:
        advice = "install triton: fused kernels for the GPU are written in it" if has_gpu else ""
        return Finding(SECTION, "Triton", missing if has_gpu else "not installed; only a GPU needs it", False, advice)
    return Finding(SECTION, "Triton", version("triton") + ("" if has_gpu else "; only a GPU needs it"), True)


def prompts(has_gpu: bool) -> Finding:
    """Which attention computes prompts on the first GPU, and what each function takes, in a layer of a usual model."""
    name = "attention of prompts"
    if not has_gpu:
        return Finding(SECTION, name, "FlashAttention is for a GPU, and there is none", "")
    if missing := missing_triton():
        return Finding(SECTION, name, f"transformers' own, as fused kernels need Triton: {missing}", "")
    try:
        trials = try_kernels(USUAL_LAYER, torch.bfloat16, torch.device("cuda", 0))
    except RuntimeError as error:
        return Finding(SECTION, name, f"the Triton kernel fails: {one_line(error)}", "", is_broken=True)
    others = [f"; {trial.name}: {trial.obstacle}" for trial in trials if trial.obstacle]
    text = f"{describe(trials)}, in layers of {USUAL_LAYER.describe()}{''.join(others)}"
    value = {trial.name: trial.obstacle or trial.seconds for trial in trials}
    are_missing = all(trial.obstacle.startswith("not installed") for trial in trials if trial.name in PACKAGES)
    advice = "pip install 'lookahead-parallel[flash]': attention of prompts may be faster" if are_missing else ""
    return Finding(SECTION, name, text, value, advice, any(trial.is_broken for trial in trials))


def extra(name: str) -> Finding:
    """Whether the packages of one of this project's extras are installed."""
    try:
        wanted = [Requirement(text) for text in requires(PROJECT) or []]
    except PackageNotFoundError:
        return Finding(SECTION, f"[{name}]", f"unknown, as {PROJECT} is not installed; {EXTRAS[name]}", None)
    needed = [one for one in wanted if one.marker and one.marker.evaluate({"extra": name})]
    missing = sorted({one.name for one in needed if one.name != PROJECT and not _is_installed(one.name)})
    if missing:
        advice = f"pip install '{PROJECT}[{name}]' for {EXTRAS[name]}"
        return Finding(SECTION, f"[{name}]", f"{', '.join(missing)} missing; {EXTRAS[name]}", False, advice)
    return Finding(SECTION, f"[{name}]", f"installed; {EXTRAS[name]}", True)


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def caches() -> Iterator[Finding]:
    """What the cache holds, by kind, and its bound."""
    folder = disk_cache.folder("compiled")
    if folder is None:
        advice = f"let the environment variable {disk_cache.VARIABLE} name a folder that can be written"
        yield Finding(CACHES, "folder", "none can be made: nothing is compiled or kept", None, advice, True)
        return
    root = folder.parent
    free = shutil.disk_usage(root).free
    yield Finding(CACHES, "folder", f"{root} ({free / 1e9:.1f} GB free)", {"path": str(root), "free": free})
    entries = find_entries()
    for kind, title in KINDS.items():
        own = [entry.num_bytes for entry in entries if entry.kind == kind]
        text = f"{len(own)} {title}, {sum(own) / 1e6:.1f} MB"
        yield Finding(CACHES, kind, text, {"entries": len(own), "bytes": sum(own)})
    total = sum(entry.num_bytes for entry in entries)
    text = f"{total / 1e9:.2f} of at most {most_bytes() / 1e9:g} GB (LOOKAHEAD_CACHE_GB)"
    yield Finding(CACHES, "all", text, {"bytes": total, "bound": most_bytes()})
