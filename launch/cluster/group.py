"""Opens a group of ranks on the cluster that this process has joined. Its supervisor runs in this process."""

from __future__ import annotations

from dataclasses import dataclass, field

from launch.cluster.connect import read_resources
from launch.cluster.demand import resolve_demand
from launch.cluster.launcher import RayLauncher
from launch.cluster.nodes import check_nodes
from launch.cluster.reservation import Reservation
from launch.cluster.settings import RaySettings
from launch.config.engine_settings import num_ranks
from launch.config.runtime import RuntimeSettings
from launch.supervisor.settings import SupervisorSettings
from launch.supervisor.supervisor import Supervisor


@dataclass
class RayRuntimeSettings(RuntimeSettings):
    """Settings of a group on a cluster. ray: where its ranks run. supervisor: see launch.supervisor.settings."""

    ray: RaySettings = field(default_factory=RaySettings)
    supervisor: SupervisorSettings = field(default_factory=SupervisorSettings)


def open_group(settings: RayRuntimeSettings) -> Supervisor:
    """Waits for the resources, checks the nodes, and returns the Supervisor that will start the ranks.

    Raises ValueError with one message for the user, and then leaves nothing reserved.
    """
    wanted, ranks = settings.ray, num_ranks(settings.parallel)
    available = read_resources().nodes
    demand = resolve_demand(ranks, wanted.cpus_per_rank, wanted.placement, settings.model.device, available)
    reservation = Reservation(demand)
    try:
        reservation.wait(wanted.ready_s)
        check_nodes(reservation, settings.model.path, wanted.ready_s)
        return Supervisor(settings, settings.supervisor, RayLauncher(reservation))
    except BaseException:
        reservation.release()
        raise
