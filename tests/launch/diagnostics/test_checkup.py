"""What the checkup says of machines with and without a compiler, instruction sets, extras, models and ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from benchmarks.families.checkpoints import save_family
from launch import doctor
from launch.config.runtime import RuntimeSettings
from launch.diagnostics import choices, findings, links, machine, model, software
from launch.diagnostics.findings import Finding
from lp.methods.auto.method import Auto
from lp.model.checkpoint import ModelSettings
from lp.model.quantization.quantize import Weights
from lp.platform import build
from lp.platform.disk_cache import VARIABLE
from parallel.mesh import Mode, ParallelSettings
from tests.gguf_files import write_gguf
from tests.models import save_checkpoint


def by_name(found: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in found}


def test_instruction_sets_are_those_that_the_kernels_use() -> None:
    found = machine.instructions("flags\t\t: sse avx2 avx512f amx_bf16")
    assert found.value == ["AVX2", "AVX-512", "AMX BF16"] and "model.dtype=bfloat16 uses the matrix unit" in found.text
    assert machine.instructions("flags : sse").value == []
    assert machine.instructions("x86_64").text.startswith("unknown"), "without /proc/cpuinfo"


def test_the_machine_is_described() -> None:
    found = by_name(list(machine.inspect(read_bytes=1 << 20)))
    assert found["cores"].value >= 1 and found["memory"].value["total"] > 0 and found["memory speed"].value > 1e6
    assert found["GPU"].text == "none: the model is computed on the CPU" or torch.cuda.is_available()


def test_a_gpu_that_torch_cannot_use_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "why_no_gpu", lambda: "the NVIDIA driver is too old")
    (found,) = machine.gpus(1 << 20)
    assert found.is_broken and found.text == "the NVIDIA driver is too old"


@pytest.mark.slow
def test_exchanges_between_ranks_are_measured() -> None:
    found = by_name(list(links.between_ranks(2)))
    assert found.keys() == {"shm", "gloo"}
    assert all(0 < finding.value["microseconds"] < 1e6 for finding in found.values())


def test_ranks_that_cannot_talk_are_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "run_processes", lambda command, num_ranks: 1)
    (found,) = links.between_ranks(2)
    assert found.is_broken and "cannot talk (exit code 1)" in found.text


def test_a_missing_compiler_is_advised_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    (found,) = software.compiler()
    assert (
        not found.is_broken and found.advice.startswith("install g++") and "drafts from fewer sources" in found.advice
    )


def test_missing_extras_are_named_with_the_command_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        software, "requires", lambda name: ["ray[default]>=2; extra == 'ray'", "torch>=2", "ab; extra == 'x'"]
    )
    monkeypatch.setattr(software, "_is_installed", lambda package: package != "ray")
    found = software.extra("ray")
    assert found.text == "ray missing; Ray clusters"
    assert found.advice == "pip install 'lookahead-parallel[ray]' for Ray clusters"
    monkeypatch.setattr(software, "_is_installed", lambda package: True)
    assert software.extra("ray").value is True


def test_the_cache_is_counted_by_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    (tmp_path / "step-times").mkdir()
    (tmp_path / "step-times" / "one.json").write_text("{}" * 500)
    found = by_name(list(software.caches()))
    assert found["step-times"].value["entries"] == 1 and found["folder"].value["path"] == str(tmp_path)


def test_a_cache_that_cannot_be_made_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/proc/none")
    (found,) = software.caches()
    assert found.is_broken and VARIABLE in found.advice


def settings(path: str, **parallel: object) -> RuntimeSettings:
    return RuntimeSettings(ModelSettings(path), decode=Auto(), parallel=ParallelSettings(**parallel))  # type: ignore[arg-type]


def test_what_is_used_for_a_model_is_said_with_its_reason(tmp_path: Path) -> None:
    found = by_name(list(choices.inspect(settings(str(save_checkpoint(tmp_path / "tiny"))))))
    assert found["dtype"].text.startswith("float32: on a CPU") and found["dtype"].advice
    assert "below 4M parameters compiling does not pay" in found["forward"].text
    assert found["ranks"].text.startswith("one; ")
    assert not any(finding.is_broken for finding in found.values())


def test_what_a_checkpoint_needs_is_said_without_its_weights(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "tiny")
    size = (folder / "model.safetensors").stat().st_size
    (folder / "model.safetensors").write_bytes(_header_of(folder / "model.safetensors"))
    found = by_name(list(model.inspect(settings(str(folder)), 1e9)))
    assert 0.8 * size < found["weights"].value < size
    assert found["step"].value["seconds"] == found["weights"].value / 1e9
    assert found["keys and values"].value == 1000 * 3 * 2 * 2 * 8 * 4
    assert found["steps"].value == "trees"
    assert found["modes"].value == {"lp": True, "tp": [2, 4], "pp": [2]}
    assert found["forward"].value == "eager" and "below 4M parameters" in found["forward"].text


def _header_of(file: Path) -> bytes:
    """A safetensors file without its tensors."""
    data = file.read_bytes()
    return data[: 8 + int.from_bytes(data[:8], "little")]


def test_a_model_that_answers_no_trees_is_said_to_run_alone(tmp_path: Path) -> None:
    found = by_name(list(model.inspect(settings(str(save_family("mamba", tmp_path))), None)))
    assert found["steps"].value == "plain" and "MambaForCausalLM" in found["steps"].text
    assert found["modes"].value == {"lp": False, "tp": [], "pp": []} and "step" not in found


@pytest.mark.parametrize(
    ("family", "kind", "reason"),
    [
        ("gpt2", "native", "C++"),
        ("qwen3_moe", "native", "C++"),
        ("gemma3n_text", "eager", "cannot be written as a program: the operation"),
        ("xglm", "eager", "in 0 of its 2 layers"),
    ],
)
def test_which_forward_a_model_would_have_is_said_without_its_weights(
    family: str, kind: str, reason: str, tmp_path: Path
) -> None:
    folder = save_family(family, tmp_path)
    (folder / "model.safetensors").write_bytes(_header_of(folder / "model.safetensors"))
    wanted = settings(str(folder))
    wanted.model.compile = choices.CompileMode.on
    found = by_name(list(model.inspect(wanted, None)))["forward"]
    assert found.value == kind and reason in found.text


def test_why_a_forward_is_not_compiled_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    wanted = settings(str(save_checkpoint(tmp_path / "tiny")))
    wanted.model.compile = choices.CompileMode.off
    assert "as model.compile=off says" in by_name(list(choices.inspect(wanted)))["forward"].text


def test_a_model_that_cannot_be_loaded_is_broken(tmp_path: Path) -> None:
    found = by_name(list(choices.inspect(settings(str(tmp_path)))))
    assert found["model"].is_broken and str(tmp_path) in found["model"].text


def test_a_copy_for_drafts_that_cannot_be_made_is_broken(tmp_path: Path) -> None:
    wanted = settings(str(write_gguf(tmp_path / "tiny.gguf")))
    assert not by_name(list(choices.inspect(wanted)))["model"].is_broken
    wanted.draft.weights = Weights.int8
    found = by_name(list(choices.inspect(wanted)))["model"]
    assert found.is_broken and "draft.weights=int8" in found.text


@pytest.mark.parametrize(
    ("parallel", "text", "is_broken"),
    [
        ({"ranks": 4}, "4: lp=4", False),
        ({"ranks": 4, "tp": 2}, "4: lp=2 x tp=2", False),
        ({"ranks": 3, "tp": 2}, "parallel.tp=2", True),
        ({"mode": Mode.pp, "ranks": 2}, "2: pp=2", False),
    ],
)
def test_how_ranks_would_share_the_work_is_said(parallel: dict[str, object], text: str, is_broken: bool) -> None:
    found = choices.of_ranks(ParallelSettings(**parallel))  # type: ignore[arg-type]
    assert text in found.text and found.is_broken is is_broken


@pytest.mark.parametrize(
    ("parallel", "text"),
    [
        ({"ranks": 2}, "one rank verifies and 1 drafts ahead"),
        ({"ranks": 4, "mode": Mode.lp}, "one rank verifies and 3 draft ahead"),
        ({"ranks": 4, "tp": 2}, "all ranks make the same drafts before a step"),
        ({"ranks": 2, "mode": Mode.dp}, None),
        ({"ranks": 3, "tp": 2}, None),
        ({"ranks": 1}, None),
    ],
)
def test_who_would_verify_and_who_would_draft_is_said(parallel: dict[str, object], text: str | None) -> None:
    wanted = settings("anywhere", **parallel)
    assert not [*choices.roles(wanted)], "without a draft model"
    wanted.draft.weights = Weights.int8
    found = [finding.text for finding in choices.roles(wanted)]
    assert found == [] if text is None else text in found[0]


FINDINGS = [
    Finding("machine", "cores", "2 usable", 2),
    Finding("software", "compiler", "there is none", "", "install g++"),
    Finding("software", "drafting", "it fails [here]", False, is_broken=True),
]


def test_findings_as_json_have_what_is_broken_and_what_to_do() -> None:
    assert json.loads(findings.to_json("1.2", FINDINGS)) == {
        "version": "1.2",
        "machine": {"cores": 2},
        "software": {"compiler": "", "drafting": False},
        "advice": ["install g++"],
        "broken": ["drafting: it fails [here]"],
    }


def test_findings_are_shown_by_section() -> None:
    console = Console(record=True, width=80)
    findings.show(console, "1.2", FINDINGS)
    shown = console.export_text()
    assert "lookahead-parallel 1.2" in shown and "it fails [here]" in shown
    assert "- install g++" in shown and "broken: drafting" in shown


@pytest.mark.parametrize("is_broken", [False, True])
def test_the_exit_code_says_whether_something_is_broken(
    is_broken: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda settings: iter(FINDINGS[: 3 if is_broken else 2]))
    wanted = doctor.DoctorSettings(ModelSettings("x"), decode=Auto(), json=True)
    assert doctor.run(wanted) == int(is_broken)
    assert json.loads(capsys.readouterr().out)["machine"] == {"cores": 2}
