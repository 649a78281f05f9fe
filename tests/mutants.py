"""Check that the tests notice errors: apply one small error at a time to a copy of the project and run some tests.

    python tests/mutants.py                 all mutants, a quarter of an hour
    python tests/mutants.py record 12       those whose file or number matches a word

Each mutant is killed if one of its tests fails. The exit code is 1 if any survives.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("src", "conf", "tests", "docs", "benchmarks", "pyproject.toml", "README.md", "Makefile")
LIMIT_S = 300
TESTS_FAILED = 1  # exit status of pytest; others are errors of the mutant itself, such as one that cannot be imported


class Mutant(NamedTuple):
    """An error in a source file.

    Attributes:
        file: Path below `src/epochmeter`.
        old: The correct text, which occurs once in the file.
        new: The wrong text.
        other_tests: Paths below `tests` whose tests must fail, separated by spaces; by default the tests of the file.
    """

    file: str
    old: str
    new: str
    other_tests: str = ""

    @property
    def tests(self) -> list[str]:
        folder, _, name = self.file.rpartition("/")
        return self.other_tests.split() or [f"{folder}/test_{name}"]

    def apply(self, root: Path) -> None:
        """Write the error into a copy of the project.

        Raises:
            ValueError: The source has changed, so that the correct text does not occur exactly once.
        """
        path = root / "src" / "epochmeter" / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file} has {text.count(self.old)} times: {self.old}")
        path.write_text(text.replace(self.old, self.new))


MUTANTS = [
    # Power: integration, borders, units, the total
    Mutant("power/power_series.py", "(self.watts + watts) / 2", "watts"),
    Mutant("power/power_series.py", "(times_ns >= opened_ns) & (times_ns <= closed_ns)", "times_ns >= opened_ns"),
    Mutant(
        "power/power_series.py",
        "gap[0] < closed_ns and gap[1] > opened_ns",
        "gap[0] > opened_ns and gap[1] < closed_ns",
        "power/test_power_series.py power/test_window_energy.py",
    ),
    Mutant("power/window_energy.py", "elif increase_j >= 0:", "elif increase_j > 0:"),
    Mutant("power/window_energy.py", 'total["energy_j"] - idle.power_w * seconds', 'total["energy_j"] - idle.power_w'),
    Mutant("power/window_energy.py", "max(0.0, seconds - window_s) + ", ""),
    Mutant("power/window_energy.py", "at_ns = ended_ns if meter.energy", "at_ns = begun_ns if meter.energy"),
    Mutant(
        "power/meters/gpu.py",
        "checks = all(gpu.counter for gpu in gpus)",
        "checks = False",
        "power/meters/test_nvml.py",
    ),
    Mutant("machine/jtop.py", '"sudo usermod -aG jtop $USER, then log in again"', '""', "power/test_jtop.py"),
    Mutant("power/sampler.py", "return max(MAX_SILENCE_S,", "return min(MAX_SILENCE_S,"),
    Mutant("power/meter.py", "joules.pop(name, None)  #", "pass  #", "power/test_meter.py power/meters/test_meters.py"),
    Mutant("power/meters/rapl.py", "increase_uj += self._range_uj", "pass"),
    Mutant("power/meters/rapl.py", "increase_uj = -RESET_UJ", "pass"),
    Mutant("power/meters/rapl.py", 'package_domain.replace("cpu", name)', "package_domain"),
    Mutant("power/meters/rails.py", "[millivolts, milliamperes], 1e-6", "[millivolts, milliamperes], 1e-3"),
    Mutant(
        "machine/nvml.py", 'TotalEnergyConsumption")) / 1000', 'TotalEnergyConsumption"))', "power/meters/test_nvml.py"
    ),
    # Device settings: journal before change, restoration, other people's changes
    Mutant(
        "power/knobs/applied_settings.py",
        "failures = self.restore_all()",
        "failures = []",
        "power/knobs/test_restore.py",
    ),
    Mutant(
        "power/knobs/applied_settings.py",
        "in reversed(self._saved_settings.items())",
        "in self._saved_settings.items()",
        "power/knobs/test_restore.py",
    ),
    Mutant("power/knobs/restore.py", "elif knob.is_equal(now, saved.applied):", "elif True:"),
    Mutant("power/knobs/restore.py", '("nvpmodel", "fan")', '("nvpmodel",)'),
    Mutant("power/knobs/restore.py", "if saved.applied and knob.is_equal(now, saved.applied):", "if False:"),
    Mutant(
        "power/knobs/restore_journal.py",
        "return is_alive(process) and process != this_process()",
        "return process != this_process()",
        "power/knobs/test_restore_journal.py faults/test_killed_controller.py",
    ),
    Mutant(
        "power/knobs/watt_limit.py",
        "str(round(watts * 1e6))),",
        "str(round(watts * 1e3))),",
        "power/knobs/test_watt_limit.py",
    ),
    # Files: durable, atomic, complete or absent
    Mutant(
        "shared/atomic_files.py",
        "            if durably:\n                file.flush()\n                os.fsync(file.fileno())",
        "            if durably:\n                file.flush()",
    ),
    Mutant("shared/atomic_files.py", "os.replace(partial, path)", "path.write_text(partial.read_text())"),
    Mutant(
        "shared/atomic_files.py",
        "        if durably:\n            file.flush()\n            os.fsync(file.fileno())",
        "        if durably:\n            file.flush()",
    ),
    Mutant("shared/record.py", ' if line.endswith(b"\\n")]', "]"),
    Mutant(
        "shared/record.py", 'if window["epoch"] < epochs - (window["window"] == "val")]', 'if window["epoch"] < epochs]'
    ),
    Mutant(
        "shared/record.py",
        'epoch.get("warmup") or epoch.get("paused")',
        'epoch.get("warmup")',
        "shared/test_record.py results/test_summary.py",
    ),
    Mutant("shared/record.py", 'return identity is None or bool(completion["identity"] == identity)', "return True"),
    # Training process: clock, checkpoint, statistics
    Mutant("worker/clock.py", "map(min, gaps, waits)", "map(max, gaps, waits)"),
    Mutant("worker/clock.py", 'sums["gap"] - sums["stall"] + tail', 'sums["gap"] - sums["stall"]'),
    Mutant("worker/clock.py", "self._timeline.drop_second_to_last()", "pass"),
    Mutant("worker/timeline.py", "elapsed_time(event) * 1e6", "elapsed_time(event) * 1e3", "worker/test_clock.py"),
    Mutant("worker/checkpoint.py", "if epochs % self._every:", "if (epochs + 1) % self._every:"),
    Mutant("worker/loop.py", "loss * weight for loss, weight", "loss for loss, weight"),
    # A script: its events, and what they mean
    Mutant("agent/event_log.py", "if self._number - self._oldest < MAX_SEGMENTS:", "if True:"),
    Mutant("agent/replaced.py", "return reduced  #", "pass  #", "agent/test_agent.py"),
    Mutant(
        "agent/passes.py",
        "is_within = thread.is_fetching or",
        "is_within =",
        "agent/test_agent.py",
    ),
    Mutant("segmentation/device_times.py", "MAX_DRIFT * max(", "0 * max("),
    Mutant(
        "segmentation/passes.py",
        "math.ceil(earlier_steps / max(1, earlier_batches))",
        "1",
        "segmentation",
    ),
    Mutant("segmentation/thread.py", "moved in self._live", "False", "segmentation"),
    Mutant("segmentation/thread.py", "if ended.may_train_late and ended.outer is None", "if False", "segmentation"),
    Mutant("segmentation/process.py", "self._explain()\n            self._owners", "self._owners", "segmentation"),
    Mutant("segmentation/kinds.py", "if ended.is_single:", "if False:", "segmentation/test_loops.py"),
    Mutant("segmentation/windows.py", "+ late_ns\n    tail_ns", "\n    tail_ns", "segmentation"),
    Mutant("segmentation/script.py", "other.opened_ns < middle_ns < other.closed_ns", "True"),
    Mutant("run/recovery.py", "measured.window.opened_ns >= recorded_ns", "True"),
    Mutant(
        "run/orphans.py", "if events and (running := running_processes(events)):", "if False:", "run/test_recovery.py"
    ),
    # A run: exit codes, processes, borders of windows, resumption
    Mutant(
        "run/worker_process.py",
        "        if self._has_oom_kills():",
        "        if True:",
        "run/test_launch.py",
    ),
    Mutant(
        "run/worker_process.py",
        'raise self._code_error(message.code, f"rank {message.rank}")',
        "connection.finished = True",
        "run/test_launch.py",
    ),
    Mutant(
        "run/worker_process.py",
        "os.killpg(group, signal.SIGKILL)",
        "os.kill(self.pids[0], signal.SIGKILL)",
        "run/test_launch.py",
    ),
    Mutant(
        "run/window_record.py", "between_s - window_s <= max(MAX_EXCESS_S,", "between_s - window_s <= min(MAX_EXCESS_S,"
    ),
    Mutant("run/plan.py", "earlier.host != run.host", 'earlier.host == ""', "run/test_plan.py"),
    Mutant(
        "run/instruments.py",
        "after.count < before.count or after.bytes < before.bytes",
        "False",
        "run/test_instruments.py",
    ),
    Mutant(
        "run/recording.py",
        'line["epoch"] - resumed[-1].epoch < self',
        'line["epoch"] - resumed[0].epoch < self',
        "run/test_event_loop.py",
    ),
    # Publishing: the queue, slow servers, lost ones
    Mutant("tracking/publisher.py", "            if is_superseded(record):\n", "            if False:\n"),
    Mutant(
        "tracking/publisher.py",
        "                queue.dequeue(record)\n            elif",
        "                pass\n            elif",
    ),
    Mutant("tracking/deadline.py", "if thread.ident and thread.is_alive():", "if False:", "tracking/test_publisher.py"),
    Mutant("tracking/report_artifacts.py", "    if earlier:", "    if False:"),
    Mutant("tracking/queue.py", "os.path.basename(record_id)", "record_id", "tracking/test_publish_command.py"),
    # Use of the processor
    Mutant("machine/thread_times.py", "if min(since) < 0:", "if False:"),
    Mutant("machine/cpu_load.py", "ran_ns = max(", "ran_ns = min("),
    Mutant("machine/busy_processes.py", "while heir in before and not", "if heir in before and not"),
    Mutant("results/processor.py", "and not (is_contended and demand.threads == 1)", "and not is_contended"),
    Mutant("run/idle_wait.py", "and waited_s < most_s", ""),
    # Results: ranks, means, totals
    Mutant("results/rank_merge.py", "opened_ns=min(", "opened_ns=max("),
    Mutant("results/rank_merge.py", "and len(correct) == len(ranks) else None", "and correct else None"),
    Mutant(
        "results/summary.py",
        'return int(epoch["epoch"]) >= warmup_epochs',
        'return int(epoch["epoch"]) > warmup_epochs',
    ),
    Mutant(
        "results/summary.py",
        "if not values or None in values else math.fsum(values)",
        "if not values else math.fsum(filter(None, values))",
    ),
    Mutant("results/summary.py", "-math.inf) >= job.target_accuracy", "-math.inf) > job.target_accuracy"),
    Mutant("results/bottleneck.py", "> half_width(values)", "> 0"),
    Mutant("results/bottleneck.py", "difference.values())) >= LARGE_FRACTION * e2e_s", "difference.values())) > 0"),
    Mutant("results/next_steps.py", "gain.at_most >= MIN_GAIN", "gain.at_most >= 0"),
    Mutant("results/next_step_rules.py", "run.cores_per_rank > 1 and", "", "results/test_next_steps.py"),
    Mutant("results/quantities.py", "supported_decimals(half) if half else 6", "6"),
    Mutant("results/summary.py", 'metrics[f"steady/{short}"] = values[-1]', 'metrics[f"steady/{short}"] = mean'),
    Mutant("results/throughput.py", "- (count - 1) * global_batch]", "- count * global_batch]"),
    Mutant("results/reuse.py", "            and not run_folder.run.rehearsal\n", ""),
    Mutant(
        "results/run_folder.py",
        "self._look_at_process()\n        try:\n            summary",
        "try:\n            summary",
    ),
    Mutant(
        "results/run_folder.py",
        'if window is None or window["window"] == kind:',
        'if window and window["window"] == kind:',
    ),
    # Machine and datasets: identity of processes, locks, disks, checksums
    Mutant("shared/process_identity.py", " and process.start_ticks in (None, stat[19])", ""),
    Mutant("machine/device_lock.py", "in sorted(devices)", "in devices"),
    Mutant("machine/disk.py", "if not disk.devices or not counters.keys() >= {*disk.devices}:", "if not disk.devices:"),
    Mutant("machine/page_cache.py", "status.st_uid != os.geteuid() and not os.access(path, os.W_OK)", "False"),
    Mutant(
        "datasets/ready.py", "!= (original.files, original.bytes, original.digest)", "is 0", "datasets/test_stage.py"
    ),
    Mutant(
        "datasets/fetch.py",
        "if (actual := digest.hexdigest()) != checksum:",
        "if False and (actual := digest.hexdigest()):",
    ),
    Mutant("trace/device.py", "(times_ns[at_next] for", "(times_ns[at_next - 1] for", "trace/test_hta.py"),
    Mutant("trace/device.py", "(launched_ns > idle_since_ns)", "(launched_ns > 0)"),
    Mutant("trace/kineto.py", "np.lexsort((-duration_us", "np.lexsort((duration_us", "trace/test_attribution.py"),
    Mutant("trace/owners.py", "self.innermost[-1] = event", "pass", "trace/test_attribution.py"),
    Mutant("trace/device.py", "trace.thread[activities])", "trace.category[activities])"),
    Mutant("trace/energy.py", "self.opened_ns, self.closed_ns]) + delay_ns", "self.opened_ns, self.closed_ns])"),
    Mutant("trace/analysis.py", "epoch[step % len(epoch)]", "epoch[0]"),
    # Report: statistics, the best, stalls, gate
    Mutant(
        "report/statistics.py",
        "mean_variances**2 / np.maximum(self.dofs, TINY)",
        "mean_variances / np.maximum(self.dofs, TINY)",
    ),
    Mutant("report/statistics.py", "(1 - ALPHA) ** (1 / count)", "1 - ALPHA"),
    Mutant("report/statistics.py", "self.variances[one] + self.variances[other]", "2 * self.variances[one]"),
    Mutant("report/statistics.py", "repeated if repeated > MANY_CONFIGURATIONS else few", "repeated"),
    Mutant("report/statistics.py", "rates * without_effect / max(1, count)", "rates"),
    Mutant(
        "report/runs/costs.py", "for group in comparable(ranked).values()", "for group in [ranked]", "report/analyses"
    ),
    Mutant("report/runs/filter.py", "reasons.keys() - set(include) or", "False or"),
    Mutant(
        "report/analyses/best.py",
        "criteria.max_slowdown * fastest.time_s",
        "criteria.max_slowdown * group[0].time_s",
        "report/analyses/test_answer.py",
    ),
    Mutant(
        "report/analyses/best.py",
        "1.0 if difference >= MIN_EFFECT else (1 + difference) / smallest",
        "1.0",
        "report/analyses/test_answer.py",
    ),
    Mutant("report/analyses/stalls.py", "stall.value < -neglected_s and", "False and"),
    Mutant("report/analyses/gate.py", "elif within <= ALPHA:", "elif violation > ALPHA:"),
    Mutant("report/runs/run.py", "if self.state != COMPLETED:", "if False:", "report/runs/test_load.py"),
    Mutant("report/render.py", "-len(group[1])", "len(group[1])", "report/analyses/test_failures.py"),
    Mutant(
        "report/build.py", "for chart in per_epoch if targeted]", "for chart in per_epoch if False]", "report/charts"
    ),
    Mutant("report/build.py", "is_ranked_above=is_ranked", "is_ranked_above=False"),
    Mutant("report/charts/bars.py", "if len(total) > 1 or not within:", "if not within:", "report/charts"),
    # Live view: growing files, access, hostile texts
    Mutant("watch/appended.py", "if second < self._second:", "if False:"),
    Mutant("watch/server.py", "if self.server.token is None:", "if True:"),
    Mutant("watch/server.py", r'return text.replace("<", "\\u003c")', "return text"),
    Mutant("watch/terminal.py", "if text.isprintable():", "if True:"),
]


def main() -> int:
    selected = list(select_mutants(sys.argv[1:]))
    counts = {"killed": 0, "SURVIVED": 0, "invalid": 0}
    print("| # | file | wrong text | result |\n|---|---|---|---|", flush=True)
    for number, mutant in selected:
        result = run_mutant(mutant)
        counts[result] += 1
        text = " ".join(mutant.new.split()) or f"(dropped) {' '.join(mutant.old.split())}"
        print(f"| {number} | {mutant.file} | `{text}` | {result} |", flush=True)
    print(f"\n{counts['killed']} of {len(selected)} mutants killed.")
    return int(counts["killed"] < len(selected))


def select_mutants(words: list[str]) -> Iterator[tuple[int, Mutant]]:
    """Yield the numbered mutants whose file contains one of the words or whose number is one; all without words."""
    for number, mutant in enumerate(MUTANTS, 1):
        if not words or any(word == str(number) or (not word.isdigit() and word in mutant.file) for word in words):
            yield number, mutant


def run_mutant(mutant: Mutant) -> str:
    """Run the tests of a mutant in a copy of the project and return `killed`, `SURVIVED` or `invalid`."""
    with tempfile.TemporaryDirectory(prefix="epochmeter-mutant-") as folder:
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, Path(folder, name))
        mutant.apply(Path(folder))
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider"]
        command += ["-m", "not system and not hosts and not nightly"]
        paths = [f"tests/{path}" for path in mutant.tests]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            tests = subprocess.run(
                [*command, *paths], cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S
            )
        except subprocess.TimeoutExpired:
            return "killed"
    if tests.returncode not in (0, TESTS_FAILED):
        print(tests.stdout[-2000:], file=sys.stderr)
        return "invalid"
    return "killed" if tests.returncode else "SURVIVED"


if __name__ == "__main__":
    sys.exit(main())
