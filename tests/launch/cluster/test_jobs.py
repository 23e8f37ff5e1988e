"""Whole jobs: `ray job submit` and `ray job stop`, sweeps, and groups behind Ray Serve."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.launch.cluster.clusters import JOB, LocalCluster, local_cluster
from tests.launch.cluster.serving import QUICK, answers, serving, stream, wait_until
from tests.parallel.ranks import free_port

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def taking_jobs() -> Iterator[LocalCluster]:
    pytest.importorskip("ray")
    with local_cluster(cores=[2], takes_jobs=True) as started:
        yield started
        started.await_nothing_left()


def test_a_submitted_job_has_the_output_and_exit_code_of_its_task(taking_jobs: LocalCluster, model: Path) -> None:
    job = ["job", "submit", "--", sys.executable, JOB, "task=generate", f"model.path={model}", "parallel.ranks=2"]
    done = taking_jobs.ray(*job, *QUICK, "prompt=def", "max_new_tokens=8", "ignore_eos=true", "format=json")
    assert done.returncode == 0, done.stdout + done.stderr
    [record] = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"id"')]
    assert len(record["token_ids"]) == 8 and record["ranks"] == 2
    assert "rank 0" in done.stdout
    failed = taking_jobs.ray(*job, *QUICK, "prompt=def", "ray.placement=strict_spread", "ray.ready_s=1")
    assert failed.returncode != 0 and "needs a node for each of parallel.ranks=2" in failed.stdout


def test_a_stopped_job_lets_requests_finish(taking_jobs: LocalCluster, model: Path) -> None:
    port = free_port()
    wanted = [f"model.path={model}", "parallel.ranks=2", f"server.port={port}", "parallel.delay_us=10000"]
    submit = ["job", "submit", "--no-wait", "--submission-id", "server", "--", sys.executable, JOB, "task=serve"]
    submitted = taking_jobs.ray(*submit, *wanted, *QUICK)
    assert submitted.returncode == 0, submitted.stdout
    url = f"http://127.0.0.1:{port}"
    wait_until(lambda: answers(url), lambda: taking_jobs.ray("job", "logs", "server").stdout)
    expected = stream(url, model, 100)
    stopping = threading.Thread(target=taking_jobs.ray, args=("job", "stop", "server"))
    assert stream(url, model, 100, stopping.start) == expected
    stopping.join()
    assert "was stopped" in taking_jobs.ray("job", "status", "server").stdout
    taking_jobs.await_nothing_left()


def test_points_of_a_sweep_are_placed_and_measured(cluster: LocalCluster, model: Path, tmp_path: Path) -> None:
    sweep = ["-m", "parallel=lp", "parallel.ranks=2,9", "baselines=[]", "rounds=1", "ray.ready_s=10", "output=o"]
    work = ["workload.limit=1", "workload.max_new_tokens=8", f"model.path={model}", *QUICK]
    job = cluster.run("task=bench", *sweep, *work, "ray.placement=strict_spread", cwd=tmp_path, timeout_s=200)
    assert job.exit_code == 1, job.err  # one point cannot be placed, and the sweep goes on
    runs = [json.loads(line) for line in (tmp_path / "o" / "runs.jsonl").read_text().splitlines()]
    done = [run for run in runs if run["status"] == "done"]
    [failed] = [run for run in runs if run["status"] == "failed"]
    assert "parallel.ranks=9" in failed["error"]
    assert sorted(len(run["ranks"]) for run in done) == [1, 2]
    assert {run["hardware"]["nodes"] for run in done} == {1, 2}
    assert len({run["texts"][0]["digest"] for run in done}) == 1
    cluster.await_nothing_left()


def test_groups_behind_one_address_are_replaced(cluster: LocalCluster, model: Path, tmp_path: Path) -> None:
    settings = ["parallel.ranks=1", "ray.num_replicas=2", "ray.health_period_s=1"]
    with serving(cluster, model, tmp_path, *settings) as url:
        wait_until(lambda: len(cluster.actors("RankActor.serve")) == 2)
        ranks, front_ends = cluster.actors("RankActor.serve"), cluster.actors("ServeReplica")
        expected = stream(url, model, 40)
        psutil.Process(min(front_ends)).kill()
        wait_until(lambda: len(cluster.actors("RankActor.serve")) == 1)  # the rank went with its front end
        wait_until(lambda: len(cluster.actors("RankActor.serve")) == 2)
        assert cluster.actors("RankActor.serve") != ranks
        assert stream(url, model, 40) == expected
    cluster.await_nothing_left()


def test_groups_end_with_a_driver_that_is_killed(cluster: LocalCluster, model: Path, tmp_path: Path) -> None:
    port = free_port()
    wanted = [f"model.path={model}", "parallel.ranks=1", "ray.num_replicas=1", f"server.port={port}"]
    driver = cluster.start("task=serve", *wanted, *QUICK, cwd=tmp_path)
    wait_until(lambda: answers(f"http://127.0.0.1:{port}"))
    driver.kill()
    cluster.await_nothing_left(limit_s=60)
    wait_until(lambda: not answers(f"http://127.0.0.1:{port}"))


def test_modules_of_a_user_with_the_same_names_do_no_harm(cluster: LocalCluster, model: Path, tmp_path: Path) -> None:
    for name in ("launch", "lp", "parallel"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('a module of the user was imported')\n")
    wanted = ["task=generate", f"model.path={model}", "parallel.ranks=2", "prompt=def", "max_new_tokens=4", *QUICK]
    job = cluster.run(*wanted, "ignore_eos=true", "format=json", cwd=tmp_path, timeout_s=240)
    assert job.exit_code == 0, job.err
    assert len(json.loads(job.out)["token_ids"]) == 4
