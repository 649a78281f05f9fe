"""The values for Prometheus follow the grammar of OpenMetrics 1.0 and equal the record's."""

import json
import re
from pathlib import Path

import live
import pytest

from epochmeter.watch.openmetrics import FAMILIES, OF_GAUGES, OF_RUNS, PREFIX, SUFFIXES, to_openmetrics
from epochmeter.watch.watcher import Watcher

SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (\S+)')
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
DASHBOARD = Path(__file__).parents[2] / "docs/grafana.json"


def parse(text):
    """Return (metric, labels) -> value; refuse whatever the format does not allow."""
    assert text.endswith("# EOF\n")
    samples, families = {}, {}
    for block in re.split("^# TYPE ", text.removesuffix("# EOF\n"), flags=re.MULTILINE)[1:]:
        (head, meaning, *lines), family = block.splitlines(), block.split()[0]
        assert family not in families, "a family is one block"
        families[family] = SUFFIXES.get(head.removeprefix(f"{family} "), "")
        assert meaning.startswith(f"# HELP {family} ")
        if lines[0].startswith("# UNIT "):
            unit = lines.pop(0).removeprefix(f"# UNIT {family} ")
            assert family.endswith(f"_{unit}")
        for line in lines:
            name, labels, value = SAMPLE.fullmatch(line).groups()
            assert name == family + families[family]
            key = (name.removeprefix(PREFIX), tuple(LABEL.findall(labels or "")))
            assert key not in samples
            samples[key] = float(value)
    return samples


@pytest.fixture
def record(tmp_path):
    record = live.start(tmp_path / "0", name='say "hi"\\\n# EOF')
    for epoch in range(2):
        live.append_epoch(record, epoch)
    return record


def test_parts_of_the_run_so_far_add_up_to_its_time(record):
    started_ns = record.run()["clock"]["monotonic_ns"]
    record.describe(record.job(), {**record.run(), "moments": {"command_ns": started_ns - 10**9}})
    view = Watcher(record.folder).read()
    samples = parse(to_openmetrics(view))
    parts = {labels[1][1]: value for (name, labels), value in samples.items() if name == "run_part_seconds"}
    assert parts["training"] > 0
    account = view.active[0].account
    assert sum(parts.values()) == pytest.approx(account["run/wall_s"] - account["run/residual_s"])


def test_values_equal_the_record(record):
    record.append_progress({"epoch": 2, "steps": 7, "epoch_steps": 100, "parts": {"compute_s": 1.5, "copy_s": 0.0}})
    samples = parse(to_openmetrics(Watcher(record.folder).read()))
    own = ("run", "0")
    expected = {
        ("bottleneck_ratio", "part", "compute"): 0.7,
        ("current_epoch_part_seconds", "part", "compute"): 1.5,
        ("epoch_part_ratio", "part", "compute"): 0.7,
        ("power_watts", "source", "total"): 49.0,
        ("latency_seconds", "source", "disk_read"): 0.002,
        ("temperature_celsius", "source", "coretemp"): 59.0,
        ("run_state", f"{PREFIX}run_state", "training"): 1.0,
    }
    assert {key: samples[key[0], (own, key[1:])] for key in expected} == expected
    assert (samples["current_epoch_steps", (own,)], samples["energy_joules_total", (own,)]) == (7, 800.0)
    assert ("current_epoch_part_seconds", (own, ("part", "overhead"))) not in samples
    (info,) = (dict(labels) for name, labels in samples if name == "run_info")
    assert info["name"] == r"say \"hi\"\\\n# EOF"


def test_validity_of_the_energy_and_its_codes_are_values(record):
    own = ("run", "0")
    samples = parse(to_openmetrics(Watcher(record.folder).read()))
    assert samples["energy_valid", (own,)] == 1
    assert not [name for name, _ in samples if name == "energy_reason"]
    reason = {"code": "counters_disagree", "text": "gpu0_sampled measured 9 J"}
    live.append_epoch(record, 2, keys={"energy_valid": False, "energy_reasons": [reason]})
    samples = parse(to_openmetrics(Watcher(record.folder).read()))
    assert (samples["energy_valid", (own,)], samples["energy_reason", (own, ("code", "counters_disagree"))]) == (0, 1)


def test_an_ended_run_has_no_gauges_and_what_is_not_measured_is_absent(record):
    metrics = {"steady/e2e_s": 10.0}
    record.write_summary({"state": "completed", "metrics": metrics, "notes": [], "failure": None}, "1d")
    names = {name for name, _ in parse(to_openmetrics(Watcher(record.folder).read()))}
    assert names == {"run_info", "run_state", "progress_ratio", "epochs_total", "steps_total", "epoch_seconds"}


def test_families_of_metrics_have_their_meaning_and_unit():
    units = {
        "s": "seconds", "J": "joules", "W": "watts", "0..1": "ratio", "Hz": "hertz", "C": "celsius", "B": "bytes",
        "B/s": "bytes_per_second", "requests/s": "requests_per_second", "requests": "queue_requests",
    }  # fmt: skip
    for row in (*OF_RUNS, *OF_GAUGES):
        assert f"_{row.openmetrics}".endswith(f"_{units[row.unit]}")
        assert row.meaning.partition("(")[0].partition("[")[0].strip() in FAMILIES[row.openmetrics][1]
        assert "](" not in FAMILIES[row.openmetrics][1]
    assert (len(OF_RUNS), len(OF_GAUGES)) == (6, 19)


def test_the_dashboard_asks_for_existing_metrics():
    text = json.dumps(json.loads(DASHBOARD.read_text()))
    names = {PREFIX + name + SUFFIXES.get(kind, "") for name, (kind, _) in FAMILIES.items()}
    used = set(re.findall(rf"{PREFIX}\w+", text))
    assert used
    assert used <= names
