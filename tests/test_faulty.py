"""What counts as lost after a fault."""

import pytest
from faulty import Measured

from trainmeter.record import Record


@pytest.fixture
def after(tmp_path):
    """after(record_id, resumed=epoch) -> the record that the second command has left."""

    def left(record_id, **resumed):
        record = Record(tmp_path)
        record.describe({}, {"record_id": record_id, "resumed": [{"epoch": epoch} for epoch in resumed.values()]})
        return record

    return left


@pytest.mark.parametrize("epochs", [5, 12])
def test_of_a_run_begun_anew_all_is_lost_but_the_epoch_in_flight(after, epochs):
    assert Measured("first", epochs, was_whole=False).lost(after("second")) == epochs - 1


def test_what_a_checkpoint_keeps_is_not_lost(after):
    first = Measured("first", 5, was_whole=False)
    assert first.lost(after("first", resumed=5)) == 0
    assert first.lost(after("first", resumed=4)) == 0, "which was in flight"
    assert first.lost(after("first", resumed=2)) == 2


def test_a_whole_run_is_to_be_left_alone(after):
    whole = Measured("first", 12, was_whole=True)
    assert whole.lost(after("first")) == 0
    assert whole.lost(after("second")) == 12
