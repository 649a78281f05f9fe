"""What Hydra's launcher does before runs are submitted."""

import pytest
from default_jobs import job_of
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import CompactHydraException
from omegaconf import OmegaConf

from epochmeter.cluster import wait
from epochmeter.config.job import RunRequest
from epochmeter.machine import slurm
from hydra_plugins.slurm import SlurmLauncher


@pytest.fixture
def launch(launcher, log, monkeypatch):
    """launch(tracking, ...) -> launches a sweep with one run per tracking configuration."""

    def start(*trackings):
        plugin = SlurmLauncher(**launcher)
        config = OmegaConf.create({"hydra": {"sweep": {"dir": str(log.sweep)}}})
        plugin.setup(hydra_context=None, task_function=None, config=config)
        requests = [
            RunRequest(job_of(tracking=tracking), {}, [], log.sweep / str(number), of_sweep=True)
            for number, tracking in enumerate(trackings)
        ]
        monkeypatch.setattr(plugin, "_compose", lambda number, overrides: number)
        monkeypatch.setattr(plugin, "_run", lambda number, task: JobReturn(
            status=JobStatus.COMPLETED, _return_value=requests[number]))  # fmt: skip
        return plugin.launch([[] for _ in requests], 0)

    return start


def test_hydras_list_of_overrides_is_deleted_first(launch, log, monkeypatch):
    overrides = log.sweep / "multirun.yaml"
    overrides.write_text("password: hunter2")

    def list_nodes(partition):
        assert not overrides.exists()
        raise RuntimeError("no program sinfo")

    monkeypatch.setattr(slurm, "list_nodes", list_nodes)
    with pytest.raises(CompactHydraException, match="no program sinfo"):
        launch()


def test_tracking_is_checked_before_submission(launch, monkeypatch):
    monkeypatch.setattr(wait, "run_on_cluster", lambda *_: pytest.fail("submitted"))
    with pytest.raises(CompactHydraException, match=r"tracking\.uri=http://\*\*\*@board: the password"):
        launch({"name": "server", "uri": "http://ann:hunter2@board"})
