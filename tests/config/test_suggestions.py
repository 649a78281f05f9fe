"""What is said of an override that names nothing there is, or that gives a text where a number stands."""

from dataclasses import fields

import pytest

from epochmeter.config import suggestions
from epochmeter.config.schema import Schema
from epochmeter.config.suggestions import KNOWN, check_names, check_types, known, near


def lines(*typed, entry="train"):
    return [". ".join(hint.problem) for hint in suggestions.hints(typed, entry)]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("bathc=8", "batch"), ("modle=lenet", "model"), ("powerlimit=5", "power_limit"), ("machin.root=/", "machine")],
)
def test_a_key_that_is_not_there_is_told_with_the_nearest_that_is(typed, meant):
    (line,) = lines(typed)
    name = typed.partition("=")[0].partition(".")[0]
    assert line.startswith(f"There is no key {name}. Did you mean {meant}=? The keys are: batch, cache,")


def test_a_key_unlike_all_others_is_told_without_a_guess():
    (line,) = lines("xyzzy=1")
    assert line.startswith("There is no key xyzzy. The keys are: ")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("device=nanoo", "device=nano"),
        ("device=orin", "device=orin_nano or device=orin_nx or device=agx_orin"),
        ("experiment=tbd/polynom", "experiment=tbd/polynomial"),
        ("experiment=zeus", "experiment=zeus/resnet50_imagenet"),
        ("experiment=vgg11", "experiment=edge/vgg11_cifar10"),
        ("model=lenet,resnt18", "model=resnet18"),
    ],
)
def test_a_choice_that_is_not_there_is_told_with_what_it_may_have_meant(typed, meant):
    (line,) = lines(typed)
    assert f" Did you mean {meant}? There are: " in line.replace(", device", " or device")


def test_a_choice_that_is_not_there_is_told_with_all_that_there_are_in_folders_too():
    (line,) = lines("experiment=foo")
    assert line.startswith("There is no experiment=foo. There are: edge/grid, edge/lenet_cifar10_gray, ")
    assert line.endswith(", smoke, stalls, tbd/inception_v3_imagenet, tbd/polynomial, tbd/seq2seq, tbd/transformer, "
                         "zeus/resnet50_imagenet.")  # fmt: skip


def test_what_begins_so_is_near_before_what_has_a_word_that_does_before_what_is_spelled_alike():
    assert near("orin", ["agx_orin", "nano", "orin_nx"]) == ["orin_nx", "agx_orin"]
    assert near("nanoo", ["nano", "nx"]) == ["nano"]
    assert near("foo", ["nano", "nx"]) == []


def test_keys_groups_flags_and_what_is_hydras_own_need_no_hint():
    typed = ["batch=8", "device=nano", "experiment=smoke", "hydra.verbose=true", "+new=1", "-m", "--cfg", "job"]
    assert lines(*typed, "supply=null", "experiment=glob(edge/*)", "model=choice(lenet,vgg11)") == []


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("optimizer.learning_rate=0.1", "There is no key optimizer.learning_rate. The keys of optimizer are: lr, "),
        ("strategy.rank=2", "There is no key strategy.rank. Did you mean strategy.ranks=? The keys of strategy are: "),
        ("checkpoint.evry=1", "There is no key checkpoint.evry. Did you mean checkpoint.every=? The keys of "),
        ("model.activaton=x", "There is no key model.activaton. Did you mean model.activation=?"),
    ],
)
def test_a_key_below_another_is_told_with_the_nearest_or_all_that_there_are(typed, says):
    (line,) = lines(typed)
    assert line.startswith(says)


def test_a_key_of_a_group_may_be_one_that_is_in_no_file():
    (line,) = lines("optimizer.nesterov=true")
    assert line.endswith(" One that is in no file is added by +optimizer.nesterov=.")


@pytest.mark.parametrize(
    "typed", ["optimizer.lr=0.1", "device.rails.total=a", "hydra.run.dir=x", "sweep.again=true", "model.name=resnet34"]
)
def test_keys_below_another_that_are_there_need_no_hint(typed):
    assert lines(typed) == []


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("epochs=two", "`epochs=two` is not valid. give a whole number"),
        ("batch=1.5", "`batch=1.5` is not valid. give a whole number"),
        ("batch=8,many,16", "`batch=many` is not valid. give a whole number"),
        ("target_accuracy=high", "`target_accuracy=high` is not valid. give a number"),
        ("evaluate=maybe", "`evaluate=maybe` is not valid. give true or false"),
        ("throughput.stop=end", "`throughput.stop=end` is not valid. give a whole number"),
        ("cache=hot", "`cache=hot` is not valid. give one of keep, cold, cold_each_epoch, warm"),
    ],
)
def test_a_value_of_another_type_is_told_with_what_to_give(typed, says):
    assert lines(typed) == [says]


@pytest.mark.parametrize(
    "typed",
    ["epochs=2", "batch=8,16", "batch=range(1,4)", "target_loss=1e-3", "target_loss=null", "evaluate=false",
     "cache=cold,warm", "power_limit=MAXN", "machine.root=/tree", "sweep.sample=null"],
)  # fmt: skip
def test_a_value_of_its_keys_type_needs_no_hint(typed):
    assert lines(typed) == []


@pytest.mark.parametrize(
    ("entry", "typed", "says"),
    [
        ("doctor", "device=orn_nx", "There is no device=orn_nx. Did you mean device=orin_nx? There are: agx, "),
        ("doctor", "batch=8", "There is no key batch. The keys are: dataset, device, format, machine, meter, storage."),
        ("report", "swep=a", "There is no key swep. Did you mean sweep=? The keys are: against, include, out, "),
        ("report", "report.etta=1", "There is no key report.etta. Did you mean report.eta=? The keys of report are: "),
    ],
)
def test_each_entry_has_keys_of_its_own(entry, typed, says):
    (line,) = lines(typed, entry=entry)
    assert line.startswith(says)


def test_what_a_study_is_called_is_no_choice_to_the_report_which_looks_for_runs():
    assert lines("study=mine/of_old", entry="report") == []


def test_the_keys_of_a_job_are_those_of_its_types():
    groups, keys = known("train")
    assert {*groups, *keys} == KNOWN
    assert {*(entry.name for entry in fields(Schema)), "experiment", "supply", "hydra"} == KNOWN


def check(asked):
    check_types(asked.overrides, asked.choices, asked.job.to_dict())


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (["optimizer.lr=high"], r"`optimizer\.lr=high` is not valid\n  hint: give a number, as 0\.01 is$"),
        (
            ["dataset=jpeg", "dataset.count=many"],
            r"`dataset\.count=many` is not valid\n  hint: give a number, as 1000 is$",
        ),
    ],
)
def test_a_text_in_place_of_a_number_is_refused_with_the_number_that_stands_there(order, typed, says):
    with pytest.raises(ValueError, match=says):
        check(order(*typed))


def test_numbers_and_what_may_be_a_text_are_taken(order):
    check(order("optimizer.lr=1e-3", "dataset.size=32", "storage.root=/media/sd", "dataset.layout=memory"))


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (["model.name=resnet18"], "model.name=resnet18: it would only call model=lenet so. Type model=resnet18."),
        (["model=resnet18", "model.name=resnet34"], "Type model=torchvision model.name=resnet34."),
        (["storage.name=ssd"], "storage.name=ssd: it would only call storage=here so. Type storage=ssd."),
        (["++optimizer.name=adam"], "it would only call optimizer=sgd so. Type optimizer=adam."),
        (["device=cpu", "device.name=nano"], "it would only call device=cpu so. Type device=nano."),
        (["dataset=jpeg", "dataset.name=pets"], "imagenet, jpeg, .* tensors, or add conf/dataset/pets.yaml."),
        (["model=resnet18", "model.architecture=resnet50"], "model=resnet18 would keep its name. Type model="),
        (["model=torchvision", "model.architecture=resnet34"], "Type model=torchvision model.name=resnet34."),
    ],
)  # fmt: skip
def test_a_name_is_chosen_by_its_group_so_that_no_run_says_that_it_is_what_it_is_not(order, typed, says):
    asked = order(*typed)
    with pytest.raises(ValueError, match=says):
        check_names(asked.overrides, asked.choices)


@pytest.mark.parametrize(
    "typed",
    [["model=torchvision", "model.name=resnet34"], ["model=lenet", "model.name=lenet"], ["model.activation=ReLU"]],
)
def test_a_name_that_a_choice_follows_may_be_typed(order, typed):
    asked = order(*typed)
    check_names(asked.overrides, asked.choices)
