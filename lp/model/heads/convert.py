"""Converts heads of FasterDecoding's format (github.com/FasterDecoding/Medusa) to safetensors.

    python -m lp.model.heads.convert medusa_lm_head.pt FOLDER

The file names its tensors HEAD.LAYER.linear.weight, HEAD.LAYER.linear.bias and HEAD.LAYERS.weight. A .pt file is a
pickle: it is read as tensors alone (torch's weights_only), so nothing that it names is called. This is the only place
that reads one (tests/test_imports.py).
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from lp.model.errors import CheckpointError, one_line
from lp.model.heads.files import save_heads
from lp.model.heads.medusa import HeadsInfo, MedusaHeads

NAMES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
_BLOCK = re.compile(r"(\d+)\.(\d+)\.linear\.(weight|bias)")
_OUTPUT = re.compile(r"(\d+)\.(\d+)\.weight")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by their names. path: the file, or its folder. Raises CheckpointError."""
    if path.is_dir():
        found = [path / name for name in NAMES if (path / name).is_file()]
        if not found:
            raise CheckpointError(f"{str(path)!r} holds neither {' nor '.join(NAMES)}")
        path = found[0]
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found_in_pickle: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{str(path)!r} cannot be read: {one_line(error)}") from error
    except Exception as error:  # whatever else a damaged pickle, or a malicious one, leads to
        raise CheckpointError(
            f"{str(path)!r} is no file of tensors alone, and nothing else of a pickle is read: {one_line(error)[:200]}"
        ) from error
    if not isinstance(found_in_pickle, dict) or not all(isinstance(one, Tensor) for one in found_in_pickle.values()):
        raise CheckpointError(f"{str(path)!r} is no dictionary of tensors")
    return {str(name).removeprefix("medusa_head."): tensor for name, tensor in found_in_pickle.items()}


def describe(tensors: dict[str, Tensor]) -> HeadsInfo:
    """What the heads of these tensors are like. Raises CheckpointError if they are no Medusa heads."""
    blocks = [(int(found[1]), int(found[2])) for name in tensors if (found := _BLOCK.fullmatch(name))]
    outputs = {int(found[1]): name for name in tensors if (found := _OUTPUT.fullmatch(name))}
    if not blocks or not outputs or len(outputs) != 1 + max(outputs):
        some = ", ".join(sorted(tensors)[:3]) or "nothing"
        raise CheckpointError(f"the file has no Medusa heads, whose tensors are 0.0.linear.weight ...: it has {some}")
    vocab_size, hidden_size = tensors[outputs[0]].shape
    info = HeadsInfo(hidden_size, vocab_size, len(outputs), 1 + max(layer for _, layer in blocks), shares_output=False)
    with torch.device("meta"):
        expected = {name: weight.shape for name, weight in MedusaHeads(info).state_dict().items()}
    for name in sorted(expected.keys() ^ tensors.keys()):
        is_missing = name in expected
        raise CheckpointError(f"the tensor {name} is {'missing' if is_missing else 'not one of a Medusa head'}")
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            raise CheckpointError(f"the tensor {name} has the shape {list(tensors[name].shape)}, not {list(shape)}")
    return info


def convert(source: Path, folder: Path) -> HeadsInfo:
    """Writes the heads of a file to a folder for model.heads. Raises CheckpointError."""
    tensors = read_tensors(source)
    info = describe(tensors)
    with torch.device("meta"):
        heads = MedusaHeads(info)
    heads.load_state_dict(tensors, assign=True)
    save_heads(heads, folder)
    return info


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="medusa_lm_head.pt, or its folder")
    parser.add_argument("folder", type=Path, help="where the heads are written, for model.heads")
    arguments = parser.parse_args()
    try:
        info = convert(arguments.source.expanduser(), arguments.folder.expanduser())
    except CheckpointError as error:
        sys.exit(f"error: {error}")
    print(
        f"{info.num_heads} heads of {info.num_layers} layers for a hidden size of {info.hidden_size} and "
        f"{info.vocab_size} tokens: {arguments.folder}"
    )


if __name__ == "__main__":
    main()
