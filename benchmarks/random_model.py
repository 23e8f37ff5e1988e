"""Models with random weights, to time steps of real sizes without real weights. Their text means nothing.

    python -m benchmarks.random_model FOLDER --config llama-130m

writes one to disk, layer by layer; `make_model` makes one on its device. The tokenizer is the demo model's; its ids are
the first of the vocabulary.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import psutil
import torch
from safetensors.torch import save_file
from tqdm import tqdm
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from benchmarks.shared.shapes import SHAPES, describe_shape, num_parameters, read_config
from lp.model.checkpoint import DTYPES
from lp.model.memory import MARGIN, cache_bytes
from parallel.shards.weights import empty_model

TOKENIZER = Path(__file__).resolve().parents[1] / "demo/python-11m"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to; must not hold anything yet")
    parser.add_argument(
        "--config", default="llama-130m", help=f"{', '.join(SHAPES)}, or a config.json (default %(default)s)"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="of the file (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.folder.exists() and any(arguments.folder.iterdir()):
        parser.error(f"{arguments.folder} is not empty; name another folder, or empty it")
    config = read_config(arguments.config)
    print(describe_shape(config))
    write_model(arguments.folder, config, DTYPES[arguments.dtype], arguments.seed)
    print(f"written to {arguments.folder}: random weights, for step times only")


def make_model(config: PreTrainedConfig, dtype: torch.dtype, device: torch.device, seed: int = 0) -> PreTrainedModel:
    """A model that is on its device and in its format from the first: nothing of it passes through the host."""
    torch.manual_seed(seed)
    with device:
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager").eval()


def check_room(
    config: PreTrainedConfig, dtype: torch.dtype, device: torch.device, num_tokens: int, num_copies: int = 1
) -> None:
    """Ends the program with the numbers if the weights, so many times, and caches of `num_tokens` in all do not fit."""
    weights = num_copies * num_parameters(config) * dtype.itemsize
    cache = cache_bytes(config, dtype, num_tokens)
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
    else:
        free, total = psutil.virtual_memory().available, psutil.virtual_memory().total
    if weights + cache + MARGIN * total > free:
        copies = f" in {num_copies} copies (compiled code has its own)" if num_copies > 1 else ""
        raise SystemExit(
            f"the model does not fit {device}: weights {weights / 1e9:.1f} GB{copies}, caches of {num_tokens:,} tokens "
            f"{cache / 1e9:.1f} GB, activations and libraries {MARGIN * total / 1e9:.1f} GB, and {free / 1e9:.1f} of "
            f"{total / 1e9:.1f} GB are free; use --dtype bfloat16, a smaller --config, fewer --cached tokens, or "
            "--compile off"
        )


def write_model(folder: Path, config: PreTrainedConfig, dtype: torch.dtype, seed: int) -> None:
    """One file for each layer, so that no more than a layer is in memory at a time. Raises OSError."""
    config.dtype = dtype
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(TOKENIZER / name, folder / name)
    model = empty_model(config, dtype)
    model.tie_weights()
    shapes = {name: weight.shape for name, weight in model.named_parameters()}  # of tied ones, one
    generator = torch.Generator().manual_seed(seed)
    groups = group(list(shapes))
    index: dict[str, str] = {}
    for number, names in enumerate(tqdm(groups, unit="file", desc="writing"), start=1):
        file = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        tensors = {name: _random(name, shapes[name], dtype, generator) for name in names}
        save_file(tensors, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}, indent=1))
    (folder / "README.md").write_text(
        f"{describe_shape(config)}\n\nRandom weights (seed {seed}), for step times only: its text means nothing.\n"
    )


def group(names: list[str]) -> list[list[str]]:
    """Parameters by the layer that they belong to; those of none together."""
    groups: dict[str, list[str]] = {}
    for name in names:
        before, is_layer, after = name.partition(".layers.")
        groups.setdefault(after.split(".")[0] if is_layer else before.split(".")[0], []).append(name)
    return list(groups.values())


def _random(name: str, shape: torch.Size, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Norms are one and biases zero; matrices keep the scale of what they are given."""
    if len(shape) == 1:
        return torch.full(shape, 0.0 if name.endswith("bias") else 1.0, dtype=dtype)
    return (torch.randn(shape, generator=generator) / shape[-1] ** 0.5).to(dtype)


if __name__ == "__main__":
    main()
