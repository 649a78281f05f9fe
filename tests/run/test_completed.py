"""Completed runs in place of a measurement."""

from dataclasses import replace

from epochmeter.results.run_result import RunResult
from epochmeter.run import completed, preflight
from epochmeter.run.completed import find_reusable, is_completed, take_completed
from epochmeter.run.nodes import Node
from epochmeter.run.resolve import resolve_plan


def test_run_is_completed_only_with_the_same_identity_and_rehearsal(order):
    first, other = (resolve_plan(order(f"batch={batch}", "power_limit=100")) for batch in (8, 9))
    assert not is_completed(first)
    first.open_record()
    first.record.write_summary({"state": "completed"}, first.run.identity)
    assert (is_completed(first), is_completed(other)) == (True, False)
    for name in ("job.json", "summary.json"):
        content = (first.record.folder / name).read_bytes()
        (first.record.folder / name).write_text("{")  # damaged: it is measured again
        assert not is_completed(first)
        (first.record.folder / name).write_bytes(content)
    assert is_completed(first)
    first.run.rehearsal = []
    assert not is_completed(first)


def test_reason_why_a_completed_run_does_not_count_is_printed_once(order, terminal, monkeypatch):
    def planned(cores, host="here"):
        monkeypatch.setattr(preflight, "usable_cores", lambda: cores)
        plan = resolve_plan(order("dataset=tensors", of_sweep=True))  # with workers=auto
        plan.run.host = host
        return plan

    def taken(plan):
        completed.reuse.completed_runs.cache_clear()
        return take_completed(plan, "run", RunResult(0, plan.run.overrides, of_sweep=True), terminal)

    first = planned(2)
    first.open_record()
    first.record.write_summary({"state": "completed", "failure": None, "metrics": {}, "notes": []}, first.run.identity)
    assert taken(planned(2))
    assert terminal.console.file.getvalue() == ""
    for _ in range(2):
        assert not taken(planned(3, host="there"))
    (line,) = terminal.console.file.getvalue().splitlines()
    assert line.startswith("Completed runs of the same configuration do not count: ")
    assert line.endswith(" host here, now there; workers=2, now 3.")
    of_script = planned(4)
    of_script.job = replace(of_script.job, measure=replace(of_script.job.measure, command=["train.py"]))
    for other in (resolve_plan(order("dataset=tensors", "batch=8", of_sweep=True)), of_script):
        assert not taken(other)
    assert len(terminal.console.file.getvalue().splitlines()) == 1


def test_reason_is_also_printed_for_a_script_with_a_secret(order, terminal):
    def script(host):
        plan = resolve_plan(order("dataset=tensors", of_sweep=True))
        measure = replace(plan.job.measure, command=["train.py", "--api_key=1234567890"])
        plan.job, plan.run.host, plan.run.identity = replace(plan.job, measure=measure), host, host
        return plan

    first = script("here")
    first.open_record()
    first.record.write_summary({"state": "completed", "failure": None, "metrics": {}, "notes": []}, "here")
    completed.reuse.completed_runs.cache_clear()
    completed.name_uncounted(script("there"), terminal)
    assert "host here, now there" in terminal.console.file.getvalue()


def test_only_sweeps_on_one_node_reuse_completed_runs(order, monkeypatch):
    single, sweep = (resolve_plan(order(of_sweep=of_sweep)) for of_sweep in (False, True))
    monkeypatch.setattr(completed.reuse, "find_completed", lambda *_: sweep.record)
    several = replace(sweep, node=Node(nodes=2))
    rehearsal = replace(sweep, run=replace(sweep.run, rehearsal=["device=nano"]))
    assert [find_reusable(plan) for plan in (single, several, rehearsal)] == [None] * 3
    assert find_reusable(sweep) == sweep.record
    (sweep.record.folder.parent / ".again").touch()  # by sweep.again=true
    assert find_reusable(sweep) is None
