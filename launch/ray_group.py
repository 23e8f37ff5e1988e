"""Opens a group of ranks on the cluster that this process belongs to, under a supervisor in this process."""

from __future__ import annotations

from dataclasses import dataclass, field

from launch import ray_nodes
from launch.ray_cluster import resources
from launch.ray_demand import settle_demand
from launch.ray_launcher import RayLauncher
from launch.ray_placement import Reservation
from launch.ray_settings import RaySettings
from launch.runtime import RuntimeSettings
from launch.supervisor.settings import SupervisorSettings
from launch.supervisor.supervisor import Supervisor
from launch.sweep.points import num_ranks


@dataclass
class RayRuntimeSettings(RuntimeSettings):
    """ray: where the ranks are started. supervisor: see launch.supervisor.settings."""

    ray: RaySettings = field(default_factory=RaySettings)
    supervisor: SupervisorSettings = field(default_factory=SupervisorSettings)


def open_group(settings: RayRuntimeSettings) -> Supervisor:
    """Waits for the resources, sees that the nodes can be used, and gives the Supervisor that will start the ranks.

    Raises ValueError with one message for the user; nothing is reserved then.
    """
    wanted, ranks = settings.ray, num_ranks(settings.parallel)
    nodes = resources().nodes
    demand = settle_demand(ranks, wanted.cpus_per_rank, wanted.placement, settings.model.device, nodes)
    reservation = Reservation(demand)
    try:
        reservation.wait(wanted.ready_s)
        ray_nodes.check(reservation, settings.model.path, wanted.ready_s)
        return Supervisor(settings, settings.supervisor, RayLauncher(reservation))
    except BaseException:
        reservation.release()
        raise
