import pytest

from epochmeter.shared.instantiate import arguments, build, locate


class Thing:
    def __init__(self, *args, **kwargs):
        self.args, self.kwargs = args, kwargs


class Unbuildable:
    def __init__(self):
        raise AttributeError("no such attribute within")


HERE = "thing_for_build"


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """This module's things under a name that imports."""
    import sys
    from types import SimpleNamespace

    monkeypatch.setitem(sys.modules, HERE, SimpleNamespace(Thing=Thing, Unbuildable=Unbuildable))


def test_a_specification_is_its_target_called_with_its_other_keys():
    assert build({"_target_": "fractions.Fraction", "numerator": 3, "denominator": 4}) == 0.75


def test_the_name_that_it_goes_by_is_no_argument():
    spec = {"_target_": f"{HERE}.Thing", "name": "thing", "size": 3}
    assert arguments(spec) == {"size": 3}
    assert build(spec).kwargs == {"size": 3}


def test_the_caller_adds_arguments_of_its_own_and_has_the_last_word():
    built = build({"_target_": f"{HERE}.Thing", "size": 3, "depth": 1}, "first", size=4)
    assert built.args == ("first",)
    assert built.kwargs == {"size": 4, "depth": 1}


def test_a_specification_is_left_as_it_was():
    spec = {"_target_": f"{HERE}.Thing", "name": "thing", "size": 3}
    build(spec, size=4)
    assert spec == {"_target_": f"{HERE}.Thing", "name": "thing", "size": 3}


def test_an_optimizer_of_torch_is_built_for_the_parameters():
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = build({"_target_": "torch.optim.SGD", "name": "sgd", "lr": 0.5}, [parameter])
    assert optimizer.param_groups[0]["params"] == [parameter]
    assert optimizer.defaults["lr"] == 0.5


@pytest.mark.parametrize(
    "path", ["no_such_module.Thing", f"{HERE}.NoSuchThing", "Thing", "", "fractions.Fraction.no_such_method", ".Thing"]
)
def test_a_target_that_is_not_there_says_what_was_asked_and_what_to_give(path):
    with pytest.raises(ValueError, match=r"Give the dotted path") as raised:
        locate(path)
    assert repr(path) in str(raised.value)


def test_an_error_within_the_target_is_the_targets_own():
    with pytest.raises(AttributeError, match="no such attribute within"):
        build({"_target_": f"{HERE}.Unbuildable"})


def test_a_key_that_a_target_does_not_take_is_refused_with_those_that_it_does():
    with pytest.raises(ValueError, match=r"fractions\.Fraction .* 'upper'\. Its parameters: numerator, denominator"):
        build({"_target_": "fractions.Fraction", "upper": 3})


def test_an_error_within_the_target_is_its_own():
    with pytest.raises(TypeError, match="both arguments should be Rational"):
        build({"_target_": "fractions.Fraction", "numerator": 1, "denominator": "x"})


def test_a_target_that_does_not_tell_what_it_takes_is_called():
    assert build({"_target_": "builtins.dict", "a": 1}) == {"a": 1}
