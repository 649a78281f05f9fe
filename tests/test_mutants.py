"""The wrong versions of the code that `make mutants` tries."""

from importlib.util import module_from_spec, spec_from_file_location

from project import ROOT

spec = spec_from_file_location("mutants", ROOT / "benchmarks/mutants.py")
mutants = module_from_spec(spec)
spec.loader.exec_module(mutants)


def test_each_mutant_changes_one_place_and_has_tests():
    assert len(mutants.MUTANTS) >= 40
    wrong = []
    for number, mutant in enumerate(mutants.MUTANTS, 1):
        path = ROOT / "src/epochmeter" / mutant.file
        count = path.read_text().count(mutant.old) if path.exists() else 0
        missing = [test for test in mutant.tests if not (ROOT / "tests" / test).exists()]
        wrong += [(number, mutant.file, count, missing)] if count != 1 or missing else []
    assert wrong == []
