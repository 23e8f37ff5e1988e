"""What a decoding method may need beside the main model: heads, or a second model.

Every rank holds it whole, whatever part of the main model it holds, so nothing of it is ever sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from lp.model.causal import CausalModel
from lp.model.checkpoint_info import CheckpointInfo
from lp.model.compilation import CompileMode


class Extension(ABC):
    """What is loaded with a checkpoint for some methods.

    role: by which methods find it, such as draft. model: with keys and values of its own, which share the main model's
    memory; None for heads. relative_cost: about the seconds of a forward of it, divided by those of this rank's forward
    of the main model. The ranks of a run agree on the least.
    """

    role: str
    model: CausalModel | None = None
    relative_cost: float = 0.0

    @abstractmethod
    def check(self, known: CheckpointInfo) -> None:
        """Comes first. Raises CheckpointError or ValueError for what can be refused without weights.

        known: of the main model.
        """

    @abstractmethod
    def load(self, main: CausalModel, known: CheckpointInfo) -> None:
        """Reads the weights, to the main model's device and in its dtype. Raises CheckpointError or ValueError."""

    @abstractmethod
    def attach(self, main: CausalModel, mode: CompileMode) -> None:
        """Makes it ready to run, once there is memory for keys and values and the main model is compiled. The main
        model's weights are still there. Raises CheckpointError or ValueError.
        """
