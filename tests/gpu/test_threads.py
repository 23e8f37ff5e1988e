"""An engine on cuda:0 answers a thread that has set no device, as the server's worker thread has not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lp import Engine, Lookahead
from lp.model.compilation import CompileMode

pytestmark = pytest.mark.gpu
PROMPT = [(3 + 7 * i) % 41 + 2 for i in range(60)]


@pytest.fixture
def folder(shape_folder: Callable[[int, int], Path]) -> Path:
    return shape_folder(4, 64)


@pytest.mark.parametrize("compile", ["on", "off"])
def test_a_worker_thread_gives_the_same_text(compile: str, folder: Path, gpu: Any, in_thread: Any) -> None:
    engine = Engine.from_pretrained(str(folder), "bfloat16", "cuda:0", compile=CompileMode(compile), step_times="off")

    def generate() -> list[int]:
        return engine.generate(PROMPT, max_new_tokens=12, decode=Lookahead(3, 3, 3)).token_ids

    assert in_thread(generate) == generate() == in_thread(generate)


def test_an_engine_made_in_a_thread_serves_the_main_thread(folder: Path, gpu: Any, in_thread: Any) -> None:
    engine = in_thread(lambda: Engine.from_pretrained(str(folder), "bfloat16", "cuda:0", step_times="off"))
    texts = [engine.generate(PROMPT, max_new_tokens=12).token_ids for _ in range(2)]
    assert texts[0] == texts[1] == in_thread(lambda: engine.generate(PROMPT, max_new_tokens=12).token_ids)
