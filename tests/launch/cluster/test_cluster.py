"""Jobs on a Ray cluster of several nodes: placement, the same tokens as without Ray, requests that outlive ranks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.gguf_files import write_gguf
from tests.launch import commands
from tests.launch.cluster.clusters import ENVIRONMENT, LocalCluster, local_cluster
from tests.launch.cluster.serving import QUICK, all_serve, node_of, ranks_of, serving, stream, wait_until
from tests.models import generate_greedily

TOKENS = 150
# Slows streams down, so that they still run when a rank is killed.
SLOW = "parallel.delay_us=10000"
pytestmark = pytest.mark.cluster


@pytest.mark.quick
def test_ranks_are_placed_as_asked_and_what_does_not_fit_is_reported(cluster: LocalCluster) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.launch.cluster.placing", cluster.address],
        cwd=commands.CHECKOUT,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    nodes = {placement: [node for node, _ in ranks] for placement, ranks in found.items() if "strict" in placement}
    assert len(set(nodes["strict_pack"])) == 1 and len(set(nodes["strict_spread"])) == 2
    assert len({node for node, _ in found["pack"]}) == 1 and len({node for node, _ in found["spread"]}) == 2
    assert sorted(gpu for _, gpu in found["gpus"]) == ["0", "1"]
    assert re.search(r"needs 4 GPUs, the cluster has 2", found["too many GPUs"])
    assert re.search(r"strict_spread needs a node for each", found["too many nodes"])
    assert re.search(r"model\.path=/nowhere/model is not there on 127\.0\.0\.\d", found["unseen checkpoint"])
    cluster.await_nothing_left()


@pytest.mark.quick
def test_ranks_on_two_nodes_read_a_gguf_file(cluster: LocalCluster, tmp_path: Path) -> None:
    """The path is relative to the driver's folder, and both ranks read the file by one cache.

    Modules of that folder with the names of ours are not imported in their place.
    """
    write_gguf(tmp_path / "Tiny.gguf")
    for name in ("lp", "parallel", "launch"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the user')")
    wanted = ["model.path=./Tiny.gguf", "parallel.ranks=2", "ray.placement=strict_spread", "max_new_tokens=8"]
    job = cluster.run("task=generate", *wanted, *QUICK, "prompt=def", "format=json", "ignore_eos=true", cwd=tmp_path)
    assert job.exit_code == 0, job.err
    (record,) = [json.loads(line) for line in job.out.splitlines()]
    assert len(record["token_ids"]) == 8 and record["ranks"] == 2
    assert "loaded Tiny: " in job.err


@pytest.mark.quick
def test_generate_gives_the_tokens_of_transformers(cluster: LocalCluster, model: Path, tmp_path: Path) -> None:
    prompts = ["def fibonacci(n):", "class Window"]
    (tmp_path / "p.jsonl").write_text("\n".join(json.dumps({"prompt": prompt}) for prompt in prompts))
    wanted = [f"model.path={model}", "parallel.ranks=2", "ray.placement=strict_spread", "max_new_tokens=40"]
    job = cluster.run(
        "task=generate", *wanted, *QUICK, "ignore_eos=true", "prompts=p.jsonl", "format=json", cwd=tmp_path
    )
    assert job.exit_code == 0, job.err
    records = [json.loads(line) for line in job.out.splitlines()]
    reference = AutoModelForCausalLM.from_pretrained(model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    expected = [generate_greedily(reference, tokenizer.encode(prompt), 40) for prompt in prompts]
    assert [record["token_ids"] for record in records] == expected
    assert [(record["parallel"], record["ranks"]) for record in records] == [("lp", 2)] * 2
    assert "rank 0" in job.err and "epoch 1: ranks 0, 1" in job.err
    cluster.await_nothing_left()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["parallel.ranks=9", "ray.ready_s=1"], "needs 9 CPUs, the cluster has 5"),
        (["parallel.ranks=2", "prompt="], "give one of prompt=TEXT"),
    ],
)
def test_a_users_mistake_gives_one_message(
    cluster: LocalCluster, model: Path, tmp_path: Path, settings: list[str], words: str
) -> None:
    job = cluster.run("task=generate", f"model.path={model}", "prompt=x", *QUICK, *settings, cwd=tmp_path)
    assert job.exit_code == 2 and job.out == ""
    assert job.err.count("error:") == 1 and words in job.err and "Traceback" not in job.err, job.err
    cluster.await_nothing_left()


@pytest.mark.quick
def test_a_missing_token_is_reported(cluster: LocalCluster, model: Path, tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "RAY_AUTH_TOKEN": ""}
    job = cluster.run("task=generate", f"model.path={model}", "prompt=x", cwd=tmp_path, **home)
    assert job.exit_code == 2
    assert "RAY_AUTH_TOKEN" in job.err and "Traceback" not in job.err, job.err


def test_a_stream_outlives_a_rank_and_a_node(model: Path, tmp_path: Path) -> None:
    settings = ["parallel.ranks=3", "ray.placement=spread", SLOW]
    with local_cluster(cores=[1, 1, 1, 1]) as cluster, serving(cluster, model, tmp_path, *settings) as url:
        wait_until(lambda: all_serve(url))
        ranks = ranks_of(url)
        assert len({node_of(rank["pid"]) for rank in ranks}) == 3
        expected = stream(url, model, TOKENS)

        leader = ranks[0]["pid"]
        assert stream(url, model, TOKENS, psutil.Process(leader).kill) == expected
        wait_until(lambda: all_serve(url, gone=leader))

        victim = ranks_of(url)[2]["pid"]
        node = node_of(victim)
        removing = threading.Thread(target=cluster.remove, args=(node,))
        assert stream(url, model, TOKENS, removing.start) == expected
        removing.join()
        wait_until(lambda: all_serve(url, gone=victim))
        assert node_of(ranks_of(url)[2]["pid"]) != node
    assert not psutil.pid_exists(leader)
