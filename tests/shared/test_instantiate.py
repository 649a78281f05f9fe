import pytest

from epochmeter.shared.instantiate import import_object, instantiate_spec, target_arguments


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


def test_spec_calls_its_target_with_its_keys():
    assert instantiate_spec({"_target_": "fractions.Fraction", "numerator": 3, "denominator": 4}) == 0.75


def test_name_is_not_an_argument():
    spec = {"_target_": f"{HERE}.Thing", "name": "thing", "size": 3}
    assert target_arguments(spec) == {"size": 3}
    assert instantiate_spec(spec).kwargs == {"size": 3}


def test_caller_arguments_have_precedence():
    built = instantiate_spec({"_target_": f"{HERE}.Thing", "size": 3, "depth": 1}, "first", size=4)
    assert built.args == ("first",)
    assert built.kwargs == {"size": 4, "depth": 1}


def test_spec_is_not_modified():
    spec = {"_target_": f"{HERE}.Thing", "name": "thing", "size": 3}
    instantiate_spec(spec, size=4)
    assert spec == {"_target_": f"{HERE}.Thing", "name": "thing", "size": 3}


def test_torch_optimizer_is_built_with_parameters():
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = instantiate_spec({"_target_": "torch.optim.SGD", "name": "sgd", "lr": 0.5}, [parameter])
    assert optimizer.param_groups[0]["params"] == [parameter]
    assert optimizer.defaults["lr"] == 0.5


@pytest.mark.parametrize(
    "path", ["no_such_module.Thing", f"{HERE}.NoSuchThing", "Thing", "", "fractions.Fraction.no_such_method", ".Thing"]
)
def test_missing_target_is_an_error(path):
    with pytest.raises(ValueError, match=r"Give the dotted path") as raised:
        import_object(path)
    assert repr(path) in str(raised.value)


def test_error_inside_a_target_is_unchanged():
    with pytest.raises(AttributeError, match="no such attribute within"):
        instantiate_spec({"_target_": f"{HERE}.Unbuildable"})


def test_unknown_key_is_rejected_with_the_parameters():
    with pytest.raises(ValueError, match=r"fractions\.Fraction .* 'upper'\. Its parameters: numerator, denominator"):
        instantiate_spec({"_target_": "fractions.Fraction", "upper": 3})


def test_type_error_inside_a_target_is_unchanged():
    with pytest.raises(TypeError, match="both arguments should be Rational"):
        instantiate_spec({"_target_": "fractions.Fraction", "numerator": 1, "denominator": "x"})


def test_target_without_signature_is_called():
    assert instantiate_spec({"_target_": "builtins.dict", "a": 1}) == {"a": 1}
