"""What an analysis of stalls says to a person: the answer first, no more digits than it has, eighty columns."""

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


def test_the_first_line_is_the_answer():
    assert answer(one(rows(T1, T3, T2))) == (
        "resnet18 on jpeg, batch 64, 4 workers: fetch-bound; 24 % prep stall. Fetch stall 5.30 s (5.07 to 5.53), "
        "prep stall 2.20 s (1.97 to 2.43) of 9.10 s per epoch."
    )


def test_one_run_of_each_tells_no_interval_and_says_so():
    said = sentences(one(rows([1.6], [3.8], [9.1])))
    assert "Fetch stall 5.30 s, prep stall 2.20 s of" in said[0]
    assert any("ran only once" in text for text in said)


def test_what_would_help_most_is_the_least_that_helps_as_much():
    said = best(one(rows(T1, T3, T2, steady={"steps": 1000.0})))
    assert said == "Most would help: 100 % of the dataset in memory, for 3.80 s per epoch instead of 9.10 s."
    timed = {"synthetic": {}, "cached": {"steady/loader_read_s": 0.0}, "storage": {"steady/loader_read_s": 28.0}}
    hidden = [
        replace(each, metrics={**each.metrics, **timed[each.keys["data_source"]], "steady/loader_preprocess_s": 8.0})
        for each in rows([4.0], [4.01], [9.0], steady={"steps": 1000.0})
    ]
    assert best(one(hidden)) == (
        "Most would help: storage 10 times as fast, for 4.01 s per epoch instead of 9.00 s. No fetch stall is left "
        "from 71 % of the dataset in memory on."
    )


def test_a_worker_is_advised_if_it_helps_more_than_a_disk():
    """80 ms disk, 80 ms decoding, 20 ms compute per batch, one worker: 2.58 s; 1.43 s with storage 10 times faster."""
    found = one(rows([0.32], [1.30], [2.58], steady={"steps": 16.0}, job_keys={"workers": 1}, cores=2))
    assert best(found) == "Most would help: 2 DataLoader workers, for 1.32 s per epoch instead of 2.58 s."


def test_more_workers_are_judged_by_what_they_bring_if_the_storage_is_saturated():
    found = one(rows([0.5], [1.0], [9.0], steady={"steps": 1000.0}, job_keys={"workers": 4}, cores=8))
    workers = next(each for each in found.predictions if each.choice == "8")
    assert workers.epoch_s == pytest.approx(4.5, rel=0.01)
    assert workers.saturated_s > 8.0
    assert "storage" in best(found) or "in memory" in best(found)
    (grid,) = [grid for grid in grids(found) if grid.title == "What if (predicted)"]
    assert "s if the storage is saturated" in grid.columns


@pytest.mark.parametrize(
    ("times", "cores", "said"),
    [
        ((2.0, 12.0, 12.0), 8, "8 DataLoader workers"),
        ((2.0, 12.0, 12.0), 4, "no more cores"),
        ((12.0, 12.0, 12.0), 8, "a faster device"),
    ],
)
def test_what_helps_follows_the_verdict(times, cores, said):
    assert said in best(one(rows(*map(spread, times), cores=cores)))


def test_loader_processes_are_those_of_each_rank():
    ddp = {"workers": 2, "strategy": {"name": "ddp", "ranks": 2}}
    found = rows(*map(spread, (2.0, 12.0, 12.0)), cores=8, job_keys=ddp, devices=2)
    assert "4 DataLoader workers per rank, for" in best(one(found))
    assert "no more cores" in best(one(rows(*map(spread, (2.0, 12.0, 12.0)), cores=4, job_keys=ddp, devices=2)))


def test_without_loader_processes_having_some_may_help_most():
    found = one(rows(*map(spread, (8.0, 10.0, 12.0)), job_keys={"workers": 0}, steady={"steps": 1000.0}))
    assert "1 DataLoader worker," in best(found)


def test_nothing_is_advised_while_it_is_undecided():
    found = one(rows(spread(2.46), spread(0.28), spread(0.52)))
    assert best(found) is None
    assert "4 workers: bottleneck undecided. " in sentences(found)[0]
    assert sentences(found)[1].startswith("Undecided: a stall is significantly below zero")


def test_the_number_of_repeats_needed_for_significance_is_stated():
    found = one(rows([4.3, 4.6, 4.9], [5.3, 5.6, 5.9], [10.5, 10.8, 11.1]))
    assert "fetch-bound or compute-bound (no significant difference)" in sentences(found)[0]
    repeats = f"About {found.verdict.repeats} repeats of each"
    assert sentences(found)[1] == f"{repeats} would make the difference between the largest parts significant."


def test_a_dataset_in_memory_is_told_as_such():
    found = one(rows(T1, T3, T3, job_keys={"layout": "memory"}))
    assert answer(found).endswith(
        "prep-bound. Prep stall 2.20 s (1.97 to 2.43) of 3.80 s per epoch. The dataset is in memory: there is no fetch "
        "stall."
    )


def test_the_second_verdict_is_that_with_the_dataset_in_memory():
    assert "With the dataset in memory: prep-bound." in sentences(one(rows(T1, T3, T2)))


def test_why_there_is_no_energy_is_said_once():
    said = [text for text in sentences(one(rows(T1, T3, T2))) if "energy" in text.lower()]
    assert said == ["No energy of the stalls: 9 of 9 runs measured none: no meter here."]


def test_energy_is_told_with_what_it_covers():
    joules = {"synthetic": 500.0, "cached": 550.0, "storage": 850.0}
    found = one([
        replace(each, energy_covers="gpu0",
                metrics={**each.metrics, "steady/energy_j": joules[each.keys["data_source"]]})
        for each in rows(T1, T3, T2)
    ])  # fmt: skip
    assert "Energy (gpu0): of 850 J an epoch, 300 J (300 to 300) for storage, 50 J (50 to 50) for preprocessing." in (
        sentences(found)
    )


def test_a_stall_sweep_is_printed_in_eighty_columns_and_written(tmp_path):
    text = printed(sweep(tmp_path, rows(T1, T3, T2, steady={"data_stall_s": 6.4})))
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "fetch-bound" in text
    assert "What if (predicted)" in text
    (values,) = json.loads((tmp_path / "stalls.json").read_text())
    assert values["fetch"]["value"] == pytest.approx(5.3)
    assert values["verdict"]["parts"] == ["fetch_stall"]
    page = (tmp_path / "stalls.md").read_text()
    assert page.startswith(f"# Stalls: {tmp_path.name}\n\n**resnet18 on jpeg")
    assert "| storage | none in the page cache | 6, 7, 8 | 9.10 (" in page


def test_a_plain_sweep_is_a_table_and_what_to_run(tmp_path):
    found = [row(n, "cached", 2.0 + n, job_keys={"cache": "keep"}, typed={"batch": str(n)}) for n in range(2)]
    text = printed(sweep(tmp_path, found))
    assert "it takes completed runs of data_source=synthetic, cached and storage. Run:" in " ".join(text.split())
    assert "experiment=stalls" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["run", "batch", "state"] in [line[:3] for line in lines]
    assert ["0", "0", "completed", "2.00", "-", "-", "-", "-"] in lines
    assert not (tmp_path / "stalls.json").exists()


def test_what_is_left_out_is_counted_and_rehearsals_decide_nothing(tmp_path):
    for each in rows(T1, T3, T2):
        write(tmp_path, each, rehearsal=["rehearse=true"])
    text = printed(tmp_path)
    assert "Left out: 9 of 9 runs: a rehearsal (rehearse=true)." in text


def test_a_condition_that_is_missing_is_named(tmp_path):
    text = printed(sweep(tmp_path, rows([], T3, T2)))
    assert "no completed run of data_source=synthetic" in " ".join(text.split())
    assert not (tmp_path / "stalls.md").exists()


def test_a_condition_that_ran_on_another_host_is_missing_on_this_and_said_to_be_there():
    other, *found = [replace(each, host="h1") for each in rows([1.0], T3, T2)]
    here, there = analyses([*found, replace(other, host="h2")])
    assert incomplete(here).startswith(
        "resnet18 on jpeg, batch 64, 4 workers, h1: no stall analysis: no completed run of data_source=synthetic "
        "on that host, beside which no other's stands (synthetic ran on h2). Run: "
    )
    assert (
        "data_source=cached, storage on that host, beside which no other's stands (cached ran on h1; storage ran on h1)"
        in (incomplete(there))
    )


def test_values_that_do_not_apply_are_null_in_json():
    (values,) = plain_values([one(rows(T1, T3, T3, job_keys={"layout": "memory"}))])
    assert values["full_cache_share"] is None
    json.dumps(values, allow_nan=False)
