"""Tables in narrow terminals."""

from epochmeter.console.stacked import stack
from epochmeter.console.tables import PERCENT_ROW, ResultTable

METRICS = ["epoch/e2e_s", "epoch/data_stall_s", "epoch/energy_j"]


def test_rows_are_paragraphs_whose_lines_fit_and_keep_numbers_with_their_titles():
    table = ResultTable(["run", "batch", "state"], METRICS)
    table.add_row("0", "8", "[green]completed[/]", "12.346", "3.211", "1234.5")
    table.add_row("mean", "", "failed", "1.000", "-", "")
    table.add_row(PERCENT_ROW, "", "", "100", "26", "")
    assert stack(table, 40) == [
        "run 0",
        "  batch 8, state completed,",
        "  time 12.346 s, data stall 3.211 s,",
        "  energy 1234.5 J",
        "mean",
        "  state failed, time 1.000 s",
    ]


def test_cell_that_is_wider_than_the_terminal_is_not_cut():
    table = ResultTable(["run", "name"], [])
    table.add_row("0", "x" * 50)
    assert stack(table, 20) == ["run 0", f"  name {'x' * 50}"]
