"""Opens a group of ranks on the cluster that this process belongs to, under a supervisor in this process."""

from __future__ import annotations

from dataclasses import dataclass, field

from launch.cluster import nodes
from launch.cluster.connect import resources
from launch.cluster.demand import resolve_demand
from launch.cluster.launcher import RayLauncher
from launch.cluster.reservation import Reservation
from launch.cluster.settings import RaySettings
from launch.program.runtime import RuntimeSettings
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
    available = resources().nodes
    demand = resolve_demand(ranks, wanted.cpus_per_rank, wanted.placement, settings.model.device, available)
    reservation = Reservation(demand)
    try:
        reservation.wait(wanted.ready_s)
        nodes.check(reservation, settings.model.path, wanted.ready_s)
        return Supervisor(settings, settings.supervisor, RayLauncher(reservation))
    except BaseException:
        reservation.release()
        raise
