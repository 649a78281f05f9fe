"""The wrong versions of the code that `make mutants` tries."""

import mutants
from project import ROOT


def test_each_mutant_changes_one_place_and_has_tests():
    assert len(mutants.MUTANTS) >= 40
    wrong = []
    for number, mutant in enumerate(mutants.MUTANTS, 1):
        path = ROOT / "src/epochmeter" / mutant.file
        count = path.read_text().count(mutant.old) if path.exists() else 0
        missing = [test for test in mutant.tests if not (ROOT / "tests" / test).exists()]
        wrong += [(number, mutant.file, count, missing)] if count != 1 or missing else []
    assert wrong == []
