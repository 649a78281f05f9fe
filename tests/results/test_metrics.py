"""docs/metrics.md and the table of metrics agree; the metrics of real runs are checked in `tests/project.py`."""

import re
from pathlib import Path

from cases import case, cases
from golden import assert_text

from epochmeter.results.metric_table import TABLE
from epochmeter.results.metrics import METRICS, SECTIONS, find, is_known

ROOT = Path(__file__).parents[2]
RATES = {
    **dict.fromkeys(("samples_per_s", "images_per_s", "tokens_per_s", "read_iops"), "1/s"),
    **{f"intensity{part}_g_per_kwh": "g/kWh" for part in ("", "_min", "_max")},
    "flop_per_byte": "FLOP/B",
    "peak_flop_per_s": "FLOP/s",
    "datasheet_flop_per_s": "FLOP/s",
    **dict.fromkeys(("read_bytes_per_s", "peak_bytes_per_s"), "B/s"),
    **{f"gpu_{link}_{way}_bytes_per_s": "B/s" for link in ("pcie", "nvlink", "xgmi") for way in ("sent", "received")},
    **{f"{flow}_bytes_per_s": "B/s" for flow in ("disk_read", "disk_written", "network_received", "network_sent")},
    **dict.fromkeys(("disk_reads_per_s", "disk_writes_per_s"), "requests/s"),
    "disk_queue_requests": "requests",
}
UNITS = {"s": "s", "j": "J", "w": "W", "bytes": "B", "js": "Js", "g": "g", "hz": "Hz", "c": "C"}
WINDOWS = ("epoch", "rank_max", "val")
COMPOSED = re.compile(
    r"<|(stall|copy|compute|overhead|preparation|forward|loss|backward|optimizer)_energy_j|^memory/\w+_bytes"
    r"|_bytes_per_sample|residency_|step_p\d|stall_fraction"
)
"""Metrics whose names are composed of a domain, part, phase, kind of memory or count, or of `before` or `after`; and
percentiles, whose names are read from the table."""


def test_every_metric_has_the_unit_of_its_name_and_the_rules_of_its_section():
    invalid = []
    for row in TABLE:
        section, _, short = row.name.partition("/")
        suffix, rate = short.rpartition("_")[2], RATES.get(short)
        units = (rate,) if rate else (UNITS[suffix],) if suffix in UNITS else ("1", "0..1")
        units = ("currency",) if short.startswith("cost") else units
        is_valid = row.unit in units and row.meaning and bool(row.epochs) == (section == "epoch")
        invalid += [] if is_valid else [row.name]
    assert invalid == []
    assert len(METRICS) == sum(len(row.names) for row in TABLE), "each name is in one row"
    assert {row.steps for row in TABLE} == {"", "sum", "mean", "p50", "p95", "p99"}


def test_docs_have_the_rows_of_the_table():
    """UPDATE_GOLDEN=1 writes them."""
    path = ROOT / "docs/metrics.md"
    assert_text(path, with_rows(path.read_text()))


def with_rows(page):
    """Return docs/metrics.md with the rows of the table."""
    columns = {
        "unit": "unit",
        "steps": "over steps",
        "epochs": "over epochs",
        "ranks": "over ranks",
        "better": "better",
    }
    others = [row for row in TABLE if row.section not in (*WINDOWS, *SECTIONS.values())]
    groups = {
        "Metrics of windows": [row for row in TABLE if row.section in WINDOWS],
        "Metrics of runs and curves": others,
        "Time series of the gauges": [row for row in TABLE if row.section in SECTIONS.values()],
    }
    for heading, group in groups.items():
        used = [name for name in columns if any(getattr(row, name) for row in group)]
        head = ["metric", *(columns[name] for name in used), "meaning"]
        rows = [
            [", ".join(f"`{name}`" for name in row.names), *(getattr(row, name) for name in used), row.meaning]
            for row in group
        ]
        lines = "".join(f"| {' | '.join(cells)} |\n" for cells in (head, ["---"] * len(head), *rows))
        before, title, after = page.partition(f"## {heading}\n")
        intro, _, rest = after.partition("| metric |")
        page = f"{before}{title}{intro}{lines}\n{rest.partition(chr(10) * 2)[2]}"
    return page


@cases(
    case(name="epoch/e2e_s", title="time per epoch", short="time", unit="s", symbol="s", is_listed=True),
    case(name="steady/e2e_s", title="time per epoch", short="time", unit="s", symbol="s", is_listed=True),
    case(name="val/e2e_s", title="time", short="time", unit="s", symbol="s", is_listed=True),
    case(name="load data/energy_j", title="energy", short="energy", unit="J", symbol="J", is_listed=True),
    case(name="std/energy_cpu0_j", title="energy cpu0", short="energy cpu0", unit="J", symbol="J", is_listed=True),
    case(name="rank_max/copy_s", title="copy", short="copy", unit="s", symbol="s", is_listed=True),
    case(
        name="steady/samples_per_s", title="throughput", short="samples", unit="1/s", symbol="samples/s", is_listed=True
    ),
    case(name="steady/mfu", title="MFU", short="MFU", unit="0..1", symbol="%", is_listed=True),
    case(
        name="trace/idle_data_fraction", title="idle data", short="idle data", unit="0..1", symbol="%", is_listed=True
    ),
    case(name="steady/read_iops", title="read iops", short="read iops", unit="1/s", symbol="/s", is_listed=True),
    case(
        name="throughput/samples_per_s",
        title="throughput",
        short="throughput",
        unit="1/s",
        symbol="samples/s",
        is_listed=True,
    ),
    case(name="system/cpu_utilization", title="CPU utilization", short="cpu", unit="0..1", symbol="%", is_listed=True),
    case(
        name="system/cpu12_utilization",
        title="utilization per core",
        short="cpu12",
        unit="0..1",
        symbol="%",
        is_listed=True,
    ),
    case(name="system/gpu0_2_clock_hz", title="GPU clock", short="gpu0 2", unit="Hz", symbol="Hz", is_listed=True),
    case(
        name="system/CPU_therm_temperature_c",
        title="temperature",
        short="CPU therm",
        unit="C",
        symbol="°C",
        is_listed=True,
    ),
    case(
        name="system/disk_queue_requests",
        title="disk queue",
        short="disk",
        unit="requests",
        symbol="requests",
        is_listed=True,
    ),
    case(name="power/total_w", title="power", short="total", unit="W", symbol="W", is_listed=True),
    case(name="power/VDD_IN_w", title="power", short="VDD IN", unit="W", symbol="W", is_listed=True),
    case(name="system/npu0_utilization", title="npu0", short="npu0", unit="0..1", symbol="%", is_listed=False),
    case(name="total/cost", title="cost of the run", short="cost of run", unit="currency", symbol="", is_listed=True),
    # A metric of a user, or of another version, has what its name states.
    case(name="steady/my_wait_s", title="my wait", short="my wait", unit="s", symbol="s", is_listed=False),
    case(name="val/f1", title="val f1", short="val f1", unit="1", symbol="", is_listed=False),
    case(
        name="epoch/cache_read_bytes_per_s",
        title="cache read",
        short="cache read",
        unit="B/s",
        symbol="B/s",
        is_listed=False,
    ),
    case(name="strange", title="strange", short="strange", unit="1", symbol="", is_listed=False),
    case(name="", title="", short="", unit="1", symbol="", is_listed=False),
)
def test_a_metric_is_found_by_its_name(name, title, short, unit, symbol, is_listed):
    found = find(name)
    assert (found.name, found.title, found.short, found.unit, found.symbol) == (name, title, short, unit, symbol)
    assert is_known(name) == is_listed


def test_every_metric_is_written_somewhere():
    folder = ROOT / "src/epochmeter"
    paths = [path for path in folder.rglob("*.py") if path.name != "metric_table.py"]
    others = [path for path in paths if path.relative_to(folder).parts[0] not in ("report", "tracking")]
    written = {word for path in others for word in re.findall(r"\w+", path.read_text())}
    shorts = {name.partition("/")[2] for name in METRICS if not COMPOSED.search(name)}
    assert shorts - written == set()
