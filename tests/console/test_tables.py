"""Titles of rows; tables are tested in test_console.py, as they are printed."""

from epochmeter.console import tables


def test_mean_row_has_the_range_of_its_epochs_and_flagged_epochs_their_flag():
    titles = {(1, 2, 3): "mean 2-4", (1,): "mean 2", (1, 3): "mean of 2", (): "mean"}
    assert {epochs: tables.mean_title(epochs) for epochs in titles} == titles
    flags = {(): "3", ("partial",): "3 (partial)", ("paused",): "3 (paused)", ("warmup",): "3 (warm-up)"}
    rows = {keys: {"epoch": 2, **dict.fromkeys(keys, True)} for keys in flags}
    assert {keys: tables.epoch_title(row, 1) for keys, row in rows.items()} == flags
