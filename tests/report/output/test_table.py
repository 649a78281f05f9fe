"""The table of runs as CSV, Markdown and HTML."""

import csv
import io
import json
import re
from dataclasses import replace

import pytest
from sweeps import row, trained

from epochmeter.report.output import table

MARKUP = "<script>alert(1)</script>"


def csv_rows(rows):
    table.write_csv(rows, file := io.StringIO(newline=""))
    return [*csv.DictReader(io.StringIO(file.getvalue(), newline=""))]


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=1+1", '"=1+1"'), ("@SUM(A1)", '"@SUM(A1)"'), ("\t=1", '"\\t=1"'), ("two\nlines", '"two\\nlines"'),
        (-5.5, "-5.5"), ("-5", '"-5"'), ("a = b", "a = b"), (None, "null"), (False, "false"),
    ],
)  # fmt: skip
def test_text_is_never_a_formula(value, cell):
    rows = [replace(row(0, "storage", 1.0), job={"key": value}), replace(row(1, "storage", 1.0), job={})]
    assert [line["key"] for line in csv_rows(rows)] == [cell, ""]


def test_columns_are_attributes_then_keys_then_metrics_then_the_host():
    run = trained(3, 100.0, steady={"e2e_s": 12.5}, optimizer={"lr": 1e-3, "name": "sgd"})
    (line,) = csv_rows([replace(run, platform={"CPU": "Xeon, 8 cores"})])
    places = {column: place for place, column in enumerate(line)}
    assert (line["run.number"], line["optimizer.lr"], line["steady/e2e_s"]) == ("3", "0.001", "12.5")
    assert places["run.number"] == 0 < places["optimizer.lr"] < places["steady/e2e_s"] < places["host.CPU"]


def test_table_has_the_varied_keys_and_the_measured_metrics():
    rows = [trained(n, 100.0 + n, batch=batch, typed={"batch": str(batch), "model": "resnet152"})
            for n, batch in enumerate([8, 16])]  # fmt: skip
    columns, cells, _ = table.columns_and_rows(rows)
    assert columns == ["run", "batch", "e2e (s)", "compute (s)", "samples/s"]
    assert cells == [["0", "8", "10.00", "9.00", "100"], ["1", "16", "9.90", "8.91", "101"]]
    assert table.columns_and_rows([*rows, trained(2, 102.0, batch=32)])[1][2][1] == "32", "as configured"
    assert table.varied([replace(rows[0], sweep=name) for name in "ab"]) == ["sweep"]


@pytest.mark.parametrize(("currencies", "cells"), [(["EUR", None], [["0.500", "-"]]), (["EUR", "USD"], [])])
def test_costs_are_shown_if_all_runs_have_the_same_currency(currencies, cells):
    runs = [trained(n, 100.0, steady={"cost": 0.5} if own else {}, footprint={"currency": own})
            for n, own in enumerate(currencies)]  # fmt: skip
    columns, lines, _ = made = table.columns_and_rows(runs)
    costs = [[line[place] for line in lines] for place, name in enumerate(columns) if name.startswith("cost")]
    assert costs == cells
    assert table.markdown(made).count("---:") == len(columns)


def test_parts_of_the_time_have_the_decimals_of_the_time():
    parts = {"data_stall_s": 0.0004, "copy_s": 0.1, "overhead_s": 0.0}
    rows = [trained(n, speed, steady=parts) for n, speed in enumerate((100.0, 240.0))]
    columns, lines, _ = table.columns_and_rows([*rows, trained(2, 100.0)])
    cells = [dict(zip(columns, line, strict=True)) for line in lines]
    assert [line["e2e (s)"] for line in cells] == ["10.00", "4.17", "10.00"]
    assert [line["stall (s)"] for line in cells] == ["0.00", "0.00", "-"]


def test_names_are_not_markup_in_html_and_only_web_addresses_are_links():
    safe, unsafe = "https://mlflow.example/#/runs/a?b=1&c=2", "javascript:alert(1)"
    rows = [
        replace(row(number, "storage", 1.0, typed={f"<b>{MARKUP}": MARKUP + str(number)}), link=link)
        for number, link in enumerate([safe, unsafe])
    ]
    page = table.html(rows, table.columns_and_rows(rows))
    assert MARKUP not in page
    options = json.loads(re.search(r'id="runs-options">(.*?)</script>', page)[1])
    shown = options["table_html"] + options["data_json"]
    assert shown.count("&lt;script&gt;alert(1)") >= 3
    assert MARKUP not in shown
    assert "runs/a?b=1&amp;c=2" in shown
    assert unsafe not in shown
    assert not re.search(r"https?://(?!mlflow\.example)[^\s\"']+\.js", page), "nothing is fetched"
