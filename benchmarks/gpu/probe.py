"""What this machine has, as a line of JSON: driver, torch, CUDA, GPUs, libraries, operators' schemas, missing packages.

Imports nothing of this project but the list of packages, and torch only if it is there.
"""

from __future__ import annotations

import importlib
import inspect
import json
import platform
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

from benchmarks.gpu.plan import CHECKOUT
from benchmarks.gpu.wheels import missing_packages

PACKAGES = ("torch", "transformers", "triton", "flash_attn", "flash_attn_interface")
# What each operator must take so that a kind of attention, or a way to add up over ranks, can use it.
ARGUMENTS = {
    "aten::_flash_attention_forward": ("seqused_k", "block_table", "window_size_left"),
    "symm_mem::one_shot_all_reduce": ("reduce_op",),
    "symm_mem::one_shot_all_reduce_copy": ("local_input",),
    "symm_mem::two_shot_all_reduce_": ("reduce_op",),
}


def probe() -> dict[str, Any]:
    """All of it. Whatever fails is its message."""
    return {
        "python": platform.python_version(),
        "driver": _said(_driver),
        **{name: _said(lambda name=name: _version(name)) for name in PACKAGES},
        **_torch_facts(),
        "missing": missing_packages(CHECKOUT),
    }


def _torch_facts() -> dict[str, Any]:
    try:
        import torch
    except Exception as error:
        return {"gpus": [], "why_no_gpu": f"torch cannot be imported ({_one_line(error)})"}
    return {
        "cuda": torch.version.cuda,
        "cudnn": _said(lambda: torch.backends.cudnn.version()),
        "nccl": _said(
            lambda: (
                ".".join(map(str, importlib.import_module("torch.cuda.nccl").version())) if torch.version.cuda else None
            )
        ),
        **_gpus(torch),
        "schemas": {name: _said(lambda name=name: _takes(torch, name)) for name in ARGUMENTS},
        "varlen_attn": _said(_varlen_arguments),
    }


def _gpus(torch: Any) -> dict[str, Any]:
    """The GPUs; if there are none, why torch finds none, as it says when it is asked to use one."""
    try:
        torch.cuda.init()
    except Exception as error:  # such as a driver that is too old
        return {"gpus": [], "why_no_gpu": _one_line(error)}
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return {
        "gpus": [
            {
                "name": one.name,
                "capability": f"{one.major}.{one.minor}",
                "memory_gb": round(one.total_memory / 1e9, 1),
                "multiprocessors": one.multi_processor_count,
            }
            for one in found
        ]
    }


def _takes(torch: Any, name: str) -> str:
    """Which of the arguments that are looked for an operator takes."""
    taken = {argument.name for schema in torch._C._jit_get_schemas_for_operator(name) for argument in schema.arguments}
    if not taken:
        return "not there"
    return ", ".join(f"{wanted}: {'yes' if wanted in taken else 'NO'}" for wanted in ARGUMENTS[name])


def _varlen_arguments() -> str:
    function = importlib.import_module("torch.nn.attention.varlen").varlen_attn
    return ", ".join(inspect.signature(function).parameters)


def _version(name: str) -> str:
    module = importlib.import_module(name)
    return str(getattr(module, "__version__", "it has no version, so it may be a folder of that name"))


def _driver() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.memory", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout.strip()


def _said(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception as error:
        return f"none ({_one_line(error)})"


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


if __name__ == "__main__":
    print(json.dumps(probe()))
