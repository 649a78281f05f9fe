"""What Hydra's launcher does before runs are submitted."""

import pytest
from default_jobs import job_of
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import OmegaConf

from epochmeter.cluster import submit
from epochmeter.config.request import RunRequest
from epochmeter.machine import slurm
from epochmeter.shared.problem import InputError
from hydra_plugins.slurm import SlurmLauncher

SEARCH_PATH = "hydra.searchpath=[file:///own]"


@pytest.fixture
def plugin(launcher, log):
    """The launcher in the folder of a sweep."""
    plugin = SlurmLauncher(**launcher)
    own = {"sweep": {"dir": str(log.sweep)}, "overrides": {"hydra": ["hydra.mode=MULTIRUN", SEARCH_PATH]}}
    plugin.setup(hydra_context=None, task_function=None, config=OmegaConf.create({"hydra": own}))
    return plugin


def test_hydras_list_of_overrides_is_deleted_first(plugin, log, monkeypatch):
    overrides = log.sweep / "multirun.yaml"
    overrides.write_text("password: hunter2")

    def list_jobs(name):
        assert not overrides.exists()
        raise RuntimeError("no program squeue")

    monkeypatch.setattr(slurm, "list_jobs", list_jobs)
    with pytest.raises(InputError, match="no program squeue"):
        plugin.launch([], 0)


def test_tracking_is_checked_before_submission(plugin, log, monkeypatch):
    job = job_of(tracking={"name": "server", "uri": "http://ann:hunter2@board"})
    request = RunRequest(job, {}, [], log.sweep / "0", of_sweep=True)
    result = JobReturn(status=JobStatus.COMPLETED, _return_value=request)
    monkeypatch.setattr(plugin, "_run", lambda number, overrides, task: result)
    monkeypatch.setattr(submit, "run_on_cluster", lambda *_: pytest.fail("submitted"))
    with pytest.raises(InputError, match=r"tracking\.uri=http://\*\*\*@board`: the password"):
        plugin.launch([[]], 0)


def test_nodes_get_the_search_path_with_options_of_the_user(plugin, log, monkeypatch):
    request, tasks = RunRequest(job_of(), {"device": "cpu"}, ["batch=8"], log.sweep / "0", of_sweep=True), []
    result = JobReturn(status=JobStatus.COMPLETED, _return_value=request)
    monkeypatch.setattr(plugin, "_run", lambda number, overrides, task: result)
    monkeypatch.setattr(submit, "run_on_cluster", lambda found, sweep, keys, report: [tasks.extend(found), report(0)])
    assert plugin.launch([[]], 0) == [result]
    assert [task.arguments[:2] for task in tasks] == [(SEARCH_PATH, "batch=8")]
