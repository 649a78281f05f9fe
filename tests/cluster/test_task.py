"""What is typed on a node, and what is asked of Slurm."""

import sys
from pathlib import Path

import pytest
from default_jobs import job_of
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from epochmeter.cluster.task import check_constraint, make_run_task
from epochmeter.config.job import ROOT, RunRequest
from epochmeter.machine.slurm import SlurmNode

DEVICES = {path.stem: OmegaConf.load(path) for path in (ROOT / "conf" / "device").glob("*.yaml")}


@pytest.fixture
def asked(launcher):
    """asked("nano", slurm={"gres": "gpu:2"}, folder=..., batch=8, partition="gpu") -> the errand of a run."""

    def made(device="cpu", slurm=None, folder="/data/multirun/sweep/3", batch=16, typed=(), count=9, **keys):
        of_device = {"name": device, "slurm": {**DEVICES[device].slurm, **(slurm or {})}}
        dataset = {"name": "tensors", "layout": "tensors", "count": count}
        job = job_of(device=of_device, batch=batch, tracking={"tensorboard": True}, dataset=dataset)
        usual = [f"device={device}", "tracking=server", "tracking.uri=http://ann:hunter2@host", f"batch={batch}"]
        return make_run_task(
            RunRequest(job, {"device": device}, [*usual, *typed], Path(folder), of_sweep=True), {**launcher, **keys}
        )

    return made


def test_a_node_is_given_the_command_itself_and_its_runs_folder(asked):
    typed = dict(argument.split("=", 1) for argument in asked("nano", batch=8).arguments)
    assert (typed["device"], typed["batch"]) == ("nano", "8")
    assert typed["hydra.run.dir"] == "'/data/multirun/sweep/3'"
    assert (typed["hydra.mode"], typed["hydra/launcher"], typed["hydra.job.num"]) == ("RUN", "basic", "3")


def test_a_job_leaves_a_record_alone_and_measures_nothing_anew_that_is_completed(asked):
    assert {"tracking=none", "tracking.tensorboard=true", "sweep.resume=true"} <= {*asked().arguments}


def test_a_job_is_told_no_secret(asked):
    assert "hunter2" not in " ".join(asked().arguments)


@pytest.mark.parametrize(
    "typed",
    [
        "dataset.make.password=hunter2",
        "dataset.make.password='hunter2'",
        '+dataset.make.api_key="hunter2"',
        "+token=hunter2",
        "+dataset.make={password: hunter2, split: train}",
        "dataset.url=http://ann:hunter2@host/file",
        "dataset.url='http://host/file?token=hunter2'",
    ],
)
def test_a_job_is_told_no_secret_that_was_typed_for_it_since_submitit_writes_down_what_it_is_told(asked, typed):
    told = next(argument for argument in asked(typed=[typed]).arguments if argument.startswith(typed.partition("=")[0]))
    assert "hunter2" not in told
    (parsed,) = OverridesParser.create().parse_overrides([told])
    assert "***" in str(parsed.value())


@pytest.mark.parametrize("name", ["plain", "with space", "it's", "a=b,c", "back\\slash", "[1]{2}"])
def test_a_folder_of_any_name_comes_through_hydras_grammar(asked, name):
    typed = asked(folder=f"/data/{name}/0").arguments[-1]
    (parsed,) = OverridesParser.create().parse_overrides([typed])
    assert parsed.value() == f"/data/{name}/0"


def test_slurm_is_asked_for_the_whole_node_of_a_devices_kind(asked):
    assert asked("nano").options == {"constraint": "nano", "exclusive": True, "mem": 0}
    assert asked("cpu").options == {"exclusive": True, "mem": 0}


@pytest.mark.parametrize("device", sorted(name for name, file in DEVICES.items() if file.get("rails")))
def test_a_boards_feature_is_its_name(device):
    assert DEVICES[device].slurm == {"constraint": device}


def test_what_a_device_asks_for_goes_before_what_the_launcher_does(asked):
    found = asked("cuda", slurm={"gres": "gpu:2"}, gres="gpu:8", time=60, options={"hint": "nomultithread"})
    assert found.options == {"exclusive": True, "mem": 0, "gres": "gpu:2", "time": 60, "hint": "nomultithread"}


def test_a_node_that_may_be_shared_is_asked_for_by_leaving_the_rest_out(asked):
    assert asked(exclusive=False, mem=None).options == {}


def test_the_python_is_this_one_unless_the_launcher_or_the_device_names_another(asked):
    assert asked().python == sys.executable
    assert asked(python="/opt/a/bin/python").python == "/opt/a/bin/python"
    found = asked(slurm={"python": "/opt/b/bin/python"}, python="/opt/a/bin/python")
    assert found.python == "/opt/b/bin/python"
    assert "python" not in found.options


@pytest.mark.parametrize(
    "other",
    [
        {"batch": 8},
        {"slurm": {"constraint": "nano4"}},
        {"slurm": {"gres": "gpu:2"}},
        {"partition": "gpu"},
        {"gres": "gpu:8"},
        {"mem": "4G"},
        {"exclusive": False},
        {"options": {"hint": "nomultithread"}},
    ],
)
def test_what_a_run_is_made_on_is_part_of_what_it_is(asked, other):
    assert asked("nano", **other).digest != asked("nano").digest


@pytest.mark.parametrize(
    "other",
    [
        {"account": "project_1", "qos": "long", "time": 60},
        {"setup": ["module load rocm"], "python": "/opt/bin/python", "poll_s": 60},
        {"slurm": {"time": 60, "python": "/opt/bin/python"}},
        {"options": {"account": "project_1"}},
    ],
)
def test_who_pays_and_how_long_one_waits_are_no_part_of_it(asked, other):
    assert asked("nano", **other).digest == asked("nano").digest


def test_what_is_sent_from_one_login_node_is_known_on_another(asked, monkeypatch):
    here = asked("nano").digest
    monkeypatch.setattr("platform.node", lambda: "elsewhere")
    assert asked("nano").digest == here


def test_what_its_dataset_is_goes_with_it_where_that_is_known_here(asked):
    assert asked(count=9).dataset
    assert asked(count=9).dataset != asked(count=10).dataset


def test_a_feature_that_no_node_has_is_refused_with_those_there_are(asked):
    there = [SlurmNode("b1", frozenset({"nano", "sd"}), "idle"), SlurmNode("b2", frozenset({"agx"}), "idle")]
    check_constraint(asked("nano"), there)
    check_constraint(asked("cpu"), there)
    with pytest.raises(ValueError, match=r"device=nx needs a node with the feature nx, and no node has it: 2 nodes, "
                                         r"their features: agx, nano, sd\. .*device\.slurm\.constraint="):  # fmt: skip
        check_constraint(asked("nx"), there)
    with pytest.raises(ValueError, match="their features: none"):
        check_constraint(asked("nx"), [SlurmNode("n1", frozenset(), "idle")])
