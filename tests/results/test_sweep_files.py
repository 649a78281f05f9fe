"""The files of a sweep's folder."""

from project import put

from epochmeter.results.sweep_files import read_points
from epochmeter.sweep.sweep_folder import write_points


def test_points_are_read_with_varied_keys_and_completed_runs_and_are_empty_if_missing_or_damaged(tmp_path):
    overrides = [["batch=8", "workers=0"], ["batch=16", "workers=0"]]
    write_points(tmp_path, overrides)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "completed.json").write_text("{}")
    assert read_points(tmp_path) == (overrides, {"batch=8", "batch=16"}, {1})
    for name, text in {"none": None, "empty": "", "truncated": '{"points": [["batch=8"'}.items():
        if text is not None:
            put(tmp_path, {f"{name}/points.json": text})
        assert read_points(tmp_path / name) == ((), frozenset(), frozenset())
