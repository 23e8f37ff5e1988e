"""Records every step of every method, and compares two records: the safety net of a rewrite.

    python -m benchmarks.decisions record OUT.json [--quick] [--checkout DIR] [--parts lp1,tp2] [--prompts FILE ...]
    python -m benchmarks.decisions compare BEFORE.json AFTER.json

A record holds, for every method, greedy and at T = 0.8 with a seed, on 1, 2 and 4 lookahead-parallel ranks, on two
tensor-parallel ranks and on two pipeline stages: the text, the tokens, the size of each step's tree and the tokens that
each step accepted; and for whole workloads the bytes that each rank sent, also with several requests in a step.

The code under test runs in processes of its own, from `--checkout`, and is reached by its commands, HTTP and files
alone, so that one script records the code of before and of after. Decisions depend on step times, which are measured;
so the files of measured times in a private cache are overwritten with one frozen curve. Scaling all times by a power of
two changes no decision, so the curve is scaled to the speed of the machine, where it would otherwise be measured again.
Where that happens all the same, on a machine that is busy, the part is run again. Nothing else that is recorded depends
on the clock.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ATTEMPTS = 5
START_WITHIN_S, ANSWER_WITHIN_S = 240.0, 300.0
# Hidden size and vocabulary of each model, for heads that are made for it; layers of it that draft.
MODELS = {"demo": (384, 4096, 2), "smollm2": (576, 49152, 6)}
PROMPTS = [
    "def fibonacci(n):\n    ",
    "import math\n\nclass Circle:\n    def __init__(self, radius):\n        self.radius = radius\n\n    def area(self)",
]
SAMPLED = {"temperature": 0.8, "seed": 7}

# What a request says of its method, by the name of the configuration.
OWN = {"method": "auto", "model_drafts": False}
METHODS: dict[str, dict[str, Any]] = {
    "autoregressive": {"method": "autoregressive"},
    "jacobi": {"method": "jacobi", "window": 8},
    "jacobi-auto": {"method": "jacobi", "window": "auto"},
    "prompt_lookup": {"method": "prompt_lookup"},
    "lookahead": {"method": "lookahead"},
    "lookahead-15-5-15": {"method": "lookahead", "window": 15, "guesses": 15},
    "auto": OWN,
    "auto-16-rows": {**OWN, "rows": 16},
    "auto-second-model": {"method": "auto"},
    "draft_model": {"method": "draft_model"},
    "draft_model-rejection": {"method": "draft_model", "verify": "rejection"},
    "medusa": {"method": "medusa"},
    "medusa-typical": {"method": "medusa", "verify": "typical", "exact": False},
    "beam": {"method": "beam", "num_beams": 3},
    "beam-best-first": {
        "method": "beam", "num_beams": 2, "best_first": True, "length_penalty": 0.0, "early_stopping": "never"
    },
    "best_of": {"method": "best_of", "num_samples": 3},
    "contrastive": {"method": "contrastive", "amateur_temperature": 1.5},
    "json-schema": OWN,
}  # fmt: skip
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "n": {"enum": [1, 2]}}}
SCHEMA |= {"required": ["name", "n"], "additionalProperties": False}
QUICK_METHODS = ("autoregressive", "lookahead", "auto", "auto-16-rows", "draft_model", "medusa", "beam")
# Methods whose steps are costly; they answer one prompt.
COSTLY = ("beam", "beam-best-first", "best_of", "contrastive")
# Methods of several texts at a time, which are not streamed: their steps are counted and not shown.
RANKED = ("beam", "beam-best-first", "best_of")
# What is counted of all steps of a request.
COUNTS = ("tokens", "steps", "rows_per_step", "accepted_lengths", "proposed", "accepted")


class Part(NamedTuple):
    """Ranks, and what they run. rests: whether the curve lets one rank compute a small step. methods: None is all."""

    ranks: int
    settings: tuple[str, ...]
    rests: bool = False
    methods: tuple[str, ...] | None = None


PARTS = {
    "lp1": Part(1, ()),
    "lp2": Part(2, ("parallel=lp",)),
    "lp4": Part(4, ("parallel=lp",)),
    "tp2": Part(2, ("parallel=tp",)),
    "pp2": Part(2, ("parallel=pp",)),
    # On two ranks where a step of few rows is quicker on one: kept apart, for it is the runner's choice.
    "rest2": Part(2, ("parallel=lp",), True, ("autoregressive", "lookahead", "auto")),
}
QUICK_PARTS = ("lp1", "lp2", "tp2", "pp2", "sent")


class Workload(NamedTuple):
    """A run of `bench`. concurrency: requests in flight. counts: whether bytes and rows count, not only texts."""

    ranks: int
    settings: tuple[str, ...]
    concurrency: int = 1
    counts: bool = True


WORKLOADS = {
    "lookahead lp2": Workload(2, ("parallel=lp", "decode=lookahead")),
    "auto-16-rows lp2": Workload(2, ("parallel=lp", "decode=auto", "decode.rows=16")),
    "auto-16-rows lp4": Workload(4, ("parallel=lp", "decode=auto", "decode.rows=16")),
    "auto tp2": Workload(2, ("parallel=tp", "decode=auto")),
    "auto pp2": Workload(2, ("parallel=pp", "decode=auto")),
    "auto lp1, three requests": Workload(1, ("parallel=single", "decode=auto"), 3),
    "auto lp2, three requests": Workload(2, ("parallel=lp", "decode=auto"), 3),
    "auto dp2, three requests": Workload(2, ("parallel=dp", "decode=auto"), 3, counts=False),
}
QUICK_WORKLOADS = ("lookahead lp2", "auto tp2", "auto lp1, three requests")


def main() -> int:
    """Exit code 0; 1 if two records differ, or if a part could not be recorded."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.decisions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record", help="run every configuration and write what it decided")
    record.add_argument("out", type=Path)
    record.add_argument("--checkout", type=Path, default=Path.cwd(), help="the code under test (default: this folder)")
    record.add_argument("--model", choices=MODELS, help="default: smollm2, or demo with --quick")
    record.add_argument("--quick", action="store_true", help="the demo model and fewer configurations")
    record.add_argument("--parts", help=f"out of {','.join([*PARTS, 'sent'])}; default: all")
    record.add_argument("--methods", help=f"out of {','.join(METHODS)}; default: all")
    record.add_argument(
        "--prompts", nargs="+", type=Path, default=[], help="JSONL files; the first prompt of each is used"
    )
    record.add_argument("--max-new-tokens", type=int, default=12)
    record.add_argument("--cache", type=Path, help="kept between records; default: a folder for each checkout")
    compare = commands.add_parser("compare", help="print what differs between two records")
    compare.add_argument("before", type=Path)
    compare.add_argument("after", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "compare":
        records = [json.loads(path.read_text(encoding="utf-8")) for path in (arguments.before, arguments.after)]
        differences = list(differing(*records))
        print(*differences, sep="\n")
        common = len(records[0]["decisions"].keys() & records[1]["decisions"].keys())
        print(f"{len(differences)} differences; {common} configurations are in both records")
        return int(bool(differences) or not common)
    return Recorder(arguments).record()


# -- Comparison --------------------------------------------------------------------------------------------------------


def differing(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """A line for each configuration that differs. Configurations that one record lacks are named, too."""
    for name in ("model", "prompts", "max_new_tokens"):
        if before[name] != after[name]:
            yield f"the records are of different {name}: {before[name]} and {after[name]}"
    one, other = before["decisions"], after["decisions"]
    for key in [*one, *(key for key in other if key not in one)]:
        if key not in one or key not in other:
            yield f"{key}: only in the record of {'before' if key in one else 'after'}"
        elif one[key] != other[key]:
            fields = [name for name in one[key] | other[key] if one[key].get(name) != other[key].get(name)]
            yield f"{key}: {'; '.join(_shown(name, one[key].get(name), other[key].get(name)) for name in fields)}"


def _shown(name: str, one: Any, other: Any) -> str:
    if isinstance(one, list) and isinstance(other, list):
        at = next((i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
        if at is None:
            return f"{name} has {len(one)} -> {len(other)} entries"
        return f"{name}[{at}] {_short(one[at])} -> {_short(other[at])}"
    return f"{name} {_short(one)} -> {_short(other)}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


# -- Recording ---------------------------------------------------------------------------------------------------------


class Recorder:
    """Records one checkout."""

    def __init__(self, arguments: argparse.Namespace):
        self._checkout = arguments.checkout.resolve()
        self._model = arguments.model or ("demo" if arguments.quick else "smollm2")
        self._num_tokens = arguments.max_new_tokens
        self._quick, self._out = arguments.quick, arguments.out
        parts = QUICK_PARTS if self._quick else (*PARTS, "sent")
        self._parts = arguments.parts.split(",") if arguments.parts else list(parts)
        methods = QUICK_METHODS if self._quick else tuple(METHODS)
        self._methods = tuple(arguments.methods.split(",")) if arguments.methods else methods
        if unknown := ({*self._parts} - {*PARTS, "sent"}) | ({*self._methods} - {*METHODS}):
            raise SystemExit(f"unknown: {', '.join(sorted(unknown))}")
        self._prompts = [_first_prompt(path) for path in arguments.prompts] or PROMPTS
        name = hashlib.sha256(str(self._checkout).encode()).hexdigest()[:12]
        root = Path(tempfile.gettempdir()) / "lookahead-decisions"
        self._cache = arguments.cache or root / name
        self._cache.mkdir(parents=True, exist_ok=True)
        for kind in ("gguf", "packages"):  # the unpacked model is large
            (root / kind).mkdir(parents=True, exist_ok=True)
            if not (self._cache / kind).exists():
                (self._cache / kind).symlink_to(root / kind)
        self._log = self._cache / "last.log"
        self._workload = self._cache / "workload.jsonl"
        lines = [json.dumps({"id": str(number), "prompt": text}) for number, text in enumerate(self._prompts)]
        self._workload.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def record(self) -> int:
        """Writes the record. Returns the exit code."""
        found: dict[str, Any] = {}
        with open(self._cache / "in-use", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another record would freeze its own curve in the same files
            self._heads = _make_heads(self._model, self._cache / f"heads-{self._model}")
            for part in self._parts:
                began = time.monotonic()
                runs = self._all_sent() if part == "sent" else self._serve(PARTS[part], part)
                found |= runs
                print(f"{part}: {len(runs)} configurations in {time.monotonic() - began:.0f} s", flush=True)
        digests = [hashlib.sha256(prompt.encode()).hexdigest()[:12] for prompt in self._prompts]
        record = {"model": self._model, "prompts": digests, "max_new_tokens": self._num_tokens, "decisions": found}
        self._out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        failed = [name for name, run in found.items() if "failed" in run]
        print(
            f"{len(found)} configurations in {self._out}",
            *(f"FAILED {name}: {found[name]['failed']}" for name in failed),
            sep="\n",
        )
        return int(bool(failed))

    def _frozen(self, is_resting: bool, run: Callable[[Callable[[], bool]], Any]) -> Any:
        """Runs something with the frozen curve, again as long as step times were measured meanwhile.

        run: gets a function that says whether the curve is still the frozen one. It may return None if it is not.
        """
        for _ in range(ATTEMPTS):
            frozen = freeze(self._cache / "step-times", is_resting)

            def holds(frozen: dict[str, str] = frozen) -> bool:
                return frozen == _contents(self._cache / "step-times")

            result = run(holds)
            if holds() and result is not None:
                return result
        raise SystemExit(f"step times were measured anew {ATTEMPTS} times: is the machine very busy? See {self._log}")

    # -- a server, which is asked for every method --

    def _serve(self, part: Part, name: str) -> dict[str, Any]:
        return self._frozen(part.rests, lambda holds: self._serve_once(part, name, holds))

    def _serve_once(self, part: Part, name: str, holds: Callable[[], bool]) -> dict[str, Any] | None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        settings = [
            *self._common(), *part.settings, "launcher=torchrun", f"server.port={port}", "scheduler.prefix_reuse=off",
            f"draft.layers={MODELS[self._model][2]}", f"model.heads={self._heads}",
        ]  # fmt: skip
        if name == "pp2":  # neither second models nor heads run on stages
            settings = [setting for setting in settings if not setting.startswith(("draft.", "model.heads"))]
        with self._started("serve", part.ranks, settings) as process:
            server = f"http://127.0.0.1:{port}"
            if not _is_ready(server, process):
                return {f"{name} server": {"failed": _tail(self._log)}}
            if not holds():
                return None
            found = {}
            for method in part.methods or self._methods:
                if method not in self._methods:
                    continue
                for is_sampled in (False, True):
                    prompts = self._prompts[:1] if method in COSTLY else self._prompts
                    for number, prompt in enumerate(prompts):
                        key = f"{name} {method} {'T=0.8' if is_sampled else 'greedy'} prompt {number}"
                        found[key] = self._ask(server, prompt, method, is_sampled)
            return found

    def _ask(self, server: str, prompt: str, method: str, is_sampled: bool) -> dict[str, Any]:
        sampling = SAMPLED if is_sampled else {"temperature": 0.0, "seed": 7}
        body: dict[str, Any] = {"prompt": prompt, "max_tokens": self._num_tokens, "decode": METHODS[method], **sampling}
        body |= {"ignore_eos": method != "json-schema"}
        if method not in RANKED:
            body |= {"stream": True, "lookahead_trace": True}
        body |= {"top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0}
        if method == "json-schema":
            body |= {"response_format": {"type": "json_schema", "json_schema": {"name": "pair", "schema": SCHEMA}}}
            body["max_tokens"] = 2 * self._num_tokens
        try:
            chunks = list(_stream(f"{server}/v1/completions", body))
        except urllib.error.HTTPError as error:
            return {"refused": error.code}
        except (OSError, ValueError) as error:
            return {"failed": f"{error}; {_tail(self._log)}"}
        if method in RANKED:
            counts = _find(chunks[0], "accepted_lengths") or {}
            texts = [choice["text"] for choice in chunks[0]["choices"]]
            return {"texts": texts, **{name: counts.get(name) for name in COUNTS}}
        steps = [step for chunk in chunks if (step := _find(chunk, "emitted"))]
        texts = [choice for chunk in chunks for choice in chunk.get("choices") or []]
        return {
            "text": "".join(choice.get("text") or "" for choice in texts),
            "reason": next((choice["finish_reason"] for choice in texts if choice.get("finish_reason")), None),
            "tokens": [token for step in steps for token in step["emitted"]],
            "tree_sizes": [len(step["tokens"]) for step in steps],
            "accepted": [step["emitted"] for step in steps],
            "windows": [step.get("window") for step in steps],
        }

    # -- workloads, whose ranks count what they send --

    def _all_sent(self) -> dict[str, Any]:
        names = QUICK_WORKLOADS if self._quick else tuple(WORKLOADS)
        return {
            f"sent {name}": self._frozen(False, lambda holds, name=name: self._sent(WORKLOADS[name])) for name in names
        }

    def _sent(self, workload: Workload) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="lookahead-decisions-") as folder:
            settings = [
                *self._common(), *workload.settings, f"parallel.ranks={workload.ranks}", "rounds=1", "baselines=[]",
                "workload=own", f"workload.path={self._workload}", f"workload.max_new_tokens={self._num_tokens}",
                f"concurrency={workload.concurrency}", f"output={folder}/out",
            ]  # fmt: skip
            command = [sys.executable, str(self._checkout / "launch" / "bench.py"), *settings]
            with self._log.open("w") as log:
                subprocess.run(command, env=self._environment(), cwd=folder, stdout=log, stderr=log, check=False)
            runs = list(_runs(Path(folder) / "out"))
        if not runs or runs[-1]["status"] != "done":
            return {"failed": runs[-1]["error"] if runs else _tail(self._log)}
        run = runs[-1]  # before it, `bench` measures plain decoding on one rank
        found: dict[str, Any] = {"texts": [text["digest"] for text in run["texts"]]}
        if workload.counts:
            found |= {"steps": [text["steps"] for text in run["texts"]], "rows": run["rows"]}
            found |= {"accepted_lengths": run["accepted_lengths"]}
            found |= {"bytes_sent": [rank["bytes_sent"] for rank in run["ranks"]]}
        return found

    # -- processes --

    def _common(self) -> list[str]:
        common = [f"model={self._model}", "model.dtype=float32", "index=off", "parallel.pin=false"]
        measuring = self._checkout / "lp" / "runner" / "step_times" / "measure.py"
        if measuring.is_file() and 'fixed = "fixed"' in measuring.read_text(encoding="utf-8"):
            common.append("step_times=fixed")  # before, nothing was learnt from served steps
        return common

    def _environment(self) -> dict[str, str]:
        own = {"PYTHONPATH": str(self._checkout), "LOOKAHEAD_CACHE": str(self._cache), "OMP_NUM_THREADS": "1"}
        return {**os.environ, **own, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}

    @contextlib.contextmanager
    def _started(self, program: str, ranks: int, settings: list[str]) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable]
        if ranks > 1:
            command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        command += [str(self._checkout / "launch" / f"{program}.py"), *settings]
        with self._log.open("w") as log:
            process = subprocess.Popen(command, env=self._environment(), stdout=log, stderr=log, start_new_session=True)
            try:
                yield process
            finally:
                process.terminate()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def _runs(folder: Path) -> Iterator[dict[str, Any]]:
    """What `bench` has measured: the objects with a status in its files of JSON lines."""
    for path in sorted(folder.glob("**/*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if isinstance(value := json.loads(line), dict) and "status" in value and "texts" in value:
                yield value


def _first_prompt(path: Path) -> str:
    with path.open(encoding="utf-8") as lines:
        values = json.loads(next(lines))
    return values["prompt"] if "prompt" in values else values["turns"][0]


def _is_ready(server: str, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + START_WITHIN_S
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{server}/v1/models", timeout=5):
            return True
        time.sleep(0.2)
    return False


def _stream(address: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    data = json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=ANSWER_WITHIN_S) as reply:
        if "event-stream" not in reply.headers["Content-Type"]:
            yield json.load(reply)
        for line in reply:
            if line.startswith(b"data:") and b"[DONE]" not in line:
                chunk = json.loads(line[5:])
                if "error" in chunk:
                    raise ValueError(json.dumps(chunk["error"]))
                yield chunk


def _find(value: dict[str, Any], key: str) -> dict[str, Any] | None:
    """The object inside a reply that has a key, wherever it lies."""
    if key in value:
        return value
    for inner in value.values():
        for element in inner if isinstance(inner, list) else [inner]:
            if isinstance(element, dict) and (found := _find(element, key)):
                return found
    return None


def _tail(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "rror" in line]
    return " | ".join((errors or lines)[-2:])


def _make_heads(model: str, folder: Path) -> Path:
    """Medusa heads of small random blocks, always the same, in the format of the published ones."""
    if not folder.exists():
        import torch
        from safetensors.torch import save_file

        size, vocabulary, _ = MODELS[model]
        generator, weights = torch.Generator().manual_seed(0), {}
        for head in range(3):
            weights[f"{head}.0.linear.weight"] = torch.randn(size, size, generator=generator) * 0.02 * head
            weights[f"{head}.0.linear.bias"] = torch.zeros(size)
        config = {"hidden_size": size, "vocab_size": vocabulary, "num_heads": 3, "num_layers": 1, "shares_output": True}
        folder.mkdir()
        save_file(weights, folder / "heads.safetensors")
        (folder / "config.json").write_text(json.dumps({"kind": "medusa", **config}), encoding="utf-8")
    return folder


# -- The frozen curve --------------------------------------------------------------------------------------------------

ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
# Seconds that the curve does not show. What is not named here is 0, also copies from one rank to another.
EXTRAS = {
    "host_step": 12e-6, "host_row": 0.7e-6, "sampled_step": 70e-6, "sampled_row": 4e-6, "greedy_plain": -20e-6,
    "sampled_plain": 40e-6, "greedy_plain_row": -7e-6, "sampled_plain_row": -3e-6, "sequence": 150e-6,
    "thousand_cached": 600e-6,
}  # fmt: skip


def curve_s(rows: int, num_parts: int, is_alone: bool = False, is_resting: bool = False) -> float:
    """Seconds of a step by its rows, before scaling, as a processor has them: flat at first, then a straight line.

    A shared step is the quicker one at any size, unless ranks rest, where it is from some 16 rows on.
    """
    if is_alone:
        return (2.0 if is_resting else 4.0) * 1e-3 + 170e-6 * max(0, rows - 4)
    share = -(-rows // num_parts)
    return (2.6 if num_parts > 1 else 2.0) * 1e-3 + 170e-6 * max(0, share - 4)


def freeze(folder: Path, is_resting: bool) -> dict[str, str]:
    """Overwrites all measured step times with the frozen curve, scaled to their speed by a power of two.

    Returns the contents of the files by their names.
    """
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        values = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(_frozen_values(values, is_resting)), encoding="utf-8")
    return _contents(folder)


def _frozen_values(values: dict[str, Any], is_resting: bool) -> dict[str, Any]:
    parts = values["num_parts"]
    scale = 2.0 ** round(math.log2(values["seconds"][0] / curve_s(values["rows"][0], parts)))
    frozen = {**values, "rows": list(ROWS), "seconds": [scale * curve_s(rows, parts) for rows in ROWS]}
    if values.get("alone"):
        alone = [scale * curve_s(rows, 1, is_alone=True, is_resting=is_resting) for rows in ROWS]
        extras = dict.fromkeys(values["alone"].get("extras", {}), 0.0)
        frozen["alone"] = {**values["alone"], "rows": list(ROWS), "seconds": alone, "extras": extras}
    frozen["extras"] = {name: scale * EXTRAS.get(name, 0.0) for name in values.get("extras", {})}
    return frozen


def _contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.json")} if folder.is_dir() else {}


if __name__ == "__main__":
    sys.exit(main())
