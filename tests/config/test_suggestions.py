"""Unknown keys, unknown options, and overrides that would mislabel a run."""

from dataclasses import fields

import pytest
from hydra.errors import ConfigCompositionException
from project import put

from epochmeter.config import suggestions
from epochmeter.config.app import friendly_hydra_errors
from epochmeter.config.structured import Schema
from epochmeter.config.suggestions import check_overrides, unknown_choice_problem, unknown_key_problem
from epochmeter.shared.problem import InputError


def test_groups_and_keys_of_training_are_those_of_the_schema():
    groups, keys = suggestions.entry_keys("train")
    assert {*groups, *keys} == {*(entry.name for entry in fields(Schema)), "experiment", "data_source"}


def test_unknown_key_has_a_hint_with_similar_keys_and_all_keys():
    for entry, key, hint in (
        ("train", "powerlimit", "did you mean `power_limit=`? keys"),
        ("train", "batchSize", "did you mean `batch=`? keys"),
        ("train", "Log_Los", "did you mean `log_loss=`"),
        ("train", "batch.size", "did you mean `batch=`"),
        ("train", "xyzzy", "keys: auto, batch, budget, cache,"),
        ("train", "optimizer.learning_rate", "keys of optimizer: "),
        ("train", "hydra.sweeper.n_trials", "list the keys of Hydra: `python src/train.py --cfg hydra`"),
        ("train", "meter.tdp_w", "`meter=estimate`"),  # of another option
        ("train", "optimizer.nesterov", "to add a new key: `+optimizer.nesterov=`"),
        ("train", "device.rails.gpu", "`device=nano`"),
        ("train", "device.rails.gpuu", "did you mean `device.rails.gpu=`? keys of device.rails: "),
        ("report", "report.etta", "did you mean `report.eta=`? keys of report: "),
    ):
        problem = unknown_key_problem(key, entry)
        group, _, name = key.partition(".")
        assert problem.message in (f"unknown key `{key}`", f"the selected {group} has no key `{name}`")
        assert hint in problem.hint
    assert unknown_key_problem("model.aux.weight") == unknown_key_problem("model.aux")


def test_key_that_only_some_swept_options_have_is_refused_with_those_that_have_it():
    swept = ["-m", "dataset=tensors,digits,jpeg,mnist", "dataset.count=64"]
    problem = unknown_key_problem("dataset.count", "train", swept)
    assert problem.message == "`dataset=digits` and `dataset=mnist` have no key `count`"
    assert "`dataset=tensors,jpeg`" in problem.hint
    assert "`dataset=digits,mnist` without this key" in problem.hint
    single = unknown_key_problem("dataset.count", "train", ["dataset=digits", "dataset.count=64"])
    assert single.message == "`dataset=digits` has no key `count`"
    assert single.hint.startswith("select one that has it: `dataset=jpeg`")


def test_unknown_option_has_a_hint_with_similar_options_and_all_options():
    hint = unknown_choice_problem("device", "orin").hint
    assert hint.startswith("did you mean `device=orin_nx` or `device=agx_orin` or `device=orin_nano`? options: agx, ")
    assert unknown_choice_problem("device", "AGXOrin32").hint.startswith("did you mean `device=agx_orin`? ")
    assert unknown_choice_problem("model", "ResNet50").hint.startswith("did you mean `model=resnet50`")
    assert "_study" not in unknown_choice_problem("experiment", "zeus").hint


def test_override_that_would_mislabel_the_run_is_refused():
    for choice, override, hint in (
        ("model=lenet", "model.name=resnet18", "use `model=resnet18`"),
        ("model=resnet18", "model.name=resnet34", "use `model=` with one of "),
        ("model=resnet50", "model.architecture=resnet34", "use `model=` with one of "),  # by a file in its defaults
        ("model=torchvision", "model.architecture=resnet34", "use `model=` with one of "),
        ("dataset=jpeg", "++dataset.name=pets", "use `dataset=` with one of "),
    ):
        with pytest.raises(InputError) as refused:
            check_overrides([override], dict([choice.split("=")]))
        (problem,) = refused.value.problems
        assert problem.hint.startswith(hint)
    check_overrides(["model.name=resnet34"], {"model": "torchvision"})
    check_overrides(["model.name=lenet", "model.activation=ReLU", "batch=8"], {"model": "lenet"})


@pytest.mark.parametrize(
    ("text", "problem"),
    [("width: ]", "cannot read .*mine.yaml, line 1"), ("- width", "mine.yaml` is not a mapping")],
)
def test_damaged_file_of_an_option_is_named_where_a_hint_would_list_its_keys(tmp_path, monkeypatch, text, problem):
    suggestions.entry_keys("train")  # read before its folder is replaced
    monkeypatch.setattr(suggestions, "CONF", put(tmp_path, {"model/mine.yaml": text}))
    with pytest.raises(SystemExit, match=f"^error: .*{problem}.*\n  hint: "), friendly_hydra_errors([], "train"):
        raise ConfigCompositionException("Could not override 'model.widht'")
