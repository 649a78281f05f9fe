"""Each host, bare and measured: the same output, exit code and weights, and a record that agrees with its own count."""

import pytest
from hosts.declared import HOSTS
from hosts.harness import Host, differences, mismatches, run_bare, run_measured

pytestmark = pytest.mark.hosts
ATTEMPTS = 3  # a busy machine may delay one of the two clocks


def named(hosts: list[Host]) -> dict[str, Host]:
    return {host.id: host for host in hosts}


@pytest.mark.parametrize("name", named(HOSTS))
def test_host_is_not_changed_and_the_record_agrees_with_its_own_count(name, sources, tmp_path):
    check(named(HOSTS)[name], sources, tmp_path)


@pytest.mark.system
@pytest.mark.parametrize("name", named([host for host in HOSTS if host.is_quick]))
def test_quick_host_is_not_changed_and_the_record_agrees_with_its_own_count(name, sources, tmp_path):
    check(named(HOSTS)[name], sources, tmp_path)


def check(host, sources, folder):
    if host.missing:
        pytest.skip(f"no module {', '.join(host.missing)}")
    bare = run_bare(host, folder / "bare")
    for attempt in range(ATTEMPTS):
        measured, record = run_measured(host, folder / f"measured{attempt}", sources)
        assert differences(bare, measured) == [], measured.of_command
        assert "Traceback" not in measured.of_command
        summary = record.summary()
        notes = " ".join([*summary["notes"], str(summary["failure"])])
        assert host.failure in notes
        wrong = mismatches(host, measured.truth, record.windows(), notes)
        if not wrong:
            return
    pytest.fail("\n".join(wrong))
