"""What benchmarks.real_model measures with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.shared.categories import CategoryPrompt
from lp.platform.disk_cache import digest


@dataclass(frozen=True)
class RealModelSettings:
    """The settings that the parts share.

    model: a checkpoint folder. small: another one, for the step curve alone. asked: the prompts. indexed: others, whose
    answers are put into an index. output: the folder of the results. num_sampled: how many of each category's prompts
    are sampled. threads: of everything that runs on one rank. rounds: of real ranks and of starts. compile: see
    CompileMode.
    """

    model: Path
    small: Path
    asked: list[CategoryPrompt]
    indexed: list[CategoryPrompt]
    output: Path
    num_sampled: int
    max_new_tokens: int
    threads: int
    rounds: int
    compile: str

    @property
    def index_facts(self) -> dict[str, object]:
        """What the index depends on, but for the model."""
        return {"indexed": digest([prompt.text for prompt in self.indexed]), "max_new_tokens": self.max_new_tokens}

    @property
    def index(self) -> Path:
        """The index's file."""
        return self.output / f"real_model-{self.model.name}-{digest(self.index_facts)}.index"
