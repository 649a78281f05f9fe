"""Files with the tables of benchmarks."""

import importlib
import math
import runpy
import sys
from types import SimpleNamespace

import pytest
from project import ROOT

CONDITIONS = "2026-11-28, commit 1234567, 2 cores"
TABLE = "| a | b |\n|---|---|\n| 1 | 2 |"
SECTIONS = f"""# Results of accuracy/energy.py

## Cost

2026-11-22, commit cde4097

Definition of a.

- *b*: a percentage.

| a | b |
| --- | --- |
| 8 | 9 |

A remark on 8 and 9.

## Cost of sampling

{CONDITIONS}

{TABLE}
"""


@pytest.fixture
def load(monkeypatch, tmp_path):
    """A function of options that loads the module in a program in `tmp_path`."""

    def loaded(*options):
        monkeypatch.setattr(sys, "argv", [str(tmp_path / "energy.py"), *options])
        return SimpleNamespace(**runpy.run_path(str(ROOT / "benchmarks/common/output.py")))

    return loaded


def test_table_replaces_the_earlier_one_but_not_definitions_and_other_sections(load, tmp_path):
    file, output = tmp_path / "energy.md", load()
    file.write_text(SECTIONS)
    replaced = SECTIONS.replace("2026-11-22, commit cde4097", CONDITIONS)
    replaced = replaced.replace("| a | b |\n| --- | --- |\n| 8 | 9 |\n\nA remark on 8 and 9.", TABLE)
    for _ in range(2):
        output.write_table(file, "Cost", CONDITIONS, TABLE)
        assert file.read_text() == replaced


def test_new_table_follows_the_earlier_ones(load, tmp_path):
    file, output = tmp_path / "accuracy" / "energy.md", load()
    file.parent.mkdir()
    for title in ("Cost of sampling", "Cost"):
        output.write_table(file, title, CONDITIONS, TABLE)
    section = f"{CONDITIONS}\n\n{TABLE}\n"
    assert (
        file.read_text() == f"# Results of accuracy/energy.py\n\n## Cost of sampling\n\n{section}\n## Cost\n\n{section}"
    )


@pytest.mark.parametrize(
    ("options", "mark", "written"),
    [("3000", "20", []), ("--write 3000", "20", ["energy.md"]), ("--short --write 3000", "SHORT RUN", [])],
)
def test_table_is_written_beside_the_program_if_asked_and_not_of_a_short_run(
    load, tmp_path, capsys, options, mark, written
):
    load(*options.split()).print_table("Cost in %", ["a", "b"], [["1", "2"]])
    printed = capsys.readouterr().out
    assert printed.startswith(f"\n**Cost in %** ({mark}")
    assert printed.endswith("\n| 1 | 2 |\n")
    assert [path.name for path in tmp_path.iterdir()] == written
    if written:
        _, _, title, _, conditions, *table = (tmp_path / "energy.md").read_text().splitlines()
        assert printed == "\n".join(["", f"**{title[3:]}** ({conditions})", *table, ""])
        assert "arguments 3000" in conditions


def test_options_are_no_arguments_of_the_program(load):
    assert load("--write", "3000", "--short").ARGUMENTS == ["3000"]


@pytest.mark.parametrize(("count", "interval"), [(1, (math.nan, math.nan)), (5, (math.nan, math.nan)), (6, (0.0, 5.0))])
def test_median_of_few_values_as_of_a_short_run_has_no_interval(monkeypatch, count, interval):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    pairs = importlib.import_module("common.pairs")
    found = pairs.median([float(value) for value in range(count)])
    assert (found.low, found.high) == pytest.approx(interval, nan_ok=True)
    assert (found.median, found.pairs) == ((count - 1) / 2, count)


def test_short_ratio_is_of_one_pair(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    pairs = importlib.import_module("common.pairs")
    monkeypatch.setattr(pairs, "sized", lambda full, short: short)
    assert pairs.ratio(lambda: 3.0, lambda: 2.0, within=0.01, most=50).cells()[0] == "1.5000"
