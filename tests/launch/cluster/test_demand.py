"""What ranks reserve, and the messages if they do not get it."""

from __future__ import annotations

import pytest

from launch.cluster.demand import Demand, resolve_demand
from launch.cluster.settings import Placement, RaySettings

NODE = {"CPU": 8.0, "GPU": 2.0}


def demand(ranks: int = 4, cpus: float = 1.0, gpus: int = 0, placement: str = "pack") -> Demand:
    return Demand(ranks, cpus, gpus, Placement(placement))


def test_a_rank_reserves_what_it_needs_and_never_nothing():
    assert demand(cpus=2.0, gpus=1).bundle == {"CPU": 2.0, "GPU": 1.0}
    assert demand(cpus=0.0, gpus=1).bundle == {"GPU": 1.0}
    assert demand(cpus=0.0).bundle


@pytest.mark.parametrize(
    ("wanted", "nodes"),
    [
        (demand(), [NODE]),
        (demand(gpus=1), [NODE, NODE]),
        (demand(placement="strict_pack"), [NODE]),
        (demand(placement="strict_spread"), [NODE] * 4),
        (demand(2, cpus=0.0), [NODE]),
    ],
)
def test_what_fits(wanted: Demand, nodes: list[dict[str, float]]):
    assert wanted.misfit(nodes) is None


@pytest.mark.parametrize(
    ("wanted", "nodes", "free", "words"),
    [
        (demand(gpus=1), [NODE], NODE, ["parallel.ranks=4", "needs 4 GPUs", "the cluster has 2", "model.device=cpu"]),
        (demand(gpus=1), [NODE, NODE], {"CPU": 16.0, "GPU": 1.0}, ["needs 4 GPUs", "the cluster has 1 free", "9 s"]),
        (demand(20), [NODE, NODE], NODE, ["needs 20 CPUs", "the cluster has 16", "ray.cpus_per_rank"]),
        (demand(), [], {}, ["needs 4 CPUs", "the cluster has 0"]),
        (demand(gpus=1, placement="strict_pack"), [NODE, NODE], NODE, ["strict_pack", "one node", "4 GPUs"]),
        (demand(placement="strict_spread"), [NODE, NODE], NODE, ["strict_spread", "a node for each", "2 node(s)"]),
        (demand(3, cpus=5.0), [NODE, NODE], NODE, ["parallel.ranks=3", "5 CPUs each", "no node has enough"]),
        (demand(), [NODE], {"CPU": 8.0}, ["ray.placement=pack", "9 s"]),
    ],
)
def test_what_is_missing_is_reported_with_its_numbers(wanted: Demand, nodes: list, free: dict, words: list[str]):
    message = wanted.shortage(nodes, free, waited_s=9.0)
    assert all(word in message for word in words), message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("device", "ranks", "placement", "resolved"),
    [
        ("auto", 4, "pack", "cuda"),
        ("auto", 5, "pack", "cpu"),
        ("auto", 3, "strict_spread", "cpu"),
        ("cpu", 2, "pack", "cpu"),
        ("cuda", 9, "pack", "cuda"),
    ],
)
def test_device_follows_what_the_cluster_has(device: str, ranks: int, placement: str, resolved: str):
    assert resolve_demand(ranks, 1.0, Placement(placement), device, [NODE, NODE]).device == resolved


def test_a_gpu_cannot_be_named_by_its_number():
    with pytest.raises(ValueError, match=r"model\.device=cuda:1.*use model\.device=cuda$"):
        resolve_demand(1, 1.0, Placement.pack, "cuda:1", [NODE])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (RaySettings(cpus_per_rank=-1), r"ray\.cpus_per_rank=-1"),
        (RaySettings(ready_s=0), r"ray\.ready_s=0"),
        (RaySettings(num_replicas=0), r"ray\.num_replicas=0"),
        (RaySettings(num_replicas=3, max_replicas=2), r"ray\.max_replicas=2.*ray\.num_replicas=3"),
        (RaySettings(target_requests=0), r"ray\.target_requests=0"),
    ],
)
def test_settings_out_of_range_are_named(settings: RaySettings, words: str):
    with pytest.raises(ValueError, match=words):
        settings.check()
