from fractions import Fraction

import pytest

from epochmeter.shared.instantiate import import_object, instantiate_spec, target_arguments


def test_spec_calls_its_target_with_its_keys_but_the_name_and_the_callers_arguments_have_precedence():
    spec = {"_target_": "fractions.Fraction", "name": "three quarters", "denominator": 4}
    before = dict(spec)
    assert target_arguments(spec) == {"denominator": 4}
    assert instantiate_spec(spec, 3) == Fraction(3, 4)
    assert instantiate_spec(spec, 3, denominator=5) == Fraction(3, 5)
    assert spec == before


@pytest.mark.parametrize(
    "path",
    ["no_such_module.Thing", "fractions.NoSuchThing", "Thing", "", "fractions.Fraction.no_such_method", ".Thing"],
)
def test_missing_target_is_an_error(path):
    with pytest.raises(ValueError, match=r"Give the dotted path") as raised:
        import_object(path)
    assert repr(path) in str(raised.value)


def test_unknown_key_is_rejected_with_the_parameters_and_a_type_error_inside_a_target_is_unchanged():
    with pytest.raises(ValueError, match=r"fractions\.Fraction .* 'upper'\. Its parameters: numerator, denominator"):
        instantiate_spec({"_target_": "fractions.Fraction", "upper": 3})
    with pytest.raises(TypeError, match="both arguments should be Rational"):
        instantiate_spec({"_target_": "fractions.Fraction", "numerator": 1, "denominator": "x"})
