"""Reserves what a group of ranks needs: a placement group with one bundle for each rank."""

from __future__ import annotations

import logging
import time

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from launch.cluster.connect import read_resources
from launch.cluster.demand import Demand

log = logging.getLogger("lookahead")

# Seconds between two looks at whether the bundles are placed.
LOOK_S = 1.0


class Reservation:
    """The bundles of a group of ranks. If a node is lost, Ray moves its bundles to other nodes that have room."""

    def __init__(self, demand: Demand):
        self.demand = demand
        self._group: PlacementGroup = placement_group(
            [demand.bundle] * demand.num_ranks, strategy=str(demand.placement).upper()
        )

    def wait(self, ready_s: float) -> None:
        """Waits for the resources. After `ready_s` seconds raises ValueError with what is missing."""
        self._wait(ready_s, until_possible=False)

    def queue(self, ready_s: float) -> None:
        """Waits for the resources as long as others use them. After `ready_s` seconds raises ValueError if the cluster
        is too small even when nothing else runs on it.
        """
        self._wait(ready_s, until_possible=True)

    def _wait(self, ready_s: float, until_possible: bool) -> None:
        deadline = time.monotonic() + ready_s
        told = False
        while not self._group.wait(LOOK_S):
            now = read_resources()
            if time.monotonic() > deadline and not (until_possible and self.demand.misfit(now.nodes) is None):
                self.release()
                raise ValueError(self.demand.shortage(now.nodes, now.free, ready_s))
            if not told:
                log.info("waiting for resources: %s", self.demand)
                told = True

    def strategy(self, rank: int) -> PlacementGroupSchedulingStrategy:
        """The scheduling strategy that puts a task or an actor into the rank's bundle."""
        return PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=rank)

    def nodes(self) -> list[str]:
        """The id of each rank's node; an empty string while the rank has none."""
        placed = placement_group_table(self._group)["bundles_to_node_id"]
        return [placed.get(rank, "") for rank in range(self.demand.num_ranks)]

    def release(self) -> None:
        """Releases all bundles. Ray kills what still runs in them."""
        if ray.is_initialized():
            remove_placement_group(self._group)
