"""What is refused before a device is waited for, of one job and of a sweep's points."""

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
def admitted(order, tmp_path, monkeypatch):
    """admitted("batch=8", ...) admits that order, of data in a folder of the test's."""
    monkeypatch.setattr(preflight, "ROOT", tmp_path)

    def admit_typed(*typed):
        asked = order(*typed)
        validate_job(asked.job, asked.choices, asked.overrides)

    return admit_typed


@pytest.fixture
def said(monkeypatch):
    """What the worker was asked; it refuses all of it."""
    questions = []

    def refuse(python, specs):
        questions.append((python, specs))
        return "it will not."

    monkeypatch.setattr(preflight, "construction_error", refuse)
    return questions


def made(root, **other):
    (root / "data" / "digits").mkdir(parents=True)
    write_json(root / "data" / "digits" / "manifest.json", {**MADE, **other})


def test_values_are_held_against_their_ranges_and_types(admitted):
    with pytest.raises(ValueError, match="`batch=0` is not valid"):
        admitted("batch=0")
    with pytest.raises(ValueError, match=r"`optimizer\.lr=high` is not valid"):
        admitted("optimizer.lr=high")


def test_a_name_of_what_a_choice_is_not_is_refused(admitted):
    with pytest.raises(ValueError, match=r"hint: use `model=resnet18`"):
        admitted("model.name=resnet18")


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (["throughput.start=0", "throughput.stop=43", "batch=16"], "Set throughput.stop=42 or less"),
        (["drop_last=true", "batch=101"], "an epoch has no step. Set batch=100 or less"),
        (["drop_last=true", "batch=51", "strategy=ddp", "strategy.ranks=2"], "Set batch=50 or less"),
    ],
)
def test_a_runs_length_is_held_against_a_dataset_that_is_made(admitted, tmp_path, typed, says):
    made(tmp_path)
    with pytest.raises(ValueError, match=says):
        admitted(*typed)


@pytest.mark.parametrize("other", [{"version": 2}, {"maker": {"_target_": "epochmeter.datasets.image_folder.adopt"}}])
def test_a_dataset_that_may_be_another_by_then_refuses_nothing(admitted, tmp_path, other):
    made(tmp_path, **other)
    admitted("drop_last=true", "batch=101")


def test_a_dataset_that_is_still_to_be_made_refuses_nothing(admitted):
    admitted("drop_last=true", "batch=100000")


def test_the_worker_is_asked_for_names_that_were_typed_alone(admitted, said):
    admitted("model=resnet18", "optimizer.lr=0.1", "model.norm=x", "batch=8")
    assert said == []
    with pytest.raises(ValueError, match="it will not"):
        admitted("model=torchvision", "model.name=resnet81", "batch=8")
    assert said == [(sys.executable, '{"model": {"architecture": "resnet81"}}')]


def test_the_worker_is_asked_for_a_key_that_was_added_with_all_that_stands_beside_it(admitted, said):
    with pytest.raises(ValueError, match="it will not"):
        admitted("+optimizer.nestrov=true", "device.python=/usr/bin/python3")
    ((python, specs),) = said
    assert python == "/usr/bin/python3"
    assert OmegaConf.create(specs)["optimizer"]["nestrov"] is True


@pytest.mark.parametrize("python", ["/nowhere/python", "/bin/false"])
def test_an_interpreter_that_cannot_be_asked_refuses_nothing(python):
    assert construction_error(python, "{}") == ""


@pytest.mark.skipif(find_spec("torchvision") is None, reason="no torchvision in this environment, as on a board")
def test_a_name_that_torchvision_has_not_is_refused_in_a_moment(admitted):
    with pytest.raises(ValueError, match=r"`model\.name=resnet81` is not .* Did you mean resnet18, "):
        admitted("model=torchvision", "model.name=resnet81")


@pytest.fixture
def sweep(composed, monkeypatch):
    """sweep([...], ...) checks these points."""

    def compose_whole(point):
        config = composed(*point)
        choices = dict.fromkeys((*GROUPS, "hydra/launcher"), "none")
        hydra = {"hydra": {"runtime": {"choices": choices}, "overrides": {"task": list(point)}}}
        return OmegaConf.merge(OmegaConf.create(OmegaConf.to_container(config)), hydra)

    return partial(validate_sweep, composed=compose_whole)


def test_a_sweep_of_points_that_can_be_is_let_go_on(sweep):
    sweep([["batch=8"], ["batch=16"]])


def test_each_point_that_cannot_be_is_named_by_what_it_has_of_its_own(sweep):
    with pytest.raises(ValueError, match="Nothing is trained") as refused:
        sweep([["batch=8", "seed=1"], ["batch=0", "seed=1"], ["batch=-1", "seed=1"]])
    assert str(refused.value).splitlines() == [
        "Nothing is trained: 2 of 3 configurations are refused",
        "`batch=0` is not valid",
        "  hint: give a whole number, 1 or more, at most 1,000,000,000",
        "`batch=-1` is not valid",
        "  hint: give a whole number, 1 or more, at most 1,000,000,000",
    ]


def test_points_refused_for_the_same_are_one_line(sweep):
    with pytest.raises(ValueError, match="2 of 3") as refused:
        sweep([["batch=8", "workers=1"], ["batch=0", "workers=1"], ["batch=0", "workers=2"]])
    assert str(refused.value).splitlines()[1:] == [
        "batch=0 workers=1 (and 1 more): `batch=0` is not valid",
        "  hint: give a whole number, 1 or more, at most 1,000,000,000",
    ]


def test_an_interpreter_without_torch_refuses_a_sweep_once(sweep, tmp_path):
    python, asked = tmp_path / "python", tmp_path / "asked"
    python.write_text(f'#!/bin/sh\necho . >>{asked}\necho \'{{"python": [3, 10], "torch": null}}\'\n')
    python.chmod(0o755)
    with pytest.raises(ValueError, match="2 of 2") as refused:
        sweep([[f"batch={batch}", f"device.python={python}"] for batch in (8, 16)])
    assert str(refused.value).splitlines()[1].endswith(f"(and 1 more): {python} has no torch")
    assert str(refused.value).count("  hint: ") == 1


def test_the_python_of_another_board_refuses_no_rehearsal(sweep):
    sweep([["device=nano", "device.match={board: none}", "batch=8"]])


@pytest.mark.parametrize("precision", ["tf32", "fp16"])
def test_a_precision_that_no_cpu_has_is_refused(sweep, precision):
    with pytest.raises(ValueError, match=f"`precision={precision}` is not available on a CPU"):
        sweep([["device.accelerator=cpu", "precision=fp32"], ["device.accelerator=cpu", f"precision={precision}"]])


def test_the_precisions_of_a_cpu_are_those_of_the_training_process():
    torch = pytest.importorskip("torch")
    from epochmeter.worker.precision import supported_dtypes

    assert [str(precision) for precision in CPU_PRECISIONS] == supported_dtypes(torch.device("cpu"))


def test_of_very_many_reasons_the_first_are_told(sweep):
    with pytest.raises(ValueError, match="12 of 12") as refused:
        sweep([[f"batch={-number}"] for number in range(12)])
    assert str(refused.value).splitlines()[-1] == "... and 2 more reasons."


def test_a_point_that_does_not_compose_is_left_to_hydra_to_tell(sweep):
    with pytest.raises(ConfigCompositionException):
        sweep([["batch=8"], ["bathc=8"]])


def test_a_reason_that_names_the_point_is_enough():
    assert format_point(["batch=0"], 0, "`batch=0` is not valid") == "`batch=0` is not valid"
    assert format_point(["a=1", "batch=0"], 2, "`batch=0`: no") == "a=1 batch=0 (and 2 more): `batch=0`: no"
