"""What is kept counts for its settings and its processor alone, and a broken file is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.real.tasks import MeasurementStore, Task, measure_all


def task(**settings: int) -> Task:
    return Task("part", "name", settings, lambda: {"figure": 1})


def test_figures_are_kept_for_their_settings(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    MeasurementStore(path, fresh=False, machine="one").keep(task(threads=2), {"figure": 1}, 0.5)
    assert MeasurementStore(path, fresh=False, machine="one").figures(task(threads=2)) == {"figure": 1}
    assert MeasurementStore(path, fresh=False, machine="one").figures(task(threads=1)) is None
    assert MeasurementStore(path, fresh=True, machine="one").figures(task(threads=2)) is None
    assert MeasurementStore(path, fresh=False, machine="another").figures(task(threads=2)) is None
    assert [file.name for file in tmp_path.iterdir()] == ["kept.json"]


@pytest.mark.parametrize("text", ["{", "[]", '{"other": 1}'])
def test_a_broken_file_is_told(text: str, tmp_path: Path) -> None:
    (tmp_path / "kept.json").write_text(text)
    with pytest.raises(ValueError, match=r"cannot be read .*: remove it, or begin anew with --fresh"):
        MeasurementStore(tmp_path / "kept.json", fresh=False, machine="one")
    MeasurementStore(tmp_path / "kept.json", fresh=True, machine="one")


def test_failures_are_collected(tmp_path: Path) -> None:
    def fail() -> dict:
        raise ValueError("no\nroom")

    begun: list[tuple[str, int, int]] = []
    store = MeasurementStore(tmp_path / "kept.json", fresh=True, machine="one")
    some = [Task("part", "bad", {}, fail), task()]
    failures = measure_all(some, store, lambda one, number, total: begun.append((one.key, number, total)))
    assert failures == {"part/bad": "no room"}
    assert begun == [("part/bad", 1, 2), ("part/name", 2, 2)]
    assert store.figures(some[0]) is None and store.figures(some[1]) == {"figure": 1}
