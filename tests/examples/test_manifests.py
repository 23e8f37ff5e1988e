"""The manifests have only fields that Ray, KubeRay and Ray Serve know, and agree with the image and with each other."""

from __future__ import annotations

import json
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.examples.commands import DEPLOY, documents

RAY_JOB = DEPLOY / "kuberay" / "rayjob.yaml"
RAY_SERVICE = DEPLOY / "kuberay" / "rayservice.yaml"
RAY_CLUSTER = DEPLOY / "ray" / "cluster.yaml"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
COMPOSE = DEPLOY / "docker" / "compose.yaml"

# The fields of KubeRay's API ray.io/v1 that an example may need. A cluster drops or refuses all unknown fields.
KUBERAY_FIELDS = {
    "RayJob": {
        "activeDeadlineSeconds", "backoffLimit", "clusterSelector", "entrypoint", "entrypointNumCpus",
        "entrypointNumGpus", "entrypointResources", "jobId", "managedBy", "metadata", "rayClusterSpec",
        "runtimeEnvYAML", "shutdownAfterJobFinishes", "submissionMode", "submitterConfig", "submitterPodTemplate",
        "suspend", "ttlSecondsAfterFinished",
    },
    "RayService": {
        "rayClusterConfig", "rayClusterDeletionDelaySeconds", "serveConfigV2", "serveService",
        "upgradeStrategy",
    },
    "cluster": {
        "authOptions", "autoscalerOptions", "enableInTreeAutoscaling", "gcsFaultToleranceOptions", "headGroupSpec",
        "headServiceAnnotations", "managedBy", "networkPolicy", "rayVersion", "suspend", "tlsOptions",
        "upgradeStrategy", "workerGroupSpecs",
    },
    "head": {"enableIngress", "headService", "labels", "rayStartParams", "resources", "serviceType", "template"},
    "worker": {
        "groupName", "idleTimeoutSeconds", "labels", "maxReplicas", "minReplicas", "numOfHosts", "rayStartParams",
        "replicas", "resources", "scaleStrategy", "suspend", "template",
    },
}  # fmt: skip


def kuberay(file: Path) -> dict[str, Any]:
    """Returns the one manifest in the file that belongs to KubeRay."""
    (found,) = [document for document in documents(file) if document["apiVersion"] == "ray.io/v1"]
    return found


def cluster_of(manifest: dict[str, Any]) -> dict[str, Any]:
    return manifest["spec"]["rayClusterSpec" if manifest["kind"] == "RayJob" else "rayClusterConfig"]


def pods_of(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = cluster_of(manifest)
    return [group["template"]["spec"] for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]]


def serve_config() -> dict[str, Any]:
    return yaml.safe_load(kuberay(RAY_SERVICE)["spec"]["serveConfigV2"])


@pytest.fixture(params=[RAY_JOB, RAY_SERVICE], ids=lambda file: file.stem)
def manifest(request: pytest.FixtureRequest) -> dict[str, Any]:
    return kuberay(request.param)


def test_kuberay_knows_every_field(manifest: dict[str, Any]):
    cluster = cluster_of(manifest)
    assert manifest["spec"].keys() <= KUBERAY_FIELDS[manifest["kind"]]
    assert cluster.keys() <= KUBERAY_FIELDS["cluster"]
    assert cluster["headGroupSpec"].keys() <= KUBERAY_FIELDS["head"]
    for group in cluster["workerGroupSpecs"]:
        assert group.keys() <= KUBERAY_FIELDS["worker"]
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]:
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())


def test_pods_run_without_privileges_and_behind_a_token(manifest: dict[str, Any]):
    assert cluster_of(manifest)["authOptions"] == {"mode": "token"}
    for pod in pods_of(manifest):
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 1000
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["requests"]["memory"] == container["resources"]["limits"]["memory"]
            mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
            assert mounted == {volume["name"] for volume in pod.get("volumes", [])}


def test_the_version_of_ray_is_the_pinned_one(manifest: dict[str, Any]):
    constraints = (DEPLOY.parents[1] / "constraints.txt").read_text(encoding="utf-8")
    assert f"ray=={cluster_of(manifest)['rayVersion']}" in constraints.splitlines()


def test_workers_of_the_job_hold_its_ranks():
    manifest = kuberay(RAY_JOB)
    (ranks,) = re.findall(r"parallel\.ranks=(\d+)", manifest["spec"]["entrypoint"])
    (group,) = cluster_of(manifest)["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    assert int(ranks) <= group["replicas"] * int(container["resources"]["requests"]["cpu"])


def test_prompts_of_the_job_are_where_it_looks_for_them():
    prompts, _ = documents(RAY_JOB)
    (path,) = re.findall(r"prompts=(\S+)", kuberay(RAY_JOB)["spec"]["entrypoint"])
    (mount,) = pods_of(kuberay(RAY_JOB))[0]["containers"][0]["volumeMounts"]
    assert Path(path).parent == Path(mount["mountPath"])
    assert all(json.loads(line)["prompt"] for line in prompts["data"][Path(path).name].splitlines())


def test_ray_serve_takes_the_configuration():
    pytest.importorskip("ray.serve")
    from ray.serve.schema import ServeDeploySchema

    ServeDeploySchema.model_validate(serve_config())


def test_the_service_builds_an_application_of_ours():
    pytest.importorskip("ray.serve")
    (application,) = serve_config()["applications"]
    module, _, name = application["import_path"].partition(":")
    built = getattr(import_module(module), name)({**application["args"], "model.path": "demo/python-11m"})
    assert type(built).__name__ == "Application"


def test_workers_of_the_service_hold_a_group_each():
    (application,) = serve_config()["applications"]
    (group,) = cluster_of(kuberay(RAY_SERVICE))["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == str(application["args"]["parallel.ranks"])
    assert group["maxReplicas"] == application["args"]["ray.max_replicas"]


def test_ray_takes_the_cluster():
    jsonschema = pytest.importorskip("jsonschema")
    ray = find_spec("ray")
    if ray is None or ray.origin is None:
        pytest.skip("the extra ray is not installed")
    schema = Path(ray.origin).parent / "autoscaler" / "ray-schema.json"
    (cluster,) = documents(RAY_CLUSTER)
    jsonschema.validate(cluster, json.loads(schema.read_text(encoding="utf-8")))


def test_the_cluster_of_ray_is_behind_a_token():
    (cluster,) = documents(RAY_CLUSTER)
    assert "~/.ray/auth_token" in cluster["file_mounts"]
    for kind in ("head", "worker"):
        started = [command for command in cluster[f"{kind}_start_ray_commands"] if "ray start" in command]
        assert len(started) == 1 and "RAY_AUTH_MODE=token" in started[0]


def test_the_image_is_pinned_small_and_not_root():
    text = DOCKERFILE.read_text(encoding="utf-8")
    assert "-c constraints.txt" in text and "--no-install-recommends" in text
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE)[-1] == "1000:1000"
    assert "HEALTHCHECK" in text and "/health" in text


def test_the_image_holds_what_it_copies_and_ignores_the_rest():
    root = DEPLOY.parents[1]
    text = DOCKERFILE.read_text(encoding="utf-8")
    copied = {word for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE) for word in line.split()[:-1]}
    ignored = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert copied == {line[1:] for line in ignored if line.startswith("!")}
    assert all((root / name).exists() for name in copied)


def test_the_composition_agrees_with_the_image():
    (compose,) = documents(COMPOSE)
    server = compose["services"]["server"]
    text = DOCKERFILE.read_text(encoding="utf-8")
    assert (COMPOSE.parent / server["build"]["context"]).resolve() == DEPLOY.parents[1]
    assert [volume.split(":")[1] for volume in server["volumes"]] == re.findall(r"^VOLUME (.*)$", text, re.MULTILINE)
    for service in compose["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), "reachable from other machines"
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (COMPOSE.parent / source).exists()
