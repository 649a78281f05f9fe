import sys
from types import SimpleNamespace

import pytest

from epochmeter.shared.instantiate import import_object, instantiate_spec, target_arguments


class Thing:
    def __init__(self, *args, **kwargs):
        self.args, self.kwargs = args, kwargs


HERE = "module_of_targets"


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Make this module's classes importable."""
    monkeypatch.setitem(sys.modules, HERE, SimpleNamespace(Thing=Thing))


def test_spec_calls_its_target_with_its_keys_but_the_name():
    spec = {"_target_": f"{HERE}.Thing", "name": "thing", "size": 3, "depth": 1}
    before = dict(spec)
    assert target_arguments(spec) == {"size": 3, "depth": 1}
    thing = instantiate_spec(spec, "first", size=4)  # the caller's arguments have precedence
    assert (thing.args, thing.kwargs) == (("first",), {"size": 4, "depth": 1})
    assert spec == before


@pytest.mark.parametrize(
    "path", ["no_such_module.Thing", f"{HERE}.NoSuchThing", "Thing", "", "fractions.Fraction.no_such_method", ".Thing"]
)
def test_missing_target_is_an_error(path):
    with pytest.raises(ValueError, match=r"Give the dotted path") as raised:
        import_object(path)
    assert repr(path) in str(raised.value)


def test_unknown_key_is_rejected_with_the_parameters():
    with pytest.raises(ValueError, match=r"fractions\.Fraction .* 'upper'\. Its parameters: numerator, denominator"):
        instantiate_spec({"_target_": "fractions.Fraction", "upper": 3})


def test_type_error_inside_a_target_is_unchanged():
    with pytest.raises(TypeError, match="both arguments should be Rational"):
        instantiate_spec({"_target_": "fractions.Fraction", "numerator": 1, "denominator": "x"})
