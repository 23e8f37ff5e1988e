"""Messages about the command line, the cluster and its nodes. These tests need no cluster."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from launch import ray_job
from launch.cluster import settings
from tests.parallel.ranks import free_port

ray = pytest.importorskip("ray")

from launch.cluster import nodes  # noqa: E402
from launch.cluster.nodes import (  # noqa: E402
    Node,
    absolute_name,
    compare_nodes,
    inspect_node,
    join_cluster,
    shorten_ray_error,
)
from launch.cluster.program_settings import RayGenerateSettings, RayServeSettings, resolve_settings  # noqa: E402
from launch.cluster.ray_serve import run_replicas  # noqa: E402

LAUNCH = Path(ray_job.__file__).parent
VERSIONS = {"Python": "3.11.7", "ray": "2.60.0", "torch": "2.13.0+cpu"}


@pytest.mark.parametrize("arguments", [[], ["task=train"], ["task=serve", "task=bench"], ["prompt=task=serve"]])
def test_task_must_be_one_of_three(arguments: list[str]):
    with pytest.raises(ValueError, match=r"give one task=NAME, out of serve, generate, bench"):
        ray_job.split(arguments)


def test_task_is_taken_out_of_the_arguments():
    assert ray_job.split(["-m", "task=bench", "parallel=lp,tp"]) == ("bench", ["-m", "parallel=lp,tp"])


def test_the_extra_is_named_where_ray_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(settings, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=re.escape("pip install 'lookahead-parallel[ray]'")):
        settings.require_ray()


@pytest.mark.slow
def test_programs_do_not_load_ray_unless_they_run_on_it():
    loads = "import sys; from launch import bench, generate, ray_job, serve; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", loads]).returncode == 0


def test_only_the_cluster_package_and_modules_named_after_ray_import_it():
    guilty = [
        path.name
        for path in LAUNCH.rglob("*.py")
        if path.parent.name != "cluster"
        and not path.name.startswith("ray_")
        and re.search(r"^\s*(import|from) ray\b", path.read_text(), re.MULTILINE)
    ]
    assert not guilty


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("nonsense", "not of the form HOST:PORT"),
        ("127.0.0.1:{}", "no Ray cluster answers"),
        ("127.0.0.1:x", "HOST:PORT"),
    ],
)
def test_an_address_without_a_cluster_is_reported_at_once(address: str, words: str):
    address = address.format(free_port())
    with pytest.raises(ValueError, match=f"(?=.*{re.escape(address)}).*{words}"):
        join_cluster(address)


def test_a_cluster_of_other_versions_is_reported_with_its_versions(monkeypatch: pytest.MonkeyPatch):
    def refuse(**options: object) -> None:
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.59.0\n    Python: 3.12.1\n")

    monkeypatch.setattr(nodes, "_check_answers", lambda address: None)
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(ValueError, match=r"runs other versions: .*Ray: 2\.59\.0 Python: 3\.12\.1"):
        join_cluster("10.0.0.1:6379")


def test_a_refused_driver_is_told_of_tokens(monkeypatch: pytest.MonkeyPatch):
    def refuse(**options: object) -> None:
        raise ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379")

    monkeypatch.setattr(nodes, "_check_answers", lambda address: None)
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(ValueError, match=r"RAY_AUTH_MODE=token.*RAY_AUTH_TOKEN"):
        join_cluster("10.0.0.1:6379")


def test_nodes_that_agree_pass():
    builds = {**VERSIONS, "torch": "2.13.0+cu130"}  # a head without GPUs may have another build of the same version
    compare_nodes([Node("10.0.0.1", VERSIONS, True), Node("10.0.0.2", builds, True)], "/models/m")
    compare_nodes([Node("10.0.0.1", VERSIONS, None)], "owner/model")


def test_nodes_that_differ_are_named():
    nodes = [Node("10.0.0.1", VERSIONS, True), Node("10.0.0.2", {**VERSIONS, "torch": "2.12.0"}, True)]
    with pytest.raises(ValueError, match=r"torch: 2\.13\.0 on 10\.0\.0\.1, 2\.12\.0 on 10\.0\.0\.2"):
        compare_nodes(nodes, "/models/m")


def test_nodes_that_do_not_see_the_checkpoint_are_named():
    nodes = [Node("10.0.0.1", VERSIONS, True), Node("10.0.0.3", VERSIONS, False), Node("10.0.0.2", VERSIONS, False)]
    with pytest.raises(ValueError, match=r"model\.path=/models/m is not there on 10\.0\.0\.2 and 10\.0\.0\.3"):
        compare_nodes(nodes, "/models/m")


def test_a_node_describes_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "10.0.0.1")
    assert inspect_node(str(tmp_path)).sees_checkpoint is True
    assert inspect_node(str(tmp_path / "none")).sees_checkpoint is False
    assert inspect_node("owner/model").sees_checkpoint is None
    assert inspect_node("owner/model").versions["ray"] == ray.__version__


def test_local_paths_become_absolute_and_hub_ids_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    assert absolute_name("models") == str(tmp_path / "models")
    assert absolute_name("./none") == str(tmp_path / "none")
    assert absolute_name("owner/model") == "owner/model"


def test_all_files_of_settings_become_absolute_and_words_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name in ("auto", "off", "drafter", "keys", "grammar.lark", "answers"):
        (tmp_path / name).touch()
    serve, generate = RayServeSettings(), RayGenerateSettings()
    serve.model.path, serve.draft.path, serve.index = "owner/model", "drafter", "answers"
    serve.server.api_keys_file, generate.grammar.file = "keys", "grammar.lark"
    resolve_settings(serve)
    resolve_settings(generate)
    assert (serve.model.path, serve.draft.path) == ("owner/model", str(tmp_path / "drafter"))
    assert (serve.index, serve.corpus, serve.model.heads) == (str(tmp_path / "answers"), "off", "auto")
    assert (serve.second.path, serve.server.api_keys_file) == ("", str(tmp_path / "keys"))
    assert generate.grammar.file == str(tmp_path / "grammar.lark")


def test_a_certificate_is_refused_with_replicas():
    settings = RayServeSettings()
    settings.server.tls_certificate = settings.server.tls_key = "server.pem"
    with pytest.raises(ValueError, match=r"server\.tls_certificate .*Ray Serve.*ray\.num_replicas"):
        run_replicas(settings, lambda: 15)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            "The actor died unexpectedly before finishing this task.\n\tclass_name: RankActor\n\tip: 10.0.0.1\nThe "
            "actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: End "
            "of file. Some common causes include: (1) the process was killed by the OOM killer.",
            "its worker process has died",
        ),
        (
            "The actor died because its node has died. Node Id: 3e1c, Ip: 10.0.0.2\n\tthe actor's node was terminated",
            "its node has died",
        ),
        ("The actor is dead because it was killed by `ray.kill`.", "it was killed by `ray.kill`"),
        ("\x1b[36mray::RankActor.serve()\n  File 'rank.py'\nOSError: no space left", "OSError: no space left"),
    ],
)
def test_rays_errors_are_shortened_to_the_cause(text: str, cause: str):
    assert shorten_ray_error(ray.exceptions.RayError(text)) == cause
