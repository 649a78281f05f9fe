"""The kept event logs of hosts: their windows agree with the hosts' own counts, without running them."""

import pytest
from hosts.declared import HOSTS
from hosts.harness import LOGS, as_line, mismatches, replayed

KEPT = {host.id: host for host in HOSTS if (LOGS / f"{host.id}.jsonl").exists()}


@pytest.mark.parametrize("name", KEPT)
def test_windows_of_a_kept_log_agree_with_the_host_s_own_count(name):
    truth, windows = replayed(KEPT[name], LOGS / f"{name}.jsonl")
    lines = [as_line(window) for window in windows.windows]
    assert mismatches(KEPT[name], truth, lines, " ".join(windows.notes)) == []
