"""Two of the faults of `make faults`, once each."""

import pytest
from fault_injection import FAULTS, Damage, Scene, UnsuitedError, inject

pytestmark = pytest.mark.system


@pytest.mark.parametrize(("fault", "seed"), [("SIGKILL of the controller", 1), ("record's disk full", 2)])
def test_run_is_completed_by_the_same_command_after_a_fault(project, tmp_path, fault, seed):
    (tmp_path / "board").mkdir()
    try:
        damage = inject(FAULTS[fault], Scene(project, tmp_path / "board", seed))
    except UnsuitedError as reason:
        pytest.skip(str(reason))
    assert damage == Damage(lost_epochs=0, doubled=0, unrestored=0, processes=0, error="")
