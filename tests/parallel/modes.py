"""Makes an engine on this rank under each mode of parallelism, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.distributed import PrefixStore

from lp import Engine
from lp.engine.builder import EngineSettings
from lp.model.checkpoint import ModelSettings
from parallel.build import MeshTopology
from parallel.mesh import ExchangeKind, Mesh, ParallelSettings, open_store


def engines(
    mesh: Mesh, folder: str, modes: Sequence[dict[str, int]], model: ModelSettings | None = None, **settings: Any
) -> Iterator[Engine]:
    """Yields an engine for the degrees of each mode. model: how to load it, if not by default. settings: of
    EngineSettings.
    """
    model = model or ModelSettings(folder, device="cpu")
    torch.set_num_threads(1)
    parallel = ParallelSettings(exchange=ExchangeKind.gloo, timeout_s=60)
    store = open_store(mesh, parallel.timeout_s)
    for axes in modes:
        place = MeshTopology(parallel, Mesh(axes, mesh.rank, mesh.num_ranks), PrefixStore(f"{folder} {axes}", store))
        yield Engine.assemble(EngineSettings(model, **settings), place)
        place.close()
