"""Answers by a backend of this process."""

from __future__ import annotations

import pytest

from launch.backend import EngineBackend
from launch.conversation.local import LocalModel
from launch.conversation.model import AnswerError, Options
from lp import Engine
from lp.engine.input import RequestBuilder
from lp.runner.single_device import SingleDevice
from lp.scheduling.kv_budget import KVBudget
from parallel.comm.base import LocalExchange
from parallel.comm.channel import Channel
from tests.launch.conversation.conftest import TEMPLATE


def test_a_request_that_the_engine_refuses_is_an_error(llama: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no answer, although the reason comes as the text of an output."""
    checkpoint = llama.checkpoint
    monkeypatch.setattr(checkpoint.tokenizer, "chat_template", TEMPLATE)
    engine = Engine(checkpoint, SingleDevice(checkpoint.model), RequestBuilder(checkpoint))
    backend = EngineBackend(engine, Channel(LocalExchange()))
    engine.scheduler.budget, engine.request_builder.budget = KVBudget(1), KVBudget()
    model = LocalModel(backend, "here")
    with model.running(), pytest.raises(AnswerError, match=r"model\.kv_memory"):
        list(model.answer([{"role": "user", "content": "a"}], Options(max_tokens=400)))
