"""Sends the runs of a sweep to the nodes of a cluster: `-m hydra/launcher=slurm device=nano,nx model=lenet,resnet18`.

Hydra takes its plugins from the namespace package `hydra_plugins` alone, and imports them whenever it starts.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, run_job, setup_globals
from hydra.errors import CompactHydraException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict


class SlurmLauncher(Launcher):
    """A job of Slurm's for each run; the task is called here once that has ended, to tell of it.

    Ctrl-C cancels what has not ended. Any other end of this process leaves the jobs alone: the same command finds
    them again.
    """

    def __init__(self, **keys: Any) -> None:
        self.keys = {key: OmegaConf.to_object(value) if OmegaConf.is_config(value) else value
                     for key, value in keys.items()}  # fmt: skip

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.context, self.task, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from epochmeter.cluster.collect import collect_result
        from epochmeter.cluster.task import make_run_task
        from epochmeter.cluster.wait import run_on_cluster
        from epochmeter.config import job
        from epochmeter.console.console import Terminal
        from epochmeter.tracking.client import check

        sweep = Path(self.config.hydra.sweep.dir)
        # Hydra's own account of a sweep, with what is a secret: the first run is told of hours later.
        (sweep / "multirun.yaml").unlink(missing_ok=True)
        setup_globals()
        configs = {number: self._compose(number, typed) for number, typed in enumerate(job_overrides, initial_job_idx)}
        told: dict[int, JobReturn] = {}

        def learn(number: int) -> None:
            collect_result(orders[number], Terminal())

        def tell(number: int) -> None:
            told[number] = self._run(configs[number], self.task)

        try:
            orders = {number: self._run(config, job.current_request).return_value for number, config in configs.items()}
            for order in orders.values():
                check(order.job.tracking.to_dict())  # which no node is told
            run_on_cluster(
                [make_run_task(order, self.keys) for order in orders.values()], sweep, self.keys, learn, tell
            )
        except (ValueError, RuntimeError) as error:
            raise CompactHydraException(str(error)) from error
        return [told[number] for number in configs]

    def _compose(self, number: int, typed: Sequence[str]) -> DictConfig:
        config = self.context.config_loader.load_sweep_config(self.config, list(typed))
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = number
        return config

    def _run(self, config: DictConfig, task: TaskFunction) -> JobReturn:
        return run_job(
            hydra_context=self.context,
            task_function=task,
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
