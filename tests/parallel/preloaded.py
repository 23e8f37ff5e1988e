"""What the server from which ranks are forked does once: it imports what they need, and has a model answer.

transformers compiles a thousand patterns before it reads its first model, which takes a rank half a second. And Python
runs functions faster that have run a few times: a rank needs half as long if its server has done what ranks do.
"""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path

import psutil  # noqa: F401
import pytest  # noqa: F401
import torch

import parallel.build
import parallel.groups.epoch  # noqa: F401
from lp import Engine
from tests.mixture import make_mixture, run_mixture
from tests.models import save_checkpoint

torch.set_num_threads(1)  # threads would not be in the ranks
with tempfile.TemporaryDirectory() as _folder:
    save_checkpoint(Path(_folder))
    for _seed in range(3):
        _engine = Engine.from_pretrained(_folder, device="cpu", step_times="off")
        run_mixture(_engine, make_mixture(_engine, 4, _seed, most_tokens=12))
del _engine
gc.collect()
gc.freeze()  # a collection in a rank would copy all of this
