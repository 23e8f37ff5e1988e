"""What is installed that makes this project faster or gives it more, and what lies in its caches."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

import torch
from packaging.requirements import Requirement

from launch.diagnostics.findings import Finding
from lp.model.gpu import prefix
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


def inspect() -> Iterator[Finding]:
    cuda = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "for the CPU"
    yield Finding(SECTION, "Python", platform.python_version())
    yield Finding(SECTION, "torch", f"{torch.__version__}, built {cuda}", torch.__version__)
    yield Finding(SECTION, "transformers", version("transformers"))
    yield from compiler()
    has_gpu = torch.cuda.is_available()
    yield triton(has_gpu)
    yield flash_attention(has_gpu)
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


def flash_attention(has_gpu: bool) -> Finding:
    """flash-attn, which is tried on a GPU: what is installed may be built for another torch or GPU."""
    missing = prefix.missing_package()
    if not has_gpu:
        return Finding(SECTION, "flash-attn", "not used: there is no GPU", not missing)
    if missing:
        is_installed = "is installed" in missing
        advice = (
            "pip install 'lookahead-parallel[flash]': attention over long prefixes may be faster"
            if not is_installed
            else ""
        )
        return Finding(SECTION, "flash-attn", missing, False, advice, is_installed)
    if fault := try_flash_attention():
        return Finding(SECTION, "flash-attn", f"installed, but it fails here: {fault}", False, is_broken=True)
    return Finding(SECTION, "flash-attn", "installed, and works", True)


def try_flash_attention() -> str:
    """Why flash-attn fails on the first GPU; empty if it works."""
    device = torch.device("cuda", 0)
    try:
        query = torch.ones(1, 2, 2, 64, dtype=torch.bfloat16, device=device)
        keys = torch.ones(1, 16, 1, 64, dtype=torch.bfloat16, device=device)
        bounds = prefix.make_bounds(2, 16, torch.tensor(16, device=device))
        out, _ = prefix.by_flash_attn(query, keys, keys, bounds, 0.125)
    except Exception as error:  # a library built for another torch or GPU can raise anything
        return f"{type(error).__name__}: {error}"
    return "" if torch.allclose(out.float(), torch.ones(1, device=device), atol=0.01) else "it gives wrong numbers"


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
