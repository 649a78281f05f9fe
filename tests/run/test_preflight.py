"""Checks of a job and of a sweep's configurations before anything waits for a device."""

import sys
from functools import partial
from importlib.util import find_spec

import pytest
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf

from epochmeter.config.job import GROUPS
from epochmeter.run import preflight
from epochmeter.run.preflight import CPU_PRECISIONS, construction_error, format_point, validate_job, validate_sweep
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


@pytest.fixture
def questions(monkeypatch):
    """The questions to the training process; it refuses everything."""
    questions = []

    def refuse(python, specs):
        questions.append((python, specs))
        return "it will not."

    monkeypatch.setattr(preflight, "construction_error", refuse)
    return questions


def made(root, **other):
    (root / "data" / "digits").mkdir(parents=True)
    write_json(root / "data" / "digits" / "manifest.json", {**MADE, **other})


def test_values_out_of_range_or_of_another_type_are_refused(validate):
    with pytest.raises(ValueError, match="`batch=0` is not valid"):
        validate("batch=0")
    with pytest.raises(ValueError, match=r"`optimizer\.lr=high` is not valid"):
        validate("optimizer.lr=high")


def test_option_given_as_a_name_is_refused_with_the_group(validate):
    with pytest.raises(ValueError, match=r"hint: use `model=resnet18`"):
        validate("model.name=resnet18")


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


@pytest.mark.parametrize("other", [{"version": 2}, {"maker": {"_target_": "epochmeter.datasets.image_folder.adopt"}}])
def test_length_is_not_checked_against_another_version_of_the_dataset(validate, tmp_path, other):
    made(tmp_path, **other)
    validate("drop_last=true", "batch=101")


def test_length_is_not_checked_before_the_dataset_is_prepared(validate):
    validate("drop_last=true", "batch=100000")


def test_only_overridden_names_are_checked_by_the_training_process(validate, questions):
    validate("model=resnet18", "optimizer.lr=0.1", "model.norm=x", "batch=8")
    assert questions == []
    with pytest.raises(ValueError, match="it will not"):
        validate("model=torchvision", "model.name=resnet81", "batch=8")
    assert questions == [(sys.executable, '{"model": {"architecture": "resnet81"}}')]


def test_added_key_is_checked_with_its_group(validate, questions):
    with pytest.raises(ValueError, match="it will not"):
        validate("+optimizer.nestrov=true", "device.python=/usr/bin/python3")
    ((python, specs),) = questions
    assert python == "/usr/bin/python3"
    assert OmegaConf.create(specs)["optimizer"]["nestrov"] is True


@pytest.mark.parametrize("python", ["/nowhere/python", "/bin/false"])
def test_interpreter_that_does_not_answer_refuses_nothing(python):
    assert construction_error(python, "{}") == ""


@pytest.mark.skipif(find_spec("torchvision") is None, reason="no torchvision in this environment, as on a board")
def test_unknown_torchvision_model_is_refused_with_suggestions(validate):
    with pytest.raises(ValueError, match=r"`model\.name=resnet81` is not .* Did you mean resnet18, "):
        validate("model=torchvision", "model.name=resnet81")


@pytest.fixture
def sweep(composed, monkeypatch):
    """sweep([...], ...) checks these configurations."""

    def compose_all(point):
        config = composed(*point)
        choices = dict.fromkeys((*GROUPS, "hydra/launcher"), "none")
        hydra = {"hydra": {"runtime": {"choices": choices}, "overrides": {"task": list(point)}}}
        return OmegaConf.merge(OmegaConf.create(OmegaConf.to_container(config)), hydra)

    return partial(validate_sweep, composed=compose_all)


def test_valid_sweep_is_accepted(sweep):
    sweep([["batch=8"], ["batch=16"]])


def test_invalid_configurations_are_named_by_their_varied_keys(sweep):
    with pytest.raises(ValueError, match="Nothing is trained") as refused:
        sweep([["batch=8", "seed=1"], ["batch=0", "seed=1"], ["batch=-1", "seed=1"]])
    assert str(refused.value).splitlines() == [
        "Nothing is trained: 2 of 3 configurations are refused",
        "`batch=0` is not valid",
        "  hint: give a whole number, 1 or more, at most 1,000,000,000",
        "`batch=-1` is not valid",
        "  hint: give a whole number, 1 or more, at most 1,000,000,000",
    ]


def test_configurations_with_the_same_reason_share_a_line(sweep):
    with pytest.raises(ValueError, match="2 of 3") as refused:
        sweep([["batch=8", "workers=1"], ["batch=0", "workers=1"], ["batch=0", "workers=2"]])
    assert str(refused.value).splitlines()[1:] == [
        "batch=0 workers=1 (and 1 more): `batch=0` is not valid",
        "  hint: give a whole number, 1 or more, at most 1,000,000,000",
    ]


def test_interpreter_without_torch_is_checked_once_per_sweep(sweep, tmp_path):
    python, calls = tmp_path / "python", tmp_path / "calls"
    python.write_text(f'#!/bin/sh\necho . >>{calls}\necho \'{{"python": [3, 10], "torch": null}}\'\n')
    python.chmod(0o755)
    with pytest.raises(ValueError, match="2 of 2") as refused:
        sweep([[f"batch={batch}", f"device.python={python}"] for batch in (8, 16)])
    assert str(refused.value).splitlines()[1].endswith(f"(and 1 more): {python} has no torch")
    assert str(refused.value).count("  hint: ") == 1


def test_interpreter_of_another_board_does_not_refuse_a_rehearsal(sweep):
    sweep([["device=nano", "device.match={board: none}", "batch=8"]])


@pytest.mark.parametrize("precision", ["tf32", "fp16"])
def test_precision_that_no_cpu_has_is_refused(sweep, precision):
    with pytest.raises(ValueError, match=f"`precision={precision}` is not available on a CPU"):
        sweep([["device.accelerator=cpu", "precision=fp32"], ["device.accelerator=cpu", f"precision={precision}"]])


def test_cpu_precisions_equal_those_of_the_training_process():
    torch = pytest.importorskip("torch")
    from epochmeter.worker.precision import supported_dtypes

    assert [str(precision) for precision in CPU_PRECISIONS] == supported_dtypes(torch.device("cpu"))


def test_only_the_first_of_many_reasons_are_listed(sweep):
    with pytest.raises(ValueError, match="12 of 12") as refused:
        sweep([[f"batch={-number}"] for number in range(12)])
    assert str(refused.value).splitlines()[-1] == "... and 2 more reasons."


def test_errors_of_composing_are_hydras(sweep):
    with pytest.raises(ConfigCompositionException):
        sweep([["batch=8"], ["bathc=8"]])


def test_configuration_is_not_repeated_if_the_reason_names_it():
    assert format_point(["batch=0"], 0, "`batch=0` is not valid") == "`batch=0` is not valid"
    assert format_point(["a=1", "batch=0"], 2, "`batch=0`: no") == "a=1 batch=0 (and 2 more): `batch=0`: no"
