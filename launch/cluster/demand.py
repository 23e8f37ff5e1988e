"""What a group of ranks needs from a cluster, and what is missing if it does not get it.

This module only computes and writes messages; it knows no cluster. A node or a cluster is given as its resources, such
as {"CPU": 8.0, "GPU": 2.0}.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launch.cluster.settings import Placement

KINDS = ("CPU", "GPU")


@dataclass(frozen=True)
class Demand:
    """What a group needs: each of its `num_ranks` ranks reserves `cpus` cores and `gpus` GPUs."""

    num_ranks: int
    cpus: float
    gpus: int
    placement: Placement

    def __str__(self) -> str:
        return f"{self._ranks()} with {_and(self._amount(1))} each, ray.placement={self.placement}"

    @property
    def device(self) -> str:
        """The value of model.device for each rank."""
        return "cuda" if self.gpus else "cpu"

    @property
    def bundle(self) -> dict[str, float]:
        """What one rank reserves. It is never empty, because Ray refuses empty bundles."""
        reserved = {"CPU": self.cpus, "GPU": float(self.gpus)}
        return {kind: amount for kind, amount in reserved.items() if amount} or {"CPU": 0.001}

    def shortage(self, nodes: Sequence[Mapping[str, float]], free: Mapping[str, float], waited_s: float) -> str:
        """Why the ranks could not be placed.

        nodes: the total of each node. free: what is free now on all nodes together.
        """
        if reason := self.misfit(nodes):
            return reason
        for kind, needed in self._total().items():
            if needed > free.get(kind, 0.0):
                return self._too_few(kind, f"{free.get(kind, 0.0):g} free") + f" after ray.ready_s={waited_s:g} s"
        return (
            f"{self._ranks()} found no place within ray.ready_s={waited_s:g} s: {_and(self._total())} are free, but "
            f"not where ray.placement={self.placement} needs them; use another placement, or wait until more is free"
        )

    def misfit(self, nodes: Sequence[Mapping[str, float]]) -> str | None:
        """Why these nodes could not hold the ranks even if nothing else ran on them; None if they could."""
        for kind, needed in self._total().items():
            if needed > (total := sum(node.get(kind, 0.0) for node in nodes)):
                return self._too_few(kind, f"{total:g}")
        per_node = {
            Placement.strict_pack: self.num_ranks,
            Placement.strict_spread: 1,
        }.get(self.placement)
        if per_node and sum(self._holds(node, per_node) for node in nodes) < self.num_ranks // per_node:
            where = "one node for all" if per_node > 1 else "a node for each"
            return (
                f"ray.placement={self.placement} needs {where} of {self._ranks()} with {_and(self._amount(per_node))}, "
                f"and the cluster has {len(nodes)} node(s), each too small or too few: use ray.placement=pack or spread"
            )
        if sum(self._room(node) for node in nodes) < self.num_ranks:
            return (
                f"{self._ranks()} with {_and(self._amount(1))} each do not fit: no node has enough left for the "
                "last of them; use fewer ranks or a smaller ray.cpus_per_rank"
            )
        return None

    def _total(self) -> dict[str, float]:
        return self._amount(self.num_ranks)

    def _amount(self, num_ranks: int) -> dict[str, float]:
        return {kind: amount * num_ranks for kind, amount in self.bundle.items()}

    def _holds(self, node: Mapping[str, float], num_ranks: int) -> bool:
        return all(node.get(kind, 0.0) >= amount for kind, amount in self._amount(num_ranks).items())

    def _room(self, node: Mapping[str, float]) -> int:
        """How many of the ranks the node could hold."""
        return min(int(node.get(kind, 0.0) / amount) for kind, amount in self.bundle.items())

    def _too_few(self, kind: str, found: str) -> str:
        needed = _and({kind: self._total()[kind]})
        remedy = "model.device=cpu" if kind == "GPU" else "a smaller ray.cpus_per_rank"
        return f"{self._ranks()} needs {needed}, the cluster has {found}: use {remedy}, fewer ranks or more nodes"

    def _ranks(self) -> str:
        return f"parallel.ranks={self.num_ranks}"


def _and(amounts: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {kind}{'s' if amount != 1 else ''}" for kind, amount in amounts.items())


def resolve_demand(
    num_ranks: int, cpus: float, placement: Placement, device: str, nodes: Sequence[Mapping[str, float]]
) -> Demand:
    """The demand of a group. Each rank gets a GPU if model.device is cuda, or if it is auto and the nodes have enough.

    Raises ValueError if model.device names a GPU by its number, because Ray chooses the GPUs.
    """
    if re.fullmatch(r"cuda:\d+", device):
        raise ValueError(f"model.device={device} names a GPU, but Ray gives each rank its own: use model.device=cuda")
    on_gpus = Demand(num_ranks, cpus, 1, placement)
    if device == "cuda" or (device == "auto" and on_gpus.misfit(nodes) is None):
        return on_gpus
    return Demand(num_ranks, cpus, 0, placement)
