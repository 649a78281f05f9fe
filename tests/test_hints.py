"""What is said of an override that names nothing there is, or that gives a text where a number stands."""

import pytest

from trainmeter.hints import check_numbers, hints


@pytest.mark.parametrize(
    ("typed", "near"),
    [("bathc=8", "batch"), ("modle=lenet", "model"), ("powerlimit=5", "power_limit"), ("machin.root=/", "machine")],
)
def test_a_key_that_is_not_there_is_told_with_the_nearest_that_is(typed, near):
    name = typed.partition("=")[0].partition(".")[0]
    assert hints([typed]).startswith(f"There is no key {name}. Did you mean {near}=? The keys are: batch, cache,")


def test_a_key_unlike_all_others_is_told_without_a_guess():
    assert hints(["xyzzy=1"]).startswith("There is no key xyzzy. The keys are: ")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("device=nanoo", "device=nano"), ("experiment=tbd/polynom", "experiment=tbd/polynomial"),
     ("model=lenet,resnt18", "model=resnet18")],
)  # fmt: skip
def test_a_choice_that_is_not_there_is_told_with_the_nearest_that_is(typed, meant):
    assert hints([typed]).endswith(f". Did you mean {meant}?\n")
    assert hints([typed]).count("\n") == 1


def test_keys_groups_flags_and_what_is_hydras_own_need_no_hint():
    typed = ["batch=8", "device=nano", "experiment=smoke", "hydra.verbose=true", "+new=1", "-m", "--cfg", "job"]
    assert hints(typed) == ""


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
    assert hints([typed]).startswith(says)
    assert hints([typed]).count("\n") == 1


@pytest.mark.parametrize("typed", ["optimizer.lr=0.1", "device.rails.total=a", "hydra.run.dir=x", "sweep.again=true"])
def test_keys_below_another_that_are_there_need_no_hint(typed):
    assert hints([typed]) == ""


def check(asked):
    check_numbers(asked.overrides, asked.choices, asked.job)


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (["optimizer.lr=high"], r"optimizer\.lr=high: give a number, as 0\.01 is\."),
        (["dataset=jpeg", "dataset.count=many"], r"dataset\.count=many: give a number, as 1000 is\."),
    ],
)
def test_a_text_in_place_of_a_number_is_refused_with_the_number_that_stands_there(order, typed, says):
    with pytest.raises(ValueError, match=says):
        check(order(*typed))


def test_numbers_and_what_may_be_a_text_are_taken(order):
    check(order("optimizer.lr=1e-3", "dataset.size=32", "storage.root=/media/sd", "dataset.layout=memory"))
