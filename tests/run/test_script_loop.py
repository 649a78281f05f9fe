"""The loop that follows a script: logs as an agent writes them, a meter with known power, and a scripted process."""

import json
import time

import pytest
from followed import BATCH_S, EPOCH, POWER_W, Running, counter, make_loop, train

from epochmeter.run import script_loop
from epochmeter.run.script_loop import NO_ENERGY, TRACED_IN_EPOCH
from epochmeter.segmentation import kinds
from epochmeter.shared import events
from epochmeter.shared.problem import Problem
from epochmeter.shared.protocol import Loaded, Proceed, Traced
from epochmeter.shared.record import PROGRESS, Record


@pytest.fixture
def follow(tmp_path):
    """follow(acts, meter=, **keys of the job) -> the loop, its script and its record, after the script's end."""

    def run(acts, meter=None, **keys):
        record = Record(tmp_path / "record")
        loop = make_loop(tmp_path / "events", record, acts, meter, **keys)
        loop.run()
        return loop, loop._script, record

    return run


def test_epochs_of_a_script_are_recorded_with_their_steps_rule_and_energy(follow):
    _, script, record = follow([*EPOCH, *EPOCH], counter())
    first, second = record.windows()
    metrics = second["metrics"]
    assert [(line["window"], line["epoch"], line["rule"]) for line in (first, second)] == [
        ("epoch", number, kinds.STEPS_RULE) for number in range(2)
    ]
    assert (metrics["epoch/steps"], metrics["epoch/samples"], metrics["epoch/learning_rate"]) == (4, 16, 0.1)
    assert metrics["epoch/e2e_s"] == pytest.approx(script.durations_s()[1])
    assert metrics["epoch/energy_j"] == pytest.approx(POWER_W * metrics["epoch/e2e_s"], rel=0.01)
    assert len(record.steps()) == 2 * 4 * 4
    assert second["energy"]["opened_ns"] == second["opened_ns"]


@pytest.mark.parametrize(("seconds", "is_reached"), [(0.1, True), (3600, False)])
@pytest.mark.parametrize("stop", [True, False])
def test_script_is_stopped_only_on_request_when_the_next_epoch_would_exceed_the_budget(
    follow, seconds, is_reached, stop
):
    """Each epoch takes at least 0.2 s; a `Meter` gets the answer in any case."""
    loop, script, _ = follow([*EPOCH, lambda script: script.ask(), *EPOCH], budget={"time_s": seconds, "stop": stop})
    assert bool(script.stops) is (is_reached and stop)
    assert [reply.stop for _, reply in script.answers] == [is_reached]
    assert (loop._plan.run.budget or {}).get("epochs") == (1 if is_reached else None)


def test_facts_on_the_loader_that_trains_are_recorded(follow):
    loop, _, _ = follow([*EPOCH])
    facts = {"batch": 4, "samples": 16, "batches": 4, "workers": 2, "pin_memory": False, "windows": ["epoch"]}
    assert loop._plan.run.training == {"accelerator": "cpu", "loaders": [facts]}


@pytest.mark.parametrize("warmup", [0, 1])
def test_epoch_whose_flops_were_counted_has_the_added_time_and_a_note_if_it_is_in_the_means(follow, tmp_path, warmup):
    def count(script):
        """Record the operators of the present step."""
        facts = {"kind": "operators", "object": 50, "file": "absent.json", "batches": 1, "cache_bytes": 0, "tf32": {}}
        with open(tmp_path / "events/7.jsonl", "a") as file:
            file.write(json.dumps(facts) + "\n")
        script.log.write(events.COUNTED, time.monotonic_ns(), time.monotonic_ns(), 0.0, 101, 50)

    loop, _, record = follow([*EPOCH[:4], count, *EPOCH[4:], *EPOCH], warmup_epochs=warmup)
    first, second = record.windows()
    assert "epoch/counting_s" in first["metrics"]
    assert "epoch/counting_s" not in second["metrics"]
    assert [any("FLOPs" in note for note in window.get("notes", [])) for window in (first, second)] == [
        not warmup,
        False,
    ]
    assert "absent.json" in loop._plan.run.training["step"]["reason"]


@pytest.mark.parametrize(
    ("optimizers", "trainings", "warmups"),
    [
        ([2, 2, 3, 3, 4], [0, 0, 1, 1, 2], [False, False, True, False, True]),
        ([2, 3, 2, 4], [0, 0, 0, 1], [False, True, False, True]),
    ],
    ids=["three trainings", "a training with two phases, and another one"],
)
def test_windows_name_their_training_whose_first_epochs_are_its_warm_up(follow, optimizers, trainings, warmups):
    acts = [act for optimizer in optimizers for act in train(optimizer)]
    _, _, record = follow(acts, warmup_epochs=1)
    windows = record.windows()
    assert [window["training"] for window in windows] == trainings
    assert [window.get("warmup", False) for window in windows] == warmups
    assert [window["epoch"] for window in windows] == [*range(len(optimizers))]


def test_energy_of_an_epoch_whose_border_was_noticed_late_is_interpolated(follow):
    def late(act):
        def run(script):
            act(script)
            script.is_at_border = False

        return run

    _, _, record = follow([late(act) for act in [*EPOCH, *EPOCH]], counter())
    for line in record.windows():
        metrics = line["metrics"]
        assert metrics["epoch/energy_j"] == pytest.approx(POWER_W * metrics["epoch/e2e_s"], rel=0.01)


@pytest.mark.timed
def test_epoch_of_a_held_iterator_ends_with_its_last_step(follow):
    acts = [Running.begin, *4 * [Running.step], lambda script: time.sleep(0.5), *EPOCH]
    _, script, record = follow(acts, counter())
    first, _ = record.windows()
    assert first["metrics"]["epoch/e2e_s"] == pytest.approx(script.durations_s()[0])
    assert first["metrics"]["epoch/energy_j"] == pytest.approx(POWER_W * first["metrics"]["epoch/e2e_s"], rel=0.01)


@pytest.mark.timed
def test_progress_of_an_epoch_is_recorded_until_it_ends(follow, monkeypatch, tmp_path):
    monkeypatch.setattr(script_loop, "PROGRESS_S", 0.0)
    seen = []

    def look(script):
        path = tmp_path / "record" / PROGRESS
        seen.append(json.loads(path.read_text().splitlines()[-1]) if path.exists() else None)

    follow([*EPOCH[:-1], look, look, Running.end, look, look])
    assert (seen[1]["epoch"], seen[1]["steps"], seen[1]["epoch_steps"]) == (0, 3, 4)
    assert 3 * BATCH_S < seen[1]["parts"]["compute_s"] < 6 * BATCH_S
    assert seen[-1] is None


def test_measurement_is_given_to_a_script_that_asks_for_it_at_once(follow):
    _, script, record = follow([Running.ask, *EPOCH, Running.ask, lambda script: script.ask("val")], counter())
    (_, none), (_, recorded), (_, no_val) = script.answers
    assert (none, no_val) == (Proceed(), Proceed())
    assert recorded.metrics == record.windows()[0]["metrics"]
    assert recorded.no_energy == ""


def test_rank_other_than_the_first_gets_its_own_times_without_energy(follow, tmp_path):
    ranks = []
    acts = [
        lambda script: ranks.append(Running(tmp_path / "events", [], name="8", rank=1)),
        *(lambda script, act=act: act(ranks[0]) for act in EPOCH),
        *EPOCH,
        lambda script: script.ask(process="8"),
    ]
    _, script, _ = follow(acts, counter())
    ((_, recorded),) = script.answers
    assert recorded.no_energy == NO_ENERGY
    assert recorded.metrics["epoch/steps"] == 4
    assert "epoch/energy_j" not in recorded.metrics


def test_page_cache_is_prepared_before_each_pass_that_waits_for_it(follow):
    def wait(script):
        script.openings = ["connection"]

    _, script, record = follow([wait, *EPOCH, wait, *EPOCH], prepare=lambda number: [f"cache {number}"])
    assert script.answers == [("connection", Proceed())] * 2
    assert [line["notes"] for line in record.windows()] == [["cache 0"], ["cache 1"]]


def load(script):
    script.loaded.append(Loaded(time.monotonic_ns()))


def replay(precision):
    return {"measure": {"command": ["train.py"], "replay": True, "replay_precision": precision}}


@pytest.mark.timed
def test_replayed_script_is_ended_when_its_mean_epoch_is_known_precisely(follow):
    acts = [Running.begin, load, *EPOCH[1:], *5 * EPOCH]
    _, script, record = follow(acts, **replay(0.9))
    assert [line.get("warmup", False) for line in record.windows()] == [True, False, False, False]
    (note,) = script.end_notes
    assert "after 3 epochs" in note


@pytest.mark.timed
def test_replayed_script_that_is_not_precise_ends_itself(follow):
    pause = [*EPOCH[:2], lambda script: time.sleep(0.3), *EPOCH[2:]]
    _, script, record = follow([*EPOCH, *pause, *EPOCH, *EPOCH], **replay(0.01))
    assert (script.end_notes, len(record.windows())) == ([], 4)


def test_script_that_cannot_be_replayed_is_ended_at_once(follow):
    def fail(script):
        script.not_replayed = Problem("no copies")

    _, script, record = follow([*EPOCH[:2], fail, *EPOCH[2:], *EPOCH, *EPOCH], **replay(0.9))
    assert (script.end_notes, len(record.windows())) == ([""], 0)


def test_epoch_with_traced_steps_is_warm_up(follow):
    def trace(script):
        script.traced.append(Traced(time.monotonic_ns(), time.monotonic_ns(), 0, []))

    loop, _, record = follow([*EPOCH[:3], trace, *EPOCH[3:], *EPOCH])
    assert [line.get("warmup", False) for line in record.windows()] == [True, False]
    assert loop._plan.run.traced["reason"] == TRACED_IN_EPOCH


def test_windows_are_recorded_also_if_the_script_fails(follow, tmp_path):
    def fail(script):
        script.failure = RuntimeError("exit code 1")

    with pytest.raises(RuntimeError, match="exit code 1"):
        follow([*EPOCH, *EPOCH[:3], fail])
    lines = Record(tmp_path / "record").windows()
    assert [(line["metrics"]["epoch/steps"], line.get("partial", False)) for line in lines] == [(4, False), (2, True)]


@pytest.mark.timed
def test_window_that_began_before_the_loop_has_all_of_its_energy(tmp_path):
    """As that of a script with a `Meter`, which does not wait until its controller has imported the rest."""
    record = Record(tmp_path / "record")
    loop = make_loop(tmp_path / "events", record, [*4 * [Running.step], Running.end], counter())
    loop._script.begin()
    time.sleep(4 * BATCH_S)
    loop.run()
    (window,) = record.windows()
    assert window["metrics"]["epoch/energy_j"] == pytest.approx(POWER_W * window["metrics"]["epoch/e2e_s"], rel=0.01)


def test_windows_are_published_once_while_the_script_frees_its_memory(follow):
    loop, _, _ = follow([*EPOCH, *3 * [lambda script: setattr(script, "is_ending", True)]])
    loop._tracker.publish_beside.assert_called_once_with()


def test_nothing_is_published_while_a_short_script_trains(follow):
    loop, _, _ = follow([*EPOCH, *EPOCH])
    loop._tracker.publish_beside.assert_not_called()
