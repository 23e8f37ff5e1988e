"""The parts of a sweep: points and their order, cores, the measurements that are kept, and the report."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import resource
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from launch.sweep.points import check_ranks, make_points, schedule
from launch.sweep.rank import Handover
from launch.sweep.ranks import RankLogs, explain, share_cores, usable_cores
from launch.sweep.records import Point, RankFigures, Run, SweepFolder, TextRecord, latest
from launch.sweep.report import markdown, print_table, write_report
from launch.sweep.settings import BenchSettings, check, from_json_values, to_json_values
from launch.sweep.summary import summarise
from lp import Autoregressive, Lookahead
from lp.model.checkpoint import ModelSettings
from lp.sampling.settings import Sampling
from parallel.mesh import Mode, ParallelSettings


def settings(mode: str = "single", decode: Any = None, temperature: float = 0.0, **more: Any) -> BenchSettings:
    parallel = ParallelSettings(mode=Mode(mode), **{key: more.pop(key) for key in ("ranks", "lp", "tp") if key in more})
    model, sampling = ModelSettings(path="somewhere/model"), Sampling(temperature=temperature)
    return BenchSettings(model=model, decode=decode or Lookahead(), parallel=parallel, sampling=sampling, **more)


def test_baselines_and_autoregressive_decoding_come_with_every_sweep() -> None:
    spanned = [settings(mode, ranks=2, baselines=["generate", "prompt_lookup"]) for mode in ("single", "lp")]
    points = make_points(spanned)
    assert [point.name for point in points] == [
        "transformers generate",
        "transformers prompt look-up",
        "single autoregressive",
        "single lookahead (7, 5, 7)",
        "lp x2 lookahead (7, 5, 7)",
    ]
    assert make_points([*spanned, settings("single", Autoregressive(), baselines=[])]) == points


def test_a_point_is_known_by_what_decides_its_result() -> None:
    key = make_points([settings("lp", ranks=2)])[-1].key
    same = settings("lp", ranks=2, rounds=9, output="elsewhere", report_title="x", point_timeout_s=7.0)
    assert make_points([same])[-1].key == key
    others = [settings("lp", ranks=3), settings("lp", Lookahead(5), ranks=2), settings("lp", ranks=2, concurrency=2)]
    assert key not in {make_points([other])[-1].key for other in others}


def test_settings_reach_the_ranks_unchanged() -> None:
    there = settings("lp", Lookahead(3, 4, 5), ranks=2, concurrency=2, temperature=0.7)
    there.sampling.logit_bias = {5: 1.5}
    back = from_json_values(json.loads(json.dumps(to_json_values(there))))
    assert to_json_values(back) == to_json_values(there) and isinstance(back.decode, Lookahead)


def test_how_ranks_communicate_does_not_matter_to_a_single_rank() -> None:
    delayed = settings("single")
    delayed.parallel.delay_us = 200.0
    assert make_points([delayed]) == make_points([settings("single")])


def test_impossible_numbers_of_ranks_are_refused() -> None:
    *_, fits = make_points([settings("lp", ranks=4, tp=2)])
    check_ranks(fits, num_cores=1)
    *_, misfit = make_points([settings("lp", ranks=3, lp=2)])
    with pytest.raises(ValueError, match=r"parallel.lp=2 needs 2 rank\(s\), but there are 3"):
        check_ranks(misfit, num_cores=2)
    *_, crowd = make_points([settings("lp", ranks=17)])
    with pytest.raises(ValueError, match=r"17 ranks are too many for 2 core\(s\): use parallel.ranks=16 or fewer"):
        check_ranks(crowd, num_cores=2)


def test_rounds_interleave_and_leave_out_what_was_measured() -> None:
    points = make_points([settings("single"), settings("lp", ranks=2)])
    a, b, c, d = (point.key for point in points)
    assert [(n, p.key) for n, p in schedule(points, 2, set())] == [
        (0, a), (0, b), (0, c), (0, d), (1, b), (1, c), (1, d), (1, a),
    ]  # fmt: skip
    assert [(n, p.key) for n, p in schedule(points, 2, {(a, 0), (b, 0), (c, 0), (d, 0), (c, 1)})] == [
        (1, b),
        (1, d),
        (1, a),
    ]


def test_cores_are_shared_out() -> None:
    assert share_cores(2, 1, [0, 1]) == ([[0], [1]], False)
    assert share_cores(2, 2, [0, 1, 2, 3]) == ([[0, 1], [2, 3]], False)
    assert share_cores(3, 1, [0, 1]) == ([[0], [1], [0]], True)
    assert share_cores(1, 4, [0, 1]) == ([[0, 1]], True)


def test_hardware_threads_of_one_core_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1, 2, 3})
    assert usable_cores(tmp_path) == [0, 1, 2, 3]  # nothing is known about hardware threads
    for cpu in range(4):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 2},{cpu % 2 + 2}\n")
    assert usable_cores(tmp_path) == [0, 1]


def failure(rank: int, exit_code: int, timestamp: int) -> ProcessFailure:
    found = ProcessFailure(rank, pid=1, exitcode=exit_code, error_file="")
    found.timestamp = timestamp
    return found


def test_the_error_of_the_rank_that_failed_first_is_reported(tmp_path: Path) -> None:
    handover, logs = Handover(tmp_path), RankLogs(tmp_path / "logs", "point-0")

    def explained(*failures: ProcessFailure) -> str:
        return explain({failure.local_rank: failure for failure in failures}, handover, 9.0, logs)

    killed = "rank 1 was ended by SIGKILL; what it said is in logs/point-0-1.log"
    assert explained(failure(0, -15, 100), failure(1, -9, 100)) == killed  # rank 0 was ended by the launcher
    assert explained(failure(1, 3, 100)) == "rank 1 ended with exit code 3; what it said is in logs/point-0-1.log"
    assert explained(failure(0, 1, 100), failure(1, -14, 100)) == "not done after point_timeout_s=9"
    for rank, moment, message in ((0, 100.4, "rank 1 is lost"), (1, 100.2, "no room")):
        handover.error(rank).write_text(message)
        os.utime(handover.error(rank), (moment, moment))
    assert explained(failure(0, 1, 100), failure(1, 1, 100)) == "no room"
    assert explained(failure(0, 1, 100), failure(2, -9, 130)) == "rank 1 is lost"  # rank 2 did not end by itself


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 0}, "rounds=0 must be at least 1"),
        ({"concurrency": 0}, "concurrency=0 must be at least 1"),
        ({"baselines": ["vllm"]}, r"baselines=vllm is unknown; choose from \[generate,"),
        ({"baselines": ["assisted"]}, r"baselines=\[assisted\] needs assistant=FOLDER"),
    ],
)
def test_settings_out_of_range_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(settings(**changes))


def figures(rank: int = 0, **changes: Any) -> RankFigures:
    values = {"weight_bytes": 4_000_000, "cache_bytes": 1000, "peak_bytes": 9_000_000, "num_collectives": 0}
    return RankFigures(rank, "cpu", **{**values, "bytes_sent": 0, "communication_s": 0.0, **changes})


def run_of(point: Point, number: int, seconds: float, digest: str = "d", **changes: Any) -> Run:
    text = TextRecord("a", prompt_tokens=5, tokens=20, steps=10, ttft_s=0.1, decode_s=seconds, digest=digest)
    return Run(point.key, number, "done", None, [text], [figures()], {"1": 5, "3": 5}, 50, seconds, **changes)


def test_ratios_are_taken_within_a_round() -> None:
    generate, alone, lp = make_points([settings("lp", ranks=2)])
    seconds = {generate.key: [1.0, 2.0, 4.0], alone.key: [2.0, 2.0, 4.0], lp.key: [1.0, 0.5, 2.0]}
    points = [generate, alone, lp]
    runs = [run_of(point, n, s) for point in points for n, s in enumerate(seconds[point.key])]
    summary = summarise(points, runs)[2]
    assert summary.over_generate and summary.over_autoregressive and summary.tokens_per_s
    assert (summary.over_generate.median, summary.over_generate.least, summary.over_generate.most) == (2.0, 1.0, 4.0)
    assert summary.over_autoregressive.median == 2.0
    assert summary.tokens_per_s.median == 20.0  # its ratio to generate's median, 10, would hide the spread
    assert (summary.tokens_per_step, summary.rows_per_step, summary.same_texts) == (2.0, 5.0, 1)
    assert summary.accepted_lengths == {1: 0.5, 3: 0.5}


def test_the_busiest_rank_counts() -> None:
    points = make_points([settings("lp", ranks=2, baselines=[])])
    run = run_of(points[1], 0, 2.0)
    run.ranks = [figures(0, bytes_sent=100, communication_s=0.5), figures(1, bytes_sent=300, num_collectives=20)]
    summary = summarise(points, [run])[1]
    assert (summary.bytes_per_step, summary.collectives_per_step) == (30.0, 2.0)
    assert (summary.communication_share, summary.communication_ms_per_step) == (0.25, 50.0)
    assert summary.over_autoregressive is None and summary.same_texts is None  # nothing to compare with was measured


def test_sampled_texts_are_compared_with_our_own() -> None:
    generate, alone, lookahead = points = make_points([settings("single", temperature=1.0)])
    runs = [run_of(generate, 0, 1.0, "other"), run_of(alone, 0, 1.0, "same"), run_of(lookahead, 0, 1.0, "same")]
    assert [summary.same_texts for summary in summarise(points, runs)] == [0, 1, 1]


class Outside(HTMLParser):
    """Collects the tags of a page, and its references to anything outside the page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and not (value or "").startswith("#"):
                self.references.append(f"{tag} {name}={value}")


def test_the_report_is_complete_with_failures_and_without_measurements(tmp_path: Path) -> None:
    points = make_points([settings("single"), settings("lp", ranks=2), settings("pp", ranks=2)])
    failed = Run(points[-1].key, 0, "failed", "no <script>alert(1)</script> here")
    runs = [*(run_of(point, 0, 1.0, oversubscribed=point.ranks > 1) for point in points[:-1]), failed]
    for number, measured in enumerate((runs, [failed], [])):
        path = tmp_path / f"{number}.html"
        summaries = summarise(points, measured)
        write_report(path, points, measured, summaries, "A & B")
        page = path.read_text()
        outside = Outside()
        outside.feed(page)
        assert outside.references == [] and "script" not in outside.tags and "A &amp; B" in page
        num_plots = 7 if number == 0 else 0  # without the four of communication, of which there was none
        assert outside.tags.count("svg") == num_plots
        assert ("no &lt;script&gt;" in page) == (number < 2)
        assert "somewhere" not in page


def test_the_tables_fit_and_name_what_failed() -> None:
    points = make_points([settings("lp", ranks=2), settings("pp", ranks=2)])
    runs = [*(run_of(point, 0, 1.0) for point in points[:-1]), Run(points[-1].key, 0, "failed", "too few layers")]
    output = io.StringIO()
    print_table(summarise(points, runs), Console(file=output, width=80))
    lines = output.getvalue().splitlines()
    assert max(len(line) for line in lines) <= 80
    shown = " ".join(output.getvalue().split())
    assert "failed: pp x2 lookahead (7, 5, 7): too few layers" in shown and "concurrency=2" in shown
    assert "| lp x2 lookahead (7, 5, 7) |" in markdown(summarise(points, runs))


def test_measurements_are_kept_and_a_partly_written_line_is_left_out(tmp_path: Path) -> None:
    point = make_points([settings()])[0]
    folder = SweepFolder(tmp_path / "sweep")
    folder.append(Run(point.key, 0, "failed", "at first"))
    with open(folder.path / "runs.jsonl", "a") as file:
        file.write(run_of(point, 1, 1.0).to_json()[:50])
    assert [run.status for run in folder.runs()] == ["failed"]
    again = run_of(point, 0, 2.0)
    folder.append(again)
    assert [dataclasses.asdict(run) for run in latest(folder.runs())] == [dataclasses.asdict(again)]


def test_a_full_disk_is_named_and_what_was_measured_is_kept(tmp_path: Path) -> None:
    point = make_points([settings()])[0]
    folder = SweepFolder(tmp_path)
    folder.append(run_of(point, 0, 1.0))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "runs.jsonl").stat().st_size + 20, limits[1]))
    try:
        with pytest.raises(ValueError, match=r"output=.* cannot be written: File too large; what was measured is kept"):
            folder.append(run_of(point, 1, 1.0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [run.round for run in folder.runs()] == [0]
    folder.append(run_of(point, 1, 1.0))
    assert [run.round for run in folder.runs()] == [0, 1]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"output=.*file/sub cannot be written: Not a directory; name another"):
        SweepFolder(tmp_path / "file" / "sub")
