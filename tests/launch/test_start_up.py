"""What the commands import: nothing heavy that they do not need before the first token."""

from __future__ import annotations

import subprocess
import sys

import pytest

import lp

# Libraries of some commands only. sympy, torch._dynamo and triton are not named, as transformers imports them itself.
ELSEWHERE = {
    "IPython", "datasets", "fastapi", "gguf", "httpx", "matplotlib", "pandas", "pydantic", "pytest", "ray",
    "rouge_score", "sklearn", "sse_starlette", "starlette", "tabulate", "tensorboard", "uvicorn",
}  # fmt: skip
WEB = {"fastapi", "pydantic", "sse_starlette", "starlette", "uvicorn"}
COMPILERS = ("torch._inductor.compile_fx", "torch._inductor.codecache", "torch._export.serde.serialize")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("modules", "allowed"),
    [("launch.generate, launch.tune, launch.bench, launch.supervisor.rank", set[str]()), ("launch.serve", WEB)],
)
def test_libraries_of_other_commands_are_not_imported(modules: str, allowed: set[str]) -> None:
    program = f"import sys, {modules}\nprint(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "torch" in found and "transformers" in found
    assert {name.partition(".")[0] for name in found} & (ELSEWHERE - allowed) == set()
    assert [name for name in COMPILERS if name in found] == []


def test_the_cache_is_listed_without_a_model() -> None:
    program = "import sys, launch.cache\nprint(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "lp.platform.disk_cache" in found
    assert {name.partition(".")[0] for name in found} & {"accelerate", "numpy", "torch", "transformers"} == set()


def test_every_public_name_of_lp_is_there() -> None:
    for name in lp.__all__:
        assert getattr(lp, name).__name__ == name
    assert set(lp.__all__) <= set(dir(lp))
    with pytest.raises(AttributeError, match="'lp' has no attribute 'Engin'"):
        lp.Engin  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
