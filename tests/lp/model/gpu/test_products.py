"""Products of few rows: the kernel that splits the inputs, interpreted, and which function is chosen by which times."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lp.model.gpu import product_times
from lp.model.gpu.product_times import ROUNDS, choose_products
from lp.model.gpu.products import ROWS, Products, ProductShape, multiply_by_cublas, multiply_by_cublaslt
from lp.model.gpu.split_product import MOST_TILES, multiply_in_splits, split_counts, tile_of
from lp.platform.disk_cache import VARIABLE
from tests.lp.model.gpu.interpreter import interpret, run_backwards
from tests.slow import slow_except

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """A product with random numbers. is_row_major: whether a weight's outputs lie side by side, as GPT-2's do."""

    num_rows: int
    num_inputs: int
    num_outputs: int
    dtype: torch.dtype = torch.float32
    is_row_major: bool = False
    has_bias: bool = False

    def make(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """x, whose rows are a part of an array's, weight and bias."""
        random = torch.Generator().manual_seed(0)
        x = torch.randn(self.num_rows, self.num_inputs + 16, generator=random).to(self.dtype)[:, 16:]
        sizes = (self.num_inputs, self.num_outputs) if self.is_row_major else (self.num_outputs, self.num_inputs)
        weight = torch.randn(sizes, generator=random).to(self.dtype)
        bias = torch.randn(self.num_outputs, generator=random).to(self.dtype) if self.has_bias else None
        return x, weight if self.is_row_major else weight.t(), bias


def split(x: Tensor, weight: Tensor, bias: Tensor | None, num_splits: int) -> Tensor:
    counters = torch.zeros(MOST_TILES, dtype=torch.int32)
    out = multiply_in_splits(x, weight, bias, num_splits, counters)
    assert not counters.any(), "the next product finds the counters as this one did"
    return out


CASES = [
    (Case(2, 300, 70), 2),
    (Case(1, 1000, 130, torch.bfloat16, has_bias=True), 4),
    (Case(16, 520, 64, torch.float16, is_row_major=True), 2),
    (Case(17, 256, 100, is_row_major=True, has_bias=True), 1),
    (Case(33, 700, 200, torch.bfloat16), 3),
    (Case(96, 300, 70), 4),
    (Case(128, 260, 130, torch.bfloat16, has_bias=True), 2),
]


@pytest.mark.parametrize(("case", "num_splits"), slow_except(CASES, *CASES[:3]), ids=str)
def test_split_products_are_those_of_float64(case: Case, num_splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    interpret(monkeypatch)
    x, weight, bias = case.make()
    expected = x.double() @ weight.double() + (0 if bias is None else bias.double())
    found = split(x, weight, bias, num_splits)
    assert found.dtype == case.dtype
    allowed = {torch.float32: 1e-6, torch.float16: 6e-4, torch.bfloat16: 4e-3}[case.dtype]
    torch.testing.assert_close(found.double(), expected, rtol=allowed, atol=2e-4)


def test_a_split_product_does_not_depend_on_which_program_is_last(monkeypatch: pytest.MonkeyPatch) -> None:
    interpret(monkeypatch)
    x, weight, bias = Case(5, 1000, 130, has_bias=True).make()
    expected = split(x, weight, bias, 8)
    run_backwards(monkeypatch)
    assert torch.equal(split(x, weight, bias, 8), expected)


@pytest.mark.parametrize("itemsize", [2, 4])
def test_tiles_are_split_where_few_programs_would_run(itemsize: int) -> None:
    for rows in ROWS:
        tile = tile_of(rows, itemsize)
        blocks = (tile.rows + tile.outputs) * tile.inputs * itemsize
        assert tile.num_stages * blocks <= 99 << 10, "what the smallest GPUs have of shared memory"
        assert min(rows, 64) <= tile.rows
        for num_outputs in (1, 64, 4096, 28672, 128256):
            for num_splits in split_counts(rows, 4096, num_outputs, itemsize):
                num_tiles = -(-num_outputs // tile.outputs) * -(-rows // tile.rows)
                assert num_splits == 1 or (num_tiles <= MOST_TILES and num_tiles * num_splits <= 528)
    assert split_counts(16, 4096, 4096, 2) == [2, 4, 8]
    assert split_counts(16, 4096, 128256, 2) == split_counts(1, 20, 20, 2) == [1]


# The function of a candidate, as it is known to a test: the time that it takes.
Seconds = Callable[[str], float]


class StubProducts(Products):
    """Products of one shape whose candidates say which one runs. started: the names of those that have run."""

    def __init__(self, rows: tuple[int, ...] = (1, 8), names: tuple[str, ...] = ("cublas", "cublaslt", "split-4")):
        super().__init__(CPU, rows)
        self.names = names
        self.started: list[str] = []

    def candidates(self, shape: ProductShape, num_rows: int) -> dict[str, Any]:
        return {name: self._named(name) for name in self.names}

    def _named(self, name: str) -> Any:
        def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            self.started.append(name)
            if name == "too large":
                raise RuntimeError("a kernel needs more than this GPU has")
            out = multiply_by_cublas(x, weight, bias)
            return -out if name == "wrong" else out

        multiply.__name__ = name
        return multiply

    def timer(self, seconds: Seconds) -> Callable[[Callable[[], object]], float]:
        def time(run: Callable[[], object]) -> float:
            run()
            return seconds(self.started[-1])

        return time

    def chosen(self, num_rows: int) -> str:
        return self.function(ProductShape.of(WEIGHT, None), num_rows).__name__


WEIGHT = torch.linspace(-1, 1, 6 * 4).view(4, 6).t()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Path:
    """The folder in which times are kept."""
    pytest.importorskip("triton")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    caplog.set_level(logging.INFO, "lookahead")
    return tmp_path / "products"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that have passed, which a test changes."""
    now = [0.0]
    monkeypatch.setattr(product_times.time, "monotonic", lambda: now[0])
    return now


def choose(seconds: Seconds, products: StubProducts | None = None) -> StubProducts:
    products = products or StubProducts()
    choose_products(products, [(WEIGHT, None)] * 3, CPU, products.timer(seconds))
    return products


TIMES = {"cublas": 1.0, "cublaslt": 0.9, "split-4": 0.5, "wrong": 0.1, "too large": 0.1}


def test_the_fastest_function_is_chosen_and_kept(
    root: Path, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    first = choose(TIMES.__getitem__)
    assert [first.chosen(rows) for rows in (1, 2, 8, 9)] == ["split-4"] * 3 + ["multiply_by_cublas"]
    (record,) = caplog.records
    assert record.message.startswith("another kernel than cuBLAS's is chosen for 2 of 2 shapes and numbers of rows")
    assert "where it is 2.00 times as fast (timed in 0.0 s)" in record.message
    again = choose(TIMES.__getitem__)
    assert again.started == [] and again.chosen(1) == "split-4"
    assert caplog.records[-1].message.endswith("2.00 times as fast (timed at an earlier start)")
    more = choose(TIMES.__getitem__, StubProducts((1, 4, 8)))
    assert len(more.started) == 3 * (1 + ROUNDS), (
        "three candidates are tried and timed for the number of rows that is new"
    )


def test_cublas_stays_where_another_function_is_hardly_faster(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = choose({"cublas": 1.0, "cublaslt": 0.98, "split-4": 1.4}.__getitem__)
    assert found.chosen(1) == found.chosen(8) == "cublas"
    assert caplog.records[-1].message.startswith("cuBLAS is the fastest for all 2 shapes and numbers of rows")


def test_functions_that_fail_or_give_other_numbers_are_left_out(root: Path) -> None:
    found = choose(TIMES.__getitem__, StubProducts(names=("cublas", "too large", "wrong", "split-4")))
    assert found.chosen(1) == "split-4"
    assert choose(TIMES.__getitem__, StubProducts(names=("cublas", "too large"))).started == []


def test_times_of_other_versions_or_files_that_are_broken_do_not_count(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(TIMES.__getitem__)
    (file,) = root.glob("*.json")
    for content in ("[1]", '{"4x6": 3}', "{"):
        file.write_text(content)
        assert choose(TIMES.__getitem__).chosen(1) == "split-4"
        assert len(json.loads(file.read_text())) == 2
    file.write_text(file.read_text().replace("split-4", "of an older version"))
    assert choose(TIMES.__getitem__).chosen(1) == "cublaslt"
    monkeypatch.setattr(torch, "__version__", "3.0")
    assert choose(TIMES.__getitem__).started and len(list(root.glob("*.json"))) == 2


def test_timing_ends_after_its_time_and_the_next_start_goes_on(
    root: Path, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    def slow(name: str) -> float:
        clock[0] += 4.0
        return TIMES[name]

    first = choose(slow)
    assert [first.chosen(rows) for rows in (1, 8)] == ["split-4", "multiply_by_cublas"]
    assert caplog.records[-1].message.endswith(f"(timed in {4 * 3 * ROUNDS:.1f} s; 1 are left to cuBLAS)")
    assert choose(slow).chosen(8) == "split-4"


def test_a_gpu_that_is_slow_at_first_does_not_make_cublas_lose(root: Path) -> None:
    products = StubProducts((1,), ("cublas", "split-4"))
    seconds = iter([9.0, 1.0, 1.0, 1.0])
    assert choose(lambda name: next(seconds), products).chosen(1) == "cublas"


def test_products_that_cannot_be_timed_are_left_to_cublas(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(name: str) -> float:
        raise torch.OutOfMemoryError("CUDA out of memory")

    assert choose(refuse).chosen(1) == "multiply_by_cublas"
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "products cannot be timed: CUDA out of memory"
    ]


def test_nothing_is_kept_where_the_cache_cannot_be_written(root: Path) -> None:
    root.write_text("a file in the place of the folder")
    assert choose(TIMES.__getitem__).chosen(1) == "split-4"
    assert choose(TIMES.__getitem__).started, "timed again"


def test_products_have_all_candidates_and_cublas_without_a_choice() -> None:
    products, weight = Products(CPU), torch.zeros(4096, 4096)
    shape = ProductShape.of(weight, None)
    assert list(products.candidates(shape, 4)) == ["cublas", "cublaslt", "split-2", "split-4", "split-8"]
    assert products.function(shape, 4) is products.function(shape, 500) is multiply_by_cublas
    products.choose(shape, 4, "cublaslt")
    assert products.function(shape, 3) is multiply_by_cublaslt and products.function(shape, 5) is multiply_by_cublas
    assert products.function(ProductShape.of(weight, torch.zeros(4096)), 4) is multiply_by_cublas


def test_cublaslt_is_preferred_for_one_product_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch for CPUs refuses it, so this has no library but the one that is asked for."""
    preferred, during = ["before"], list[str]()

    def prefer(library: str | None = None) -> str:
        preferred.append(library or preferred[-1])
        return preferred[-1]

    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", prefer)
    x, weight, bias = Case(3, 8, 6, has_bias=True).make()
    linear = torch.nn.functional.linear
    monkeypatch.setattr(
        "lp.model.gpu.products.linear", lambda *arguments: during.append(preferred[-1]) or linear(*arguments)
    )
    assert torch.equal(multiply_by_cublaslt(x, weight, bias), linear(x, weight.t(), bias))
    assert during == ["cublaslt"] and preferred[-1] == "before"
