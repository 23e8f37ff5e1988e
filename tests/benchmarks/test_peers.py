"""The comparison with other engines runs on a tiny model; llama.cpp is skipped with a reason."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import peers
from benchmarks.peer_engines import llama_build, own_engine, transformers_engine
from benchmarks.peer_engines.base import Unavailable
from tests.benchmarks.results import read, read_plot


def test_peers(on_categories: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(num_jobs: int) -> Path:
        raise Unavailable("there is no cmake to build it with")

    monkeypatch.setattr(llama_build, "build_programs", missing)
    folder = on_categories(peers.main, "--rounds", "2", "--dtypes", "float32", "--prompt-tokens", "20,600")
    table, data = read(folder, "peers-*")
    (comparison,) = data["comparisons"]
    engines = {engine["name"]: engine for engine in comparison["engines"]}
    assert set(own_engine.METHODS) < set(engines) and "transformers generate" in engines
    assert "transformers early exit (layer 1 of 3)" in engines
    for engine in engines.values():
        assert engine["same_texts"] == 4
        assert len(engine["decoding_tokens_per_s"]) == len(engine["whole_tokens_per_s"]) == 2
    assert set(comparison["prompt_s"]) == {"transformers generate", own_engine.AUTOREGRESSIVE}
    assert all(len(texts) == 2 for rounds in comparison["prompt_s"].values() for texts in rounds)
    assert "Reading prompts of so many tokens" in table
    assert comparison["skipped"] == {"llama.cpp": "there is no cmake to build it with"}
    assert "- llama.cpp: there is no cmake to build it with" in table
    assert "cpu:" in table and "GB/s" in table and "HumanEval, raw" in table
    assert "tokens per second, float32" in read_plot(folder, "peers-*")


def test_an_engine_that_fails_is_left_out_with_its_reason(
    on_categories: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    generate_tokens = transformers_engine.generate_tokens

    def failing(model, prompt, **settings):
        if "assistant_early_exit" in settings:
            raise ValueError("this model has\nno early exit")
        return generate_tokens(model, prompt, **settings)

    monkeypatch.setattr(transformers_engine, "generate_tokens", failing)
    chosen = ["--rounds", "1", "--dtypes", "float32", "--engines", "transformers"]
    _, data = read(on_categories(peers.main, *chosen), "peers-*")
    (comparison,) = data["comparisons"]
    (reason,) = comparison["skipped"].values()
    assert reason == "generate(assistant_early_exit=1) failed: this model has no early exit"
    assert len(comparison["engines"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "/dev/null/x"], "--output /dev/null/x is not a folder that can be made"),
        (["--rounds", "0"], "--rounds and --build-jobs must be at least 1"),
        (["--max-new-tokens", "1"], "--max-new-tokens must be at least 2"),
        (["--prompts", "/nowhere"], "has none of the files"),
        (["--model", "package:nothing"], "is unknown; the packaged models are"),
        (["--prompt-tokens", "20,640"], "--prompt-tokens 640 does not fit a context of 640 tokens"),
        (["--max-new-tokens", "5000"], "no prompt fits a context of 640 tokens"),
    ],
)
def test_bad_options_are_told(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    checkpoint_folder: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shared = ["--model", str(checkpoint_folder("llama")), "--output", str(tmp_path), "--engines", "ours"]
    monkeypatch.setattr(sys, "argv", ["peers", *shared, *arguments])
    with pytest.raises(SystemExit) as stopped:
        peers.main()
    assert stopped.value.code not in (0, None)
    assert message in f"{stopped.value.code}\n{capsys.readouterr().err}"
