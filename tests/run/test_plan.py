"""What a plan makes of an order, on machines whose files stand in a folder."""

import json
import shutil
import zipfile
from dataclasses import replace

import boards
import pytest
from controls import Board

from epochmeter.machine.disk import Disk
from epochmeter.power.knobs.knob import AppliedSettings
from epochmeter.run import plan
from epochmeter.run.nodes import Node
from epochmeter.shared.record import CHECKPOINT, CHECKPOINT_METADATA
from epochmeter.tracking import tensorboard

GPU = "GPU-6d5a4f3e-0000-1111-2222-333344445555"


@pytest.fixture
def nano(tmp_path):
    """The root of a Jetson Nano."""
    names = "nvidia,p3450-0000\0nvidia,jetson-nano\0nvidia,tegra210\0"
    return machine(tmp_path / "nano", **{"sys/firmware/devicetree/base/compatible": names})


@pytest.fixture
def rapl(tmp_path):
    """The root of a PC whose CPU has a power limit to set, of 120 W at most."""
    return Board(tmp_path / "rapl").with_rapl(packages=1).root


@pytest.fixture
def desktop(tmp_path, monkeypatch):
    """The root of a PC with an NVIDIA GPU, all of which may be used."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return machine(
        tmp_path / "desktop", **{"proc/driver/nvidia/gpus/0000:01:00.0/information": f"Model: RTX\nGPU UUID: {GPU}\n"}
    )


def machine(root, **files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_the_device_found_stands_for_auto(order, nano):
    settled = plan.resolve_plan(order(f"machine.root={nano}"))
    assert settled.job.device.name == settled.run["choices"]["device"] == "nano"
    assert settled.run["rehearsal"] == []
    assert settled.job.device.accelerator == "cuda"


def test_a_device_asked_for_where_it_is_is_no_rehearsal(order, nano):
    assert plan.resolve_plan(order("device=nano", f"machine.root={nano}")).run["rehearsal"] == []


def test_any_machine_can_train_on_its_cpu(order, nano):
    assert plan.resolve_plan(order("device=cpu", f"machine.root={nano}")).run["rehearsal"] == []


def test_a_device_that_this_machine_is_not_is_rehearsed_on_what_there_is(order):
    settled = plan.resolve_plan(order("device=nano"))
    assert settled.run["rehearsal"] == ["device=nano requested, this machine is device=cpu"]
    assert settled.job.device.name == "nano"
    assert settled.job.device.accelerator == "auto"


def test_a_power_limit_where_there_is_none_to_set_is_a_rehearsal(order):
    settled = plan.resolve_plan(order("power_limit=100"))
    assert settled.run["rehearsal"] == ["power_limit=100: this machine has no power limit to set"]
    assert settled.run["power_limit_applied"] is None


def test_a_rehearsal_tells_of_all_that_was_asked_for_and_not_applied(order, rapl):
    nowhere = plan.resolve_plan(order("device=nano", "power_limit=10"))
    assert len(nowhere.run["rehearsal"]) == 2
    with_a_limit = plan.resolve_plan(order("device=nano", "power_limit=10", f"machine.root={rapl}"))
    assert with_a_limit.run["rehearsal"][1] == "power_limit=10 requested, not applied"


def test_a_power_limit_that_is_there_is_turned_to_and_nothing_is_rehearsed(order, rapl):
    settled = plan.resolve_plan(order("power_limit=100", f"machine.root={rapl}"))
    (knob, wish) = settled.targets["power_limit"]
    assert (knob.name, wish.setting, wish.watts) == ("RAPL", "100 W", 100)
    assert settled.run["rehearsal"] == []


def test_a_power_limit_out_of_range_is_refused_with_the_range_before_anything_is_written(order, rapl):
    asked = order("power_limit=500", f"machine.root={rapl}")
    with pytest.raises(ValueError, match=r"power_limit=500 is out of the range of RAPL: up to 120 W"):
        plan.resolve_plan(asked)
    assert list(asked.folder.iterdir()) == []


def test_what_was_really_applied_is_noted_as_it_was_found_and_in_watts(order, rapl):
    settled = plan.resolve_plan(order("power_limit=100", f"machine.root={rapl}"))
    settled.applied({"RAPL": "100 W"})
    run = settled.record.run()
    assert (run["applied"], run["power_limit_applied"], run["power_limit_w"]) == (
        {"power_limit": "100 W"},
        "100 W",
        100,
    )


def test_the_highest_limit_of_the_device_is_noted_beside_the_one_applied(order, rapl):
    settled = plan.resolve_plan(order("power_limit=100", f"machine.root={rapl}"))
    assert settled.run["power_limit_max_w"] is None, "nothing is noted before a knob is turned"
    settled.applied({"RAPL": "100 W"})
    assert settled.record.run()["power_limit_max_w"] == 120


def test_how_many_packages_are_held_to_a_limit_is_noted_whatever_the_ranks(order, rapl):
    settled = plan.resolve_plan(order("power_limit=100", "strategy=ddp", "strategy.ranks=4", f"machine.root={rapl}"))
    settled.applied({"RAPL": "100 W"})
    assert settled.record.run()["power_limit_devices"] == 1


def test_only_the_first_text_of_a_flag_is_kept(order):
    settled = plan.resolve_plan(order())
    settled.set_flags({"throttled": "hot", "energy_lost": ""})
    settled.set_flags({"throttled": "hotter", "knob_changed": "somebody"})
    assert settled.record.run()["flags"] == {"throttled": "hot", "knob_changed": "somebody"}


def test_a_run_that_goes_on_is_flagged_by_the_windows_that_stay(order):
    first = plan.resolve_plan(order(of_sweep=True))
    first.open_record()
    flags = [{"throttled": "hot in epoch 0"}, {}, {"throttled": "hotter", "energy_lost": "no VDD_IN"}]
    for epoch, flagged_by in enumerate(flags):
        for name in ("epoch", "val"):
            told = {"flags": flagged_by} if flagged_by and name == "epoch" else {}
            first.record.append({"window": name, "epoch": epoch, "metrics": {}, **told})
        first.set_flags(flagged_by)
    assert first.record.run()["flags"].keys() == {"throttled", "energy_lost"}
    with zipfile.ZipFile(first.record.folder / CHECKPOINT, "w") as archive:
        archive.writestr(CHECKPOINT_METADATA, json.dumps({"record_id": first.run["record_id"], "epochs": 2}))
    for name in ("steps.bin", "losses.bin"):
        (first.record.folder / name).touch()
    again = plan.resolve_plan(order(of_sweep=True))
    assert again.open_record() == ["resumed from the checkpoint after epoch 2."]
    assert again.record.run()["flags"] == {"throttled": "hot in epoch 0"}
    again.set_flags({"energy_lost": "no VDD_SOC"})
    assert again.record.run()["flags"] == {"throttled": "hot in epoch 0", "energy_lost": "no VDD_SOC"}


def test_one_knob_that_is_lacking_leaves_the_others_alone_and_says_so(order, rapl):
    settled = plan.resolve_plan(order("power_limit=100", "clocks=locked", f"machine.root={rapl}"))
    assert settled.targets == {}
    assert settled.run["rehearsal"] == [
        "clocks=locked: this machine has no jetson_clocks",
        "power_limit=100 requested, not applied",
    ]


def test_the_rule_that_picked_a_power_mode_is_said(order, tmp_path):
    nx = Board(tmp_path / "nx").with_modes("nx")
    machine(nx.root, **{"sys/firmware/devicetree/base/compatible": "nvidia,p3668-0000\0nvidia,tegra194\0"})
    settled = plan.resolve_plan(order("power_limit=15", f"machine.root={nx.root}"))
    assert settled.targets["power_limit"][1].setting == "MODE_15W_6CORE (id:2)"
    assert any("MODE_15W_6CORE" in said for said in plan.plan_warnings(settled))


def test_a_recording_played_is_no_measurement_of_this_machine(order, tmp_path):
    (tmp_path / "power.csv").touch()
    settled = plan.resolve_plan(order("meter=replay", f"meter.file={tmp_path}/power.csv"))
    assert settled.run["rehearsal"] == ["meter=replay requested: the energy is that of a recording"]


def test_rehearse_true_touches_nothing_and_says_so(order, rapl):
    settled = plan.resolve_plan(order("power_limit=100", "rehearse=true", f"machine.root={rapl}"))
    assert settled.run["rehearsal"] == ["power_limit=100 requested, not applied", "rehearse=true"]


@pytest.mark.parametrize("typed", ["device=nano", "power_limit=100"])
def test_rehearse_false_refuses_what_this_machine_is_not(order, typed):
    with pytest.raises(ValueError, match=rf"^{typed}\b.*this machine .*\n  hint: `rehearse=false`"):
        plan.resolve_plan(order(typed, "rehearse=false"))


def test_rehearse_false_lets_pass_what_this_machine_is(order, nano):
    assert plan.resolve_plan(order("device=nano", "rehearse=false", f"machine.root={nano}")).run["rehearsal"] == []


def test_a_job_out_of_range_is_refused_before_anything_is_written(order):
    asked = order("batch=0")
    with pytest.raises(ValueError, match="batch=0"):
        plan.resolve_plan(asked)
    assert list(asked.folder.iterdir()) == []


def test_an_order_that_is_refused_leaves_no_empty_folder(order):
    asked = order()
    plan.remove_empty_folders(asked)
    assert not asked.folder.parent.exists()


def test_an_order_that_is_refused_takes_nothing_with_it_that_an_earlier_one_left(order):
    asked = order()
    (asked.folder / "job.json").write_text("{}")
    plan.remove_empty_folders(asked)
    assert (asked.folder / "job.json").exists()


def test_a_run_locks_and_meters_the_gpu_that_it_uses_or_else_the_cpu(order, desktop):
    on_gpu = plan.resolve_plan(order(f"machine.root={desktop}"))
    on_cpu = plan.resolve_plan(order("device=cpu", f"machine.root={desktop}"))
    assert (on_gpu.devices, on_gpu.gpus) == (["gpu-0000:01:00.0"], [GPU])
    assert (on_cpu.devices, on_cpu.gpus) == (["cpu"], [])


@pytest.fixture
def node(tmp_path, monkeypatch):
    """The root of a machine with four NVIDIA GPUs, all of which may be used."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    folder = "proc/driver/nvidia/gpus/0000:0{}:00.0/information"
    return machine(
        tmp_path / "node", **{folder.format(bus): f"Model: A100\nGPU UUID: GPU-{bus}{bus}\n" for bus in range(1, 5)}
    )


@pytest.mark.parametrize(
    ("typed", "visible", "used", "processes"),
    [
        (["strategy=single"], None, ["GPU-11"], None),
        (["strategy=dp"], None, ["GPU-11", "GPU-22", "GPU-33", "GPU-44"], None),
        (["strategy=dp", "strategy.ranks=2"], None, ["GPU-11", "GPU-22"], None),
        (["strategy=dp"], "3,1", ["GPU-44", "GPU-22"], None),
        (["strategy=ddp", "strategy.ranks=3"], None, ["GPU-11", "GPU-22", "GPU-33"], 3),
        (["strategy=ddp", "strategy.ranks=2"], "2,3", ["GPU-33", "GPU-44"], 2),
    ],
)
def test_ranks_lock_and_meter_a_gpu_each(order, node, monkeypatch, typed, visible, used, processes):
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    settled = plan.resolve_plan(order(f"machine.root={node}", *typed))
    assert (settled.gpus, settled.ranks) == (used, processes)
    assert settled.devices == [f"gpu-0000:0{name[-1]}:00.0" for name in used]
    assert settled.run["rehearsal"] == []


@pytest.mark.parametrize(
    ("meter", "also"), [("nvml", []), ("none", []), ("sum", ["cpu"]), ("rapl", ["cpu"]), ("estimate", ["cpu"])]
)
def test_what_a_meter_counts_of_all_that_the_machine_does_is_locked_too(order, node, meter, also):
    settled = plan.resolve_plan(order("device=cuda", f"meter={meter}", f"machine.root={node}"))
    assert settled.devices == [*also, "gpu-0000:01:00.0"]
    assert plan.resolve_plan(order("device=cpu", f"meter={meter}", f"machine.root={node}")).devices == ["cpu"]


def test_what_was_measured_on_another_model_of_gpu_is_another_measurement(order, node, monkeypatch):
    other = node / "proc/driver/nvidia/gpus/0000:04:00.0/information"
    other.write_text(other.read_text().replace("A100", "T400"))
    identities = {}
    for visible in ("0", "1", "3"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        identities[visible] = plan.resolve_plan(order(f"machine.root={node}")).run["identity"]
    assert identities["0"] == identities["1"] != identities["3"]


@pytest.mark.parametrize(
    ("typed", "visible", "there"),
    [
        (["strategy=ddp", "strategy.ranks=5"], "0,1,2,3", "4 GPUs"),
        (["strategy=ddp", "strategy.ranks=2"], "1", "1 GPU"),
        (["strategy=dp"], "1", "1 GPU"),
        (["strategy=dp", "device=cpu"], "0,1", "no GPU"),
    ],
)
def test_fewer_gpus_than_ranks_are_a_rehearsal_on_what_there_is(order, node, monkeypatch, typed, visible, there):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    said = f"{' '.join(typed[:2]).removesuffix(' device=cpu')} requested, this machine has {there}"
    assert plan.resolve_plan(order(f"machine.root={node}", *typed)).run["rehearsal"] == [said]
    with pytest.raises(ValueError, match=said):
        plan.resolve_plan(order(f"machine.root={node}", *typed, "rehearse=false"))


def test_ranks_that_share_a_cpu_are_what_was_asked_for_with_a_warning(order, monkeypatch):
    monkeypatch.setattr(plan.os, "sched_getaffinity", lambda pid: {*range(8)})
    settled = plan.resolve_plan(order("device=cpu", "strategy=ddp", "strategy.ranks=4", "workers=4"))
    assert settled.run["rehearsal"] == []
    assert plan.plan_warnings(settled) == [
        "warning: workers=4 DataLoader workers for each of 4 ranks are more than the 8 cores.",
        "note: 4 ranks share the 8 cores of the CPU",
    ]


def test_a_run_goes_by_what_it_trains_and_by_the_keys_typed_that_matter(order):
    typed = ["device=nano", "optimizer.lr=0.1", "batch=8", "tracking.experiment=mine", "sweep.again=true"]
    assert plan.resolve_plan(order(*typed)).run["name"] == "optimizer.lr=0.1 batch=8 lenet digits nano"


def test_a_changed_default_is_another_job(order):
    typed = order("device=cpu")
    before, same = plan.resolve_plan(typed), plan.resolve_plan(order("device=cpu"))
    changed = replace(typed, job=replace(typed.job, seed=1))
    assert plan.resolve_plan(changed).run["identity"] != before.run["identity"] == same.run["identity"]


def test_a_record_is_completed_already_only_for_the_very_job_that_it_holds(order):
    first = plan.resolve_plan(order("batch=8"))
    assert not first.is_already_completed
    first.open_record()
    first.record.write_summary({"state": "completed"}, first.run["identity"])
    assert plan.resolve_plan(order("batch=8")).is_already_completed
    assert not plan.resolve_plan(order("batch=9")).is_already_completed


@pytest.mark.parametrize(
    ("how", "reused"),
    [
        ({}, True),
        ({"of_sweep": False}, False),
        ({"run": {"rehearsal": ["device=nano"]}}, False),
        ({"node": Node(nodes=2)}, False),
        ({"again": True}, False),
    ],
    ids=["sweep", "single run", "rehearsal", "two nodes", "sweep.again=true"],
)
def test_only_a_sweeps_own_measurement_on_one_node_reuses_a_completed_run(order, monkeypatch, how, reused):
    settled = plan.resolve_plan(replace(order(), of_sweep=True))
    monkeypatch.setattr(plan.reuse, "find_completed", lambda folder, identity, configuration, repeat: settled.record)
    if how.pop("again", False):
        (settled.record.folder.parent / ".again").touch()
    settled.run.update(how.pop("run", {}))
    settled = replace(settled, **how)
    assert (settled.completed_elsewhere is not None) == reused


def test_what_the_dataset_is_becomes_part_of_the_identity_once_it_is_made(order):
    settled = plan.resolve_plan(order())
    settled.open_record()
    identities = [settled.run["identity"]]
    for digest in ("0a", "0b"):
        settled.describe(dataset={"digest": digest})
        identities.append(settled.run["identity"])
        assert settled.record.run()["identity"] == settled.run["identity"]
    assert len(set(identities)) == 3


def test_a_run_that_begins_sets_aside_what_an_earlier_attempt_left(order):
    asked = order()
    (asked.folder / "epochs.jsonl").write_text('{"window": "epo')
    plan.resolve_plan(asked).open_record()
    assert (asked.folder / "attempt1" / "epochs.jsonl").read_text() == '{"window": "epo'
    assert sorted(path.name for path in asked.folder.iterdir()) == ["attempt1", "host.json", "job.json"]


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (2, 2), (8, 4)])
@pytest.mark.parametrize("typed", [[], ["workers=auto"], ["workers=auto", "strategy=ddp", "strategy.ranks=2"]], ids=str)
def test_auto_workers_are_one_per_usable_core_at_most_four_without_a_warning(order, monkeypatch, cores, workers, typed):
    monkeypatch.setattr(plan.os, "sched_getaffinity", lambda pid: {*range(cores)})
    settled = plan.resolve_plan(order("device=cpu", *typed))
    settled.open_record()
    assert settled.record.job()["workers"] == workers
    assert not any(line.startswith("warning:") for line in plan.plan_warnings(settled))


@pytest.mark.parametrize("cores", [1, 2, 8])
def test_a_number_of_workers_is_used_as_given(order, monkeypatch, cores):
    monkeypatch.setattr(plan.os, "sched_getaffinity", lambda pid: {*range(cores)})
    assert [plan.resolve_plan(order(f"workers={count}")).job.workers for count in (0, 3, 9)] == [0, 3, 9]


def test_auto_workers_are_the_same_configuration_as_their_number(order, monkeypatch):
    monkeypatch.setattr(plan.os, "sched_getaffinity", lambda pid: {*range(8)})
    auto, four, three = (
        plan.resolve_plan(order(*typed)).run["identity"] for typed in ([], ["workers=4"], ["workers=3"])
    )
    assert auto == four != three


def test_a_warning_is_given_if_more_workers_than_cores_were_typed(order, monkeypatch):
    monkeypatch.setattr(plan.os, "sched_getaffinity", lambda pid: {0, 1})
    cores = 2
    assert plan.plan_warnings(plan.resolve_plan(order(f"workers={cores}"))) == []
    (said,) = plan.plan_warnings(plan.resolve_plan(order(f"workers={cores + 1}")))
    assert said == "warning: workers=3 DataLoader workers are more than the 2 cores."


def test_a_dataset_in_memory_comes_with_the_warning_that_storage_plays_no_part(order):
    for typed in ("dataset.layout=memory", "synthetic_batches=true"):
        (said,) = plan.plan_warnings(plan.resolve_plan(order(typed, "workers=0")))
        assert said.startswith("note: " + typed.removesuffix("=true"))
        assert "storage and page cache are not used" in said


def test_a_loss_that_is_shown_is_waited_for_where_a_gpu_computes_it(order):
    shown = plan.resolve_plan(order("log_loss=true", "workers=0"))
    assert plan.plan_warnings(shown) == []
    shown.devices = ["module", "gpu"]
    (said,) = plan.plan_warnings(shown)
    assert said.startswith("`log_loss=true` synchronizes with the GPU")


def test_a_medium_that_is_not_the_one_asked_for_is_a_rehearsal(order, monkeypatch):
    monkeypatch.setattr(plan, "disk_of", lambda folder: Disk(("nvme0n1p1",), "nvme", "ext4"))
    (said,) = plan.resolve_plan(order("storage=sd")).run["rehearsal"]
    assert said.startswith("storage=sd requested, ")
    assert said.endswith("is on nvme")
    with pytest.raises(ValueError, match=r"storage=sd requested, .*\n  hint: `rehearse=false`"):
        plan.resolve_plan(order("storage=sd", "rehearse=false"))


@pytest.mark.parametrize("storage", ["nvme", "ssd", "project"])
def test_a_medium_that_is_what_was_asked_for_is_none(order, monkeypatch, storage):
    monkeypatch.setattr(plan, "disk_of", lambda folder: Disk(("nvme0n1p1",), "nvme", "ext4"))
    assert plan.resolve_plan(order(f"storage={storage}")).run["rehearsal"] == []


@pytest.mark.parametrize(
    ("typed", "says"),
    [("dataset.layout=tape", "`dataset.layout=tape` is not valid"),
     ("dataset.on_bad=ignore", "`dataset.on_bad=ignore` is not valid"),
     ("dataset.preprocess=warp", "`dataset.preprocess=warp` is not valid")],
)  # fmt: skip
def test_what_a_dataset_cannot_be_asked_for_is_refused_with_what_it_can(order, typed, says):
    with pytest.raises(ValueError, match=says):
        plan.resolve_plan(order(typed))


def test_runs_whose_energy_is_that_of_one_module_hold_each_other_up(order, nano):
    """A board's rails do not tell its GPU from its CPU."""
    on_gpu = plan.resolve_plan(order(f"machine.root={nano}"))
    on_cpu = plan.resolve_plan(order(f"machine.root={nano}", "device.accelerator=cpu"))
    assert "module" in on_gpu.devices
    assert "module" in on_cpu.devices


def test_a_limit_that_the_device_rounded_is_noted_as_it_is(order, rapl):
    settled = plan.resolve_plan(order("power_limit=100", f"machine.root={rapl}"))
    settled.applied({"RAPL": "99.875 W"})
    assert settled.record.run()["power_limit_w"] == 99.875


def test_what_was_rehearsed_is_measured_once_the_machine_has_it(order, rapl):
    rehearsed = plan.resolve_plan(order("power_limit=100", of_sweep=True))
    rehearsed.describe(dataset={"digest": "d"})
    rehearsed.record.write_summary({"state": "completed"}, rehearsed.run["identity"])
    again = plan.resolve_plan(order("power_limit=100", of_sweep=True))
    again.run["identity"] = rehearsed.run["identity"]
    assert again.is_already_completed
    again.run["rehearsal"] = []
    assert not again.is_already_completed


def test_event_files_that_nothing_could_write_are_refused_before_the_run_begins(order, monkeypatch):
    monkeypatch.setattr(tensorboard, "find_spec", lambda _: None)
    asked = order("tracking.tensorboard=true")
    with pytest.raises(ValueError, match="Install it"):
        plan.resolve_plan(asked)
    assert not list(asked.folder.iterdir())


def test_a_run_ran_on_what_its_knobs_have_made_of_the_machine(order, tmp_path, monkeypatch):
    boards.write(tmp_path / "nx", "nx")
    shutil.rmtree(tmp_path / "nx/var/lib/nvpmodel")  # nvpmodel's own stands here for it
    board = Board(tmp_path / "nx").with_modes("nx", current=5)
    monkeypatch.setenv("PATH", board.on_path())
    monkeypatch.setenv("AS_ROOT", "1")
    root, state = f"machine.root={board.root}", f"machine.state_dir={tmp_path / 'state'}"
    settled = plan.resolve_plan(order("device=nx", "device.accelerator=cpu", "power_limit=15", root, state))
    settled.open_record()
    found = settled.record.host()["power_mode"]
    with AppliedSettings(list(settled.targets.values()), settled.journal, print) as holding:
        settled.applied(holding.applied)
    assert (found["id"], settled.record.host()["power_mode"]["id"]) == (5, 2)


def test_a_medium_that_is_not_there_is_not_taken_for_another(order, nano, tmp_path):
    away = order("storage=sd", f"storage.root={tmp_path / 'card'}", f"machine.root={nano}")
    with pytest.raises(ValueError, match=r"card` is not an existing folder"):
        plan.resolve_plan(away)
