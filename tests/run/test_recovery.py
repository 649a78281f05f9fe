"""Scripts whose controller was killed: all windows are in the record, each once."""

import os
import random
import signal
import time

import followed
import pytest
from default_jobs import job_keys
from followed import EPOCH, Running, counter, make_loop
from metadata import RUN

from epochmeter.agent import event_log
from epochmeter.run import event_folder, recovery, script_loop
from epochmeter.run.orphans import STILL_RUNS, close_orphans
from epochmeter.segmentation import logs
from epochmeter.segmentation.saved_state import FILE
from epochmeter.shared import events
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.process_identity import this_process
from epochmeter.shared.record import Record
from epochmeter.tracking import queue

GONE = this_process()._replace(start_ticks="0")
SEGMENT_RECORDS = 16
LEAVE = [Running.begin, *2 * [Running.step]]


class Killed:
    """A script, its record, and a controller that is killed while it follows the script."""

    def __init__(self, root):
        self.multirun, self.record = root / "multirun", Record(root / "multirun/sweep/0")
        self.record.folder.mkdir(parents=True)
        self.record.describe(
            job_keys(measure={"command": ["train.py"]}, warmup_epochs=0),
            {**RUN, "record_id": "id", **GONE._asdict()},
        )
        queue.enqueue(self.record, "id")
        self.folder = root / "shm" / f"{events.FOLDER_PREFIX}id"
        self.loop = make_loop(self.folder, self.record, [], counter())
        self.script = self.loop._script

    def run(self, acts, is_killed=lambda done: True):
        """Let the script act; the controller, a child process, is killed before the first act that is chosen."""
        controller = os.fork()
        if not controller:
            self.script.receive = self.follow
            try:
                self.loop.run()
            finally:
                os._exit(1)
        for done, act in enumerate(acts):
            if controller and is_killed(done):
                os.kill(controller, signal.SIGKILL)
                os.waitpid(controller, 0)
                controller = 0
            act(self.script)
        if controller:
            os.kill(controller, signal.SIGKILL)
            os.waitpid(controller, 0)

    def follow(self, limit_s):
        time.sleep(0.002)
        self.script.is_at_border = True
        return True

    def close(self):
        """Return the messages of the next command, which closes the killed."""
        messages = []
        close_orphans(self.multirun, messages.append)
        return messages


@pytest.fixture
def killed(tmp_path, monkeypatch):
    monkeypatch.setattr(event_folder, "SHARED_MEMORY", tmp_path / "shm")
    monkeypatch.setattr(followed, "BATCH_S", 0.004)
    (tmp_path / "shm").mkdir()
    return Killed(tmp_path)


@pytest.fixture
def small_files(monkeypatch):
    for module in (event_log, logs):
        monkeypatch.setattr(module, "SEGMENT_BYTES", SEGMENT_RECORDS * events.RECORD.size)
    monkeypatch.setattr(event_log, "SEGMENT_RECORDS", SEGMENT_RECORDS)
    monkeypatch.setattr(script_loop, "MAX_READ_FILES", 1)


@pytest.mark.parametrize("seed", range(8))
def test_each_epoch_is_recorded_once_whenever_the_controller_was_killed(small_files, killed, seed):
    generator = random.Random(seed)
    acts = [*4 * EPOCH, *LEAVE]
    instant = generator.randrange(len(acts))
    acts.insert(instant, lambda script: time.sleep(generator.random() * 0.02))
    killed.run(acts, lambda done: done == instant)
    recorded = len(killed.record.windows())
    (message,) = killed.close()
    assert message.startswith("run sweep/0 is marked as killed")
    lines = killed.record.windows()
    assert [(line["window"], line["epoch"], line["metrics"]["epoch/steps"]) for line in lines] == [
        ("epoch", number, 2 if number == 4 else 4) for number in range(5)
    ]
    assert [[line["opened_ns"], line["closed_ns"]] for line in lines] == killed.script.times_ns
    assert len(killed.record.steps()) == 4 * 18
    assert [bool(line["energy"]["joules"]) for line in lines[recorded:]] == [False] * (5 - recorded)
    notes = [recovery.NO_INSTRUMENTS.format(f"epoch {number + 1}", recovery.KILLED) for number in range(recorded, 5)]
    assert [line["notes"][-1] for line in lines[recorded:]] == notes
    assert (killed.record.summary()["state"], killed.record.summary()["metrics"]["total/epochs"]) == ("killed", 4)
    assert recovery.ENDED in killed.record.summary()["notes"]
    assert (killed.close(), killed.folder.exists()) == ([], False)


def test_run_whose_script_still_runs_is_closed_when_it_has_ended(killed):
    killed.run([*EPOCH, *EPOCH], lambda done: done == 3)
    write_json(killed.folder / event_folder.STARTED, this_process()._asdict())
    assert killed.close() == [STILL_RUNS.format("sweep/0", os.getpid())]
    assert (killed.record.summary(), killed.folder.exists()) == (None, True)
    write_json(killed.folder / event_folder.STARTED, GONE._asdict())
    assert len(killed.close()) == 1
    assert [line["metrics"]["epoch/steps"] for line in killed.record.windows()] == [4, 4]


@pytest.mark.parametrize("own_end", [True, False], ids=["by itself", "killed"])
def test_account_of_a_recovered_script_ends_with_the_script(killed, own_end):
    begun_ns = time.monotonic_ns()
    run = {**killed.record.run(), "moments": {"command_ns": begun_ns - 2 * 10**9, "process_ns": begun_ns - 10**9}}
    killed.record.describe(killed.record.job(), run)
    killed.run([*EPOCH, *EPOCH], lambda done: done == 3)
    ended_ns = time.monotonic_ns() + 10**9
    if own_end:
        with (killed.folder / "7.jsonl").open("a") as facts:
            facts.write(f'{{"kind": "end", "error": "", "ended_ns": {ended_ns}}}\n')
    killed.close()
    metrics, windows = killed.record.summary()["metrics"], killed.record.windows()
    rows = {name: value for name, value in metrics.items() if name.startswith("run/") and name != "run/wall_s"}
    assert sum(rows.values()) == pytest.approx(metrics["run/wall_s"])
    assert metrics["run/prepare_s"] == pytest.approx(1)
    assert (metrics["run/analyze_s"], "run/lost_s" in metrics) == (0, False)
    after_s = (ended_ns - windows[-1]["closed_ns"]) / 1e9
    assert metrics["run/finish_s"] == (pytest.approx(after_s) if own_end else pytest.approx(0, abs=0.1))


@pytest.mark.parametrize(
    ("end", "note"),
    [('{"kind": "end", "error": ""}', recovery.CONTINUED),
     ('{"kind": "end", "error": "ValueError: why"}', recovery.FAILED.format("ValueError: why"))],
)  # fmt: skip
def test_end_of_the_script_is_noted(killed, end, note):
    killed.run(EPOCH)
    with (killed.folder / "7.jsonl").open("a") as facts:
        facts.write(f"{end}\n")
    killed.close()
    assert note in killed.record.summary()["notes"]


def test_what_a_killed_controller_has_written_in_part_is_replaced(killed):
    killed.run([*EPOCH, *EPOCH])
    with (killed.record.folder / "epochs.jsonl").open("a") as lines:
        lines.write('{"window": "ep')
    with (killed.record.folder / "steps.bin").open("ab") as steps:
        steps.write(b"x" * 20)
    killed.close()
    assert [line["metrics"]["epoch/steps"] for line in killed.record.windows()] == [4, 4]
    assert len(killed.record.steps()) == 4 * 8


def test_recovered_windows_of_one_node_of_several_have_no_sums(killed):
    log = killed.folder / "7.jsonl"
    log.write_text(log.read_text().replace('"accelerator": "cpu"', '"accelerator": "cpu", "ranks": 2'))
    killed.run(EPOCH)
    killed.close()
    (line,) = killed.record.windows()
    assert line["metrics"]["epoch/steps"] == 4
    assert "epoch/samples" not in line["metrics"]
    assert any("ranks of other nodes" in note for note in line["notes"])


def test_state_that_cannot_be_read_is_noted_and_the_recorded_windows_remain(killed):
    killed.run(EPOCH)
    (killed.folder / FILE).write_bytes(b"damaged")
    killed.close()
    summary = killed.record.summary()
    assert (summary["state"], killed.record.windows()) == ("killed", [])
    assert any("the state of the logs cannot be read" in note for note in summary["notes"])


def test_flops_that_were_counted_before_are_kept_although_their_file_is_gone(killed):
    known = {"training": {"step": {"flops": 10.0, "samples": 2.0}}, "model": {"flops_per_sample": 5.0}}
    killed.record.describe(killed.record.job(), {**killed.record.run(), **known})
    facts = '{"kind": "operators", "object": 50, "file": "gone.json", "batches": 1, "samples": 2}\n'
    with (killed.folder / "7.jsonl").open("a") as file:
        file.write(facts)
    killed.run(EPOCH)
    killed.close()
    run = killed.record.run()
    assert (run["training"]["step"], run["model"]) == (known["training"]["step"], known["model"])
    assert run["training"]["accelerator"] == "cpu"
