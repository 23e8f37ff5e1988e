"""Which packages of this project are missing here, and which of them the items can do without.

A machine without a network gets them as wheels. What a missing package itself needs cannot be asked of it, so the needs
of those that GPU machines usually lack are written down here.
"""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

# What packages need that a machine with torch and transformers may lack.
NEEDS = {
    "gguf": ("numpy", "pyyaml", "requests", "tqdm"),
    "hydra-core": ("antlr4-python3-runtime", "omegaconf", "packaging"),
    "omegaconf": ("antlr4-python3-runtime", "pyyaml"),
    "prompt-toolkit": ("wcwidth",),
}
# Without these, no item can run.
NEEDED = ("torch", "transformers", "numpy", "safetensors", "tokenizers", "jinja2", "tqdm")  # fmt: skip
# The items that fail for want of each of these; whatever is in neither table is needed by no item.
USED_BY = {
    "psutil": "the stage right: two ranks on one GPU",
    "pytest": "the stage right",
    "triton": "fused kernels, which everything is about",
}


def missing_packages(project: Path, is_there: object = None) -> dict[str, str]:
    """Why each package that is not installed here is wanted, by its name with the version that the tests run with.

    project: the folder of pyproject.toml and constraints.txt. is_there: says whether a package is installed; None asks
    this Python.
    """
    ask = is_there if callable(is_there) else _is_installed
    pinned = _versions(project / "constraints.txt")
    waiting, seen = list(requirements(project)), set()
    found: dict[str, str] = {}
    while waiting:
        name = waiting.pop(0)
        if name in seen or ask(name):
            continue
        seen.add(name)
        waiting += NEEDS.get(name, ())
        versioned = f"{name}=={pinned[name]}" if name in pinned else name
        found[versioned] = _purpose(name)
    return found


def requirements(project: Path) -> list[str]:
    """The packages that pyproject.toml asks for: what everything needs, and what benchmarks and tests need."""
    tables = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = tables["optional-dependencies"]
    asked = [*tables["dependencies"], *extras["bench"], *extras["dev"]]
    return list(dict.fromkeys(_normal(re.split(r"[\s<>=!~;\[]", text, maxsplit=1)[0]) for text in asked))


def _purpose(name: str) -> str:
    if name in NEEDED or any(name in NEEDS.get(one, ()) for one in NEEDED):
        return "needed: nothing runs without it"
    return f"wanted: {USED_BY[name]}" if name in USED_BY else "not needed here"


def _is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _versions(path: Path) -> dict[str, str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==", 1) for line in lines if "==" in line and not line.startswith("#")]
    return {_normal(name.strip()): version.split()[0].rstrip(";") for name, version in pairs}
