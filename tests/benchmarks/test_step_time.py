"""Step times: measured, set against the floor, taken apart and written down, on a tiny model."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from benchmarks import step_time
from benchmarks.projections.arithmetic import Share, share_of
from benchmarks.steps import step_curve
from benchmarks.steps.floor import Floor, Gauge, Rates
from benchmarks.steps.host_work import ANSWERS, FORWARD, HOST, measure_host_work
from benchmarks.steps.step_curve import TIMED, Point, fastest_way, fill_cache, make_tree, measure
from benchmarks.steps.step_split import attention_alone, is_outermost_product, product_times, split
from benchmarks.steps.variants import marked
from lp import Engine
from lp.model.causal import CausalModel
from tests.benchmarks.results import read, read_plot

SHORT = ["--rounds", "2", "--limit", "1", "--max-new-tokens", "24", "--ranks", "1", "--device", "cpu"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Calls the benchmark's main; gives the folder of its results."""

    def call(*arguments: str) -> Path:
        output = tmp_path / "results"
        monkeypatch.setattr(sys, "argv", ["step_time", *SHORT, "--output", str(output), *arguments])
        step_time.main()
        return output

    return call


def test_a_checkpoint_is_measured_and_taken_apart(
    run: Callable[..., Path], checkpoint_folder: Callable[[str], Path]
) -> None:
    folder = checkpoint_folder("llama")
    output = run("--model", str(folder), "--rows", "1,64", "--cached", "8,40", "--compile", "off",
                 "--attention", "two_part", "sdpa", "flash")  # fmt: skip
    table, figures = read(output, "step_time-*-float32")
    places = [(way, cached, rows) for cached in (8, 40) for rows in (1, 64)
              for way in ("two_part, eager", "sdpa, eager")]  # fmt: skip
    assert [(point["way"], point["cached"], point["rows"]) for point in figures["points"]] == places
    lines = [json.loads(line) for line in next(output.glob("*.jsonl")).read_text().splitlines()]
    assert all(len(line["seconds"]) == 4 and min(line["seconds"]) > 0 for line in lines) and len(lines) == len(places)
    assert len(figures["splits"]) == 8  # two variants, two lengths, one row and 64
    for one in figures["splits"]:
        parts = [one["attention"], one["products"], one["head"]]
        assert min(parts) > 0 and sum(parts) + one["rest"] == pytest.approx(one["whole"])
    assert figures["host"]["rows_per_step"] <= 64
    assert "attention flash, compile off: left out" in figures["notes"][-1]
    for said in ("On 40 cached tokens", "of bandwidth", "64 rows / 1", "the host's work is", "left out"):
        assert said in table
    assert "floor" in read_plot(output, "step_time-*")


def test_a_configuration_gets_random_weights_and_as_many_positions_as_are_asked_for(
    run: Callable[..., Path], checkpoint_folder: Callable[[str], Path]
) -> None:
    config = checkpoint_folder("gpt2") / "config.json"
    most = json.loads(config.read_text())["n_positions"]
    output = run("--config", str(config), "--dtype", "bfloat16", "--rows", "1,2", "--cached", str(most),
                 "--compile", "off", "--no-parts")  # fmt: skip
    _, figures = read(output, "step_time-config-bfloat16")
    assert [point["rows"] for point in figures["points"]] == [1, 2] and not figures["splits"]


def test_more_positions_than_a_checkpoint_has_are_refused(
    run: Callable[..., Path], checkpoint_folder: Callable[[str], Path]
) -> None:
    with pytest.raises(SystemExit, match=r"ask for 100256 positions, but .* has \d+: lower them"):
        run("--model", str(checkpoint_folder("llama")), "--cached", "100000")


def test_a_model_that_can_be_run_in_no_way_ends_the_program(
    run: Callable[..., Path], checkpoint_folder: Callable[[str], Path]
) -> None:
    with pytest.raises(SystemExit, match=r"in none of these variants:\nattention flash"):
        run("--model", str(checkpoint_folder("llama")), "--attention", "flash", "--compile", "off", "--rows", "1")


def test_other_work_on_the_machine_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda: 2)
    monkeypatch.setattr(psutil, "getloadavg", lambda: (0.1, 3.0, 3.0))
    assert step_time.note_other_work() == []
    monkeypatch.setattr(psutil, "getloadavg", lambda: (3.0, 0.1, 0.1))
    assert "load 3.0 on 2 cores" in step_time.note_other_work()[0]


@pytest.mark.parametrize("given", ["", "1,x", "0,4", "-3"])
def test_rows_that_are_no_numbers_are_refused(
    given: str, run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(f"--rows={given}")
    assert "is not a list of whole numbers above 0" in capsys.readouterr().err


def test_the_floor_is_the_longer_of_moving_and_computing() -> None:
    share = Share(
        weight_bytes=0,
        multiplied=1000,
        windows=[None, 51],
        query_heads=4,
        kv_heads=1,
        head_dim=8,
        collectives=0,
        sent=0,
    )
    moving = Floor(share, itemsize=2, rates=Rates(bytes_per_s=1.0, flops_per_s=1e9))
    assert moving.num_bytes(5, cached=95) == 2 * 1000 + 2 * 2 * 100 * 2 * 8
    assert moving.seconds(5, cached=95) == moving.num_bytes(5, cached=95)
    computing = Floor(share, itemsize=2, rates=Rates(bytes_per_s=1e9, flops_per_s=1.0))
    assert computing.seconds(5, cached=95) == 2 * 5 * 1000 + 4 * 5 * (100 + 55) * 4 * 8


def test_the_machines_rates_are_those_of_its_readings() -> None:
    gauge = Gauge(torch.device("cpu"), torch.float32, num_bytes=1 << 24)
    assert 1e8 < gauge.read_bytes_per_s() < 1e13
    assert 1e8 < gauge.read_flops_per_s() < 1e14


def test_what_is_timed_for_a_point_is_its_rows_on_its_cached_tokens(
    llama: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count(run: partial[Any], device: torch.device) -> float:
        tree, cache, num_logits = run.args
        run()
        assert len(tree) == num_logits
        return 1000.0 * cache.length + len(tree)

    monkeypatch.setattr(step_curve, "time_once", count)
    gauge = Gauge(torch.device("cpu"), torch.float32, num_bytes=1 << 20)
    model = llama.checkpoint.model
    caches = {cached: fill_cache(model, cached, 128) for cached in (8, 300)}
    points, _ = measure({"it": model}, caches, [1, 128], rounds=3, gauge=gauge)
    assert [(point.cached, point.rows) for point in points] == [(8, 1), (8, 128), (300, 1), (300, 128)]
    assert all(point.seconds == 3 * TIMED * [1000 * point.cached + point.rows] for point in points)


def test_the_middle_half_lies_about_the_median() -> None:
    point = Point("a", 8, 1, [5.0, 1.0, 2.0, 4.0, 3.0])
    assert (point.median_s, point.middle_s) == (3.0, (2.0, 4.0))


def test_the_fastest_way_is_that_of_the_largest_step() -> None:
    taken = {("a", 8, 1): 1.0, ("b", 8, 1): 2.0, ("a", 8, 64): 9.0, ("b", 8, 64): 8.0, ("a", 99, 64): 1.0}
    assert fastest_way([Point(*place, [seconds]) for place, seconds in taken.items()]) == "b"


@pytest.mark.parametrize(("architecture", "products"), [("llama", 7), ("gpt2", 4), ("gemma2", 7), ("phi3", 4)])
def test_each_product_with_weights_is_found(
    architecture: str, products: int, engine_of: Callable[[str], Engine]
) -> None:
    model = engine_of(architecture).checkpoint.model
    tree, cache = make_tree(model, 20), fill_cache(model, 40, 20)
    times = product_times(lambda: model.forward(tree, cache, 20), model)
    assert len(times) == products * model.num_layers + 1 and min(times) > 0


def test_attention_by_itself_is_that_of_all_layers_and_leaves_the_cache_as_it_is(llama: Engine) -> None:
    model = llama.checkpoint.model
    tree, cache = make_tree(model, 20), fill_cache(model, 40, 20)
    before = model.forward(tree, cache, 20)
    with torch.inference_mode():
        attention_alone(model, tree, cache)()
    assert cache.length == 40 and torch.equal(model.forward(tree, cache, 20), before)
    assert share_of(model.model.config, torch.float32).windows == [None] * len(cache.keys)


def event(name: str, above: SimpleNamespace | None = None) -> Any:
    return SimpleNamespace(name=name, cpu_parent=above)


@pytest.mark.parametrize(
    ("name", "is_product"),
    [
        ("aoti_torch_cpu__linear_pointwise", True),
        ("aoti_torch_cpu__linear_pointwise_binary", True),
        ("aoti_torch_cpu__mkl_linear", True),
        ("aoti_torch_cpu_addmm_out", True),
        ("graph_3_gemm_m1n384k1024_cpp_fused__unsafe_view_add_embedding_mul_silu_unsqueeze_view_10", True),
        ("graph_2_cpp_fused__unsafe_view_mul_silu_5", False),
        ("aoti_torch_cpu_bmm_out", False),
        ("lookahead::tree_attention", False),
        ("aten::matmul", False),
    ],
)
def test_products_are_told_by_the_marks_of_compiled_code(name: str, is_product: bool) -> None:
    assert is_outermost_product(event(name)) is is_product
    assert is_outermost_product(event(name, above=event("forward"))) is is_product
    assert not is_outermost_product(event("aten::addmm", above=event("aten::t", above=event("aten::linear"))))


def test_the_model_for_the_profiler_is_not_compiled_where_the_model_is_not(llama: Engine, tmp_path: Path) -> None:
    own = llama.checkpoint.model
    with_marks = marked(own, tmp_path)
    assert own.fast is None and with_marks.fast is None and with_marks.attention_kind is own.attention_kind
    found = split("eager", own, with_marks, fill_cache(own, 40, 20), make_tree(own, 20))
    assert min(found.attention, found.products, found.head) > 0 and (found.cached, found.rows) == (40, 20)


def test_the_hosts_work_is_what_the_model_does_not_do(llama: Engine) -> None:
    prompts = [[5, 9, 5, 9, 5], [7, 8, 9]]
    work = measure_host_work(llama.checkpoint, prompts, num_rows=12, max_new_tokens=30)
    assert set(work.seconds) == {FORWARD, ANSWERS, *HOST} and min(work.seconds.values()) > 0
    assert work.host_s == pytest.approx(work.step_s - work.seconds[FORWARD] - work.seconds[ANSWERS])
    assert work.steps <= 2 * 29 and work.rows_per_step <= 12 and work.tokens_per_step >= 1
    assert isinstance(llama.checkpoint.model, CausalModel) and "forward" not in vars(llama.checkpoint.model)


def test_texts_that_are_over_at_once_are_refused(llama: Engine) -> None:
    with pytest.raises(ValueError, match="over with the first step"):
        measure_host_work(llama.checkpoint, [[5, 9]], num_rows=4, max_new_tokens=1)
