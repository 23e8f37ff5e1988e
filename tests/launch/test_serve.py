"""launch/serve.py as users start it: torchrun with two ranks, and the `openai` package as the client."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import psutil
import pytest
import torch

from lp import Autoregressive, Engine, Sampling, Stopping
from tests.gguf_files import write_gguf
from tests.launch import commands
from tests.models import save_checkpoint
from tests.parallel.ranks import free_port
from tests.slow import exhaustive_except

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
START_LIMIT_S = 90

pytestmark = pytest.mark.slow


@dataclass
class Served:
    """A server under torchrun, and a client of it."""

    process: subprocess.Popen[bytes]
    log: Path
    url: str
    folder: Path

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    def metric(self, name: str) -> float:
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name}{{"))

    def rank_pids(self) -> list[int]:
        """Process ids of the ranks, rank 0 first."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        ranks = [child for child in children if any(part.endswith("serve.py") for part in child.cmdline())]
        return [child.pid for child in sorted(ranks, key=lambda child: int(child.environ()["RANK"]))]


def start(folder: Path, cwd: Path, *arguments: str, num_ranks: int = 2) -> Served:
    """Starts a server on a free port and waits until it is ready."""
    log, port = cwd / "server.log", free_port()
    settings = [f"model.path={folder}", f"server.port={port}", *arguments]
    process = subprocess.Popen(
        commands.command("serve", settings, num_ranks), cwd=cwd, env=commands.environment(), stderr=log.open("wb")
    )
    served = Served(process, log, f"http://127.0.0.1:{port}", folder)
    for _ in range(START_LIMIT_S * 5):
        if process.poll() is not None:
            raise AssertionError(f"the server ended with {process.returncode}:\n{log.read_text()}")
        try:
            if httpx.get(f"{served.url}/ready").status_code == 200:
                return served
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    process.kill()
    raise AssertionError(f"the server did not start:\n{log.read_text()}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("served"), "llama", chat_template=TEMPLATE)


@pytest.fixture(scope="module")
def two_ranks(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = start(folder, tmp_path_factory.mktemp("run"), "parallel.debug=true", "server.max_running=2")
    yield served
    served.process.terminate()
    served.process.wait(timeout=60)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    torch.set_num_threads(1)
    return Engine.from_pretrained(str(folder), device="cpu")


def test_two_ranks_give_the_completion_of_one(two_ranks: Served, engine: Engine) -> None:
    reply = two_ranks.client.completions.create(model=folder_name(two_ranks), prompt="def f(x):", max_tokens=40)
    expected = engine.generate("def f(x):", max_new_tokens=40, decode=Autoregressive())
    assert reply.choices[0].text == expected.text
    assert reply.usage and reply.usage.completion_tokens == len(expected.token_ids)


def folder_name(served: Served) -> str:
    return served.folder.name


def test_chat_and_streaming_agree(two_ranks: Served) -> None:
    messages = [{"role": "user", "content": "add two numbers"}]
    ask = two_ranks.client.chat.completions.create
    sampled = {"model": folder_name(two_ranks), "messages": messages, "max_tokens": 30, "temperature": 0.9, "seed": 5}
    whole = ask(**sampled).choices[0].message.content  # type: ignore[call-overload]
    options = {"include_usage": True}
    chunks = list(ask(**sampled, stream=True, stream_options=options))  # type: ignore[call-overload]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == whole
    assert chunks[-1].usage.completion_tokens_details.accepted_prediction_tokens is not None


def test_stop_seed_and_logprobs(two_ranks: Served, engine: Engine) -> None:
    sampled = {"temperature": 0.8, "seed": 9, "logprobs": 2, "max_tokens": 30, "extra_body": {"ignore_eos": True}}
    ask = two_ranks.client.completions.create
    text = ask(model=folder_name(two_ranks), prompt="class Point", **sampled).choices[0].text  # type: ignore[call-overload]
    alone = engine.generate("class Point", max_new_tokens=30, sampling=Sampling(temperature=0.8, seed=9))
    assert alone.text in text
    stop = re.findall(r"[A-Za-z_]{2,}", text)[-1]
    cut = ask(model=folder_name(two_ranks), prompt="class Point", stop=[stop], **sampled)  # type: ignore[call-overload]
    assert cut.choices[0].text == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    assert len(cut.choices[0].logprobs.top_logprobs[0]) >= 2


def test_bad_requests_leave_the_server_serving(two_ranks: Served) -> None:
    client = two_ranks.client
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        client.completions.create(model=folder_name(two_ranks), prompt="a", max_tokens=-1)
    with pytest.raises(openai.BadRequestError, match="context length is 640"):
        client.completions.create(model=folder_name(two_ranks), prompt="abc " * 3000)
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.completions.create(model="gpt-99", prompt="a")
    with pytest.raises(openai.BadRequestError, match=r"decode\.window=0"):
        client.completions.create(
            model=folder_name(two_ranks), prompt="a", extra_body={"decode": {"method": "lookahead", "window": 0}}
        )
    assert client.completions.create(model=folder_name(two_ranks), prompt="a", max_tokens=3).choices


def test_requests_that_arrive_together_are_all_served(two_ranks: Served) -> None:
    bodies = [{"prompt": f"def f{i}(x):", "max_tokens": 10 + i, "ignore_eos": True} for i in range(5)]
    with httpx.Client(base_url=two_ranks.url, timeout=60) as client, ThreadPoolExecutor(5) as pool:
        replies = list(pool.map(lambda body: client.post("/v1/completions", json=body).json(), bodies))
    assert [reply["usage"]["completion_tokens"] for reply in replies] == [10 + i for i in range(5)]


def test_a_client_that_leaves_frees_its_place_on_all_ranks(two_ranks: Served) -> None:
    body = {"prompt": "def f(", "max_tokens": 600, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{two_ranks.url}/v1/completions", json=body, timeout=60) as response:
        next(response.iter_lines())
    deadline = time.monotonic() + 20
    while two_ranks.metric("vllm:num_requests_running") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert two_ranks.metric("vllm:num_requests_running") == 0
    assert two_ranks.client.completions.create(model=folder_name(two_ranks), prompt="a", max_tokens=3).choices


def wait_for(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not (held := holds()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return held


@pytest.mark.parametrize("mode", exhaustive_except(["auto", "lp", "dp"], "auto"))
def test_groups_of_ranks_change_their_size_with_the_requests(
    mode: str, folder: Path, tmp_path: Path, engine: Engine
) -> None:
    """With auto, eight requests at a time are many for two ranks; each then serves requests of its own, of which some
    move when others end.
    """
    served = start(folder, tmp_path, f"parallel={mode}")
    lengths = {f"def f{number}(x):": 300 if number % 2 else 40 + number for number in range(8)}
    bodies = [{"prompt": prompt, "max_tokens": length, "ignore_eos": True} for prompt, length in lengths.items()]
    with httpx.Client(base_url=served.url, timeout=60) as client, ThreadPoolExecutor(9) as pool:
        replies = pool.map(lambda body: client.post("/v1/completions", json=body).json(), bodies)
        assert wait_for(lambda: served.metric("lookahead:divided") == (mode != "lp"))
        texts = [reply["choices"][0]["text"] for reply in replies]
        stops = {prompt: Stopping(length, ignore_eos=True) for prompt, length in lengths.items()}
        alone = [engine.generate(prompt, decode=Autoregressive(), stopping=stop) for prompt, stop in stops.items()]
        assert texts == [completion.text for completion in alone]
        assert wait_for(lambda: served.metric("lookahead:divided") == (mode == "dp"))
    os.kill(served.rank_pids()[0], signal.SIGTERM)
    assert served.process.wait(timeout=60) == 0, served.log.read_text()


def test_sigterm_lets_running_requests_finish_on_all_ranks(folder: Path, tmp_path: Path) -> None:
    served = start(folder, tmp_path)
    body = {"prompt": "def f(", "max_tokens": 300, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{served.url}/v1/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        os.kill(served.rank_pids()[0], signal.SIGTERM)
        rest = list(lines)
    assert rest[-2:] == ["data: [DONE]", ""] or rest[-1] == "data: [DONE]"
    assert '"finish_reason":"length"' in "".join(rest)
    assert served.process.wait(timeout=60) == 0, served.log.read_text()


def test_one_rank_without_torchrun(folder: Path, tmp_path: Path, engine: Engine) -> None:
    served = start(folder, tmp_path, num_ranks=1)
    reply = served.client.completions.create(model=folder_name(served), prompt="def f(x):", max_tokens=20)
    assert reply.choices[0].text == engine.generate("def f(x):", max_new_tokens=20, decode=Autoregressive()).text
    served.process.terminate()
    assert served.process.wait(timeout=30) == 0, served.log.read_text()
    assert "Traceback" not in served.log.read_text()


def test_local_ranks_serve_a_gguf_file(tmp_path: Path, own_cache: Path) -> None:
    """The front end and both ranks need the file's vocabulary; one of them reads it for all."""
    file = write_gguf(tmp_path / "Tiny.gguf")
    served = start(file, tmp_path, "launcher=local", "parallel.ranks=2", "step_times=off", num_ranks=1)
    reply = served.client.completions.create(model="Tiny", prompt="def f(x):", max_tokens=20)
    expected = Engine.from_pretrained(str(file), device="cpu", step_times="off", compile="off")
    assert reply.choices[0].text == expected.generate("def f(x):", max_new_tokens=20, decode=Autoregressive()).text
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(timeout=60) == 0
    assert served.log.read_text().count("read the vocabulary of Tiny.gguf") == 1


@pytest.mark.exhaustive
def test_sigterm_to_torchrun_lets_running_requests_finish(folder: Path, tmp_path: Path) -> None:
    """torchrun itself ends with another exit code than 0."""
    served = start(folder, tmp_path)
    body = {"prompt": "def f(", "max_tokens": 300, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{served.url}/v1/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        served.process.terminate()
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert '"finish_reason":"length"' in "".join(rest)
    assert served.process.wait(timeout=60) != 0


def test_a_killed_rank_ends_the_server(folder: Path, tmp_path: Path) -> None:
    served = start(folder, tmp_path)
    os.kill(served.rank_pids()[1], signal.SIGKILL)
    assert served.process.wait(timeout=60) != 0
    assert "rank" in served.log.read_text()


@pytest.mark.exhaustive
def test_a_port_in_use_is_reported_once(two_ranks: Served, tmp_path: Path) -> None:
    port = two_ranks.url.rsplit(":", 1)[1]
    result = commands.run("serve", [f"model.path={two_ranks.folder}", f"server.port={port}"], tmp_path, num_ranks=2)
    assert result.returncode != 0
    assert result.stderr.count("error: the server cannot listen on 127.0.0.1:") == 1
