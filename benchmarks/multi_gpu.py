"""Shows on several GPUs what each mode of parallelism gives: texts, exchanges, speed, lost ranks.

    torchrun --nproc-per-node 2 -m benchmarks.multi_gpu
    python -m benchmarks.multi_gpu --ray --ranks 4

Without GPUs the same runs on CPUs over gloo and shared memory. With --ray, on a node of a Ray cluster or in a job (ray
job submit), every rank is an actor with a GPU of its own, spread over the nodes. Each row passes, fails or was not run,
and says why; a row that fails does not stop the others. Rank 0 writes the table anew after each row. Exit status 1: a
row failed.

  exchange   the integers of a step between all ranks: shared memory, gloo, NCCL
  sums       all-reduces as tensor parallelism has them: gloo or NCCL, symmetric memory where GPUs reach one another
  text       float32 text by lp, tp, pp and lp x tp equals that of transformers' greedy `generate`
  prompt     a long prompt is computed by all ranks together
  speed      tokens a second of lp, tp, pp and lp x tp beside one rank, in --dtype
  lost rank  ranks are killed under load, and no stream is cut short (python -m benchmarks.rank_loss)
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed import PrefixStore, Store, is_torchelastic_launched
from transformers import AutoModelForCausalLM

from benchmarks.shared.options import add_output, make_parser, parse
from benchmarks.shared.report import markdown_table, publish
from lp import Auto, Autoregressive, Engine, Lookahead, Sampling, Stopping
from lp.engine.builder import EngineSettings
from lp.model.checkpoint import ModelSettings
from lp.request import DecodingMethod
from parallel.build import MeshTopology
from parallel.comm.connect import connect, connect_axis
from parallel.mesh import ExchangeKind, Mode, ParallelSettings, make_mesh, open_store

TIMEOUT_S = 60.0
# Seconds that a row may take on the slowest rank.
ROW_S = 600.0
NUM_INTEGERS, NUM_NUMBERS, NUM_TIMES = 64, 4096, 200
PROMPT = [(3 + 7 * i) % 200 + 5 for i in range(40)]
LONG_PROMPT = [(5 + 11 * i) % 200 + 5 for i in range(400)]
GREEDY = Sampling(temperature=0.0, seed=0)
METHODS: tuple[DecodingMethod, ...] = (Autoregressive(), Lookahead(5, 4, 5), Auto())


# The environment of a rank that is alone, and where several ranks meet.
ALONE = dict(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
MEETING = dict(MASTER_ADDR="", MASTER_PORT="")


class NotRun(Exception):
    """A row that this machine, or this number of ranks, cannot have. The message says why."""


@dataclass
class Context:
    """What all rows are given."""

    arguments: argparse.Namespace
    rank: int
    num_ranks: int
    num_local_ranks: int
    device: str
    store: Store

    @property
    def is_on_gpu(self) -> bool:
        return self.device == "cuda"

    def settings(self, mode: str = "lp", **more: Any) -> ParallelSettings:
        return ParallelSettings(mode=Mode(mode), timeout_s=TIMEOUT_S, **more)


# Returns what the row has found, in words. Raises NotRun, or anything else if it fails.
Row = Callable[[Context, Store], str]


def main() -> None:
    arguments = parse_arguments()
    if arguments.ray:
        raise SystemExit(run_on_ray(arguments))
    raise SystemExit(run_rank(arguments))


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model", default="demo/python-11m", help="checkpoint folder (default %(default)s)")
    parser.add_argument("--dtype", default="auto", help="of the rows of speed (default bfloat16 on GPUs, else float32)")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"], help="default %(default)s")
    parser.add_argument("--max-new-tokens", type=int, default=48, help="of each text (default %(default)s)")
    parser.add_argument("--rows", nargs="+", metavar="NAME", help="rows whose names begin so (default: all)")
    parser.add_argument("--ray", action="store_true", help="start the ranks as actors of a Ray cluster")
    parser.add_argument("--ranks", type=int, help="with --ray: number of ranks")
    add_output(parser)
    arguments = parse(parser)
    if arguments.ray != (arguments.ranks is not None):
        parser.error("--ray and --ranks N belong together; torchrun's --nproc-per-node gives the number otherwise")
    if not arguments.ray and not is_torchelastic_launched():
        parser.error("start it with torchrun --nproc-per-node N -m benchmarks.multi_gpu, or with --ray --ranks N")
    if arguments.device == "auto":
        arguments.device = "cuda" if torch.cuda.is_available() else "cpu"
    if arguments.dtype == "auto":
        arguments.dtype = "bfloat16" if arguments.device == "cuda" else "float32"
    return arguments


def run_rank(arguments: argparse.Namespace) -> int:
    """One rank. Returns the exit code."""
    torch.set_num_threads(1)
    mesh = make_mesh(ParallelSettings(timeout_s=TIMEOUT_S), arguments.device)
    ranks = mesh.rank, mesh.num_ranks, mesh.num_local_ranks
    context = Context(arguments, *ranks, arguments.device, open_store(mesh, TIMEOUT_S))
    names = arguments.rows or [""]
    rows = [(name, row) for name, row in all_rows(mesh.num_ranks) if any(map(name.startswith, names))]
    results: list[tuple[str, str, str]] = []
    for number, (name, row) in enumerate(rows):
        if context.rank == 0:
            print(f"[{number + 1}/{len(rows)}] {name}", file=sys.stderr, flush=True)
        store = PrefixStore(f"row {number}", context.store)
        own = run_row(row, context, store)
        state, text = agree(own, context, PrefixStore("answers", store))
        results.append((name, state, text))
        if context.rank == 0:
            write(context, results, is_last=number == len(rows) - 1)
    return int(any(state == "FAILED" for _, state, _ in results))


def run_row(row: Row, context: Context, store: Store) -> tuple[str, str]:
    """How a row has ended on this rank, and what it says."""
    try:
        return "passed", row(context, store)
    except NotRun as why:
        return "not run", str(why)
    except Exception as error:  # a device, a link or a library can raise anything
        return "FAILED", f"rank {context.rank}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"


def agree(own: tuple[str, str], context: Context, store: Store) -> tuple[str, str]:
    """How a row has ended on all ranks: as on the one where it ended worst. Waits for all of them."""
    store.set(str(context.rank), json.dumps(own))
    names = [str(rank) for rank in range(context.num_ranks)]
    try:
        store.wait(names, datetime.timedelta(seconds=ROW_S))
    except RuntimeError:
        return "FAILED", f"a rank did not end within {ROW_S:g} s"
    answers = [tuple(json.loads(store.get(name))) for name in names]
    worst = next((state for state in ("FAILED", "not run") if any(one[0] == state for one in answers)), "passed")
    return next(one for one in answers if one[0] == worst)


def all_rows(num_ranks: int) -> list[tuple[str, Row]]:
    modes: list[tuple[str, dict[str, Any]]] = [
        ("lp", {"mode": "lp"}), ("tp", {"mode": "tp"}), ("pp", {"mode": "pp"}), ("lp x tp", {"mode": "lp", "tp": 2}),
    ]  # fmt: skip
    return [
        *((f"exchange, {kind}", partial(time_exchange, kind=kind)) for kind in ("shm", "gloo", "nccl")),
        *((f"sums, {kind}", partial(time_sums, kind=kind)) for kind in ("shm", "gloo", "nccl")),
        *((f"text, {name}", partial(compare_texts, settings=settings)) for name, settings in modes),
        ("prompt, split among the ranks", split_prompt),
        ("speed, one rank", partial(time_texts, settings=None)),
        *((f"speed, {name}", partial(time_texts, settings=settings)) for name, settings in modes),
        ("lost rank", kill_ranks),
    ]  # fmt: skip


def time_exchange(context: Context, store: Store, kind: str) -> str:
    """Has all ranks gather some integers, and compares what arrives."""
    check_kind(context, kind)
    settings = context.settings(exchange=ExchangeKind(kind))
    mesh = make_mesh(settings, context.device)
    seconds = []
    with closing(connect(settings, mesh, store)) as exchange:
        for number in range(NUM_TIMES):
            own = np.arange(NUM_INTEGERS, dtype=np.int32) * (context.rank + 1) + number
            begin = time.perf_counter()
            gathered = exchange.all_gather(own)
            seconds.append(time.perf_counter() - begin)
            wanted = np.arange(NUM_INTEGERS)[None] * np.arange(1, context.num_ranks + 1)[:, None] + number
            if not (gathered == wanted).all():
                raise ValueError(f"other integers arrived in round {number}")
    return f"{1e6 * statistics.median(seconds):.0f} us for {NUM_INTEGERS} integers"


def time_sums(context: Context, store: Store, kind: str) -> str:
    """Sums numbers over the ranks, as tensor parallelism does."""
    check_kind(context, kind)
    settings = context.settings("tp", exchange=ExchangeKind(kind))
    mesh = make_mesh(settings, context.device)
    seconds = []
    with closing(connect_axis(settings, mesh, "tp", store)) as ranks:
        for number in range(NUM_TIMES):
            own = torch.full((NUM_NUMBERS,), float(context.rank + number), device=mesh.device)
            begin = time.perf_counter()
            total = ranks.all_reduce(own)
            ranks.synchronize()
            found = total[:: NUM_NUMBERS - 1].tolist()
            seconds.append(time.perf_counter() - begin)
            wanted = float(sum(range(context.num_ranks)) + context.num_ranks * number)
            if found != [wanted] * 2:
                raise ValueError(f"the sum is {found[0]} and not {wanted} in round {number}")
        way = type(ranks).__name__
    return f"{1e6 * statistics.median(seconds):.0f} us for {NUM_NUMBERS} numbers, read by the host ({way})"


def check_kind(context: Context, kind: str) -> None:
    """Raises NotRun for a way of talking that these ranks cannot have."""
    if kind == "nccl" and not context.is_on_gpu:
        raise NotRun("NCCL needs a GPU for each rank")
    if kind == "shm" and context.num_local_ranks < context.num_ranks:
        raise NotRun("the ranks are on several hosts")


def compare_texts(context: Context, store: Store, settings: dict[str, Any]) -> str:
    """Decodes by several methods, and compares with `generate`."""
    expected = expected_texts(context, store, [PROMPT])
    with_engine = opened(context, store, settings, "float32")
    with closing(with_engine.place):
        for method in METHODS:
            found = with_engine.text(PROMPT, method)
            if found != expected[0]:
                raise ValueError(f"{type(method).__name__} gives {found}, and generate gives {expected[0]}")
    return f"{len(METHODS)} methods, {len(expected[0])} tokens each"


def split_prompt(context: Context, store: Store) -> str:
    """Has all ranks compute one prompt together."""
    expected = expected_texts(context, store, [LONG_PROMPT])
    one = opened(context, store, {"mode": "auto"}, "float32")
    with closing(one.place):
        if not getattr(one.engine.runner, "can_split", False):
            raise NotRun("this model's forward does not stop in each layer, or nothing can be copied between ranks")
        if one.text(LONG_PROMPT, Autoregressive()) != expected[0]:
            raise ValueError("the text is another one than that of generate")
    return f"{len(LONG_PROMPT)} tokens"


def time_texts(context: Context, store: Store, settings: dict[str, Any] | None) -> str:
    """Tokens a second, of the second of two runs. settings: None has rank 0 alone decode."""
    if settings is None and context.rank:
        return ""
    one = opened(context, store, settings or {"mode": "single"}, context.arguments.dtype, is_alone=settings is None)
    rates = []
    with closing(one.place):
        for method in (Autoregressive(), Auto()):
            for _ in range(2):
                begin = time.perf_counter()
                number = len(one.text(PROMPT, method, ignore_eos=True))
                rate = number / (time.perf_counter() - begin)
            rates.append(f"{type(method).__name__.lower()} {rate:.0f} tokens/s")
    return ", ".join(rates)


def kill_ranks(context: Context, store: Store) -> str:
    """Has rank 0 start a server with ranks of its own, and kill some of them."""
    if context.rank:
        return ""
    command = [sys.executable, "-m", "benchmarks.rank_loss", "--model", context.arguments.model, "--kills", "2"]
    command += ["--ranks", str(context.num_ranks), "--exchange", "shm", "--streams", "4", "--scenarios"]
    hidden = {*ALONE, *MEETING}
    environment = {
        name: value for name, value in os.environ.items() if name not in hidden and not name.startswith("TORCHELASTIC")
    }
    output = context.arguments.output / "lost-rank"
    done = subprocess.run(
        [*command, "--output", str(output)], env=environment, capture_output=True, text=True, timeout=ROW_S
    )
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {told_failures(done)}")
    return "no stream was cut short or changed"


def told_failures(done: subprocess.CompletedProcess[str]) -> str:
    """The failures that a benchmark lists at the end of its report, or the end of its errors if it has no report."""
    return done.stdout.partition("FAILED:")[2].strip() or done.stderr[-250:]


@dataclass
class Opened:
    """An engine of this rank."""

    engine: Engine
    place: MeshTopology
    max_new_tokens: int

    def text(self, prompt: Sequence[int], method: DecodingMethod, ignore_eos: bool = False) -> list[int]:
        stopping = Stopping(self.max_new_tokens, ignore_eos=ignore_eos)
        return self.engine.generate(list(prompt), decode=method, sampling=GREEDY, stopping=stopping).token_ids


def opened(context: Context, store: Store, settings: dict[str, Any], dtype: str, is_alone: bool = False) -> Opened:
    """Loads the model on all ranks. Raises NotRun for a mode that the model or the number of ranks does not allow."""
    if settings.get("tp") and context.num_ranks < 4:
        raise NotRun("it needs four ranks")
    own = context.settings(**settings)
    try:
        mesh = make_mesh(own, context.device, ALONE if is_alone else os.environ)
        place = MeshTopology(own, mesh, PrefixStore("ranks", store))
        model = ModelSettings(context.arguments.model, dtype, str(mesh.device))
        return Opened(Engine.assemble(EngineSettings(model), place), place, context.arguments.max_new_tokens)
    except ValueError as error:
        raise NotRun(str(error)) from error


def expected_texts(context: Context, store: Store, prompts: Sequence[list[int]]) -> list[list[int]]:
    """What transformers' greedy `generate` says in float32, on rank 0's device."""
    if context.rank == 0:
        device = "cuda:0" if context.is_on_gpu else "cpu"
        model = AutoModelForCausalLM.from_pretrained(context.arguments.model, dtype=torch.float32).to(device)
        found = []
        for prompt in prompts:
            inputs = torch.tensor([prompt], device=device)
            text = model.generate(
                inputs, attention_mask=torch.ones_like(inputs), do_sample=False,
                max_new_tokens=context.arguments.max_new_tokens,
            )  # fmt: skip
            found.append(text[0, len(prompt) :].tolist())
        store.set("expected", json.dumps(found))
    store.wait(["expected"], datetime.timedelta(seconds=ROW_S))
    return json.loads(store.get("expected"))


def write(context: Context, results: Sequence[tuple[str, str, str]], is_last: bool) -> None:
    device = torch.cuda.get_device_name(0) if context.is_on_gpu else "CPU"
    title = f"{context.num_ranks} ranks: {device}"
    body = markdown_table(["row", "state", "found"], [list(row) for row in results])
    name = f"multi_gpu-{context.num_ranks}-ranks-{'cuda' if context.is_on_gpu else 'cpu'}"
    if is_last:
        publish(context.arguments.output, name, title, body, {"rows": [list(row) for row in results]})
    else:
        context.arguments.output.mkdir(parents=True, exist_ok=True)
        (context.arguments.output / f"{name}.md").write_text(f"# {title} (not complete)\n\n{body}\n", encoding="utf-8")


# Ray


def run_on_ray(arguments: argparse.Namespace) -> int:
    """Starts the ranks as actors, one for each GPU or, without GPUs, one for each core. Returns the exit code."""
    import ray
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    ray.init(address="auto", log_to_driver=True)
    is_on_gpu = ray.cluster_resources().get("GPU", 0) >= arguments.ranks
    need = {"CPU": 1, "GPU": 1} if is_on_gpu else {"CPU": 1}
    group = placement_group([need] * arguments.ranks, strategy="SPREAD")
    ready, _ = ray.wait([group.ready()], timeout=TIMEOUT_S)
    if not ready:
        print(f"the cluster has no room for {arguments.ranks} ranks with {need} each: {ray.cluster_resources()}")
        return 2
    actor = ray.remote(RayRank)
    ranks = [
        actor.options(
            num_cpus=1, num_gpus=int(is_on_gpu), scheduling_strategy=PlacementGroupSchedulingStrategy(group, index)
        ).remote()
        for index in range(arguments.ranks)
    ]
    address, port = ray.get(ranks[0].address.remote())
    arguments.device = "cuda" if is_on_gpu else "cpu"
    arguments.output = Path(arguments.output).absolute()
    codes = ray.get([one.run.remote(arguments, rank, address, port) for rank, one in enumerate(ranks)])
    return max(codes)


class RayRank:
    """One rank as an actor."""

    def address(self) -> tuple[str, int]:
        """Where the ranks meet, if this is the first one."""
        import ray

        with socket.socket() as probe:
            probe.bind(("", 0))
            return ray.util.get_node_ip_address(), probe.getsockname()[1]

    def run(self, arguments: argparse.Namespace, rank: int, address: str, port: int) -> int:
        os.environ.update(
            RANK=str(rank), WORLD_SIZE=str(arguments.ranks), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
            MASTER_ADDR=address, MASTER_PORT=str(port),
        )  # fmt: skip
        return run_rank(arguments)


if __name__ == "__main__":
    main()
