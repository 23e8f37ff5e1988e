"""The routes for operators and tools: models, state, metrics, tokens."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys

import httpx
import pytest
import uvicorn

from launch.server.metrics import SHORT_S
from lp.kv_cache.cache import pages_of
from lp.scheduling.kv_budget import KVBudget
from lp.scheduling.settings import PrefixReuse, SchedulerSettings
from tests.launch.server.harness import AUTOREGRESSIVE, Running, assert_error, eventually, serving


def get(running: Running, path: str) -> dict:
    answer = httpx.get(running.url + path)
    assert answer.status_code == 200
    return answer.json()


def test_models(shared: Running):
    client = shared.openai()
    assert [model.id for model in client.models.list()] == ["tiny-llama"]
    assert client.models.retrieve("tiny-llama").model_dump()["max_model_len"] == 1024


def test_a_model_name_from_the_settings(checkpoint):
    with serving(checkpoint, model_name="team/model") as running:
        client = running.openai()
        assert client.models.retrieve("team/model").id == "team/model"
        assert client.completions.create(model="team/model", prompt="a", max_tokens=1).model == "team/model"
        assert_error(running.post("/v1/completions", model="tiny-llama", prompt="a"), 404, "team/model")


@pytest.mark.parametrize("is_installed", [True, False])
def test_the_event_loop_is_uvloops_if_it_is_installed(checkpoint, is_installed: bool, monkeypatch: pytest.MonkeyPatch):
    if is_installed:
        pytest.importorskip("uvloop")
    else:
        monkeypatch.setitem(sys.modules, "uvloop", None)
    loops, serve = list[asyncio.AbstractEventLoop](), uvicorn.Server.serve

    async def noted(http: uvicorn.Server, *arguments) -> None:
        loops.append(asyncio.get_running_loop())
        await serve(http, *arguments)

    monkeypatch.setattr(uvicorn.Server, "serve", noted)
    with serving(checkpoint) as running:
        running.assert_serves()
    assert [type(loop).__module__ == "uvloop" for loop in loops] == [is_installed]


def test_state(shared: Running):
    assert get(shared, "/health") == {"status": "ok"}
    assert get(shared, "/ready") == {"status": "ready"}
    assert get(shared, "/version")["version"]


def test_access_log(checkpoint, caplog: pytest.LogCaptureFixture):
    with serving(checkpoint, access_log=True) as running:
        get(running, "/health")
    assert '"GET /health HTTP/1.1" 200' in caplog.text


def test_tokenize_and_back(shared: Running):
    text = "def f(naïve):\n"
    found = shared.post("/tokenize", prompt=text, return_token_strs=True).json()
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"]) and found["max_model_len"] == 1024
    assert found["tokens"] == shared.server.context.checkpoint.tokenizer.encode(text)
    assert "bytes:\\xc3" in found["token_strs"]
    assert shared.post("/detokenize", tokens=found["tokens"]).json() == {"prompt": text}


def test_tokenize_a_conversation(shared: Running):
    found = shared.post("/tokenize", messages=[{"role": "user", "content": "hi"}]).json()
    assert shared.post("/detokenize", tokens=found["tokens"]).json() == {"prompt": "<user>hi\n<assistant>"}


@pytest.mark.parametrize(
    ("path", "body", "word"),
    [
        ("/tokenize", {}, "either prompt or messages"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user"}]}, "either prompt or messages"),
        ("/tokenize", {"prompt": 3}, "prompt"),
        ("/detokenize", {}, "tokens is required"),
        ("/detokenize", {"tokens": [-1]}, "ids from 0 to"),
        ("/detokenize", {"tokens": [10**30]}, "ids from 0 to"),
        ("/detokenize", {"tokens": "abc"}, "tokens"),
    ],
)
def test_bad_tokens(shared: Running, path: str, body: dict, word: str):
    assert_error(shared.post(path, **body), 400, word)


def test_a_conversation_says_how_much_of_it_was_cached(checkpoint):
    settings = SchedulerSettings(prefix_reuse=PrefixReuse.owner)
    with serving(checkpoint, settings, api_keys=["one", "two"]) as running:
        prompt = "def area(width, height):\n    return width * height\n" * 3

        def cached(text: str, key: str) -> int:
            answer = running.openai(api_key=key).completions.create(model=running.model, prompt=text, max_tokens=4)
            assert answer.usage and answer.usage.prompt_tokens_details
            return answer.usage.prompt_tokens_details.cached_tokens or 0

        assert cached(prompt, "one") == 0
        assert cached(prompt + "def volume(", "one") >= 16
        assert cached(prompt, "two") == 0, "another key's keys and values are not used"


def test_metrics(checkpoint):
    with serving(checkpoint) as running:
        assert running.metric("vllm:generation_tokens_total") == 0, "counters are there before the first request"
        first = running.post("/v1/completions", prompt="abc", max_tokens=40, temperature=0, ignore_eos=True).json()
        second = running.post("/v1/completions", prompt="a", max_tokens=5, ignore_eos=True, **AUTOREGRESSIVE).json()
        usages = [first["usage"], second["usage"]]
        figures = first["lookahead"]
        steps = figures["steps"] + second["lookahead"]["steps"]
        accepted, proposed = sum(figures["accepted"].values()), sum(figures["proposed"].values())
        expected = {
            "vllm:prompt_tokens_total": sum(usage["prompt_tokens"] for usage in usages),
            "vllm:prefix_cache_queries_total": sum(usage["prompt_tokens"] for usage in usages),
            "vllm:prefix_cache_hits_total": 0,
            "vllm:generation_tokens_total": 45,
            "vllm:request_success_total": 2,
            "vllm:time_to_first_token_seconds_count": 2,
            "vllm:e2e_request_latency_seconds_count": 2,
            "vllm:time_per_output_token_seconds_count": steps - 2,
            "vllm:spec_decode_num_drafts_total": figures["steps"],
            "vllm:spec_decode_num_draft_tokens_total": proposed,
            "vllm:spec_decode_num_accepted_tokens_total": accepted,
            "vllm:num_requests_running": 0,
            "lookahead:steps_total": steps,
            "lookahead:draft_tokens_total": proposed,
            "lookahead:accepted_tokens_total": accepted,
        }
        assert {name: running.metric(name, model_name="tiny-llama") for name in expected} == expected
        for source, count in figures["proposed"].items():
            assert running.metric("lookahead:draft_tokens_total", source=source) == count
        assert running.metric("vllm:request_success_total", finished_reason="length") == 2
        assert 0 < running.metric("vllm:spec_decode_num_accepted_tokens_per_pos_total") <= accepted


def test_times_of_requests(checkpoint):
    with serving(checkpoint, max_running=1) as running:
        running.post("/v1/completions", prompt="abc", max_tokens=20, ignore_eos=True, **AUTOREGRESSIVE)
        names = ("request_queue_time", "request_prefill_time", "request_decode_time", "request_inference_time")
        assert [running.metric(f"vllm:{name}_seconds_count") for name in names] == [1, 1, 1, 1]
        assert running.metric("vllm:inter_token_latency_seconds_count") == 19
        spent = sum(running.metric(f"vllm:{name}_seconds_sum") for name in names[:3])
        assert spent == pytest.approx(running.metric("vllm:e2e_request_latency_seconds_sum"), rel=0.5)
        assert running.metric("vllm:request_generation_tokens_bucket", le="20.0") == 1
        assert running.metric("vllm:request_generation_tokens_bucket", le="10.0") == 0
        assert running.metric("vllm:request_prompt_tokens_sum") == running.metric("vllm:prompt_tokens_total")
        assert running.metric("vllm:request_success_total", engine="0", model_name="tiny-llama") == 1
        assert running.metric("process_resident_memory_bytes") > 1e6


def test_a_token_of_a_millisecond_has_buckets_of_its_own():
    below = [edge for edge in SHORT_S if edge <= 0.002]
    assert len(below) >= 4, "half a millisecond and two of them are told apart"


def test_refused_requests_are_counted_by_reason(checkpoint):
    with serving(checkpoint, api_keys=["key"]) as running:
        running.post("/v1/completions", prompt="a")
        httpx.get(f"{running.url}/nothing")
        headers = {"authorization": "Bearer key"}
        for body in ({"prompt": [1] * 2000}, {"prompt": 5}, {"prompt": "a", "model": "other"}):
            httpx.post(f"{running.url}/v1/completions", json=body, headers=headers)
        reasons = (
            "invalid_api_key",
            "not_found",
            "context_length_exceeded",
            "invalid_request_error",
            "model_not_found",
        )
        assert [running.metric("lookahead:requests_refused_total", reason=reason) for reason in reasons] == [1] * 5


def test_use_of_the_room_for_keys_and_values(checkpoint):
    with serving(checkpoint) as running:
        running.server.context.backend.request_builder.budget = KVBudget(num_pages=100)
        running.gate.open_gate.clear()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(running.post, "/v1/completions", prompt=[1] * 300, max_tokens=2)
            eventually(lambda: running.metric("vllm:num_requests_running") == 1)
            assert running.metric("vllm:kv_cache_usage_perc") == pages_of(300) / 100
            running.gate.open_gate.set()
            assert answer.result().status_code == 200
        assert running.metric("vllm:kv_cache_usage_perc") == 0
