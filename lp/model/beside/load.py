"""Loads a second model beside the first one: in its dtype, on its device, and with the same vocabulary.

Every rank holds the second model whole, whatever part of the first one it holds, so nothing of it is ever sent.
"""

from __future__ import annotations

import torch

from lp.model.beside.check import read_second_info, with_first_layers
from lp.model.beside.settings import SecondModel
from lp.model.causal import CausalModel
from lp.model.checkpoint import Beside, ReadBeside, read_whole
from lp.model.checkpoint_info import CheckpointInfo
from lp.model.exactness import check_tree
from lp.model.kernels import AttentionKind
from lp.model.memory import check_fits
from lp.model.probes import text_probes


def beside(second: SecondModel, role: str, attention: AttentionKind = AttentionKind.auto) -> ReadBeside:
    """What reads a second model once the first one's weights are there.

    role: the settings' name, such as draft, for messages. Raises ValueError for settings that contradict each other;
    what it returns raises CheckpointError or ValueError with a message for the user.
    """
    second.check(role)

    def read(first: CheckpointInfo, dtype: torch.dtype, device: torch.device) -> Beside:
        path, config, length, tokenizer = first.path, first.config, first.max_length, first.tokenizer
        if second.path:
            known = read_second_info(second, role, first)
            path, config, length, tokenizer = known.path, known.config, known.max_length, known.tokenizer
        else:
            config = with_first_layers(config, second.layers, role)
        check_fits(path, config, dtype, device, length)
        model, layers = read_whole(path, config, dtype, device)
        causal = CausalModel(model, min(length, first.max_length), first.eos, attention, layers)
        return Beside(causal, check_tree(causal, text_probes(tokenizer)))

    return read
