"""Every family of transformers is tried as a tiny model, and the page of supported models lists all of them."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

import pytest
import transformers
from packaging.version import parse

from benchmarks.families import __main__ as families
from benchmarks.families.check import FamilyResult
from benchmarks.families.checkpoints import CONTEXT, FAMILIES, SIZES, make_config
from benchmarks.families.processes import ProcessEnded, call_in_processes
from benchmarks.families.table import KINDS, PAGE, read_results, write_results
from lp.model.exactness import UnsupportedArchitecture, check_forward
from tests.slow import exhaustive_except

# Of so many families one is tried; `python -m benchmarks.families` tries all, in half an hour.
SHARE = 9


def test_the_page_lists_every_family() -> None:
    """If this fails, run `python -m benchmarks.families` with the names that are missing. An older transformers lacks
    some of them.
    """
    results = read_results(PAGE)
    made_with = re.search(r"Made with transformers (\S+) ", PAGE.read_text(encoding="utf-8"))
    assert made_with
    if parse(transformers.__version__) < parse(made_with[1]):
        assert set(FAMILIES) < set(results)
    else:
        assert sorted(results) == FAMILIES
    assert {result.decoding for result in results.values()} <= set(KINDS)


def test_the_page_lists_no_family_that_is_wrong_or_crashes() -> None:
    assert not [one for one in read_results(PAGE).values() if one.decoding in ("wrong", "crash")]


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    page = tmp_path / "models.md"
    shutil.copy(PAGE, page)
    found = {
        "llama": FamilyResult("llama", "trees", "native", "yes", "yes", "yes"),
        "a": FamilyResult("a", "none", reason="x | y"),
    }
    write_results(page, found)
    assert read_results(page) == found


def test_a_tiny_model_keeps_the_kinds_of_layers_of_its_family() -> None:
    config = make_config("gemma3_text")
    assert config.layer_types == ["sliding_attention", "full_attention"] * 2
    assert config.hidden_size == SIZES["hidden_size"]


@pytest.mark.parametrize(("family", "decoding"), [("qwen3", "trees"), ("falcon_mamba", "plain")])
def test_a_family(family: str, decoding: str) -> None:
    found = families.try_family(family, 120, is_quick=True)
    assert found.decoding == decoding, found


@pytest.mark.parametrize("family", exhaustive_except(FAMILIES[::SHARE], *FAMILIES[:: 3 * SHARE]))
def test_families_do_what_the_page_says(family: str) -> None:
    found, listed = families.try_family(family, 300, is_quick=True), read_results(PAGE)[family]
    assert found.decoding not in ("wrong", "crash"), found
    assert listed.decoding in (found.decoding, "untried"), found


def test_a_forward_without_weights_finds_what_the_page_says() -> None:
    listed, wrong = read_results(PAGE), []
    for family in FAMILIES:
        if listed[family].decoding == "trees":
            try:
                check_forward(make_config(family), CONTEXT)
            except UnsupportedArchitecture as error:
                wrong.append((family, str(error)))
    assert not wrong


def test_a_process_that_crashes_or_hangs_ends_alone() -> None:
    with pytest.raises(ProcessEnded, match="without a result"):
        call_in_processes([lambda: os._exit(3)], 20)
    with pytest.raises(ProcessEnded, match="not ended after 1 s"):
        call_in_processes([lambda: time.sleep(60)], 1)
    assert call_in_processes([lambda: 1, lambda: 2], 20) == [1, 2]
