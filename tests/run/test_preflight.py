"""Checks of a job and of a sweep's configurations before anything waits for a device."""

import json
import sys
from functools import partial

import pytest
from omegaconf import OmegaConf

from epochmeter.config.job import GROUPS
from epochmeter.run import preflight
from epochmeter.run.preflight import construction_error, validate_job, validate_sweep
from epochmeter.shared.atomic_files import write_json

MADE = {
    "name": "digits",
    "version": 1,
    "maker": {"_target_": "epochmeter.datasets.digits.make"},
    "count": 100,
    "splits": {"train": 100},
    "layout": "files",
    "files": 100,
    "bytes": 100,
    "digest": "d",
    "digest_of": "contents",
}


@pytest.fixture
def validate(order, tmp_path, monkeypatch):
    """validate("batch=8", ...) checks such a job, with datasets in a folder of the test."""
    monkeypatch.setattr(preflight, "ROOT", tmp_path)

    def validate_overrides(*overrides):
        request = order(*overrides)
        validate_job(request.job, request.choices, request.overrides)

    return validate_overrides


def made(root, **other):
    (root / "data" / "digits").mkdir(parents=True)
    write_json(root / "data" / "digits" / "manifest.json", {**MADE, **other})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["throughput.start=0", "throughput.stop=43", "batch=16"], "Set throughput.stop=42 or less"),
        (["drop_last=true", "batch=101"], "an epoch has no step. Set batch=100 or less"),
        (["drop_last=true", "batch=51", "strategy=ddp", "strategy.ranks=2"], "Set batch=50 or less"),
    ],
)
def test_length_is_checked_against_a_prepared_dataset(validate, tmp_path, overrides, message):
    made(tmp_path)
    with pytest.raises(ValueError, match=message):
        validate(*overrides)


@pytest.mark.parametrize(
    ("overrides", "group", "keys"),
    [
        (["model=torchvision", "model.name=resnet81"], "model", {"architecture": "resnet81"}),
        (["+optimizer.nestrov=true"], "optimizer", {"_target_": "torch.optim.SGD", "nestrov": True}),
    ],
)
def test_names_and_added_keys_are_checked_by_the_interpreter_that_trains(validate, monkeypatch, overrides, group, keys):
    def error(python, specs):
        assert json.loads(specs)[group].items() >= keys.items()
        return "no such name"

    monkeypatch.setattr(preflight, "construction_error", error)
    with pytest.raises(ValueError, match="no such name"):
        validate(*overrides)


def test_interpreter_that_does_not_answer_refuses_nothing():
    specs = '{"model": {"_target_": "fractions.Fraction", "upper": 3}}'
    assert "fractions.Fraction does not accept these arguments" in construction_error(sys.executable, specs)
    assert [construction_error(python, specs) for python in ("/nowhere/python", "/bin/false")] == ["", ""]


@pytest.fixture
def sweep(composed, monkeypatch):
    """sweep([...], ...) checks these configurations."""

    def compose_all(point):
        config = composed(*point)
        choices = dict.fromkeys((*GROUPS, "hydra/launcher"), "none")
        hydra = {"hydra": {"runtime": {"choices": choices}, "overrides": {"task": list(point)}}}
        return OmegaConf.merge(OmegaConf.create(OmegaConf.to_container(config)), hydra)

    return partial(validate_sweep, composed=compose_all)


def test_invalid_configurations_are_named_by_their_varied_keys_up_to_a_number(sweep, monkeypatch):
    with pytest.raises(ValueError, match="Nothing is trained") as refused:
        sweep([["batch=8", "seed=1"], ["batch=0", "seed=1"], ["batch=-1", "seed=1"]])
    assert str(refused.value).splitlines() == [
        "Nothing is trained: 2 of 3 configurations are refused",
        "`batch=0` is not valid",
        "  hint: give a whole number, 1 or more, at most 1,000,000,000",
        "`batch=-1` is not valid",
        "  hint: give a whole number, 1 or more, at most 1,000,000,000",
    ]
    monkeypatch.setattr(preflight, "MAX_SHOWN", 1)
    with pytest.raises(ValueError, match="2 of 2") as refused:
        sweep([["batch=0", "seed=1"], ["batch=-1", "seed=1"]])
    assert str(refused.value).splitlines()[-1] == "... and 1 more reasons."


def test_configurations_with_the_same_reason_share_a_line(sweep):
    with pytest.raises(ValueError, match="2 of 3") as refused:
        sweep([["batch=8", "workers=1"], ["batch=0", "workers=1"], ["batch=0", "workers=2"]])
    assert str(refused.value).splitlines()[1:] == [
        "batch=0 workers=1 (and 1 more): `batch=0` is not valid",
        "  hint: give a whole number, 1 or more, at most 1,000,000,000",
    ]


def test_interpreter_without_torch_refuses_a_sweep(sweep, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(ValueError, match="2 of 2") as refused:
        sweep([[f"batch={batch}", f"device.python={python}"] for batch in (8, 16)])
    assert str(refused.value).splitlines()[1].endswith(f"(and 1 more): {python} is no Python 3.6 or newer with torch")
    assert str(refused.value).count("  hint: ") == 1


def test_interpreter_of_another_board_does_not_refuse_a_rehearsal(sweep):
    sweep([["device=nano", "device.match={board: none}", "batch=8"]])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["precision=fp16"], "`precision=fp16` is not available on a CPU"),
        (["strategy=dp", "strategy.ranks=2"], "`strategy=dp strategy.ranks=2` needs GPUs"),
    ],
)
def test_what_no_cpu_can_do_is_refused(sweep, overrides, message):
    with pytest.raises(ValueError, match=message):
        sweep([[*overrides, "device.accelerator=cpu"]])
