"""The paper's experiments run on a tiny model and two prompts and write a table, figures and a plot."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.paper import ablation, costs, scaling_law
from benchmarks.paper.scaling_law import ScalingPoint
from benchmarks.shared import greedy
from tests.benchmarks.results import read, read_plot

EXPERIMENTS = {"scaling_law": scaling_law, "ablation": ablation, "costs": costs}


def test_scaling_law(on_prompts: Callable[..., Path]) -> None:
    arguments = ["--windows", "1", "3", "6", "--ngrams", "3", "4", "--sources", "window", "prompt"]
    folder = on_prompts(scaling_law.main, *arguments)
    table, data = read(folder, "scaling_law-*-window+prompt")
    settings = [(point["window"], point["ngram"], point["guesses"]) for point in data["points"]]
    assert settings == [(w, n, w) for n in (3, 4) for w in (1, 3, 6)]
    assert all(point["tokens_per_step"] >= 1 for point in data["points"])
    rows = [point["rows_per_step"] for point in data["points"]]
    assert rows[0] < rows[1] < rows[2]
    assert set(data["fits"]) == {"all", "N = 3", "N = 4"}
    assert f"{data['fits']['all']['alpha']:.3f}" in table
    assert "rows per step" in read_plot(folder, "scaling_law-*") and "N = 4" in read_plot(folder, "scaling_law-*")


def test_the_law_is_fitted_to_balanced_points_alone() -> None:
    balanced = [ScalingPoint(w, 5, w, 1 + w / 100, 10.0 * w) for w in (1, 2, 3)]
    odd = ScalingPoint(30, 5, 1, 9.0, 120.0)
    assert scaling_law.fit_all([*balanced, odd]) == scaling_law.fit_all(balanced)
    assert scaling_law.fit_all(balanced[:2]) == {}
    text = scaling_law.describe([*balanced[:2], odd], {}, 1, 1)
    assert "alpha" not in text and text.count("| ") > 10


def test_ablation(on_prompts: Callable[..., Path]) -> None:
    folder = on_prompts(ablation.main, "--settings", "4,1,6", "4,6,1", "--lookup", "4,6")
    table, data = read(folder, "ablation-*-float32")
    outcomes = {(one["method"], one["with_prompt"]): one for one in data["outcomes"]}
    names = ["prompt look-up (4, 6)", "lookahead (4, 1, 6)", "lookahead (4, 6, 1)"]
    assert set(outcomes) == {("autoregressive", None), *((name, flag) for name in names for flag in (False, True))}
    assert outcomes["autoregressive", None]["speed_up"] == outcomes["autoregressive", None]["tokens_per_step"] == 1
    assert all(one["same_text"] == 2 for one in data["outcomes"])
    wide, deep = outcomes["lookahead (4, 6, 1)", False], outcomes["lookahead (4, 1, 6)", False]
    assert wide["rows_per_step"] > deep["rows_per_step"]  # the paper's order: W is the second number
    assert "lookahead (4, 6, 1)" in table and "lookahead (4, 6, 1)" in read_plot(folder, "ablation-*")


def test_the_ablations_pool_has_what_it_says() -> None:
    parser = ablation.make_arguments()
    for more in (False, True):
        entries = ablation.make_entries(parser.parse_args(["--generated-drafts"] * more))
        assert [entry.method for entry in entries if entry.with_prompt][1:] == [
            "lookahead (5, 1, 30)",
            "lookahead (5, 30, 1)",
            "lookahead (5, 15, 15)",
        ]
        for entry in entries[3:]:
            decode = entry.decode
            assert isinstance(decode, ablation.Lookahead)
            assert (decode.prompt_drafts, decode.generated_drafts, decode.window_drafts) == (
                entry.with_prompt,
                more,
                True,
            )


def test_other_texts_fail_in_float32(on_prompts: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    decode_greedily = greedy.decode_greedily

    def wrong(engine, decode, prompt, max_new_tokens):
        text = decode_greedily(engine, decode, prompt, max_new_tokens)
        if decode == scaling_law.Lookahead(3, 3, 3, prompt_drafts=False, generated_drafts=False):
            text.tokens[-1] += 1
        return text

    monkeypatch.setattr(greedy, "decode_greedily", wrong)
    with pytest.raises(SystemExit, match=r"all texts must be the same, but those of \(3, 3, 3\) differ"):
        on_prompts(scaling_law.main, "--windows", "2", "3", "--ngrams", "3")


def test_costs(
    on_prompts: Callable[..., Path], checkpoint_folder: Callable[[str], Path], monkeypatch, tmp_path
) -> None:
    model = str(checkpoint_folder("llama"))
    arguments = ["--degrees", "single", "lp=2", "tp=2", "tp=5", "--context", "32", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["costs", "--model", model, "--dtype", "float32", *arguments])
    costs.main()
    table, data = read(tmp_path, "costs-*-float32")
    assert [cost["mode"] for cost in data["costs"]] == ["single", "lp=2", "tp=2"]
    assert len(data["checks"]) == 3 + 3 + 5
    assert "- tp=5 is left out: parallel.tp=5 is more than" in table and "Measured on this machine" in table
    assert "KV cache" in read_plot(tmp_path, "costs-*")


def test_costs_need_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Path("demo/python-11m/config.json").read_text()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(config)
    monkeypatch.setattr(sys, "argv", ["costs", "--model", str(tmp_path / "model"), "--output", str(tmp_path)])
    costs.main()
    assert read(tmp_path, "costs-model-bfloat16")[1]["checks"] == []


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("scaling_law", ["--windows", "0"], "decode.window=0 is out of range"),
        ("scaling_law", ["--limit", "0"], "--limit must be at least 1, not 0"),
        ("scaling_law", ["--output", "/dev/null/x"], "--output /dev/null/x is not a folder that can be made"),
        ("scaling_law", ["--prompts", "nowhere.jsonl"], "nowhere.jsonl cannot be read"),
        ("scaling_law", ["--model", "./nowhere"], "is not a folder"),
        pytest.param(
            "scaling_law",
            ["--max-new-tokens", "5000"],
            "--max-new-tokens 5000 leaves no room for a prompt",
            marks=pytest.mark.slow,
        ),
        ("ablation", ["--settings", "5,1"], "'5,1' is not three whole numbers"),
        ("ablation", ["--lookup", "5"], "'5' is not two whole numbers"),
        ("ablation", ["--settings", "1,5,5"], "decode.ngram=1 is out of range"),
        ("costs", ["--degrees", "lp=x"], "'lp=x' is neither `single` nor degrees"),
        ("costs", ["--model", "nowhere/none"], "the configuration of 'nowhere/none' cannot be used"),
        ("costs", ["--context", "0"], "--context must be at least 1"),
    ],
)
def test_bad_options_are_told(
    name: str, arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--output", str(tmp_path), *arguments])
    with pytest.raises(SystemExit) as stopped:
        EXPERIMENTS[name].main()
    assert stopped.value.code not in (0, None)
    said = f"{stopped.value.code}\n{capsys.readouterr().err}"
    assert re.search(message, said), said
