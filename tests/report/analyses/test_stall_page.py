"""The page of stall analyses: the answer first, three digits, eighty columns."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console
from sweeps import row, rows, write

from epochmeter.report.analyses.stall_page import answer, best, grids, incomplete, sentences
from epochmeter.report.analyses.stalls import analyses
from epochmeter.report.output.print import print_analyses
from epochmeter.report.words import plain_values

T1, T3, T2 = [1.5, 1.6, 1.7], [3.7, 3.8, 3.9], [9.0, 9.1, 9.2]


def one(found):
    (analysis,) = analyses(found)
    return analysis


def spread(mean):
    return [mean - 0.01, mean, mean + 0.01]


def printed(folder):
    paper = io.StringIO()
    print_analyses(folder, Console(file=paper, width=80, force_terminal=True, color_system=None, highlight=False))
    return paper.getvalue()


def sweep(folder, found):
    for each in found:
        write(folder, each)
    return folder


def test_first_sentence_is_the_answer():
    assert answer(one(rows(T1, T3, T2))) == (
        "resnet18 on jpeg, batch 64, 4 workers: fetch-bound; 24 % prep stall. Fetch stall 5.30 s ± 4.3 %, "
        "prep stall 2.20 s ± 10.3 % of 9.10 s per epoch."
    )


def test_single_runs_have_no_intervals():
    result = sentences(one(rows([1.6], [3.8], [9.1])))
    assert "Fetch stall 5.30 s, prep stall 2.20 s of" in result[0]
    assert any("ran only once" in text for text in result)


def test_suggested_change_is_the_smallest_of_equal_effect():
    result = best(one(rows(T1, T3, T2, steady={"steps": 1000.0})))
    assert result == "Most effective change: 100 % of the dataset in memory: 3.80 s per epoch instead of 9.10 s."
    timed = {"synthetic": {}, "cached": {"steady/loader_read_s": 0.0}, "storage": {"steady/loader_read_s": 28.0}}
    hidden = [
        replace(each, metrics={**each.metrics, **timed[each.keys["data_source"]], "steady/loader_preprocess_s": 8.0})
        for each in rows([4.0], [4.01], [9.0], steady={"steps": 1000.0})
    ]
    assert best(one(hidden)) == (
        "Most effective change: storage 10 times as fast: 4.01 s per epoch instead of 9.00 s. With 71 % of the "
        "dataset or more in memory, there is no fetch stall."
    )


def test_worker_is_suggested_if_it_helps_more_than_storage():
    """80 ms disk, 80 ms decoding, 20 ms compute per batch, one worker: 2.58 s; 1.43 s with storage 10 times faster."""
    found = one(rows([0.32], [1.30], [2.58], steady={"steps": 16.0}, job_keys={"workers": 1}, cores=2))
    assert best(found) == "Most effective change: 2 DataLoader workers: 1.32 s per epoch instead of 2.58 s."


def test_more_workers_count_with_their_time_on_saturated_storage():
    found = one(rows([0.5], [1.0], [9.0], steady={"steps": 1000.0}, job_keys={"workers": 4}, cores=8))
    workers = next(each for each in found.predictions if each.choice == "8")
    assert workers.epoch_s == pytest.approx(4.5, rel=0.01)
    assert workers.saturated_s > 8.0
    assert "storage" in best(found) or "in memory" in best(found)
    (grid,) = [grid for grid in grids(found) if grid.title == "What if (predicted)"]
    assert "if the storage is saturated" in grid.columns


@pytest.mark.parametrize(
    ("times", "cores", "result"),
    [
        ((2.0, 12.0, 12.0), 8, "8 DataLoader workers"),
        ((2.0, 12.0, 12.0), 4, "no more cores"),
        ((12.0, 12.0, 12.0), 8, "a faster device"),
    ],
)
def test_suggested_change_follows_the_verdict(times, cores, result):
    assert result in best(one(rows(*map(spread, times), cores=cores)))


def test_workers_are_per_rank():
    ddp = {"workers": 2, "strategy": {"name": "ddp", "ranks": 2}}
    found = rows(*map(spread, (2.0, 12.0, 12.0)), cores=8, job_keys=ddp, devices=2)
    assert "4 DataLoader workers per rank:" in best(one(found))
    assert "no more cores" in best(one(rows(*map(spread, (2.0, 12.0, 12.0)), cores=4, job_keys=ddp, devices=2)))


def test_first_worker_may_help_most():
    found = one(rows(*map(spread, (8.0, 10.0, 12.0)), job_keys={"workers": 0}, steady={"steps": 1000.0}))
    assert "1 DataLoader worker:" in best(found)


def test_undecided_bottleneck_has_no_suggestion():
    found = one(rows(spread(2.46), spread(0.28), spread(0.52)))
    assert best(found) is None
    assert "4 workers: bottleneck undecided. " in sentences(found)[0]
    assert sentences(found)[1].startswith("Undecided: a stall is significantly below zero")


def test_number_of_repeats_for_significance_is_stated():
    found = one(rows([4.3, 4.6, 4.9], [5.3, 5.6, 5.9], [10.5, 10.8, 11.1]))
    assert "fetch-bound or compute-bound (no significant difference)" in sentences(found)[0]
    assert sentences(found)[1].startswith(f"About {found.verdict.repeats} repeats per condition")


def test_dataset_in_memory_has_no_fetch_stall():
    found = one(rows(T1, T3, T3, job_keys={"layout": "memory"}))
    assert answer(found).endswith(
        "prep-bound. Prep stall 2.20 s ± 10.3 % of 3.80 s per epoch. The dataset is in memory, so there is no fetch "
        "stall."
    )


def test_bottleneck_with_dataset_in_memory_is_stated():
    assert "With the dataset in memory: prep-bound." in sentences(one(rows(T1, T3, T2)))


def test_reason_for_missing_energy_is_stated_once():
    result = [text for text in sentences(one(rows(T1, T3, T2))) if "energy" in text.lower()]
    assert result == ["No energy of the stalls: 9 of 9 runs measured none: no meter here."]


def test_energy_is_stated_with_its_scope():
    joules = {"synthetic": 500.0, "cached": 550.0, "storage": 850.0}
    found = one([
        replace(each, energy_covers="gpu0",
                metrics={**each.metrics, "steady/energy_j": joules[each.keys["data_source"]]})
        for each in rows(T1, T3, T2)
    ])  # fmt: skip
    assert "Energy (gpu0): 850 J per epoch, of which fetch stall 300 J ± 0.0 %, prep stall 50 J ± 0.0 %." in (
        sentences(found)
    )


def test_stall_sweep_is_printed_in_eighty_columns_and_written(tmp_path):
    text = printed(sweep(tmp_path, rows(T1, T3, T2, steady={"data_stall_s": 6.4})))
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "fetch-bound" in text
    assert "What if (predicted)" in text
    (values,) = json.loads((tmp_path / "stalls.json").read_text())
    assert values["fetch"]["value"] == pytest.approx(5.3)
    assert values["verdict"]["parts"] == ["fetch_stall"]
    page = (tmp_path / "stalls.md").read_text()
    assert page.startswith(f"# Stalls: {tmp_path.name}\n\n**resnet18 on jpeg")
    assert "| storage | none in the page cache | 6, 7, 8 | 9.10 s ± " in page


def test_other_sweep_is_a_table_with_a_command(tmp_path):
    found = [row(n, "cached", 2.0 + n, job_keys={"cache": "keep"}, typed={"batch": str(n)}) for n in range(2)]
    text = printed(sweep(tmp_path, found))
    assert "it takes completed runs of data_source=synthetic, cached and storage. Run:" in " ".join(text.split())
    assert "experiment=stalls" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["run", "batch", "state"] in [line[:3] for line in lines]
    assert ["0", "0", "completed", "2.00", "-", "-", "-", "-"] in lines
    assert not (tmp_path / "stalls.json").exists()


def test_excluded_rehearsals_are_counted(tmp_path):
    for each in rows(T1, T3, T2):
        write(tmp_path, each, rehearsal=["rehearse=true"])
    text = printed(tmp_path)
    assert "Left out: 9 of 9 runs: a rehearsal (rehearse=true)." in text


def test_missing_condition_is_named(tmp_path):
    text = printed(sweep(tmp_path, rows([], T3, T2)))
    assert "no completed run of data_source=synthetic" in " ".join(text.split())
    assert not (tmp_path / "stalls.md").exists()


def test_condition_on_another_host_is_missing_here():
    other, *found = [replace(each, host="h1") for each in rows([1.0], T3, T2)]
    here, there = analyses([*found, replace(other, host="h2")])
    assert incomplete(here).startswith(
        "resnet18 on jpeg, batch 64, 4 workers, h1: no stall analysis: no completed run of data_source=synthetic "
        "on that host (runs of different hosts are not compared: synthetic ran on h2). Run: "
    )
    assert (
        "data_source=cached, storage on that host (runs of different hosts are not compared: cached ran on h1; "
        "storage ran on h1)" in incomplete(there)
    )


def test_values_that_do_not_apply_are_null_in_json():
    (values,) = plain_values([one(rows(T1, T3, T3, job_keys={"layout": "memory"}))])
    assert values["full_cache_share"] is None
    json.dumps(values, allow_nan=False)
