"""What the steward makes of what the worker says."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from default_jobs import job_of

from epochmeter.power.meter import Counter, Domain, InstrumentMeter
from epochmeter.run.event_loop import check_metered, notes_and_flags, target_reached, trace_notes
from epochmeter.run.window import Window
from epochmeter.run.worker_process import WorkerError
from epochmeter.shared.protocol import TraceFailed

VAL = {"window": "val", "metrics": {"val/accuracy": 0.9, "val/loss": 0.1}}
EPOCH = {"window": "epoch", "metrics": {"epoch/train_accuracy": 0.9, "epoch/train_loss": 0.1}}


@pytest.mark.parametrize(("evaluate", "decides", "waits"), [(True, VAL, EPOCH), (False, EPOCH, VAL)])
def test_a_target_ends_a_run_by_the_evaluation_or_where_there_is_none_by_the_epoch(evaluate, decides, waits):
    job = job_of(evaluate=evaluate, target_accuracy=0.9)
    assert target_reached(job, decides)
    assert not target_reached(job, waits)
    assert not target_reached(replace(job, target_accuracy=0.91), decides)
    assert not target_reached(job, {**decides, "partial": True})


def test_a_run_without_a_target_is_not_ended_by_any_window():
    assert not target_reached(job_of(), VAL)


def test_a_windows_line_holds_what_there_is_to_say_of_it_and_what_it_marks_its_run_by():
    window = Window({}, ["epoch window 3: gpu0 slowed for heat"], {"throttled": "gpu0 slowed for heat"})
    assert notes_and_flags(
        window, ["cached share: unknown"], ["RAPL was set to 15 W, and somebody else set it to 20 W."]
    ) == {
        "notes": [
            "cached share: unknown",
            "epoch window 3: gpu0 slowed for heat",
            "RAPL was set to 15 W, and somebody else set it to 20 W.",
        ],
        "flags": {
            "throttled": "gpu0 slowed for heat",
            "knob_changed": "RAPL was set to 15 W, and somebody else set it to 20 W.",
        },
    }


def test_of_a_window_of_which_there_is_nothing_to_say_its_line_says_nothing():
    assert notes_and_flags(Window({}, [], {}), [], []) == {}


def test_no_secret_is_kept_in_a_windows_line():
    (note,) = notes_and_flags(Window({}, [], {}), ["no such file: http://ann:hunter2@host/a.png"], [])["notes"]
    assert "hunter2" not in note


def test_a_worker_that_dies_in_its_trace_leaves_a_note_and_the_run_completed():
    def messages():
        yield TraceFailed("no trace")
        raise WorkerError("oom", "the kernel killed the worker")

    assert trace_notes(iter([TraceFailed("slow")])) == ["slow"]
    assert trace_notes(messages()) == ["no trace: the kernel killed the worker"]


@pytest.mark.parametrize(
    ("training", "refusal"),
    [
        ({"accelerator": "cuda", "gpu": {"uuid": "1234"}}, None),
        ({"accelerator": "cuda", "gpu": {}}, None),
        ({"accelerator": "cuda", "gpu": {"uuid": "5678"}}, "5678 trains, but GPU-1234 is metered"),
        ({"accelerator": "cpu", "torch": "2.15.0"}, "the CPU trains, but GPU-1234 is metered"),
    ],
)
def test_a_gpu_that_does_not_train_is_not_booked(training, refusal):
    held_against(training, refusal, "GPU-1234")


def held_against(training, refusal, *gpus):
    """Holds what trained against the GPUs metered."""
    planned = SimpleNamespace(run={"training": training}, gpus=[*gpus], job=job_of())
    counter = Counter(Domain("counter", 0.1, "board"), float)
    meter = InstrumentMeter(counters={"gpu0": counter}, total=["gpu0"], covers="GPUs used")
    if refusal:
        with pytest.raises(RuntimeError, match=refusal):
            check_metered(planned, meter)
    else:
        check_metered(planned, meter)


def test_the_gpus_of_other_nodes_are_metered_there():
    training = {"accelerator": "cuda:0", "gpu": {"uuid": "1234"}, "gpus": ["1234", "9999"], "gpus_here": ["1234"]}
    held_against(training, None, "GPU-1234")


@pytest.mark.parametrize(
    ("trained", "refusal"),
    [
        (["1234", "5678"], None),
        ([None, None], None),
        (["1234", "9999"], "9999 trains, but GPU-1234, GPU-5678 is metered\n.*VISIBLE_DEVICES=GPU-1234,GPU-9999"),
        (["1234", "1234"], r"2 GPUs are metered, but 1 of them train\n  hint: set `strategy\.ranks=1`"),
    ],
)
def test_of_several_gpus_all_are_held_against_what_is_metered(trained, refusal):
    training = {"accelerator": "cuda:0", "gpu": {"uuid": trained[0]}, "gpus": trained}
    held_against(training, refusal, "GPU-1234", "GPU-5678")
