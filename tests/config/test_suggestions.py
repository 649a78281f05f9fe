"""Suggestions for unknown keys, unknown options and values of the wrong type."""

from dataclasses import fields

import pytest

from epochmeter.config import suggestions
from epochmeter.config.schema import Schema
from epochmeter.config.suggestions import TOP_LEVEL_KEYS, check_names, check_types, closest_names, entry_keys


def lines(*typed, entry="train"):
    return [". ".join(hint.problem) for hint in suggestions.override_hints(typed, entry)]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("bathc=8", "batch"), ("modle=lenet", "model"), ("powerlimit=5", "power_limit"), ("machin.root=/", "machine")],
)
def test_an_unknown_key_is_refused_with_the_nearest_key(typed, meant):
    (line,) = lines(typed)
    name = typed.partition("=")[0].partition(".")[0]
    assert line.startswith(f"unknown key `{name}`. did you mean `{meant}=`? keys: batch, cache,")


def test_an_unknown_key_without_a_similar_one_is_refused_with_all_keys():
    (line,) = lines("xyzzy=1")
    assert line.startswith("unknown key `xyzzy`. keys: ")


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
def test_an_unknown_option_is_refused_with_similar_options(typed, meant):
    (line,) = lines(typed)
    guess = line.partition("did you mean ")[2].partition("? options: ")[0].replace("`", "")
    assert guess.replace(", device", " or device") == meant


def test_an_unknown_option_is_refused_with_all_options_including_subfolders():
    (line,) = lines("experiment=foo")
    assert line.startswith("`experiment=foo` does not exist. options: edge/grid, edge/lenet_cifar10_gray, ")
    assert line.endswith(", smoke, stalls, tbd/inception_v3_imagenet, tbd/polynomial, tbd/seq2seq, tbd/transformer, "
                         "zeus/resnet50_imagenet")  # fmt: skip


def test_prefix_match_ranks_before_word_match_before_fuzzy_match():
    assert closest_names("orin", ["agx_orin", "nano", "orin_nx"]) == ["orin_nx", "agx_orin"]
    assert closest_names("nanoo", ["nano", "nx"]) == ["nano"]
    assert closest_names("foo", ["nano", "nx"]) == []


def test_valid_keys_groups_and_flags_need_no_hint():
    typed = ["batch=8", "device=nano", "experiment=smoke", "hydra.verbose=true", "+new=1", "-m", "--cfg", "job"]
    assert lines(*typed, "data_source=null", "experiment=glob(edge/*)", "model=choice(lenet,vgg11)") == []


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("optimizer.learning_rate=0.1", "unknown key `optimizer.learning_rate`. keys of optimizer: lr, "),
        ("strategy.rank=2", "unknown key `strategy.rank`. did you mean `strategy.ranks=`? keys of strategy: "),
        ("checkpoint.evry=1", "unknown key `checkpoint.evry`. did you mean `checkpoint.every=`? keys of "),
        ("model.activaton=x", "unknown key `model.activaton`. did you mean `model.activation=`?"),
    ],
)
def test_an_unknown_key_of_a_group_is_refused_with_the_keys_of_the_group(typed, says):
    (line,) = lines(typed)
    assert line.startswith(says)


def test_the_hint_on_an_unknown_key_of_a_group_shows_how_to_add_it():
    (line,) = lines("optimizer.nesterov=true")
    assert line.endswith("`+optimizer.nesterov=`")


@pytest.mark.parametrize(
    "typed", ["optimizer.lr=0.1", "device.rails.total=a", "hydra.run.dir=x", "sweep.again=true", "model.name=resnet34"]
)
def test_existing_keys_of_groups_need_no_hint(typed):
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
def test_a_value_of_the_wrong_type_is_refused_with_the_allowed_values(typed, says):
    assert lines(typed) == [says]


@pytest.mark.parametrize(
    "typed",
    ["epochs=2", "batch=8,16", "batch=range(1,4)", "target_loss=1e-3", "target_loss=null", "evaluate=false",
     "cache=cold,warm", "power_limit=MAXN", "machine.root=/tree", "sweep.sample=null"],
)  # fmt: skip
def test_a_value_of_the_right_type_needs_no_hint(typed):
    assert lines(typed) == []


@pytest.mark.parametrize(
    ("entry", "typed", "says"),
    [
        ("doctor", "device=orn_nx", "`device=orn_nx` does not exist. did you mean `device=orin_nx`? options: agx, "),
        ("doctor", "batch=8", "unknown key `batch`. keys: dataset, device, format, machine, meter, storage"),
        ("report", "swep=a", "unknown key `swep`. did you mean `sweep=`? keys: against, include, out, "),
        ("report", "report.etta=1", "unknown key `report.etta`. did you mean `report.eta=`? keys of report: "),
    ],
)
def test_each_command_has_its_own_keys(entry, typed, says):
    (line,) = lines(typed, entry=entry)
    assert line.startswith(says)


def test_a_report_accepts_any_study_name():
    assert lines("study=mine/of_old", entry="report") == []


def test_known_keys_are_those_of_the_schema():
    groups, keys = entry_keys("train")
    assert {*groups, *keys} == TOP_LEVEL_KEYS
    assert {*(entry.name for entry in fields(Schema)), "experiment", "data_source", "hydra"} == TOP_LEVEL_KEYS


def check(asked):
    check_types(asked.overrides, asked.choices, asked.job.to_dict())


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (["optimizer.lr=high"], r"`optimizer\.lr=high` is not valid\n  hint: give a number, such as 0\.01$"),
        (
            ["dataset=jpeg", "dataset.count=many"],
            r"`dataset\.count=many` is not valid\n  hint: give a number, such as 1000$",
        ),
    ],
)
def test_a_text_in_place_of_a_number_is_refused_with_the_default(order, typed, says):
    with pytest.raises(ValueError, match=says):
        check(order(*typed))


def test_values_of_the_right_type_are_accepted(order):
    check(order("optimizer.lr=1e-3", "dataset.size=32", "storage.root=/media/sd", "dataset.layout=memory"))


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (["model.name=resnet18"], "label of model=lenet\n  hint: use `model=resnet18`"),
        (["model=resnet18", "model.name=resnet34"], "use `model=torchvision model.name=resnet34`"),
        (["storage.name=ssd"], "`storage.name=ssd` .* label of storage=project\n  hint: use `storage=ssd`"),
        (["++optimizer.name=adam"], "label of optimizer=sgd\n  hint: use `optimizer=adam`"),
        (["device=cpu", "device.name=nano"], "label of device=cpu\n  hint: use `device=nano`"),
        (["dataset=jpeg", "dataset.name=pets"], "tensors, or add conf/dataset/pets.yaml"),
        (["model=resnet18", "model.architecture=resnet50"], "not change the name of model=resnet18\n  hint: use `"),
        (["model=torchvision", "model.architecture=resnet34"], "use `model=torchvision model.name=resnet34`"),
    ],
)  # fmt: skip
def test_an_override_of_a_name_that_would_mislabel_the_run_is_refused(order, typed, says):
    asked = order(*typed)
    with pytest.raises(ValueError, match=says):
        check_names(asked.overrides, asked.choices)


@pytest.mark.parametrize(
    "typed",
    [["model=torchvision", "model.name=resnet34"], ["model=lenet", "model.name=lenet"], ["model.activation=ReLU"]],
)
def test_a_name_that_an_option_uses_may_be_overridden(order, typed):
    asked = order(*typed)
    check_names(asked.overrides, asked.choices)
