"""What a run of consistency training does, and what it keeps so that it can go on after an interruption.

Knows nothing of trajectories or losses.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import PreTrainedModel

WARMUP_SHARE = 0.05


@dataclass(frozen=True)
class Recipe:
    """What a run does. One that goes on after an interruption must have the same.

    model: name of its folder. texts: how many are collected. prompt_tokens: P. blocks, block: K blocks of N tokens
    after each prompt. steps, batch: of training. rate: the highest learning rate. ar_weight: weight of the
    autoregressive loss in the sum.
    """

    model: str
    texts: int
    prompt_tokens: int
    blocks: int
    block: int
    steps: int
    batch: int
    rate: float
    ar_weight: float
    seed: int

    def learning_rate(self, step: int) -> float:
        """Rises, then falls linearly to zero."""
        progress = step / self.steps
        return self.rate * min((progress + 1 / self.steps) / WARMUP_SHARE, 1.0, 1.0 - progress)


class Unfinished:
    """What a run keeps in a folder so that the same command can go on after an interruption."""

    def __init__(self, folder: Path, recipe: Recipe):
        """Raises ValueError if the folder holds another run."""
        self.folder = folder
        self.state = folder / "state.safetensors"
        folder.mkdir(parents=True, exist_ok=True)
        told = folder / "recipe.json"
        if not told.exists():
            told.write_text(json.dumps(asdict(recipe)) + "\n")
        before = json.loads(told.read_text())
        changed = [
            f"{key} was {before.get(key)} and is now {value}"
            for key, value in asdict(recipe).items()
            if before.get(key) != value
        ]
        if changed:
            raise ValueError(
                f"{folder} holds an unfinished run with other options ({'; '.join(changed)}): give those "
                "options again, delete the folder or give another --output"
            )

    def trajectories(self, number: int) -> Path:
        return self.folder / f"trajectories-{number:04d}.safetensors"

    def save(self, model: PreTrainedModel, optimizer: torch.optim.AdamW, step: int) -> None:
        """Writes weights and the optimizer's averages after `step` steps, whole or not at all."""
        tensors = {}
        for name, parameter in model.named_parameters():
            tensors[f"weight.{name}"] = parameter.detach()
            for key in ("exp_avg", "exp_avg_sq"):
                tensors[f"{key}.{name}"] = optimizer.state[parameter][key]
        part = self.state.with_suffix(".part")
        save_file(tensors, part, {"step": str(step)})
        part.replace(self.state)

    def load(self, model: PreTrainedModel, optimizer: torch.optim.AdamW) -> int:
        """Puts the kept weights and averages in place. Returns the steps that were done, 0 if nothing is kept."""
        if not self.state.exists():
            return 0
        with safe_open(self.state, "pt", device=str(model.device)) as kept:
            step = int(kept.metadata()["step"])
            for name, parameter in model.named_parameters():
                parameter.data.copy_(kept.get_tensor(f"weight.{name}"))
                averages = {key: kept.get_tensor(f"{key}.{name}") for key in ("exp_avg", "exp_avg_sq")}
                optimizer.state[parameter] = {"step": torch.tensor(float(step)), **averages}
        return step
