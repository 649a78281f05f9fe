"""One of the faults of `make faults`."""

import pytest
from fault_injection import FAULTS, Damage, Scene, inject

pytestmark = pytest.mark.system


def test_run_is_completed_by_the_same_command_after_a_fault(project, tmp_path):
    (tmp_path / "board").mkdir()
    damage = inject(FAULTS["SIGKILL of the controller"], Scene(project, tmp_path / "board", seed=1))
    assert damage == Damage(lost_epochs=0, doubled=0, unrestored=0, processes=0, error="")
