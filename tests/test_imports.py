"""The direction of imports: lp <- parallel <- launch, the arrows between the rooms of each, and what nobody may use.

Sources are parsed, not imported, so that what is imported inside a function or by name counts as well.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("lp", "parallel", "launch", "demo", "benchmarks")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))

WEB = ("fastapi", "starlette", "uvicorn", "sse_starlette")
FORBIDDEN = {
    "lp": ("parallel", "launch", "torch.distributed", "hydra", "omegaconf", "ray", *WEB),
    "parallel": ("launch", "hydra", "omegaconf", "ray", *WEB),
}
# What assembles and drives the parts of lp: no room of lp knows it.
ENGINE = ("lp.engine", "lp.scheduling")
LAUNCH = (
    "backend", "bench", "cache", "chat", "cli", "cluster", "config", "conversation", "data", "demo", "diagnostics",
    "doctor", "generate", "index", "plain_generate", "ray_job", "real_model", "serve", "server", "supervisor", "sweep",
    "tune",
)  # fmt: skip


def all_of_launch_but(*allowed: str) -> tuple[str, ...]:
    """The commands and rooms of launch without those that are allowed. A room may always import itself."""
    assert set(allowed) <= set(LAUNCH)
    return tuple(f"launch.{name}" for name in LAUNCH if name not in allowed)


def all_of_lp_but(*allowed: str) -> tuple[str, ...]:
    """The parts of lp without those that are allowed. A room may always import itself."""
    parts = {f"lp.{path.stem}" for path in (ROOT / "lp").iterdir() if path.suffix == ".py" or path.is_dir()}
    return tuple(sorted(parts - {"lp.__init__", "lp.__pycache__"} - {f"lp.{name}" for name in allowed}))


# The decoding methods, and what they share.
SLICES = (
    "auto", "autoregressive", "beam", "best_of", "contrastive", "draft_model", "jacobi", "lookahead", "medusa",
    "prompt_lookup",
)  # fmt: skip
SHARED = ("inner", "ngram_pool", "window")
# The other methods that a method may import: auto composes its trees with them.
COMPOSED = {"auto": ("autoregressive", "draft_model")}
# The only ones in lp that know which methods there are.
KNOWS_METHODS = ("lp.custom_generate", "lp.engine.builder", "lp.engine.input", "lp.methods")


def other_slices(name: str) -> tuple[str, ...]:
    """What a method must not import of lp.methods."""
    allowed = (name, *COMPOSED.get(name, ()))
    return tuple(f"lp.methods.{one}" for one in (*SLICES, "registry") if one not in allowed)


# By room, what it must not import of its own package.
INNER = {
    "lp.platform": all_of_lp_but(),
    "lp.grammar": all_of_lp_but("decoder", "platform", "tree"),
    "lp.text": all_of_lp_but("grammar", "platform", "tree"),
    "lp.kv_cache": all_of_lp_but("platform"),
    "lp.model": ("lp.decoder", "lp.drafting", "lp.methods", "lp.request", "lp.runner", "lp.sampling", *ENGINE),
    "lp.sampling": all_of_lp_but("grammar", "platform", "tree"),
    "lp.tree": all_of_lp_but("platform"),
    "lp.decoder": all_of_lp_but("tree"),
    "lp.drafting": all_of_lp_but("platform", "step_cost", "tree"),
    "lp.request": ("lp.methods", "lp.runner", *ENGINE),
    "lp.methods": ("lp.runner", *ENGINE),
    **{f"lp.methods.{name}": other_slices(name) for name in SLICES},
    "lp.runner": ("lp.decoder", "lp.drafting", "lp.methods", *ENGINE),
    "parallel.comm": (
        "parallel.build", "parallel.groups", "parallel.runners", "parallel.sharding", *all_of_lp_but("platform")
    ),
    "parallel.sharding": ("parallel.build", "parallel.groups", "parallel.runners"),
    "parallel.runners": ("parallel.build", "parallel.groups", "parallel.sharding"),
    "parallel.groups": ("parallel.build", "parallel.runners", "parallel.sharding"),
    "launch.config": (*all_of_launch_but(), "ray"),
    "launch.data": (*all_of_launch_but(), "ray"),
    "launch.server": (*all_of_launch_but("backend"), "ray"),
    "launch.supervisor": (*all_of_launch_but("backend", "config"), "ray"),
    "launch.conversation": (*all_of_launch_but("backend", "data"), "ray"),
    "launch.cli": (*all_of_launch_but("config"), "hydra", "omegaconf", "torch", "transformers", "ray", *WEB),
    "launch.diagnostics": (*all_of_launch_but("cli", "config", "data", "sweep"), "ray"),
    "launch.cluster": all_of_launch_but(
        "backend", "config", "data", "generate", "plain_generate", "server", "supervisor"
    ),
    "launch.sweep": all_of_launch_but("cluster", "config", "data"),
}  # fmt: skip
PICKLES = ("pickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "torch.load", "torch.save")
OBJECT_COLLECTIVE = re.compile(r"(all_gather|broadcast|gather|recv|scatter|send)_object(_list)?")

# The only module that reads a pickle, of tensors alone: heads that others have published.
READS_TENSORS = "lp.model.heads.convert"

RANK_VARIABLES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "env://"}
READS_RANKS = "parallel.mesh"


def faults(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """What is wrong with the source of `module` (dotted), each with its line; empty if nothing is."""
    tree = ast.parse(source)
    rooms = [room for room in INNER if is_within(module, room)]
    inner = [name for room in rooms for name in INNER[room] if not is_within(module, name)]
    forbidden = [*FORBIDDEN.get(module.partition(".")[0], ()), *inner]
    if module.startswith("lp.") and not any(is_within(module, one) for one in KNOWS_METHODS):
        forbidden.append("lp.methods")
    found = set()
    safe = lines_of_tensors_alone(tree) if module == READS_TENSORS else set()
    for line, name in used_names(tree, module if is_package else module.rpartition(".")[0]):
        if any(is_within(name, package) for package in forbidden):
            found.add((line, f"{module} must not use {name}"))
        if any(is_within(name, package) for package in PICKLES) and (name, line) not in safe:
            found.add((line, f"{name} pickles"))
        if OBJECT_COLLECTIVE.fullmatch(name.rpartition(".")[2]):
            found.add((line, f"{name} pickles what it sends"))
    if module != READS_RANKS:
        found |= {(line, f"only {READS_RANKS} reads {name}") for line, name in rank_variables(tree)}
    return [f"line {line}: {fault}" for line, fault in sorted(found)]


def lines_of_tensors_alone(tree: ast.Module) -> set[tuple[str, int]]:
    """Calls of torch.load that read nothing but tensors, each with its line."""
    return {
        ("torch.load", node.func.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and full_name(node.func, {"torch": "torch"}) == "torch.load"
        and any(one.arg == "weights_only" and getattr(one.value, "value", None) is True for one in node.keywords)
    }


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def used_names(tree: ast.Module, package: str) -> Iterator[tuple[int, str]]:
    """Dotted names that are imported or reached through what was imported; `.name` for attributes of anything else."""
    full_names: dict[str, str] = {}  # of the local names that imports bind
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                full_names[alias.asname or top] = alias.name if alias.asname else top
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            origin = absolute(node, package)
            for alias in node.names:
                full_names[alias.asname or alias.name] = f"{origin}.{alias.name}"
                yield node.lineno, f"{origin}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.lineno, full_name(node, full_names)
        elif isinstance(node, ast.Call) and full_name(node.func, full_names) in (
            "importlib.import_module",
            "__import__",
        ):
            yield from ((node.lineno, str(name.value)) for name in node.args[:1] if isinstance(name, ast.Constant))


def absolute(node: ast.ImportFrom, package: str) -> str:
    """The module that `from ... import` names, relative to `package` if it begins with dots."""
    if not node.level:
        return node.module or ""
    parents = package.split(".")[: len(package.split(".")) - (node.level - 1)]
    return ".".join([*parents, *([node.module] if node.module else [])])


def full_name(node: ast.expr, full_names: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return full_names.get(node.id, "__import__" if node.id == "__import__" else "")
    if isinstance(node, ast.Attribute):
        return f"{full_name(node.value, full_names)}.{node.attr}"
    return ""


def rank_variables(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Mentions of the rank environment, other than to set it, as one does for a child process."""
    sets = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            sets |= set(node.keys)
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            sets.add(node.slice)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in RANK_VARIABLES and node not in sets:
            yield node.lineno, str(node.value)


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_the_rules_name_all_of_launch():
    assert {path.stem for path in (ROOT / "launch").iterdir() if not path.name.startswith("__")} == set(LAUNCH)


def test_the_rules_name_all_methods():
    names = {path.stem for path in (ROOT / "lp" / "methods").iterdir() if not path.name.startswith("__")}
    assert names == {*SLICES, *SHARED, "registry"}


def test_there_are_sources_to_check():
    assert {"lp", "parallel", "launch"} <= {module_of(path).partition(".")[0] for path in SOURCES}


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_source_keeps_the_rules(path: Path):
    found = faults(path.read_text(encoding="utf-8"), module_of(path), is_package=path.name == "__init__.py")
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("lp.engine.engine", "import parallel"),
        ("lp.drafting.simple", "from lp.model.causal import CausalModel"),
        ("lp.drafting.simple", "from lp.methods.auto.method import Auto"),
        ("lp.scheduling.planner", "from lp.methods.registry import METHODS"),
        ("lp.engine.engine", "from lp.methods.beam import Beam"),
        ("lp.methods.jacobi", "from lp.methods.lookahead import Lookahead"),
        ("lp.methods.medusa", "from lp.scheduling.planner import plan_together"),
        ("lp.methods.draft_model.method", "from lp.methods.auto.decoder import AutoDecoder"),
        ("lp.model.causal", "from lp.drafting.history import DraftHistory"),
        ("lp.kv_cache.arena", "from lp.model.causal import CausalModel"),
        ("lp.model.compilation", "def late():\n    import lp.engine"),
        ("parallel.comm.channel", "from parallel.runners.lookahead import LookaheadParallel"),
        ("parallel.comm.channel", "from lp.request import Request"),
        ("launch.server.run", "from launch.sweep.points import make_points"),
        ("launch.server.run", "import ray"),
        ("lp.engine.engine", "from parallel.mesh import Mesh"),
        ("lp.engine.engine", "from launch import serve"),
        ("lp.engine.engine", "def late():\n    import launch.serve"),
        ("lp.engine.engine", "import torch.distributed as dist"),
        ("lp.engine.engine", "from torch import distributed"),
        ("lp.engine.engine", "import torch\ntorch.distributed.barrier()"),
        ("lp.engine.engine", "import torch as t\nt.distributed.barrier()"),
        ("lp.engine.engine", "import hydra"),
        ("lp.engine.engine", "from omegaconf import OmegaConf"),
        ("lp.engine.engine", "import ray.util"),
        ("lp.engine.engine", "from fastapi import FastAPI"),
        ("lp.engine.engine", "import uvicorn"),
        ("lp.engine.engine", "import importlib\nimportlib.import_module('launch.serve')"),
        ("lp.engine.engine", "__import__('ray')"),
        ("parallel.runner", "from launch.serve import app"),
        ("parallel.runner", "import hydra.core"),
        ("parallel.runner", "import ray"),
        ("parallel.runner", "import fastapi"),
        ("launch.serve", "import pickle"),
        ("launch.serve", "from pickle import loads"),
        ("demo.train", "import torch\ntorch.load('weights.pt')"),
        ("lp.model.weights", "from torch import load"),
        ("parallel.runner", "import torch.distributed as dist\ndist.all_gather_object(out, mine)"),
        ("parallel.runner", "from torch.distributed import broadcast_object_list"),
        ("parallel.runner", "self.group.scatter_object_list(out, mine)"),
        ("parallel.runner", "import os\nrank = int(os.environ['RANK'])"),
        ("launch.serve", "import os\nrank = os.environ.get('LOCAL_RANK', 0)"),
        ("launch.serve", "from os import getenv\nalone = getenv('WORLD_SIZE') is None"),
        ("launch.serve", "import os\nif 'MASTER_ADDR' in os.environ: pass"),
        ("lp.engine.engine", "import os\nport = dict(os.environ).pop('MASTER_PORT')"),
        ("parallel.runner", "import torch.distributed as dist\ndist.init_process_group('gloo', init_method='env://')"),
    ],
)
def test_breach_is_found(module: str, source: str):
    last = source.count("\n") + 1
    assert any(fault.startswith(f"line {last}: ") for fault in faults(source, module)), source


def test_breach_by_relative_import_is_found():
    assert faults("from ..launch import serve", "parallel.runner") == faults(
        "from launch import serve", "parallel.runner"
    )


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("lp.engine.engine", "import torch\nfrom lp.tree import TokenTree\nfrom .window import Window"),
        ("lp.methods.auto.decoder", "from lp.drafting.history import DraftHistory\nfrom lp.tree import TokenTree"),
        ("lp.engine.engine", "import raylib, parallelism, hydraulics"),
        ("lp.engine.engine", "'''Knows nothing of RANK, pickle or torch.distributed.'''"),
        ("parallel.mesh", "import os\nrank = int(os.environ['RANK'])"),
        (
            "parallel.runner",
            "import torch.distributed as dist\nfrom lp import Engine\ndist.all_gather_into_tensor(a, b)",
        ),
        ("launch.serve", "import hydra, fastapi, ray\nfrom parallel.mesh import Mesh"),
        ("launch.demo", "import os\nchild = {**os.environ, 'MASTER_PORT': '0'}\nchild['RANK'] = '1'"),
        ("lp.model.weights", "from safetensors.torch import load_file\nload_file('weights.safetensors')"),
    ],
)
def test_what_is_allowed_passes(module: str, source: str):
    assert faults(source, module) == []


def test_relative_imports_are_resolved():
    def names(source: str, module: str, is_package: bool = False) -> list[str]:
        package = module if is_package else module.rpartition(".")[0]
        return [name for _, name in used_names(ast.parse(source), package)]

    assert names("from . import tree", "lp.engine") == ["lp.tree"]
    assert names("from . import tree", "lp", is_package=True) == ["lp.tree"]
    assert names("from ..tree import TokenTree", "lp.kv_cache.cache") == ["lp.tree.TokenTree"]
