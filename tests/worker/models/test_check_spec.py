"""Checking a specification before training starts."""

import inspect
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from torchvision import models

from epochmeter.worker import check_spec
from epochmeter.worker.models.classifiers import LIST_NAMES, check_name, names

SOURCE = Path(__file__).parents[3] / "src"


def said(capsys, **specs):
    check_spec.main(json.dumps(specs))
    return capsys.readouterr().out


def test_parsed_names_are_classifier_functions():
    known = names(os.path.dirname(models.__file__))
    makers = [name for name, made in vars(models).items() if name.islower() and inspect.isfunction(made)]
    assert set(known) <= set(makers)
    assert {"resnet18", "resnet152", "vgg11", "mobilenet_v3_large", "inception_v3", "vit_b_16"} <= set(known)
    assert not {"get_model", "list_models", "channel_shuffle"} & set(known)


def test_unknown_classifier_is_rejected_with_similar_names():
    check_name("resnet34")
    with pytest.raises(
        ValueError, match=r"`model.name=resnet81` is not .* Did you mean resnet18, \w+ or \w+\? List all "
    ):
        check_name("resnet81")
    with pytest.raises(
        ValueError, match=r"`model.name=qqq` is not a classifier of the installed torchvision\. List all "
    ):
        check_name("qqq")


def test_the_command_in_the_error_prints_all_names():
    command = LIST_NAMES.format(sys.executable)
    printed = subprocess.run(shlex.split(command), capture_output=True, text=True, check=True).stdout
    assert printed.split() == models.list_models(module=models)


def test_unknown_arguments_are_rejected(capsys):
    sgd = {"_target_": "torch.optim.SGD", "name": "sgd", "lr": 0.1}
    step = {"_target_": "torch.optim.lr_scheduler.StepLR", "name": "step", "step_size": 3}
    assert said(capsys, optimizer={**sgd, "nesterov": True}, scheduler=step) == ""
    told = said(capsys, optimizer={**sgd, "nestrov": True}, scheduler={**step, "steps": 3})
    first, second = told.splitlines()
    assert first.startswith("torch.optim.SGD does not accept these arguments: got an unexpected keyword argument 'nes")
    assert first.endswith("nesterov, maximize, foreach, differentiable, fused.")
    assert second.startswith("torch.optim.lr_scheduler.StepLR does not accept")


def test_missing_target_is_reported(capsys):
    assert said(capsys, model={"_target_": "nowhere.Net"}).startswith("cannot import _target_ 'nowhere.Net'")


def test_name_check_does_not_import_torch():
    program = (
        "import sys; sys.modules['torch'] = None; from epochmeter.worker import check_spec;"
        'check_spec.main(\'{"model": {"architecture": "resnet81"}}\')'
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(SOURCE)}, capture_output=True, text=True
    )
    assert done.stdout.startswith("`model.name=resnet81` is not a classifier"), done.stderr
