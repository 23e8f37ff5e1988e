"""Reserves what a group of ranks needs: a placement group with one bundle for each rank."""

from __future__ import annotations

import logging
import time

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from launch.cluster.connect import resources
from launch.cluster.demand import Demand

log = logging.getLogger("lookahead")

LOOK_S = 1.0


class Reservation:
    """The bundles of a group of ranks. Ray moves a bundle whose node has gone to another node, if there is room."""

    def __init__(self, demand: Demand):
        self.demand = demand
        self._group: PlacementGroup = placement_group(
            [demand.bundle] * demand.num_ranks, strategy=str(demand.placement).upper()
        )

    def wait(self, ready_s: float) -> None:
        """Waits for the resources. Raises ValueError, which says what is missing, after `ready_s` seconds."""
        self._wait(ready_s, until_possible=False)

    def queue(self, ready_s: float) -> None:
        """Waits for the resources for as long as others use them. Raises ValueError if after `ready_s` seconds the
        cluster is still too small to have them at all.
        """
        self._wait(ready_s, until_possible=True)

    def _wait(self, ready_s: float, until_possible: bool) -> None:
        deadline = time.monotonic() + ready_s
        told = False
        while not self._group.wait(LOOK_S):
            now = resources()
            if time.monotonic() > deadline and not (until_possible and self.demand.misfit(now.nodes) is None):
                self.release()
                raise ValueError(self.demand.shortage(now.nodes, now.free, ready_s))
            if not told:
                log.info("waiting for resources: %s", self.demand)
                told = True

    def strategy(self, rank: int) -> PlacementGroupSchedulingStrategy:
        """For a task or an actor in the rank's bundle."""
        return PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=rank)

    def nodes(self) -> list[str]:
        """The id of each rank's node, empty while it has none."""
        placed = placement_group_table(self._group)["bundles_to_node_id"]
        return [placed.get(rank, "") for rank in range(self.demand.num_ranks)]

    def release(self) -> None:
        """Gives everything back; what still runs in it is killed."""
        if ray.is_initialized():
            remove_placement_group(self._group)
