"""The simulation of torch's DataLoader, which is the truth of other tests."""

from __future__ import annotations

import pytest
from pipeline import simulate


def test_simulated_loader_waits_for_the_first_batch_and_hides_the_others():
    stalled_s, epoch_s = simulate([0.1] * 4, [0.2] * 4, workers=1, prefetch=2)
    assert stalled_s == pytest.approx(0.1)
    assert epoch_s == pytest.approx(0.9)
    assert simulate([0.1] * 4, [0.2] * 4, workers=0, prefetch=2)[0] == pytest.approx(0.4)
