"""Run a sweep on Slurm: submit the runs that are not completed as arrays of jobs, and report each when it ends."""

import math
import os
import shlex
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from epochmeter.cluster.node import exec_train
from epochmeter.cluster.submissions import Submission, SubmissionLog, attempt_id, has_started
from epochmeter.config.identity import affects_measurement, hash_value, identity
from epochmeter.config.installation import IMPORT_PATH, ROOT, display_path
from epochmeter.config.request import RunRequest
from epochmeter.config.secrets import conceal_tree, reveal
from epochmeter.console.console import Terminal
from epochmeter.datasets.ready import dataset_checksum
from epochmeter.machine import slurm
from epochmeter.results.run_folder import READ_ERRORS, RunFolder
from epochmeter.results.sweep_files import read_points
from epochmeter.shared.problem import Problem, format_problem, input_error, machine_error, problem_of
from epochmeter.shared.record import SUMMARY_FILE, Record

CANCEL_LIMIT_S = 60.0  # for the end of canceled jobs; Slurm's KillWait is 30 s by default
FILE_VISIBILITY_S = 10.0  # until files written on a node are visible on other hosts (NFS caches)
NORMAL_PENDING_REASONS = ("None", "Resources", "Priority", "JobArrayTaskLimit", "Cleaning", "Prolog")
"""Slurm's reasons of jobs that only wait for their turn."""
SEVERAL_VALUES = {"options": (dict, "{reservation: ours}"), "setup": (list, '["module load rocm"]')}
"""Key of the launcher that has several values -> its type and an example."""
NON_SBATCH_KEYS = ("python", "setup", "poll_s", "options")  # keys of the launcher that are not options of sbatch
Notify = Callable[[str], None]


class RunTask(NamedTuple):
    """The job of one run on a node."""

    number: int
    folder: Path
    arguments: tuple[str, ...]  # of `src/train.py` on the node, or with `--` and a script, of `src/measure.py`
    device: str
    options: Mapping[str, Any]  # of sbatch: `constraint` -> `nano`
    python: str  # shell command of the node's Python
    digest: str  # of the configuration and options that affect the measurement; the same for all nodes
    dataset: str | None = None  # checksum of the dataset; None if it is not available on this host
    nodes: int = 1


def make_run_task(request: RunRequest, launcher: Mapping[str, Any], search_path: Sequence[str]) -> RunTask:
    """Return the job of a run, with these overrides of Hydra's search path; ValueError for invalid options of Slurm."""
    job = request.job
    if reveal([job.measure.command, job.script]) != [job.measure.command, job.script]:
        raise input_error(
            "the script's command has a secret, which would be in the files of its jobs on the cluster",
            "let the script read it from the environment, which Slurm passes to the jobs",
        )
    device_keys = {key: value for key, value in (job.device.slurm or {}).items() if value is not None}
    options = sbatch_options(device_keys, launcher)
    nodes = node_count(job.nodes, options)
    if nodes > 1:
        if not (job.measure.command or job.strategy.has_processes):
            problem = f"`strategy={job.strategy.name}` trains on one node, and the run has {nodes}"
            raise input_error(problem, "add `strategy=ddp strategy.ranks=1`, with the ranks per node")
        options |= {"nodes": nodes, "ntasks_per_node": 1}
    measured_on = {key: value for key, value in options.items() if affects_measurement(f"hydra.launcher.{key}")}
    # The node does not publish, so that the tracking keys, and secrets in them, stay out of submitit's files.
    overrides = [text for text in request.overrides if not text.startswith(("tracking=", "tracking."))]
    arguments = [
        *search_path,
        *conceal_tree(overrides),
        "tracking=none",
        f"tracking.tensorboard={str(job.tracking.tensorboard).lower()}",
        "sweep.resume=true",
        "hydra/launcher=basic",
        "hydra.mode=RUN",
        f"hydra.job.num={request.number}",
        "hydra.run.dir='{}'".format(str(request.folder).replace("'", r"\'")),  # as Hydra quotes
        *(["--", *job.measure.command] if job.measure.command else []),
    ]
    python = device_keys.get("python") or launcher["python"] or shlex.quote(sys.executable)
    digest = hash_value([identity(job, None, host=""), measured_on])
    dataset = dataset_checksum(job.dataset, job.storage, ROOT)
    device = request.choices["device"]
    return RunTask(request.number, request.folder, tuple(arguments), device, options, python, digest, dataset, nodes)


def node_count(wanted: int | None, options: Mapping[str, object]) -> int:
    """Return the number of nodes of a run, by its key or an option of sbatch; InputError."""
    option = options.get("nodes", wanted or 1)
    if type(option) is not int or (wanted and option != wanted):
        hint = "leave the option out, and give a number by `nodes=`"
        raise input_error(f"the option `nodes={option}` of sbatch is not the number of nodes of the run", hint)
    return option


def sbatch_options(device_keys: Mapping[str, Any], launcher: Mapping[str, Any]) -> dict[str, object]:
    """Return the options of sbatch; the device's take precedence. ValueError if an option has several values."""
    for key, (kind, example) in SEVERAL_VALUES.items():
        if not isinstance(launcher[key] or kind(), kind):
            hint = f"give it as in `'hydra.launcher.{key}={example}'`"
            raise input_error(f"`hydra.launcher.{key}={launcher[key]}` is not valid", hint)
    launcher_keys = {key: value for key, value in launcher.items() if key not in NON_SBATCH_KEYS}
    keys = {**launcher_keys, **(launcher["options"] or {}), **device_keys, "python": None}
    options = {key: value for key, value in keys.items() if value is not None and value is not False}
    for key, value in options.items():
        if isinstance(value, (list, dict)):
            hint = f"give one text, as for sbatch: `{key}='\"A,B\"'`"
            raise input_error(f"the option `{key}` of sbatch is a list or has keys of its own", hint)
    return options


def run_on_cluster(
    tasks: Sequence[RunTask], sweep: Path, launcher: Mapping[str, Any], report: Callable[[int], object]
) -> None:
    """Run the tasks on Slurm's nodes and report each run when it ends, or at once if it was completed before.

    Ctrl-C cancels all jobs that have not ended and reports those that had started; an error of `report` only cancels.
    After any other signal the jobs continue. Raises the errors of `submit_missing`.
    """
    log, terminal, poll_s = SubmissionLog(sweep), Terminal(), launcher["poll_s"]
    awaited: dict[int, str] = {}
    try:
        awaited |= submit_missing(tasks, log, launcher, terminal.info)
        for task in tasks:
            if task.number not in awaited:
                report(task.number)
        for number in iter_ended_runs(awaited, log, poll_s, terminal.info):
            report(number)
    except KeyboardInterrupt:
        if cancel_jobs(None, log, terminal.warn):
            started = {
                number: job for number, job in awaited.items() if has_started(Record(sweep / str(number)), log[number])
            }
            for number in iter_ended_runs(started, log, poll_s, terminal.info, CANCEL_LIMIT_S):
                report(number)
        raise
    except SystemExit as end:
        if isinstance(end.code, int) and end.code > 128:
            hint = "run the same command again to collect the results"
            terminal.warn(format_problem(Problem(f"jobs that continue in Slurm: {len(awaited)}", hint)))
        else:  # an error ended the sweep
            cancel_jobs(None, log, terminal.warn)
        raise


def iter_ended_runs(
    awaited: dict[int, str], log: SubmissionLog, poll_s: float, notify: Notify, limit_s: float = math.inf
) -> Iterator[int]:
    """Yield the numbers of runs when they end and are logged, and remove them from `awaited`; stop after `limit_s`."""
    until, points = time.monotonic() + limit_s, read_points(log.sweep)
    ended_s: dict[int, float] = {}
    announced: set[int | str] = set()

    def announce(key: int | str, text: str) -> None:
        if key not in announced:
            notify(text)
        announced.add(key)

    while True:
        current: dict[int, slurm.SlurmJob] = {}
        try:
            jobs = slurm.list_jobs(log.name)
            current = {number: jobs.get(job, slurm.SlurmJob(job, slurm.GONE)) for number, job in awaited.items()}
        except RuntimeError as error:
            why = problem_of(error).message
            announce("no answer", f"warning: {why}. The jobs continue; asking again every {poll_s:g} s.")
        for number, job in current.items():
            if job.has_ended and is_visible(number, log, ended_s.setdefault(number, time.monotonic())):
                del awaited[number]
                log.update(number, state=job.state, node=job.node)
                yield number
            elif job.state == "RUNNING":
                announce(number, f"{job.node}: {points.label(number) or f'run {number}'}")
            elif job.is_waiting and job.reason not in NORMAL_PENDING_REASONS:
                announce(job.reason, f"run {number} is waiting in Slurm: {job.reason}")
        if not awaited or time.monotonic() > until:
            return
        time.sleep(poll_s)


def is_visible(number: int, log: SubmissionLog, ended_s: float) -> bool:
    """Return whether a run's summary is visible here, or `FILE_VISIBILITY_S` has passed since its job ended."""
    record = Record(log.sweep / str(number))
    if record.folder.is_dir():
        os.listdir(record.folder)  # makes NFS refresh its cache
    has_summary = (record.folder / SUMMARY_FILE).exists() and has_started(record, log[number])
    return has_summary or time.monotonic() > ended_s + FILE_VISIBILITY_S


def submit_missing(
    tasks: Sequence[RunTask], log: SubmissionLog, launcher: Mapping[str, Any], notify: Notify
) -> dict[int, str]:
    """Submit the runs of a sweep that are neither completed nor submitted.

    Returns run number -> job ID of the jobs to wait for, submitted now or by an earlier command. ValueError if an
    active job has another configuration; RuntimeError if Slurm or submitit is missing, or Slurm refuses the jobs.
    """
    entries = log.entries()
    active = {job_id for job_id, job in slurm.list_jobs(log.name).items() if not job.has_ended}
    if unlogged := sorted(active - {submission.job for submission in entries.values()}):
        # They write to the folders of runs.
        slurm.cancel(unlogged)
        raise machine_error(
            f"jobs of an earlier command that was killed while it submitted them are canceled: {', '.join(unlogged)}",
            f"run the same command again once `squeue --name={log.name}` is empty",
        )
    missing: list[RunTask] = []
    awaited: dict[int, str] = {}
    earlier: dict[int, Submission] = {}
    for task in tasks:
        submission, record = entries.get(task.number, Submission()), Record(task.folder)
        if submission.job in active and submission.digest != task.digest:
            raise input_error(
                f"run {task.number} is still active as job {submission.job}, submitted before a default was changed",
                f"wait for it, or cancel it: scancel {submission.job}",
            )
        is_completed = submission.digest == task.digest and record.is_completed()
        is_unreported = bool(submission.job) and not submission.reported and has_started(record, submission)
        if submission.job in active or (is_completed and is_unreported):
            awaited[task.number] = submission.job
        elif is_completed and is_still_valid(record, task):
            earlier[task.number] = submission._replace(earlier=True)
        else:
            missing.append(task)
    log.write(earlier)
    if awaited:
        notify(f"Runs submitted earlier, not submitted again: {len(awaited)}.")
    return {**awaited, **(submit_tasks(missing, log, launcher["setup"], notify) if missing else {})}


def is_still_valid(record: Record, task: RunTask) -> bool:
    """Return whether the node need not check a completed run: it is not a rehearsal, and its dataset is unchanged."""
    with suppress(*READ_ERRORS):
        run = RunFolder(record.folder).run
        may_count = not run.rehearsal or task.nodes > 1  # the other nodes cannot know that the first need not measure
        return may_count and run.dataset is not None and task.dataset in (None, run.dataset["digest"])
    return False


def submit_tasks(tasks: Sequence[RunTask], log: SubmissionLog, setup: Sequence[str], notify: Notify) -> dict[int, str]:
    """Submit the tasks, one array per kind of node, and log their jobs; all of them or, on an error, none."""
    kinds = defaultdict(list)
    for task in tasks:
        kinds[task.python, tuple(sorted(task.options.items()))].append(task)
    jobs: dict[int, str] = {}
    try:
        for array in kinds.values():
            previous = [attempt_id(Record(task.folder)) for task in array]  # which its node resumes or archives
            ids = submit_array(array, setup, log)
            submitted = {
                task.number: Submission(job, task.digest, attempt)
                for task, job, attempt in zip(array, ids, previous, strict=True)
            }
            jobs |= {number: submission.job for number, submission in submitted.items()}
            log.write(submitted)
            devices = ", ".join(dict.fromkeys(task.device for task in array))
            notify(f"Runs for device={devices}: {len(array)} in job {ids[0].partition('_')[0]}.")
    except BaseException:
        cancel_jobs(jobs.values(), log, notify)
        raise
    notify(f"Logs: {display_path(log.folder)}/*_log.out")
    return jobs


def submit_array(array: Sequence[RunTask], setup: Sequence[str], log: SubmissionLog) -> list[str]:
    """Submit tasks of one kind as a job array; return their job IDs."""
    try:
        from submitit import SlurmExecutor
        from submitit.core.utils import FailedJobError
    except ImportError as error:
        hint = "pip install submitit (here and for the Python of each node)"
        raise machine_error("`hydra/launcher=slurm` needs submitit, which is not installed", hint) from error
    # `exec`, so that Slurm's signals reach the command: that of a single node is the batch script, without srun, and
    # those of several nodes are a step.
    signal = f"{'B:' if array[0].nodes == 1 else ''}TERM@{slurm.NOTICE_S}"
    path = f"{shlex.quote(str(IMPORT_PATH))}${{PYTHONPATH:+:$PYTHONPATH}}"
    executor = SlurmExecutor(log.folder, python=f"exec env PYTHONPATH={path} {array[0].python}")
    executor.update_parameters(
        job_name=log.name,
        time=None,  # submitit's default is 5 minutes
        wckey=None,
        setup=list(setup),
        use_srun=False,
        stderr_to_stdout=True,
        additional_parameters={"signal": signal, "no-requeue": True, **array[0].options},
    )
    jobs = []
    try:
        with executor.batch():
            for task in array:
                log.refusal(task.number).unlink(missing_ok=True)  # of an earlier job
                refusal = str(log.refusal(task.number))
                jobs.append(executor.submit(exec_train, str(ROOT), task.arguments, refusal, task.nodes))
    except FailedJobError as error:
        raise machine_error(
            f"Slurm refuses the runs for device={array[0].device}: {str(error).rstrip('.')}",
            "`device.slurm.constraint=` needs nodes with these features in slurm.conf. If the number of jobs "
            "is limited, set another `hydra.launcher.qos=`, or split the sweep",
        ) from error
    return [job.job_id for job in jobs]


def cancel_jobs(job_ids: Collection[str] | None, log: SubmissionLog, notify: Notify) -> bool:
    """Cancel these jobs, or all active jobs of a sweep; return whether Slurm accepted it, else print a warning."""
    try:
        if job_ids is None:
            job_ids = [job.job_id for job in slurm.list_jobs(log.name).values() if not job.has_ended]
        if job_ids:
            notify(f"Jobs that are canceled (scancel --name={log.name}): {len(job_ids)}.")
            slurm.cancel(job_ids)
    except RuntimeError as error:
        problem = Problem(
            f"{problem_of(error).message}; jobs may continue", f"once Slurm answers: scancel --name={log.name}"
        )
        notify(format_problem(problem, "warning"))
        return False
    return True
