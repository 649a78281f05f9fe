from fractions import Fraction

import pytest

from epochmeter.shared.instantiate import import_object, instantiate_spec


def test_spec_calls_its_target_and_the_caller_s_arguments_have_precedence():
    spec = {"_target_": "fractions.Fraction", "name": "three quarters", "denominator": 4}
    assert [instantiate_spec(spec, 3), instantiate_spec(spec, 3, denominator=5)] == [Fraction(3, 4), Fraction(3, 5)]
    assert spec == {"_target_": "fractions.Fraction", "name": "three quarters", "denominator": 4}


def test_missing_target_and_unknown_key_are_rejected_and_own_errors_unchanged():
    for path in ("no_such_module.Thing", "fractions.NoSuchThing", "Thing", "", "fractions.Fraction.no_such", ".Thing"):
        with pytest.raises(ValueError, match=r"hint: give the dotted path") as raised:
            import_object(path)
        assert repr(path) in str(raised.value)
    with pytest.raises(
        ValueError, match=r"fractions\.Fraction .* 'upper'\n  hint: its parameters are numerator, denominator"
    ):
        instantiate_spec({"_target_": "fractions.Fraction", "upper": 3})
    with pytest.raises(TypeError, match="both arguments should be Rational"):
        instantiate_spec({"_target_": "fractions.Fraction", "numerator": 1, "denominator": "x"})
