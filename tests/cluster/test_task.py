"""The command line and the sbatch options of a run's job."""

import sys
from pathlib import Path

import pytest
from default_jobs import job_of
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from epochmeter.cluster.submit import make_run_task
from epochmeter.config.job import ROOT, RunRequest

DEVICES = {path.stem: OmegaConf.load(path) for path in (ROOT / "conf" / "device").glob("*.yaml")}


@pytest.fixture
def make_task(launcher):
    """make_task("nano", slurm={"gres": "gpu:2"}, batch=8, partition="gpu") -> a task; other keys are the launcher's."""

    def make(device="cpu", slurm=None, folder="/data/multirun/sweep/3", batch=16, overrides=(), count=9, measure=None,
             **keys):  # fmt: skip
        device_keys = {"name": device, "slurm": {**DEVICES[device].slurm, **(slurm or {})}}
        dataset = {"name": "tensors", "layout": "tensors", "count": count}
        others = {"measure": measure} if measure else {}
        job = job_of(device=device_keys, batch=batch, tracking={"tensorboard": True}, dataset=dataset, **others)
        usual = [f"device={device}", "tracking=server", "tracking.uri=http://ann:hunter2@host", f"batch={batch}"]
        request = RunRequest(job, {"device": device}, [*usual, *overrides], Path(folder), of_sweep=True)
        return make_run_task(request, {**launcher, **keys})

    return make


def test_node_gets_the_overrides_and_run_folder_and_neither_publishes_nor_repeats(make_task):
    arguments = dict(argument.split("=", 1) for argument in make_task("nano", batch=8).arguments)
    assert arguments == {
        "device": "nano", "batch": "8", "tracking": "none", "tracking.tensorboard": "true", "sweep.resume": "true",
        "hydra.run.dir": "'/data/multirun/sweep/3'", "hydra.mode": "RUN", "hydra.job.num": "3",
        "hydra/launcher": "basic",
    }  # fmt: skip
    measure = {"command": ["train.py", "--lr={script.lr}"], "steps_per_window": 500}
    assert make_task(overrides=["script.lr=1"], measure=measure).arguments[-3:] == ("--", *measure["command"])


def test_submitted_arguments_have_no_secret(make_task):
    """Submitit writes them to a file."""
    assert "hunter2" not in " ".join(make_task().arguments)
    for override in (
        "dataset.make.password=hunter2",
        '+dataset.make.api_key="hunter2"',
        "+dataset.make={password: hunter2, split: train}",
        "dataset.url='http://host/file?token=hunter2'",
    ):
        arguments = make_task(overrides=[override]).arguments
        (argument,) = (text for text in arguments if text.startswith(override.partition("=")[0]))
        (parsed,) = OverridesParser.create().parse_overrides([argument])
        assert "***" in str(parsed.value())
        assert "hunter2" not in argument


@pytest.mark.parametrize("name", ["plain", "with space", "it's", "a=b,c", "back\\slash", "[1]{2}"])
def test_any_folder_name_passes_hydras_grammar(make_task, name):
    (parsed,) = OverridesParser.create().parse_overrides([make_task(folder=f"/data/{name}/0").arguments[-1]])
    assert parsed.value() == f"/data/{name}/0"


def test_options_and_python_are_those_of_launcher_and_device(make_task):
    assert make_task("nano").options == {"constraint": "nano", "exclusive": True, "mem": 0}
    assert make_task(exclusive=False, mem=None).options == {}
    keys = {"gres": "gpu:8", "time": 60, "options": {"hint": "nomultithread"}}
    device_first = {"exclusive": True, "mem": 0, "gres": "gpu:2", "time": 60, "hint": "nomultithread"}
    assert make_task("cuda", slurm={"gres": "gpu:2"}, **keys).options == device_first
    assert make_task().python == sys.executable
    assert make_task(python="/opt/a/bin/python").python == "/opt/a/bin/python"
    task = make_task(slurm={"python": "/opt/b/bin/python"}, python="/opt/a/bin/python")
    assert (task.python, "python" in task.options) == ("/opt/b/bin/python", False)


def test_digest_covers_what_affects_the_measurement(make_task, monkeypatch):
    digest = make_task("nano").digest
    for keys in ({"batch": 8}, {"slurm": {"gres": "gpu:2"}}, {"mem": "4G"}, {"options": {"hint": "nomultithread"}}):
        assert make_task("nano", **keys).digest != digest, keys
    for keys in ({"account": "a", "setup": ["module load rocm"]}, {"slurm": {"time": 60}}, {"options": {"qos": "a"}}):
        assert make_task("nano", **keys).digest == digest, keys
    monkeypatch.setattr("platform.node", lambda: "another login node")
    assert make_task("nano").digest == digest
