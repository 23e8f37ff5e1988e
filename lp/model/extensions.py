"""What a decoding method may need beside the main model: heads, or a second model.

Every rank holds it whole, whatever part of the main model it holds, so nothing of it is ever sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from lp.kv_cache.cache import KVCache
from lp.model.causal import CausalModel
from lp.model.checkpoint_info import CheckpointInfo
from lp.model.compilation import CompileMode

# Rows of the forwards whose times are measured, as those of rounds of drafts; the first is one.
ROUND_ROWS = (1, 4, 8, 16)
NO_COSTS = (0.0,) * len(ROUND_ROWS)

# See Runner.find_cache.
FindCache = Callable[[str, list[int]], KVCache | None]


class Extension(ABC):
    """What is loaded with a checkpoint for some methods.

    role: by which methods find it, such as draft. model: with keys and values; None for heads. shares_memory: whether
    the memory for these is the main model's, as both have the same layers. find_cache: finds the main model's cache of
    a sequence by its id and tokens, if memory is shared. is_ahead: whether some ranks draft while others compute a
    step. relative_costs: about the seconds of a forward of it with each of ROUND_ROWS, divided by those of this
    rank's forward of the main model with one. The ranks of a run agree on the least.
    """

    role: str
    model: CausalModel | None = None
    find_cache: FindCache | None = None
    relative_costs: tuple[float, ...] = NO_COSTS
    is_ahead: bool = False

    @property
    def relative_cost(self) -> float:
        """The relative cost of a forward with one row."""
        return self.relative_costs[0]

    @property
    def shares_memory(self) -> bool:
        return False

    @property
    def is_optional(self) -> bool:
        """Whether the model is served without it if it does not fit the device."""
        return False

    @abstractmethod
    def check(self, known: CheckpointInfo) -> None:
        """Comes first. Raises CheckpointError or ValueError for what can be refused without weights.

        known: of the main model.
        """

    @abstractmethod
    def load(self, main: CausalModel, known: CheckpointInfo) -> None:
        """Reads the weights, to the main model's device and in its dtype. Raises CheckpointError or ValueError, such as
        DoesNotFit.
        """

    @abstractmethod
    def attach(self, main: CausalModel, mode: CompileMode) -> None:
        """Makes it ready to run, once there is memory for keys and values and the main model is compiled. The main
        model's weights are still there. Raises CheckpointError or ValueError.
        """
