"""Degrees of parallelism and the mesh that they span."""

from __future__ import annotations

import itertools

import pytest

from parallel.mesh import Mesh, Mode, ParallelSettings, explain, make_mesh, name_mode, resolve_degrees


@pytest.mark.parametrize(
    ("mode", "given", "num_ranks", "expected"),
    [
        ("auto", {}, 1, {"lp": 1}),
        ("auto", {}, 4, {"lp": 4}),
        ("single", {}, 1, {"lp": 1}),
        ("lp", {}, 3, {"lp": 3}),
        ("tp", {}, 4, {"tp": 4}),
        ("pp", {}, 2, {"pp": 2}),
        ("tp", {}, 1, {"tp": 1}),
        ("lp", {"tp": 2}, 4, {"lp": 2, "tp": 2}),
        ("tp", {"lp": 2}, 8, {"lp": 2, "tp": 4}),
        ("auto", {"tp": 2}, 4, {"lp": 2, "tp": 2}),
        ("auto", {"lp": 2, "tp": 2}, 4, {"lp": 2, "tp": 2}),
        ("auto", {"pp": 3}, 3, {"pp": 3}),
        ("auto", {"pp": 1, "tp": 1}, 2, {"lp": 2}),
        ("tp", {"lp": 1, "tp": 2}, 2, {"tp": 2}),
        ("dp", {}, 1, {"lp": 1}),
        ("dp", {}, 3, {"lp": 3}),
        ("dp", {"tp": 2}, 4, {"lp": 2, "tp": 2}),
    ],
)
def test_degrees_are_settled(mode: str, given: dict[str, int], num_ranks: int, expected: dict[str, int]):
    assert resolve_degrees(Mode(mode), given, num_ranks) == expected


@pytest.mark.parametrize(
    ("mode", "given", "num_ranks", "message"),
    [
        ("lp", {"lp": 3}, 2, r"parallel\.lp=3 needs 3 rank\(s\), but there are 2"),
        ("lp", {"lp": 2, "tp": 2}, 2, r"parallel\.lp=2 \* parallel\.tp=2 needs 4 rank\(s\), but there are 2"),
        ("lp", {"tp": 2}, 3, r"parallel\.lp=1 \* parallel\.tp=2 needs 2 rank\(s\), but there are 3"),
        ("tp", {"tp": 0}, 2, r"parallel\.tp=0 must be at least 1"),
        ("lp", {"tp": -1}, 2, r"parallel\.tp=-1 must be at least 1"),
        ("pp", {"tp": 2}, 4, r"parallel\.pp=2 cannot be combined with parallel\.tp=2"),
        ("auto", {"pp": 2, "lp": 2}, 4, r"parallel\.pp=2 cannot be combined with parallel\.lp=2"),
        ("dp", {"pp": 2}, 2, r"parallel\.mode=dp gives requests to replicas, .* parallel\.pp=2 stages"),
        ("dp", {"lp": 3}, 2, r"parallel\.lp=3 needs 3 rank\(s\), but there are 2"),
        ("single", {}, 2, r"parallel\.mode=single uses one rank, but 2 were started"),
        ("single", {"lp": 2}, 1, r"parallel\.lp=2 needs 2 rank\(s\), but there are 1"),
    ],
)
def test_impossible_degrees_are_refused_with_the_numbers(
    mode: str, given: dict[str, int], num_ranks: int, message: str
):
    with pytest.raises(ValueError, match=message):
        resolve_degrees(Mode(mode), given, num_ranks)


def test_every_rank_has_a_place_of_its_own_and_its_peers_share_the_rest():
    meshes = [Mesh(axes={"lp": 2, "tp": 3}, rank=rank, num_ranks=6) for rank in range(6)]
    assert [(mesh.index("lp"), mesh.index("tp")) for mesh in meshes] == list(itertools.product(range(2), range(3)))
    assert [mesh.peers("tp") for mesh in meshes] == [[0, 1, 2]] * 3 + [[3, 4, 5]] * 3
    assert [mesh.peers("lp") for mesh in meshes] == [[0, 3], [1, 4], [2, 5]] * 2
    assert meshes[4].index("pp") == 0 and meshes[4].peers("pp") == [4]


@pytest.mark.parametrize(
    ("axes", "mode"), [({"lp": 1}, "single"), ({"lp": 2}, "lp"), ({"pp": 2}, "pp"), ({"lp": 2, "tp": 2}, "lp x tp")]
)
def test_mesh_names_its_mode(axes: dict[str, int], mode: str):
    num_ranks = axes.get("lp", 1) * axes.get("pp", 1) * axes.get("tp", 1)
    assert Mesh(axes=axes, num_ranks=num_ranks).mode == mode
    assert name_mode(axes, Mode.dp) == mode.replace("lp", "dp")


def test_ranks_and_delay_are_checked():
    with pytest.raises(ValueError, match=r"parallel\.ranks=2, but 1 were started .* --nproc-per-node 2"):
        make_mesh(ParallelSettings(ranks=2), "cpu", {})
    with pytest.raises(ValueError, match=r"parallel\.delay_us=-1 must be"):
        make_mesh(ParallelSettings(delay_us=-1), "cpu", {})
    assert make_mesh(ParallelSettings(ranks=1), "cpu", {}).num_ranks == 1


def test_the_choice_of_auto_is_explained():
    chosen = explain({"lp": 2}, Mode.auto)
    assert "lp=2 (each replica holds the whole model" in chosen and "parallel=tp is for" in chosen
    assert "chosen by" not in explain({"lp": 2}, Mode.lp)
    assert "share a stream's steps" in chosen and "a part of every step" in explain({"lp": 2}, Mode.lp)
    assert "the requests that it is given" in explain({"lp": 2}, Mode.dp)
    both = explain({"lp": 2, "tp": 4}, Mode.auto)
    assert "lp=2 x tp=4" in both and "a part of every layer" in both and "chosen by" not in both
