"""Prompts and models that the benchmarks read. A command ends with a message if one of them cannot be used."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import AutoModelForCausalLM, PreTrainedModel

from launch.config import resources
from launch.data import workloads
from launch.data.workloads import Problem, WorkloadSettings
from lp import Engine
from lp.model.checkpoint import DTYPES
from lp.model.compilation import CompileMode
from lp.model.gguf import unpacked_folder
from lp.runner.step_times.measure import StepTimesSource

DOWNLOADED = {"smollm2": resources.SMOLLM2, "gemma3-270m": resources.GEMMA3}


def read_problems(settings: WorkloadSettings) -> list[Problem]:
    """The problems of a workload. Ends the program with a message, which names the line, if its file is malformed."""
    try:
        return workloads.load(settings)
    except ValueError as error:
        raise SystemExit(str(error)) from None


def read_prompts(path: str | None, limit: int) -> list[str]:
    """The first `limit` texts of a JSONL file, or of the project's own workload if `path` is None.

    Ends the program as `read_problems` does.
    """
    return [problem.prompt for problem in read_problems(WorkloadSettings(path=path, limit=limit))]


def find_model(name: str) -> str:
    """The path of the model that an option names: smollm2 or gemma3-270m, which are downloaded once, or a folder.

    Ends the program with a message if it cannot be had.
    """
    try:
        return resources.resolve(DOWNLOADED.get(name, name))
    except ValueError as error:
        raise SystemExit(str(error)) from None


def load_engine(
    path: str,
    dtype: str,
    device: str,
    compile: CompileMode = CompileMode.auto,
    step_times: StepTimesSource = StepTimesSource.auto,
) -> Engine:
    """An engine on a checkpoint. Ends the program with a message if the checkpoint cannot be used."""
    try:
        return Engine.from_pretrained(path, dtype, device, compile=compile, step_times=step_times)
    except ValueError as error:
        raise SystemExit(str(error)) from None


def load_engine_and_reference(path: str, dtype: str, device: str) -> tuple[Engine, PreTrainedModel]:
    """An engine on a checkpoint, and the same checkpoint as transformers runs it without this project."""
    engine = Engine.from_pretrained(path, dtype, device)
    model = AutoModelForCausalLM.from_pretrained(unpacked_folder(path), dtype=DTYPES[dtype])
    return engine, model.to(engine.checkpoint.model.device).eval()


def encode(engine: Engine, texts: Sequence[str], max_new_tokens: int) -> list[list[int]]:
    """Token ids of each text, cut off where they would leave no room for the new tokens."""
    room = engine.checkpoint.max_length - max_new_tokens
    if room < 1:
        raise SystemExit(
            f"--max-new-tokens {max_new_tokens} leaves no room for a prompt: the model's context has "
            f"{engine.checkpoint.max_length} tokens"
        )
    return [engine.request_builder.encode(text)[:room] for text in texts]
