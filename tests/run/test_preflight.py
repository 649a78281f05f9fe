"""Checks of a job and of a sweep's configurations before anything waits for a device."""

from functools import partial

import pytest
from default_jobs import job_of
from omegaconf import OmegaConf

from epochmeter.config.job import GROUPS
from epochmeter.run import preflight
from epochmeter.run.preflight import check_threads, thread_count, validate_sweep
from epochmeter.shared.atomic_files import write_json

MADE = {
    "name": "digits", "version": 1, "maker": {"_target_": "epochmeter.datasets.digits.make"}, "layout": "files",
    "splits": {"train": 100}, "digest": "d", "digest_of": "contents", **dict.fromkeys(("count", "files", "bytes"), 100),
}  # fmt: skip
HINT = "  hint: give a whole number, 1 or more, at most 1,000,000,000"


@pytest.fixture
def sweep(composed, monkeypatch):
    """sweep([...], ...) checks these configurations."""

    def compose_all(point):
        config = composed(*point)
        choices = dict.fromkeys((*GROUPS, "hydra/launcher"), "none")
        hydra = {"hydra": {"runtime": {"choices": choices}, "overrides": {"task": list(point)}}}
        return OmegaConf.merge(OmegaConf.create(OmegaConf.to_container(config)), hydra)

    return partial(validate_sweep, composed=compose_all)


@pytest.mark.parametrize(
    ("points", "most", "reasons"),
    [
        (["batch=8 seed=1", "batch=0 seed=1", "batch=-1 seed=1"], 9,
         ["`batch=0` is not valid", HINT, "`batch=-1` is not valid", HINT]),
        (["batch=8 seed=1", "batch=0 seed=1", "batch=-1 seed=1"], 1,
         ["`batch=0` is not valid", HINT, "... and 1 more reasons"]),
        (["batch=8 workers=1", "batch=0 workers=1", "batch=0 workers=2"], 9,
         ["batch=0 workers=1 (and 1 more): `batch=0` is not valid", HINT]),
    ],
    ids=["two reasons", "too many reasons", "the same reason"],
)  # fmt: skip
def test_invalid_configurations_are_named_by_their_varied_keys(sweep, monkeypatch, points, most, reasons):
    monkeypatch.setattr(preflight, "MAX_SHOWN", most)
    with pytest.raises(ValueError, match="Nothing is trained") as refused:
        sweep([point.split() for point in points])
    assert str(refused.value).splitlines() == ["Nothing is trained: 2 of 3 configurations are refused", *reasons]


def test_sweep_over_nodes_without_a_cluster_is_refused(sweep):
    with pytest.raises(ValueError, match=r"1 of 2 configurations(?s:.*)`nodes=2`, but this command runs on 1"):
        sweep([["nodes=1"], ["nodes=2"]])


DDP = {"name": "ddp", "ranks": 2, "launcher": "torchrun"}


@pytest.mark.parametrize(
    ("keys", "environment", "threads"),
    [
        ({"threads": None}, {}, None),
        ({"threads": None}, {"OMP_NUM_THREADS": "3"}, 3),
        ({"threads": None}, {"OMP_NUM_THREADS": "4,2"}, None),
        ({"threads": 5}, {"OMP_NUM_THREADS": "3"}, 5),
        ({"threads": "auto", "workers": 0}, {"OMP_NUM_THREADS": "3"}, 8),
        ({"threads": "auto", "workers": 4}, {}, 8),
        ({"threads": "auto", "workers": 13}, {}, 3),
        ({"threads": "auto", "workers": 20}, {}, 1),
        ({"threads": "auto", "workers": 13, "synthetic_batches": True}, {}, 8),
        ({"threads": "auto", "workers": 13, "dataset": {"layout": "tensors"}}, {}, 8),
        ({"threads": "auto", "workers": 6, "strategy": DDP}, {}, 2),
        ({"threads": "auto", "workers": 0, "strategy": DDP}, {}, 4),
        ({"threads": None, "measure": {"command": ["train.py"]}}, {"OMP_NUM_THREADS": "3"}, None),
    ],
)
def test_threads_auto_leaves_cores_to_workers_and_uses_no_second_hardware_threads(
    monkeypatch, keys, environment, threads
):
    """On 8 cores of two hardware threads."""
    monkeypatch.setattr(preflight, "usable_cores", lambda: 16)
    monkeypatch.setattr(preflight, "physical_cores", lambda: 8)
    assert thread_count(job_of(**keys), environment) == threads


def test_too_many_threads_are_refused():
    check_threads(64, ranks=1, cores=2)
    with pytest.raises(ValueError, match="`threads=65` is too many: this machine has 2 cores"):
        check_threads(65, ranks=1, cores=2)
    with pytest.raises(ValueError, match="give `threads=auto`"):
        check_threads(100, ranks=4, cores=16)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("precision=fp16 device.accelerator=cpu", "`precision=fp16` is not available on a CPU"),
        ("strategy=dp strategy.ranks=2 device.accelerator=cpu", "`strategy=dp strategy.ranks=2` needs GPUs"),
        ("dataset=jpeg dataset.count=999_000_000", r"`dataset=jpeg` needs 109,890\.0 GB"),
        ("drop_last=true batch=51 strategy=ddp strategy.ranks=2", "an epoch has no step\n  hint: set batch=50 or less"),
        ("throughput.start=1 throughput.stop=101 batch=1 epochs=1", r"`throughput\.stop=101` exceeds the run's 100 st"),
        ("device.python=/nowhere/python", r"`device\.python=/nowhere/python`: there is no such program\n  hint: "),
    ],
)
def test_job_that_cannot_run_here_is_refused_before_training(sweep, tmp_path, monkeypatch, overrides, message):
    monkeypatch.setattr(preflight, "ROOT", tmp_path)
    (tmp_path / "data/digits").mkdir(parents=True)
    write_json(tmp_path / "data/digits/manifest.json", MADE)
    sweep([["drop_last=true", "batch=50", "strategy=ddp", "strategy.ranks=2"]])
    sweep([["device=nano", "device.match={board: none}"]])  # the interpreter of another board is not used
    with pytest.raises(ValueError, match=message):
        sweep([overrides.split()])
