"""docs/metrics.md and the table of metrics agree; the metrics of real runs are checked in `tests/project.py`."""

import re
from pathlib import Path

from epochmeter.results.metrics import EPOCH, METRICS

ROOT = Path(__file__).parents[2]
RATES = {
    **dict.fromkeys(("samples_per_s", "images_per_s", "tokens_per_s", "read_iops"), "1/s"),
    **{f"intensity{part}_g_per_kwh": "g/kWh" for part in ("", "_min", "_max")},
    "flop_per_byte": "FLOP/B",
    "peak_flop_per_s": "FLOP/s",
    "datasheet_flop_per_s": "FLOP/s",
    **dict.fromkeys(("read_bytes_per_s", "peak_bytes_per_s"), "B/s"),
    **{f"gpu_{link}_{way}_bytes_per_s": "B/s" for link in ("pcie", "nvlink", "xgmi") for way in ("sent", "received")},
}
UNITS = {"s": "s", "j": "J", "w": "W", "bytes": "B", "js": "Js", "g": "g", "hz": "Hz", "c": "C"}
COMPOSED = re.compile(r"<|(stall|copy|compute|overhead)_energy_j|^memory/\w+_bytes|_bytes_per_sample|residency_")
"""Metrics whose names are composed of a domain, part, phase, kind of memory or count, or of `before` or `after`."""


def test_docs_explain_every_metric_with_its_unit_and_aggregation():
    page = (ROOT / "docs/metrics.md").read_text()
    lines = page.partition("| metric |")[2].splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| `")]
    assert {name.strip("`") for name, *_ in rows} == METRICS
    invalid = []
    for name, unit, aggregation, meaning in rows:
        section, _, short = name.strip("`").partition("/")
        suffix, rate = short.rpartition("_")[2], RATES.get(short)
        units = (rate,) if rate else (UNITS[suffix],) if suffix in UNITS else ("1", "0..1")
        expected = EPOCH[short] if section == "epoch" else ""
        if unit not in units or aggregation.strip() != expected or not meaning:
            invalid.append(name)
    assert invalid == []


def test_every_metric_is_written_somewhere():
    folder = ROOT / "src/epochmeter"
    paths = [path for path in folder.rglob("*.py") if path.name != "metrics.py"]
    others = [path for path in paths if path.relative_to(folder).parts[0] not in ("report", "tracking")]
    written = {word for path in others for word in re.findall(r"\w+", path.read_text())}
    shorts = {name.partition("/")[2] for name in METRICS if not COMPOSED.search(name)}
    assert shorts - written == set()
