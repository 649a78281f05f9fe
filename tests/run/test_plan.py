"""The plan of a run, on machines whose files are in a folder."""

import os
from array import array
from dataclasses import replace
from datetime import datetime

import pytest
from controls import Board
from default_jobs import job_of
from metadata import run_info
from project import put, write_checkpoint

from epochmeter.machine.disk import Disk
from epochmeter.results.run_info import Clock, Start
from epochmeter.run import plan, resolve
from epochmeter.run.nodes import Node
from epochmeter.run.plan import find_resume_point
from epochmeter.run.resolve import plan_warnings, resolve_plan
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.problem import InputError
from epochmeter.shared.record import CHECKPOINT, INTERVALS, ROW_FILES, Record

GPU = "GPU-6d5a4f3e-0000-1111-2222-333344445555"
COMPATIBLE = "sys/firmware/devicetree/base/compatible"


@pytest.fixture
def rapl(tmp_path):
    """The root of a PC whose CPU has a power limit of at most 120 W."""
    return Board(tmp_path / "rapl").with_rapl(packages=1).root


@pytest.fixture
def node(tmp_path, monkeypatch):
    """The root of a machine with four NVIDIA GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    folder = "proc/driver/nvidia/gpus/0000:0{}:00.0/information"
    files = {folder.format(bus): f"Model: A100\nGPU UUID: GPU-{bus}{bus}\n" for bus in range(1, 5)}
    return put(tmp_path / "node", files)


@pytest.fixture
def cores(monkeypatch):
    """cores(8) gives this process 8 cores."""
    return lambda count: monkeypatch.setattr(resolve.os, "sched_getaffinity", lambda pid: {*range(count)})


@pytest.mark.parametrize(("set_s", "suspended_s", "is_resumed"), [(1.8e9, 0, False), (-7e4, 9, True), (30, 9e4, False)])
def test_start_is_given_by_the_clock_that_was_set_during_the_run(order, monkeypatch, set_s, suspended_s, is_resumed):
    made = resolve_plan(order())
    before = Clock(wall_s=120.0, monotonic_ns=10 * 10**9, boottime_ns=10 * 10**9)
    made.run.started, made.run.clock = "1970-01-01T00:02:00+00:00", before
    if is_resumed:
        made.run.resumed = [Start(epoch=1, started=made.run.started, clock=before)]
    wall_s, boottime_s = 120 + 50 + suspended_s + set_s, 10 + 50 + suspended_s
    after = Clock(wall_s=wall_s, monotonic_ns=0, boottime_ns=round(boottime_s * 10**9))
    monkeypatch.setattr(plan, "read_clock", lambda: after)
    notes = made.correct_start()
    recorded = made.run.resumed[0] if is_resumed else made.run
    corrected_s = 120 + set_s if notes else 120
    assert len(notes) == (abs(set_s) > 60)
    assert recorded.clock == replace(before, wall_s=corrected_s)
    assert datetime.fromisoformat(recorded.started).timestamp() == corrected_s
    assert made.correct_start() == [], "it is correct now"


@pytest.mark.parametrize(("nodes", "replay", "is_refused"), [(2, True, True), (2, False, False), (1, True, False)])
def test_replay_is_refused_on_several_nodes_and_its_hint_works(order, monkeypatch, nodes, replay, is_refused):
    slurm = {"SLURM_STEP_NUM_NODES": nodes, "SLURM_STEP_NUM_TASKS": nodes, "SLURM_JOB_ID": 7, "SLURM_PROCID": 0}
    for name, value in slurm.items():
        monkeypatch.setenv(name, str(value))
    request = order("device=cpu")
    measure = replace(request.job.measure, command=["train.py"], replay=replay)
    request = replace(request, job=replace(request.job, measure=measure))
    if is_refused:
        with pytest.raises(InputError, match="not replayed on several nodes"):
            resolve_plan(request)
    else:
        assert resolve_plan(request).script_node.nodes == nodes


def test_record_of_a_script_is_readable_by_its_owner_only(order):
    for command, mode in ((None, 0o755), (["train.py", "hunter2"], 0o700)):
        request = order("device=cpu")
        request.folder.chmod(0o755)
        measure = replace(request.job.measure, command=command)
        plan = resolve_plan(replace(request, job=replace(request.job, measure=measure)))
        plan.open_record()
        assert request.folder.stat().st_mode & 0o777 == mode


@pytest.fixture
def rehearsal(order):
    """rehearsal("device=nano", ...) -> the reasons why such a run is a rehearsal."""
    return lambda *overrides: resolve_plan(order(*overrides)).run.rehearsal


def test_rehearsal_has_every_reason(rehearsal, rapl):
    root, not_applied = f"machine.root={rapl}", "power_limit=100 requested, not applied"
    other_device = "device=nano requested, this machine is device=cpu"
    reasons = {
        ("power_limit=100",): ["power_limit=100: this machine has no power limit to set"],
        ("device=nano", "power_limit=100", root): [other_device, not_applied],
        ("power_limit=100", "clocks=locked", root): ["clocks=locked: this machine has no jetson_clocks", not_applied],
        ("power_limit=100", "rehearse=true", root): [not_applied, "rehearse=true"],
    }
    assert {overrides: rehearsal(*overrides) for overrides in reasons} == reasons
    assert rehearsal("rehearse=false") == []


def test_fewer_gpus_than_ranks_are_a_rehearsal(order, rehearsal, node, monkeypatch):
    cases = {
        ("strategy=ddp", "strategy.ranks=5"): ("0,1,2,3", "4 GPUs"),
        ("strategy=ddp", "strategy.ranks=2"): ("1", "1 GPU"),
        ("strategy=dp",): ("1", "1 GPU"),
        ("strategy=dp", "device=cpu"): ("0,1", "no GPU"),
    }
    for overrides, (visible, available) in cases.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        reason = f"{' '.join(overrides).removesuffix(' device=cpu')} requested, this machine has {available}"
        assert rehearsal(f"machine.root={node}", *overrides) == [reason]
        with pytest.raises(ValueError, match=reason):
            resolve_plan(order(f"machine.root={node}", *overrides, "rehearse=false"))


def test_dataset_on_another_storage_device_is_a_rehearsal(order, rehearsal, monkeypatch):
    found = Disk(("nvme0n1p1",), "nvme", "ext4"), {}
    monkeypatch.setattr(resolve, "storage_of", lambda folder, root: found)
    (reason,) = rehearsal("storage=sd")
    assert reason.startswith("storage=sd requested, ")
    assert reason.endswith("is on nvme")
    with pytest.raises(ValueError, match=r"storage=sd requested, .*\n  hint: `rehearse=false`"):
        resolve_plan(order("storage=sd", "rehearse=false"))
    assert [rehearsal(f"storage={storage}") for storage in ("nvme", "ssd", "project")] == [[], [], []]


@pytest.mark.parametrize(
    ("ranks", "reported", "watts"), [(4, "100 W", 100), (1, "99.875 W", 99.875), (1, "90 W, 95 W", 100)]
)
def test_applied_power_limit_is_recorded(order, rapl, ranks, reported, watts):
    strategy = ["strategy=ddp", f"strategy.ranks={ranks}"] if ranks > 1 else []
    resolved = resolve_plan(order("power_limit=100", f"machine.root={rapl}", *strategy))
    assert resolved.run.power_limit_max_w is None
    resolved.record_settings({"RAPL": reported})
    run = resolved.record.run()
    assert (run["applied"], run["power_limit_applied"]) == ({"power_limit": reported}, reported)
    assert (run["power_limit_w"], run["power_limit_max_w"], run["power_limit_devices"]) == (watts, 120, 1)


def test_run_that_this_machine_cannot_make_is_refused_before_it_waits(order, rapl, monkeypatch):
    def refuse(knobs, journal):
        raise RuntimeError(f"{[knob.name for knob in knobs]} is not restored")

    monkeypatch.setattr(resolve, "refuse_unrestored", refuse)
    with pytest.raises(RuntimeError, match=r"\['RAPL'\] is not restored"):
        resolve_plan(order("power_limit=100", f"machine.root={rapl}"))
    with pytest.raises(ValueError, match=r"`workers=100000` is too many"):
        resolve_plan(order("workers=100000"))
    monkeypatch.setattr(resolve, "current_node", lambda environment: Node(nodes=2))
    with pytest.raises(ValueError, match="=single trains on one node, and srun started 2\n  hint: set `strategy=ddp`"):
        resolve_plan(order())


def test_preparation_waits_for_the_disk_only_if_earlier_epochs_could_be_lost(order, monkeypatch):
    waits = []
    monkeypatch.setattr(os, "fsync", lambda file: waits.append(os.path.basename(os.readlink(f"/proc/self/fd/{file}"))))
    first = resolve_plan(order(of_sweep=True))
    first.open_record()
    assert waits == []
    first.describe()
    assert waits == ["host.json", f".job.json.{os.getpid()}"]
    first.describe(durably=False)
    assert len(waits) == 3, "job.json once more, as it replaces one that is on disk"
    first.record.append({"window": "epoch", "epoch": 0, "metrics": {}})
    write_checkpoint(first.record, first.run.record_id, epochs=1)
    waits.clear()
    resolve_plan(order(of_sweep=True)).open_record()
    assert {f".{name}.{os.getpid()}" for name in ("job.json", "host.json")} <= {*waits}


def test_resumed_run_has_the_flags_of_kept_windows_and_its_power_limit_searches(order):
    first = resolve_plan(order(of_sweep=True))
    first.open_record()
    first.run.power_limit_search.append({"chosen": "150 W"})
    first.describe()
    flags = [{"throttled": "hot in epoch 0"}, {}, {"throttled": "hotter", "energy_lost": "no VDD_IN"}]
    for epoch, of_epoch in enumerate(flags):
        first.record.append({"window": "epoch", "epoch": epoch, "metrics": {}, "flags": of_epoch})
        first.record.append({"window": "val", "epoch": epoch, "metrics": {}})
        first.set_flags(of_epoch)
    assert first.record.run()["flags"] == {"throttled": "hot in epoch 0", "energy_lost": "no VDD_IN"}
    write_checkpoint(first.record, first.run.record_id, epochs=2)
    for name in ROW_FILES:
        (first.record.folder / name).touch()
    again = resolve_plan(order(of_sweep=True))
    assert again.open_record() == ["resumed from the checkpoint after epoch 2."]
    assert again.record.run()["flags"] == {"throttled": "hot in epoch 0"}
    assert again.record.run()["power_limit_search"] == [{"chosen": "150 W"}]
    again.set_flags({"energy_lost": "no VDD_SOC"})
    assert again.record.run()["flags"] == {"throttled": "hot in epoch 0", "energy_lost": "no VDD_SOC"}


@pytest.mark.parametrize(
    ("overrides", "visible", "used", "processes", "shared"),
    [
        (["strategy=single"], None, [1], None, []),
        (["strategy=dp"], None, [1, 2, 3, 4], None, []),
        (["strategy=dp", "strategy.ranks=2"], None, [1, 2], None, []),
        (["strategy=dp"], "3,1", [4, 2], None, []),
        (["strategy=ddp", "strategy.ranks=3"], None, [1, 2, 3], 3, []),
        (["strategy=ddp", "strategy.ranks=2"], "2,3", [3, 4], 2, []),
        *((["device=cuda", f"meter={meter}"], None, [1], None, []) for meter in ("nvml", "none")),
        *((["device=cuda", f"meter={meter}"], None, [1], None, ["cpu"]) for meter in ("sum", "rapl")),
        *((["device=cpu", f"meter={meter}"], None, [], None, ["cpu"]) for meter in ("nvml", "none", "sum", "rapl")),
    ],
)
def test_each_rank_meters_one_gpu_and_devices_of_its_energy_are_locked(
    order, node, monkeypatch, overrides, visible, used, processes, shared
):
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    resolved = resolve_plan(order(f"machine.root={node}", *overrides))
    assert (resolved.gpus, resolved.ranks) == ([f"GPU-{bus}{bus}" for bus in used], processes)
    assert resolved.devices == [*shared, *(f"gpu-0000:0{bus}:00.0" for bus in used)]
    assert resolved.run.rehearsal == []


def test_detected_jetson_is_locked_as_a_module(order, tmp_path):
    nano = put(tmp_path / "nano", {COMPATIBLE: "nvidia,p3450-0000\0nvidia,jetson-nano\0nvidia,tegra210\0"})
    for overrides, accelerator in (([], "gpu"), (["device.accelerator=cpu"], "cpu")):
        resolved = resolve_plan(order(f"machine.root={nano}", *overrides))
        assert resolved.job.device.name == resolved.run.choices["device"] == "nano"
        assert (resolved.devices, resolved.run.rehearsal) == (["module", accelerator], [])


def test_identity_covers_job_dataset_and_gpu_model(order, node, monkeypatch):
    same, again, changed = (resolve_plan(order("device=cpu", f"seed={seed}")).run.identity for seed in (0, 0, 1))
    assert same == again != changed
    other = node / "proc/driver/nvidia/gpus/0000:04:00.0/information"
    other.write_text(other.read_text().replace("A100", "T400"))
    by_gpu = {}
    for visible in ("0", "1", "3"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        by_gpu[visible] = resolve_plan(order(f"machine.root={node}")).run.identity
    assert by_gpu["0"] == by_gpu["1"] != by_gpu["3"]
    resolved, by_dataset = resolve_plan(order()), set()
    resolved.open_record()
    for digest in (None, "0a", "0b"):
        resolved.run.dataset = digest and {"digest": digest}
        resolved.describe()
        by_dataset.add(resolved.run.identity)
        assert resolved.record.run()["identity"] == resolved.run.identity
    assert len(by_dataset) == 3


def test_auto_workers_are_one_per_core_and_at_most_four_and_more_are_a_warning(order, cores):
    ddp = ["strategy=ddp", "strategy.ranks=2"]
    cases = [
        *((count, auto, workers, []) for count, workers in ((1, 1), (2, 2), (8, 4)) for auto in ([], ddp)),
        *((2, [f"workers={workers}"], workers, ["warning"] * (workers > 2)) for workers in (0, 2, 3)),
        *((2, ["workers=auto", *ddp], 2, []), (6, ["workers=4", *ddp], 4, ["warning"])),
    ]
    for count, overrides, workers, warnings in cases:
        cores(count)
        resolved = resolve_plan(order("device=cpu", *overrides))
        assert (resolved.job.workers, resolved.run.rehearsal) == (workers, [])
        assert [message.partition(":")[0] for message in plan_warnings(resolved)] == warnings


JOB = job_of(evaluate=True)
RUN = run_info(identity="this job", record_id="another start", host="here", overrides=["batch=8"])
EARLIER = replace(RUN, record_id="first start")
STEPS = 4


@pytest.fixture
def record(tmp_path):
    """Three epochs and half a fourth, with a checkpoint after two."""
    record = Record(tmp_path)
    record.describe(JOB.to_dict(), EARLIER.document())
    for epoch in range(3):
        record.append({"window": "epoch", "epoch": epoch, "metrics": {"epoch/steps": STEPS}})
        record.append({"window": "val", "epoch": epoch, "metrics": {}})
    record.append_steps(array("f", range(4 * STEPS * len(INTERVALS))))
    record.append_losses(array("f", range(4 * STEPS)))
    write_checkpoint(record, "first start", epochs=2)
    return record


def test_run_resumes_after_its_checkpoint_unless_it_is_another_or_completed(record):
    assert find_resume_point(record, JOB, RUN) == (2, EARLIER, "")
    lines = (record.folder / "epochs.jsonl").read_text().splitlines(keepends=True)
    (record.folder / "epochs.jsonl").write_text("".join(lines[:3]))
    assert find_resume_point(record, JOB, RUN) == (2, EARLIER, "")
    for other in ({"identity": "another job"}, {"rehearsal": ["no power limit"]}):
        another = replace(RUN, overrides=["batch=9"], **other)
        assert find_resume_point(record, JOB, another) == (0, None, "")
    record.describe({**JOB.to_dict(), "workers": 7}, EARLIER.document())
    found = find_resume_point(record, JOB, replace(RUN, identity="other cores"))
    assert found == (0, None, f"workers=7, now {JOB.workers}")
    record.describe(JOB.to_dict(), EARLIER.document())
    assert "dataset is not here" in find_resume_point(record, JOB, replace(RUN, identity="no data")).reason
    elsewhere = replace(RUN, identity="this job there", host="there")
    assert find_resume_point(record, JOB, elsewhere) == (0, None, "it was measured on another host, here")
    write_json(record.folder / "completed.json", {"identity": "this job", "finished": ""})
    assert find_resume_point(record, JOB, RUN) == (0, None, "")
    (record.folder / "completed.json").unlink()
    (record.folder / CHECKPOINT).unlink()
    assert find_resume_point(record, JOB, RUN) == (0, None, "")


def flipped(data):
    at = data.index(b"weights")
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("name", "harm", "reason"),
    [
        (CHECKPOINT, flipped, "the file is damaged"),
        (CHECKPOINT, lambda data: data[:-30], "the file is damaged"),
        (CHECKPOINT, lambda data: b"", "the file is damaged"),
        (CHECKPOINT, "a third start", "it belongs to another run"),
        (CHECKPOINT, 4, "epochs before it are missing"),
        ("steps.bin", lambda data: data[: -2 * STEPS * len(INTERVALS) * 4 - 1], "epochs before it are missing"),
        ("losses.bin", lambda data: data[: -2 * STEPS * 4 - 4], "epochs before it are missing"),
        ("job.json", lambda data: b"{", "its job.json cannot be read"),
        ("epochs.jsonl", lambda data: b"{\n", "the epochs before it cannot be read"),
    ],
)
def test_incomplete_record_is_not_resumed_and_has_a_reason(record, name, harm, reason):
    if callable(harm):
        path = record.folder / name
        path.write_bytes(harm(path.read_bytes()))
    else:
        write_checkpoint(record, *((harm, 2) if isinstance(harm, str) else ("first start", harm)))
    assert find_resume_point(record, JOB, RUN) == (0, None, reason)
