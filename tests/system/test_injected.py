"""Two of the faults of `make faults`, once each: nothing is lost, doubled, left turned or left running."""

import pytest
from faulty import FAULTS, Found, Scene, UnsuitedError, inject

pytestmark = pytest.mark.system


@pytest.mark.parametrize(("fault", "seed"), [("SIGKILL of the steward", 1), ("record's disk full", 2)])
def test_after_a_fault_the_same_command_completes_and_nothing_is_left_of_it(project, tmp_path, fault, seed):
    (tmp_path / "board").mkdir()
    try:
        found = inject(FAULTS[fault], Scene(project, tmp_path / "board", seed))
    except UnsuitedError as why:
        pytest.skip(str(why))
    assert found == Found(lost_epochs=0, doubled=0, unrestored=0, left=0, wrong="")
