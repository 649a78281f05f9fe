"""Launcher that runs a sweep on a cluster: `-m hydra/launcher=slurm device=nano,nx model=lenet,resnet18`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict


class SlurmLauncher(Launcher):
    """Submit each run as a Slurm job; when one has ended, call the task here to report it.

    Ctrl-C cancels the remaining jobs. If this process ends in another way, the jobs continue, and the same command
    finds them again.
    """

    def __init__(self, **keys: Any) -> None:
        self.keys = {key: OmegaConf.to_object(value) if OmegaConf.is_config(value) else value
                     for key, value in keys.items()}  # fmt: skip

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.context, self.task, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from epochmeter.cluster.submit import make_run_task, run_on_cluster
        from epochmeter.config.request import current_request, search_path
        from epochmeter.shared.problem import InputError, problems_of
        from epochmeter.tracking.client import check_address
        from epochmeter.tracking.export_process import check_exporters

        sweep = Path(self.config.hydra.sweep.dir)
        # Hydra's summary of the sweep may contain secrets, and the first task, which removes it, is called hours later.
        (sweep / "multirun.yaml").unlink(missing_ok=True)
        setup_globals()
        points, tasks = dict(enumerate(job_overrides, initial_job_idx)), []
        returns: dict[int, JobReturn] = {}

        def report(number: int) -> None:
            returns[number] = self._run(number, points[number], self.task)

        try:
            for number, overrides in points.items():
                request = self._run(number, overrides, current_request).return_value
                check_address(request.job.tracking.to_dict())  # nodes do not receive the tracking keys
                check_exporters(request.job.tracking.to_dict())
                tasks.append(make_run_task(request, self.keys, search_path(self.config.hydra)))
            run_on_cluster(tasks, sweep, self.keys, report)
        except (ValueError, RuntimeError) as error:
            raise InputError(*problems_of(error)) from error
        return [returns[number] for number in points]

    def _run(self, number: int, overrides: Sequence[str], task: TaskFunction) -> JobReturn:
        """Call a task with the configuration of a run. It is not kept, since thousands would take a gigabyte."""
        config = self.context.config_loader.load_sweep_config(self.config, list(overrides))
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = number
        return run_job(
            hydra_context=self.context,
            task_function=task,
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
