"""The table of runs as CSV, Markdown and HTML."""

import csv
import io
import json
import re
from dataclasses import replace

from sweeps import row, trained

from epochmeter.report.output import table

MARKUP = "<script>alert(1)</script>"


def columns_of(runs):
    columns, lines, _ = table.columns_and_rows(runs)
    return dict(zip(columns, map(list, zip(*lines, strict=True)), strict=True))


def test_csv_has_attributes_keys_metrics_and_host_and_no_formula():
    cells = {
        "=1+1": '"=1+1"', "@SUM(A1)": '"@SUM(A1)"', "\t=1": '"\\t=1"', "two\nlines": '"two\\nlines"', -5.5: "-5.5",
        "-5": '"-5"', "a = b": "a = b", None: "null", False: "false",
    }  # fmt: skip
    keys = {f"key{number}": value for number, value in enumerate(cells)}
    run = trained(3, 100.0, steady={"e2e_s": 12.5}, optimizer={"lr": 1e-3, "name": "sgd"}, **keys)
    table.write_csv(
        [replace(run, platform={"CPU": "Xeon, 8 cores"}), replace(run, job={})], file := io.StringIO(newline="")
    )
    line, other = csv.DictReader(io.StringIO(file.getvalue(), newline=""))
    assert [line[key] for key in keys] == [*cells.values()]
    assert {other[key] for key in keys} == {""}
    assert (line["run.number"], line["optimizer.lr"], line["steady/e2e_s"]) == ("3", "0.001", "12.5")
    places = {column: place for place, column in enumerate(line)}
    assert places["run.number"] == 0 < places["optimizer.lr"] < places["steady/e2e_s"] < places["host.CPU"]


def test_table_has_the_varied_keys_and_the_measured_metrics():
    runs = [trained(n, 100.0 + n, batch=batch, typed={"batch": str(batch), "model": "resnet152"})
            for n, batch in enumerate([8, 16])]  # fmt: skip
    columns, cells, _ = made = table.columns_and_rows(runs)
    assert columns == ["run", "batch", "time (s)", "compute (s)", "samples/s"]
    assert cells == [["0", "8", "10.00", "9.00", "100"], ["1", "16", "9.90", "8.91", "101"]]
    assert table.markdown(made).count("---:") == 4
    assert columns_of([*runs, trained(2, 102.0, batch=32)])["batch"][2] == "32", "as configured"
    assert table.varied([replace(runs[0], sweep=name) for name in "ab"]) == ["sweep"]


def test_costs_are_shown_in_one_currency_and_parts_of_the_time_with_its_decimals():
    for currencies, expected in ((["EUR", None], {"cost (EUR)": ["0.500", "-"]}), (["EUR", "USD"], {})):
        runs = [trained(n, 100.0, steady={"cost": 0.5} if own else {}, footprint={"currency": own})
                for n, own in enumerate(currencies)]  # fmt: skip
        assert {name: cells for name, cells in columns_of(runs).items() if name.startswith("cost")} == expected
    parts = {"data_stall_s": 0.0004, "copy_s": 0.1, "overhead_s": 0.0}
    runs = [trained(n, speed, steady=parts) for n, speed in enumerate((100.0, 240.0))]
    columns = columns_of([*runs, trained(2, 100.0)])
    assert (columns["time (s)"], columns["data stall (s)"]) == (["10.00", "4.17", "10.00"], ["0.00", "0.00", "-"])


def test_quality_is_that_of_the_last_evaluation_else_of_training():
    steady = {"train_loss": 0.5, "train_accuracy": 0.75}
    trained_only = trained(0, 100.0, steady=steady)
    evaluated = replace(run := trained(1, 100.0, steady=steady), metrics={**run.metrics, "val/accuracy": 0.625})
    names = ["train loss", "train acc (%)", "val loss", "val acc (%)"]
    shown = [{name: cells for name, cells in columns_of(runs).items() if name in names}
             for runs in ([trained_only], [evaluated], [trained_only, evaluated])]  # fmt: skip
    assert shown == [
        {"train loss": ["0.500"], "train acc (%)": ["75.0"]},
        {"train loss": ["0.500"], "val acc (%)": ["62.5"]},
        {"train loss": ["0.500"] * 2, "train acc (%)": ["75.0"] * 2, "val acc (%)": ["-", "62.5"]},
    ]


def test_a_metric_that_the_project_does_not_know_has_a_column_with_its_name_and_unit():
    own = {"steady/my_wait_s": 1.5, "std/my_wait_s": 0.1, "val/f1": 0.75, "steady/cache_fraction": 0.031}
    runs = [replace(run := trained(0, 100.0), metrics={**run.metrics, **own}), trained(1, 100.0)]
    columns = columns_of(runs)
    shown = {"cache (%)": ["3.10", "-"], "my wait (s)": ["1.50", "-"], "val f1": ["0.750", "-"]}
    assert {title: columns[title] for title in shown} == shown
    assert len(columns) == len(columns_of(runs[1:])) + len(shown)


def test_names_are_not_markup_in_html_and_only_web_addresses_are_links():
    links = ["https://mlflow.example/#/runs/a?b=1&c=2", unsafe := "javascript:alert(1)"]
    runs = [replace(row(n, "storage", 1.0, typed={f"<b>{MARKUP}": MARKUP + str(n)}), link=link)
            for n, link in enumerate(links)]  # fmt: skip
    page = table.html(runs, table.columns_and_rows(runs))
    assert MARKUP not in page
    options = json.loads(re.search(r'id="runs-options">(.*?)</script>', page)[1])
    shown = options["table_html"] + options["data_json"]
    assert shown.count("&lt;script&gt;alert(1)") >= 3
    assert MARKUP not in shown
    assert "runs/a?b=1&amp;c=2" in shown
    assert unsafe not in shown
    assert not re.search(r"https?://(?!mlflow\.example)[^\s\"']+\.js", page), "nothing is fetched"
