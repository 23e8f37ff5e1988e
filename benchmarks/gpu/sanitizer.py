"""Runs a small model's steps under compute-sanitizer, which finds reads and writes outside of what was allocated.

It is an item of benchmarks.gpu, which starts it. Where compute-sanitizer is not installed, it says so and ends well.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

# Where CUDA's own installation has it.
USUAL = ("/usr/local/cuda/bin/compute-sanitizer", "/usr/local/cuda/compute-sanitizer/compute-sanitizer")
SMALL = """
from benchmarks.shared.filled_cache import fill_cache
from benchmarks.steps.measured_model import make_measured
from benchmarks.steps.step_curve import make_tree
from benchmarks.steps.variants import ModelVariant, make_variant
from lp.model.compilation import CompileMode
from lp.model.kernels import AttentionKind
from lp.tree import chain

with make_measured("demo/python-11m", "bfloat16", "{device}", 600, 2400, 1) as (checkpoint, folder):
    model = make_variant(ModelVariant(AttentionKind.auto, CompileMode("{mode}")), checkpoint.model, folder)
    for cached in (1, 255, 300):
        cache = fill_cache(model, cached, 16)
        for rows in (1, 5, 16):
            model.forward(make_tree(model, rows), cache, rows)
    print("finite:", bool(model.forward(make_tree(model, 16), cache, 16).isfinite().all()))
"""


def run() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", required=True)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    found = shutil.which("compute-sanitizer") or next((path for path in USUAL if Path(path).exists()), None)
    is_on_gpu = arguments.device == "cuda"
    script = SMALL.format(device=arguments.device, mode="on" if is_on_gpu else "off")
    command = [sys.executable, "-c", script]
    if found is not None and is_on_gpu:
        command = [found, "--tool", "memcheck", "--error-exitcode", "7", *command]
    done = subprocess.run(command, capture_output=True, text=True)
    output = done.stdout + done.stderr
    if done.returncode or "finite: True" not in output:
        print(output)
        raise SystemExit(f"the steps failed (exit code {done.returncode})")
    errors = re.search(r"ERROR SUMMARY: (\d+) errors", output)
    summary = f"{errors[1]} errors" if errors else "steps ran; compute-sanitizer was not run, as it is not here"
    (arguments.output / "sanitizer.json").write_text(json.dumps({"summary": summary}), encoding="utf-8")


if __name__ == "__main__":
    run()
