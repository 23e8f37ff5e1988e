"""Times the candidates for a model's products and has the fastest chosen. Times are kept on the disk.

They belong to a GPU, to its driver, to torch and to Triton, and to a product's shape, so models with products of one
shape share them.

R rows, K inputs, N outputs
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from lp.model.errors import one_line
from lp.model.gpu.products import CUBLAS, Multiply, Products, ProductShape
from lp.model.reference import FLOOR, relative_error
from lp.platform import disk_cache
from lp.platform.hardware import device_name, driver_version

log = logging.getLogger("lookahead")

# Measures the seconds that a GPU takes for what a function launches. Raises RuntimeError if it cannot run it.
Timer = Callable[[Callable[[], object]], float]
# The times of a product's candidates, in seconds, by their names.
Times = Mapping[str, float]

# To be raised when candidates change, or how they are timed.
FORMAT = 2
# Rounds in which candidates are timed in turn, of which the fastest counts: a GPU may have been slow at first. Runs of
# each, of which the median counts, and readings of memory before them, in whose time the host launches the runs.
ROUNDS, RUNS, READINGS_AHEAD = 2, 5, 32
# Seconds after which nothing more is timed. The next start goes on.
MOST_S = 10.0
# What another function takes at most of cuBLAS's time, so that it is chosen: a little less may be chance.
WORTHWHILE = 0.97


class TimesFile:
    """Where the times of products on a GPU are kept, by shape and number of rows."""

    def __init__(self, device: torch.device):
        self._path = _path(device)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lets one process at a time read, time and write. The others wait, if the lock can be written."""
        with ExitStack() as stack:
            if self._path is not None:
                with suppress(OSError):
                    stack.enter_context(disk_cache.locked(self._path, "time products"))
            yield

    def read(self) -> dict[str, Times]:
        """Empty if there is no file, or something else in it."""
        if self._path is None:
            return {}
        disk_cache.use(self._path)
        values = disk_cache.read_json(self._path)
        try:
            return {key: {name: float(one) for name, one in times.items()} for key, times in (values or {}).items()}
        except (AttributeError, TypeError, ValueError) as error:
            log.warning("%s is ignored: %s", self._path, error)
            return {}

    def write(self, kept: Mapping[str, Times]) -> None:
        if self._path is not None:
            disk_cache.write_json(self._path, kept)
            disk_cache.trim()


def choose_products(
    products: Products, weights: Iterable[tuple[Tensor, Tensor | None]], device: torch.device, timer: Timer
) -> None:
    """Has the fastest function chosen for each shape and number of rows, and logs what that gains.

    weights: those of a model's products, with their biases. Processes on one machine time one after the other, so that
    the later ones find what the first one has kept.
    """
    shapes = {ProductShape.of(weight, bias): (weight, bias) for weight, bias in weights}
    asked = {_key(shape, num_rows): (shape, num_rows) for num_rows in products.rows for shape in shapes}
    file = TimesFile(device)
    with file.locked():
        started, kept = time.monotonic(), file.read()
        missing = [key for key in asked if CUBLAS not in kept.get(key, {})]
        for key in missing:
            if time.monotonic() > started + MOST_S:
                break
            shape, num_rows = asked[key]
            try:
                kept[key] = time_candidates(products.candidates(shape, num_rows), num_rows, *shapes[shape], timer)
            except RuntimeError as error:  # such as no memory for it
                log.warning("products cannot be timed: %s", one_line(error))
                break
        if missing:
            torch.cuda.empty_cache()
            file.write(kept)
    known: list[Times] = []
    for key, (shape, num_rows) in asked.items():
        candidates = products.candidates(shape, num_rows)
        times = {name: seconds for name, seconds in kept.get(key, {}).items() if name in candidates}
        if CUBLAS in times:
            products.choose(shape, num_rows, fastest(times))
            known.append(times)
    when = f"timed in {time.monotonic() - started:.1f} s" if missing else "timed at an earlier start"
    left = f"; {len(asked) - len(known)} are left to cuBLAS" if len(known) < len(asked) else ""
    log.info("%s (%s%s)", describe(known), when, left)


def time_candidates(
    candidates: Mapping[str, Multiply], num_rows: int, weight: Tensor, bias: Tensor | None, timer: Timer
) -> dict[str, float]:
    """The times of the candidates that can run and that give cuBLAS's numbers, but for rounding."""
    x = torch.arange(num_rows * len(weight), device=weight.device, dtype=torch.float32).cos()
    x = x.view(num_rows, len(weight)).to(weight.dtype)
    runs: dict[str, Callable[[], object]] = {}
    expected: Tensor | None = None
    for name, multiply in candidates.items():
        try:
            numbers = multiply(x, weight, bias).float()
            expected = numbers if name == CUBLAS else expected
            if expected is not None and relative_error(numbers, expected) <= FLOOR[weight.dtype]:
                runs[name] = partial(multiply, x, weight, bias)
        except RuntimeError as error:
            log.debug("%s cannot multiply %d rows: %s", name, num_rows, one_line(error))
    rounds = [{name: timer(run) for name, run in runs.items()} for _ in range(ROUNDS)]
    return {name: min(one[name] for one in rounds) for name in runs}


def time_on_gpu(run: Callable[[], object]) -> float:
    """A Timer for the current GPU. Before each run memory is read that fills the second cache, which then holds no
    weights, and the first of these readings give the host time to launch all runs, so that the GPU waits for none.
    """
    device = torch.device("cuda", torch.cuda.current_device())
    memory = torch.ones(torch.cuda.get_device_properties(device).L2_cache_size // 2, device=device)  # twice its bytes
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(RUNS)]
    for _ in range(READINGS_AHEAD):
        memory.sum()
    for begin, end in events:
        memory.sum()
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize(device)
    return median(begin.elapsed_time(end) for begin, end in events) / 1e3


def fastest(times: Times) -> str:
    """The name of the function that is chosen."""
    name = min(times, key=lambda one: times[one])
    return name if times[name] <= WORTHWHILE * times[CUBLAS] else CUBLAS


def describe(known: list[Times]) -> str:
    """What is gained over cuBLAS. known: for each shape and number of rows."""
    others = [(times[CUBLAS], times[fastest(times)]) for times in known if fastest(times) != CUBLAS]
    if not others:
        return f"cuBLAS is the fastest for all {len(known)} shapes and numbers of rows of products"
    before, after = map(sum, zip(*others, strict=True))
    return (
        f"another kernel than cuBLAS's is chosen for {len(others)} of {len(known)} shapes and numbers of rows of "
        f"products, where it is {before / after:.2f} times as fast"
    )


def _key(shape: ProductShape, num_rows: int) -> str:
    return f"{shape.name}, {num_rows} rows"


def _path(device: torch.device) -> Path | None:
    """The file for this GPU and this software; None if nothing can be kept."""
    import triton

    if (folder := disk_cache.folder("products")) is None:
        return None
    name = device_name(device)
    facts = [FORMAT, name, driver_version(), torch.__version__, torch.version.cuda, triton.__version__]
    return folder / f"{name.replace(' ', '-')}-{disk_cache.digest(facts)}.json"
