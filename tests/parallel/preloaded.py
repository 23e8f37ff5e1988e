"""What the server from which ranks are forked does once: it imports what they need, and has transformers read a model.

transformers compiles a thousand patterns before it reads its first model, which takes a rank half a second.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import psutil  # noqa: F401
import pytest  # noqa: F401

import parallel.build
import parallel.groups.epoch  # noqa: F401
from tests.models import load_reference, save_checkpoint

with tempfile.TemporaryDirectory() as _folder:
    load_reference(save_checkpoint(Path(_folder)))
