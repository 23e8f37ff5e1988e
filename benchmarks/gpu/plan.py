"""The items of each stage: what is run on a GPU, in what order, and for how long at most."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
TESTS = CHECKOUT / "tests/gpu"
# In an item's command, stands for an empty folder for its result files.
FOLDER = "{folder}"
STAGES = {
    "right": "Is it right: float32 text, graphs against eager, two ranks on one GPU, memory errors",
    "speed": "The time of a step: 7B and 8B shapes at 1k and 16k cached tokens, measured bandwidth and floor",
    "attention": "What attention costs, by cached tokens, for prompts and of each kind, and the cost of sampling",
    "texts": "Tokens per step, and texts in half precision",
}
# Rows of a step that are measured, and cached tokens.
ROWS, CACHED = "1,4,16,64,128", "1024,16384"
# Rows of the products that are measured.
PRODUCT_ROWS, PACKED_ROWS = "1,2,4,8,16,32,64,128", "1,4,16,32,64,128"
# Sequences of a packed step that is measured.
SEQUENCES = "1,4,16,64"
# The shapes whose steps are measured.
SPEED_SHAPES = ("llama-3.1-8b", "qwen2.5-7b", "gemma-2-9b")


@dataclass(frozen=True)
class Item:
    """One thing to run, in a process of its own.

    command: what follows the Python interpreter. limit_s: seconds after which the process is stopped. needs: a module
    without which it is left out; empty if there is none.
    """

    name: str
    command: tuple[str, ...]
    limit_s: float
    needs: str = ""


def items_of(stage: str, model: str, dry_run: bool) -> list[Item]:
    """The items of a stage, the most telling ones first.

    model: the checkpoint of the stage `texts`. dry_run: tiny versions of the same items, for a machine without a GPU.
    """
    made = {"right": _tests, "speed": _shapes, "attention": _attention, "texts": _texts}[stage]
    return made(model, dry_run)


def read_plan(path: Path) -> list[Item]:
    """Items of the user's own: a JSON list of {"name": ..., "command": [...], "seconds": ..., "needs": ...}, of which
    "needs" may be missing. Raises ValueError.
    """
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        items = [
            Item(
                str(one["name"]),
                tuple(map(str, one["command"])),
                float(one["seconds"]),
                str(one.get("needs", "")),
            )
            for one in entries
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"--plan {path} cannot be used ({type(error).__name__}: {error}): it must be a JSON list of "
            '{"name": "...", "command": ["-m", "..."], "seconds": 60}'
        ) from None
    if len({item.name for item in items}) < len(items):
        raise ValueError(f"--plan {path}: every item needs a name of its own")
    return items


def _tests(model: str, dry_run: bool) -> list[Item]:
    """A file of tests each. Without a GPU they run on the emulated one, and only some of them."""
    first = ("test_cuda", "test_graphs", "test_shared_gpu")
    # Most of its time is that of Triton's compiler, which has one core for each process.
    workers = {"test_packed_weights": ["-n", "8"]} if find_spec("xdist") and not dry_run else {}
    files = sorted(TESTS.glob("test_*.py"), key=lambda path: (path.stem not in first, path.stem))
    some = {"test_graphs": ["-k", "(models_own and 4-64-257) or reused"]}
    tests = [
        Item(
            path.stem.removeprefix("test_"),
            ("-m", "pytest", "-q", "-o", f"cache_dir={FOLDER}/cache", f"--junitxml={FOLDER}/tests.xml",
             *(["--emulated-gpu", *some[path.stem]] if dry_run else []), *workers.get(path.stem, []),
             str(path.relative_to(CHECKOUT))),
            60 if dry_run else 150,
        )
        for path in files
        if not dry_run or path.stem in some
    ]  # fmt: skip
    sanitizer = ("-m", "benchmarks.gpu.sanitizer", "--device", _device(dry_run), "--output", FOLDER)
    return [*tests, Item("memory errors", sanitizer, 60 if dry_run else 180)]


def _shapes(model: str, dry_run: bool) -> list[Item]:
    if dry_run:
        return [
            _steps("tiny", "demo/python-11m", "auto", "64", dry_run, 60, "--compile", "off"),
            _steps("tiny, int4", "demo/python-11m", "auto", "64", dry_run, 60, "--compile", "off", "--weights", "int4"),
            _products("tiny, products", "demo/python-11m", dry_run, 60),
            _packed("tiny, many sequences", "demo/python-11m", dry_run, 60),
        ]
    shapes = [_steps(shape, shape, "auto", CACHED, dry_run, 130, "--compile", "on") for shape in SPEED_SHAPES]
    products = _products(f"{SPEED_SHAPES[0]}, products", SPEED_SHAPES[0], dry_run, 90)
    many = _packed(f"{SPEED_SHAPES[0]}, many sequences", SPEED_SHAPES[0], dry_run, 110)
    without = _steps(f"{SPEED_SHAPES[0]}, no graphs", SPEED_SHAPES[0], "auto", "1024", dry_run, 90, "--compile", "off")
    options = ("--compile", "on", "--weights", "int4")
    int4 = _steps(f"{SPEED_SHAPES[0]}, int4", SPEED_SHAPES[0], "auto", "1024", dry_run, 130, *options)
    return [*shapes[:1], int4, *shapes[1:], products, many, without]


def _attention(model: str, dry_run: bool) -> list[Item]:
    kinds = ("two_part",) if dry_run else ("flash", "varlen", "sdpa")
    shape, cached, limit_s = ("demo/python-11m", "32,64", 60) if dry_run else ("llama-7b", "1024,4096,16384", 110)
    kind_items = [
        replace(
            _steps(f"attention {kind}", shape, kind, cached, dry_run, limit_s, "--compile", "off"),
            needs="flash_attn" if kind == "flash" else "",
        )
        for kind in kinds
    ]
    shapes = (shape,) if dry_run else (SPEED_SHAPES[0], SPEED_SHAPES[-1])
    prompts = [_prompts(f"prompts, {one}", one, dry_run, 60 if dry_run else 90) for one in shapes]
    rows, vocab, seconds = (["1", "2"], "300", "0.1") if dry_run else (["1", "16", "64", "128"], "32000", "6")
    command = ["-m", "benchmarks.sampling_cost", "--rows", *rows, "--vocab", vocab, "--seconds", seconds]
    command += ["--device", _device(dry_run), "--output", FOLDER]
    return [*prompts, *kind_items, Item("sampling", tuple(command), limit_s)]


def _texts(model: str, dry_run: bool) -> list[Item]:
    size = ["--limit", "1", "--max-new-tokens", "4"] if dry_run else ["--limit", "8", "--max-new-tokens", "64"]
    shared = ["--model", model, "--device", _device(dry_run), *size, "--output", FOLDER]
    limit_s = 60 if dry_run else 150
    dtypes = ["float32"] if dry_run else ["float32", "bfloat16"]
    return [
        *(
            Item(f"tokens per step, {dtype}", ("-m", "benchmarks.tokens_per_step", "--dtype", dtype, *shared), limit_s)
            for dtype in dtypes
        ),
        Item(
            "half precision",
            ("-m", "benchmarks.half_precision", *(["--dtypes", "bfloat16"] if dry_run else []), *shared),
            limit_s,
        ),
    ]


def _steps(name: str, shape: str, kind: str, cached: str, dry_run: bool, limit_s: float, *more: str) -> Item:
    rows, rounds, dtype = ("1,4", "1", "float32") if dry_run else (ROWS, "7", "bfloat16")
    small = ["--buffer-mb", "16"] if dry_run else []
    command = ["-m", "benchmarks.gpu.steps", "--config", shape, "--attention", kind, "--dtype", dtype]
    command += ["--device", _device(dry_run), "--cached", cached, "--rows", rows, "--rounds", rounds, *small, *more]
    return Item(name, (*command, "--output", FOLDER), limit_s)


def _packed(name: str, shape: str, dry_run: bool, limit_s: float) -> Item:
    rounds, dtype, cached, compiled = ("1", "float32", "16", "off") if dry_run else ("7", "bfloat16", "1024", "on")
    sequences = "1,4" if dry_run else SEQUENCES
    command = ["-m", "benchmarks.gpu.packed", "--config", shape, "--dtype", dtype, "--device", _device(dry_run)]
    command += ["--sequences", sequences, "--rows-each", "1,4", "--cached", cached, "--compile", compiled]
    return Item(name, (*command, "--rounds", rounds, "--output", FOLDER), limit_s)


def _products(name: str, shape: str, dry_run: bool, limit_s: float) -> Item:
    rows, dtype = ("1,4", "float32") if dry_run else (PRODUCT_ROWS, "bfloat16")
    command = ["-m", "benchmarks.gpu.products", "--config", shape, "--dtype", dtype, "--device", _device(dry_run)]
    packed = () if dry_run else ("--packed-rows", PACKED_ROWS)
    return Item(name, (*command, "--rows", rows, *packed, "--output", FOLDER), limit_s)


def _prompts(name: str, shape: str, dry_run: bool, limit_s: float) -> Item:
    rows, dtype, cached = ("16", "float32", ["0", "32"]) if dry_run else ("2048", "bfloat16", ["0", "2048", "16384"])
    command = ["-m", "benchmarks.gpu.prompts", "--config", shape, "--dtype", dtype, "--device", _device(dry_run)]
    return Item(name, (*command, "--rows", rows, "--cached", *cached, "--output", FOLDER), limit_s)


def _device(dry_run: bool) -> str:
    return "cpu" if dry_run else "cuda"
