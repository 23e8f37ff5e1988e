"""What benchmarks.real_model measures with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.shared.categories import CategoryPrompt


@dataclass(frozen=True)
class RealModelSettings:
    """The settings that the parts share.

    model: a checkpoint folder. small: another one, for the step curve alone. asked: the prompts. indexed: others, whose
    answers are put into an index. index: its file. num_sampled: how many
    of each category's prompts are sampled. threads: of everything that runs on one rank. rounds: of real ranks and of
    starts. compile: see CompileMode.
    """

    model: Path
    small: Path
    asked: list[CategoryPrompt]
    indexed: list[CategoryPrompt]
    index: Path
    num_sampled: int
    max_new_tokens: int
    threads: int
    rounds: int
    compile: str
