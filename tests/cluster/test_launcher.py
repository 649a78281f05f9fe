"""What Hydra's launcher does before anything is sent."""

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
def launch(launcher, ledger, monkeypatch):
    """launch(tracking) -> as Hydra does it, with a run for each way of tracking, whose jobs go nowhere."""

    def begun(*trackings):
        sweep = ledger.folder.parent
        made = SlurmLauncher(**launcher)
        made.setup(
            hydra_context=None,
            task_function=None,
            config=OmegaConf.create({"hydra": {"sweep": {"dir": str(sweep)}}}),
        )
        orders = [
            RunRequest(job_of(tracking=tracking), {}, [], sweep / str(number), of_sweep=True)
            for number, tracking in enumerate(trackings)
        ]
        monkeypatch.setattr(made, "_compose", lambda number, typed: number)
        monkeypatch.setattr(
            made, "_run", lambda number, task: JobReturn(status=JobStatus.COMPLETED, _return_value=orders[number])
        )
        return made.launch([[] for _ in orders], 0)

    return begun


def test_hydras_own_account_of_a_sweep_with_its_secrets_is_gone_before_anything_else(launch, ledger, monkeypatch):
    account = ledger.folder.parent / "multirun.yaml"
    account.write_text("password: hunter2")

    def away(partition):
        assert not account.exists()
        raise RuntimeError("no program sinfo")

    monkeypatch.setattr(slurm, "list_nodes", away)
    with pytest.raises(CompactHydraException, match="no program sinfo"):
        launch()


def test_where_runs_are_shown_which_no_node_is_told_is_checked_before_they_are_sent(launch, monkeypatch):
    monkeypatch.setattr(wait, "run_on_cluster", lambda *_: pytest.fail("sent"))
    with pytest.raises(CompactHydraException, match=r"tracking\.uri=http://\*\*\*@board: the password"):
        launch({"name": "server", "uri": "http://ann:hunter2@board"})
