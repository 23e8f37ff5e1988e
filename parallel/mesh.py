"""Says which rank this process is, on which device it computes, and along which named axes the ranks are laid out:
lookahead (lp), pipeline (pp) and tensor parallelism (tp).

This is the only module that reads the rank environment (RANK, WORLD_SIZE, ...), as torchrun sets it; therefore it also
opens the Store at which the ranks first meet. Knows nothing of what they do together.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

import torch
from torch.distributed import DistError, PrefixStore, Store, rendezvous

from parallel.errors import RankLost

# The axes from the outermost to the innermost: neighbouring ranks share a tensor-parallel group.
AXES = ("lp", "pp", "tp")


class Mode(StrEnum):
    """The axis that takes all ranks that the given degrees leave over, and how replicas share batches.

    auto: pp if its given degree is above 1, otherwise lp; along lp, replicas share every tree, and the groups of
    a server become smaller while each has a request. lp: every tree is shared by all replicas. dp: every request
    is computed by one replica; these lie along lp as well.
    single: there is one rank.
    """

    auto = "auto"
    single = "single"
    lp = "lp"
    dp = "dp"
    tp = "tp"
    pp = "pp"


def resolve_degrees(mode: Mode, given: Mapping[str, int | None], num_ranks: int) -> dict[str, int]:
    """Returns the degree of each axis in use; an axis that is left out has degree 1.

    given: each axis's degree in the settings, None if they do not give one. Raises ValueError if the degrees cannot be
    combined or do not fit the number of ranks; its message names the numbers and the remedy.
    """
    _check_single(mode, num_ranks)
    _check_whole(mode, given)
    filler = _filler(mode, given)
    degrees = {axis: 1 if (degree := given.get(axis)) is None else degree for axis in AXES}
    if given.get(filler) is None:
        degrees[filler] = max(1, num_ranks // max(1, math.prod(degrees.values())))
    resolved = {axis: degree for axis, degree in degrees.items() if degree != 1 or axis == filler}
    _check_combination(resolved)
    check_product(resolved, num_ranks)
    return resolved


def _filler(mode: Mode, given: Mapping[str, int | None]) -> str:
    """Returns the axis that takes all ranks that the given degrees leave over."""
    if mode in (Mode.tp, Mode.pp):
        return mode.value
    return "pp" if mode is Mode.auto and (given.get("pp") or 1) > 1 else "lp"


def _check_single(mode: Mode, num_ranks: int) -> None:
    if mode is Mode.single and num_ranks > 1:
        raise ValueError(
            f"parallel.mode=single uses one rank, but {num_ranks} were started (WORLD_SIZE={num_ranks}): use "
            "parallel.mode=lp, or start one process without torchrun"
        )


def _check_whole(mode: Mode, given: Mapping[str, int | None]) -> None:
    if mode is Mode.dp and (stages := given.get("pp") or 1) > 1:
        raise ValueError(
            f"parallel.mode=dp gives requests to replicas, which cannot be split into parallel.pp={stages} stages: "
            "leave one of them out (parallel.tp can be combined with dp)"
        )


def _check_combination(degrees: Mapping[str, int]) -> None:
    others = " and ".join(f"parallel.{axis}={degrees[axis]}" for axis in degrees if axis != "pp" and degrees[axis] > 1)
    if degrees.get("pp", 1) != 1 and others:
        raise ValueError(
            f"parallel.pp={degrees['pp']} cannot be combined with {others}: leave one of them out (lp and tp can be "
            "combined)"
        )


def check_product(degrees: Mapping[str, int], num_ranks: int) -> None:
    """Raises ValueError unless the degrees multiply to the number of ranks."""
    for axis, degree in degrees.items():
        if degree < 1:
            raise ValueError(f"parallel.{axis}={degree} must be at least 1; leave it out to use all ranks")
    product = math.prod(degrees.values())
    if product != num_ranks:
        named = " * ".join(f"parallel.{axis}={degree}" for axis, degree in degrees.items())
        raise ValueError(
            f"{named} needs {product} rank(s), but there are {num_ranks}: start {product} (torchrun --nproc-per-node "
            f"{product}, or parallel.ranks={product} where they are started for you), or leave the degree out"
        )


def name_mode(degrees: Mapping[str, int], mode: Mode = Mode.auto) -> str:
    """The name of the parallelism that these degrees mean: single, lp, tp, pp or lp x tp; in the mode dp, dp for lp."""
    used = [axis for axis in AXES if degrees.get(axis, 1) > 1]
    return " x ".join("dp" if axis == "lp" and mode == Mode.dp else axis for axis in used) or "single"


# What each axis means for the ranks along it, by the mode where it decides.
MEANINGS = {
    "lp": "each replica holds the whole model and computes a part of every step",
    "dp": "each replica holds the whole model and computes the requests that it is given",
    "auto": "each replica holds the whole model; they share a stream's steps, or the streams if there are many",
    "pp": "each stage holds some of the layers",
    "tp": "each rank holds a part of every layer",
}


def explain(degrees: Mapping[str, int], mode: Mode) -> str:
    """The degrees above 1 and what they mean; for the mode `auto` also what to use if the model does not fit."""
    used = {axis: degree for axis, degree in degrees.items() if degree > 1}
    text = " x ".join(f"{axis}={degree}" for axis, degree in used.items())
    along_lp = mode.value if mode in (Mode.auto, Mode.dp) else "lp"
    text += f" ({'; '.join(MEANINGS[along_lp if axis == 'lp' else axis] for axis in used)})"
    if mode is Mode.auto and set(used) == {"lp"}:
        text += ", chosen by parallel=auto; parallel=tp is for a model that does not fit one device"
    return text


log = logging.getLogger(__name__)

_NO_GPU = "torch finds no GPU here: use model.device=cpu, or install a CUDA build of torch"
_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class ExchangeKind(StrEnum):
    """What carries the ranks' messages. auto: shm if all ranks run on one host, otherwise gloo."""

    auto = "auto"
    shm = "shm"
    gloo = "gloo"
    nccl = "nccl"


@dataclass
class ParallelSettings:
    """The settings that say how the ranks of a run work together.

    mode: see Mode. lp: replicas that share token trees, or requests. tp: ranks among which the weights of one
    replica are split. pp: ranks among which its layers are split. A degree that is None follows from the mode. ranks:
    number of ranks; None takes as many as were started. exchange: what carries their messages. delay_us: microseconds
    added to every message, to try out a slower network. timeout_s: seconds that a rank waits for the others before it
    gives them up. debug: compare a fingerprint of every rank's state in each step. threads: CPU threads of each rank;
    None shares the cores that the process may use evenly among the ranks of a host, whatever OMP_NUM_THREADS says
    (torchrun sets it to 1 by itself); only a rank alone on its host keeps OMP_NUM_THREADS. pin: whether a rank with a
    GPU runs on the cores next to it alone.
    """

    mode: Mode = Mode.auto
    lp: int | None = None
    tp: int | None = None
    pp: int | None = None
    ranks: int | None = None
    exchange: ExchangeKind = ExchangeKind.auto
    delay_us: float = 0.0
    timeout_s: float = 60.0
    debug: bool = False
    pin: bool = True
    threads: int | None = None

    @property
    def wanted_ranks(self) -> int:
        """The number of ranks to start: `ranks`, or the product of the degrees."""
        return self.ranks or max(1, math.prod(degree or 1 for degree in (self.lp, self.tp, self.pp)))

    def resolve_degrees(self, num_ranks: int) -> dict[str, int]:
        """Returns the degree of each axis; see resolve_degrees. Raises ValueError, also for settings out of range."""
        self._check()
        return resolve_degrees(Mode(self.mode), {"lp": self.lp, "tp": self.tp, "pp": self.pp}, num_ranks)

    def _check(self) -> None:
        if self.delay_us < 0:
            raise ValueError(f"parallel.delay_us={self.delay_us:g} must be microseconds, 0 for none")
        if self.timeout_s <= 0:
            raise ValueError(f"parallel.timeout_s={self.timeout_s:g} must be a positive number of seconds")
        for name, number in {"ranks": self.ranks, "threads": self.threads}.items():
            if number is not None and number < 1:
                raise ValueError(f"parallel.{name}={number} must be at least 1, or left out")


@dataclass(frozen=True)
class Mesh:
    """This process's place among the ranks.

    axes: degree of each named axis, e.g. {"lp": 2, "tp": 2}; an axis that is left out has degree 1. The product of the
    degrees is the number of ranks. device: the device on which this rank computes. shares_gpu: whether all ranks of
    this host compute on one GPU. Raises ValueError if the degrees do not fit the number of ranks.
    """

    axes: Mapping[str, int]
    rank: int = 0
    num_ranks: int = 1
    local_rank: int = 0
    num_local_ranks: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    shares_gpu: bool = False

    @property
    def num_sharing(self) -> int:
        """The number of ranks in the memory of this rank's device."""
        return self.num_local_ranks if self.device.type == "cpu" or self.shares_gpu else 1

    def __post_init__(self) -> None:
        check_product(self.axes, self.num_ranks)

    def degree(self, axis: str) -> int:
        """Returns the number of ranks along the axis; 1 for an axis that the mesh does not have."""
        return self.axes.get(axis, 1)

    def index(self, axis: str) -> int:
        """Returns this rank's place along the axis, counted from 0."""
        return self.rank // self._stride(axis) % self.degree(axis)

    def peers(self, axis: str) -> list[int]:
        """Returns the ranks that differ from this one at most in their place along the axis, in the order of places."""
        first = self.rank - self.index(axis) * self._stride(axis)
        return [first + place * self._stride(axis) for place in range(self.degree(axis))]

    def _stride(self, axis: str) -> int:
        """Returns how far apart the numbers of neighbours along the axis are; the last axis is the innermost."""
        return math.prod(self.degree(inner) for inner in AXES[AXES.index(axis) + 1 :])

    @property
    def is_replicated(self) -> bool:
        """Whether each rank holds the whole model."""
        return self.degree("tp") * self.degree("pp") == 1

    @property
    def mode(self) -> str:
        """The name of the parallelism in use: single, lp, tp, pp or lp x tp."""
        return name_mode(self.axes)


def make_mesh(settings: ParallelSettings, device: str = "auto", environment: Mapping[str, str] = os.environ) -> Mesh:
    """Makes the mesh of this process from the settings and the rank environment.

    device: "auto", "cpu", "cuda" or "cuda:N". Raises ValueError if they contradict each other; its message names the
    numbers and the remedy.
    """
    from lp.platform.hardware import why_no_gpu  # late: reading settings needs no lp

    rank, num_ranks, local_rank, num_local_ranks = _read_ranks(environment)
    axes = settings.resolve_degrees(num_ranks)
    _check_ranks(settings, num_ranks)
    return Mesh(
        axes=axes,
        rank=rank,
        num_ranks=num_ranks,
        local_rank=local_rank,
        num_local_ranks=num_local_ranks,
        device=choose_device(device, local_rank, num_local_ranks, torch.cuda.device_count(), why_no_gpu()),
        shares_gpu=is_one_gpu(device),
    )


def is_one_gpu(name: str) -> bool:
    """Whether all ranks of a host compute on the GPU of this name."""
    return re.fullmatch(r"cuda:\d+", name) is not None


def choose_device(
    name: str, local_rank: int, num_local_ranks: int, num_gpus: int, why_no_gpu: str = ""
) -> torch.device:
    """Chooses one rank's device: "cuda" gives each local rank a GPU of its own, "auto" does so if there are enough.

    "cuda:N" puts all ranks of a host on that GPU. why_no_gpu: why torch cannot use the GPUs that are there. Raises
    ValueError for an unknown name and for too few GPUs.
    """
    if why_no_gpu and name.startswith("cuda"):
        raise ValueError(f"model.device={name}, but {why_no_gpu}; or use model.device=cpu")
    if why_no_gpu and name == "auto":
        log.warning("computing on the CPU: %s", why_no_gpu)
        return torch.device("cpu")
    if numbered := re.fullmatch(r"cuda:(\d+)", name):
        return _find_gpu(int(numbered[1]), num_local_ranks, num_gpus)
    if name not in ("auto", "cpu", "cuda"):
        raise ValueError(f"model.device={name!r} is not known: use auto, cpu, cuda or cuda:N")
    if name == "cpu" or (name == "auto" and num_gpus == 0):
        return torch.device("cpu")
    if num_gpus >= num_local_ranks:
        return torch.device("cuda", local_rank)
    if name == "auto":
        log.warning("%d ranks on this host but %d GPU(s): computing on the CPU", num_local_ranks, num_gpus)
        return torch.device("cpu")
    if num_gpus == 0:
        raise ValueError(f"model.device=cuda, but {_NO_GPU}")
    raise ValueError(
        f"model.device=cuda, but {num_local_ranks} ranks run on this host, which has {num_gpus} GPU(s): start "
        f"{num_gpus} rank(s) (torchrun --nproc-per-node {num_gpus}), or use model.device=cpu"
    )


def _find_gpu(index: int, num_local_ranks: int, num_gpus: int) -> torch.device:
    if num_gpus == 0:
        raise ValueError(f"model.device=cuda:{index}, but {_NO_GPU}")
    if index >= num_gpus:
        raise ValueError(f"model.device=cuda:{index}, but this host has {num_gpus} GPU(s), counted from cuda:0")
    if num_local_ranks > 1:
        log.warning(
            "%d ranks share cuda:%d, each with weights of its own: that is for trying out, and gains no time",
            num_local_ranks,
            index,
        )
    return torch.device("cuda", index)


def open_store(mesh: Mesh, timeout_s: float) -> Store:
    """Opens the Store at which the ranks meet: torchrun's own, or one that rank 0 serves at MASTER_ADDR:MASTER_PORT.

    timeout_s: seconds to wait for the other ranks, also in later calls of the Store. Raises RankLost if they do not
    come.
    """
    timeout = timedelta(seconds=timeout_s)
    try:
        store, _, _ = next(rendezvous("env://", mesh.rank, mesh.num_ranks, timeout=timeout))
    except DistError as error:
        raise RankLost(
            f"the {mesh.num_ranks} ranks did not meet at MASTER_ADDR:MASTER_PORT within {timeout_s:g} s: {error}. "
            "Check that all were started with the same address, and that its port is free and open between the hosts."
        ) from error
    store.set_timeout(timeout)
    return PrefixStore("lookahead_parallel", store)


def _read_ranks(environment: Mapping[str, str]) -> tuple[int, int, int, int]:
    """Returns (rank, num_ranks, local_rank, num_local_ranks). Without a rank environment there is one rank."""
    if environment.get("RANK", "0") == "0" and environment.get("WORLD_SIZE", "1") == "1":
        return 0, 1, 0, 1
    missing = [name for name in _RANK_VARIABLES if not environment.get(name)]
    if missing:
        raise ValueError(
            f"the rank environment is incomplete: {', '.join(missing)} not set. Start the ranks with torchrun, which "
            f"sets {', '.join(_RANK_VARIABLES)}; for a single rank unset RANK and WORLD_SIZE"
        )
    rank, num_ranks = _read_int(environment, "RANK"), _read_int(environment, "WORLD_SIZE")
    local_rank, num_local_ranks = _read_int(environment, "LOCAL_RANK"), _read_int(environment, "LOCAL_WORLD_SIZE")
    _read_int(environment, "MASTER_PORT")
    if not (0 <= rank < num_ranks and 0 <= local_rank < num_local_ranks <= num_ranks):
        raise ValueError(
            f"the rank environment contradicts itself: RANK={rank} of WORLD_SIZE={num_ranks}, LOCAL_RANK={local_rank} "
            f"of LOCAL_WORLD_SIZE={num_local_ranks}. Start the ranks with torchrun, which sets them"
        )
    return rank, num_ranks, local_rank, num_local_ranks


def _read_int(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except ValueError:
        raise ValueError(f"{name}={environment[name]!r} in the rank environment is not an integer") from None


def _check_ranks(settings: ParallelSettings, num_ranks: int) -> None:
    if settings.ranks not in (None, num_ranks):
        raise ValueError(
            f"parallel.ranks={settings.ranks}, but {num_ranks} were started (WORLD_SIZE={num_ranks}): start "
            f"{settings.ranks} (torchrun --nproc-per-node {settings.ranks}), or leave the setting out"
        )


def read_master(environment: Mapping[str, str] = os.environ) -> str:
    """Returns the address of rank 0's host, as the other ranks reach it."""
    return environment["MASTER_ADDR"]


def is_rank(environment: Mapping[str, str] = os.environ) -> bool:
    """Says whether this process was started as one of several ranks."""
    return environment.get("WORLD_SIZE", "1") != "1"


def read_rank(environment: Mapping[str, str] = os.environ) -> int:
    """Returns this process's rank before there is a mesh, for messages; 0 if the environment does not name it."""
    rank = environment.get("RANK", "0")
    return int(rank) if rank.isdecimal() else 0
