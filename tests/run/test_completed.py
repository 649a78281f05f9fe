"""Completed runs in place of a measurement."""

from dataclasses import replace

from epochmeter.run import completed
from epochmeter.run.completed import find_reusable, is_completed
from epochmeter.run.nodes import Node
from epochmeter.run.resolve import resolve_plan


def test_run_is_completed_only_with_the_same_identity_and_rehearsal(order):
    first, other = (resolve_plan(order(f"batch={batch}", "power_limit=100")) for batch in (8, 9))
    assert not is_completed(first)
    first.open_record()
    first.record.write_summary({"state": "completed"}, first.run["identity"])
    assert (is_completed(first), is_completed(other)) == (True, False)
    for name in ("job.json", "summary.json"):
        content = (first.record.folder / name).read_bytes()
        (first.record.folder / name).write_text("{")  # damaged: it is measured again
        assert not is_completed(first)
        (first.record.folder / name).write_bytes(content)
    assert is_completed(first)
    first.run["rehearsal"] = []
    assert not is_completed(first)


def test_only_sweeps_on_one_node_reuse_completed_runs(order, monkeypatch):
    single, sweep = (resolve_plan(order(of_sweep=of_sweep)) for of_sweep in (False, True))
    monkeypatch.setattr(completed.reuse, "find_completed", lambda *_: sweep.record)
    several = replace(sweep, node=Node(nodes=2))
    rehearsal = replace(sweep, run={**sweep.run, "rehearsal": ["device=nano"]})
    assert [find_reusable(plan) for plan in (single, several, rehearsal)] == [None] * 3
    assert find_reusable(sweep) == sweep.record
    (sweep.record.folder.parent / ".again").touch()  # by sweep.again=true
    assert find_reusable(sweep) is None
