"""What an analysis of stalls says to a person: the answer first, no more digits than it has, eighty columns."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console
from sweeps import row, rows, write

from trainmeter.report.diagnosis import answer, best, incomplete, sentences
from trainmeter.report.stalls import analyses
from trainmeter.report.tell import tell
from trainmeter.report.words import plain_values

T1, T3, T2 = [5.5, 5.6, 5.7], [6.7, 6.8, 6.9], [12.0, 12.1, 12.2]


def one(found):
    (analysis,) = analyses(found)
    return analysis


def spread(mean):
    return [mean - 0.01, mean, mean + 0.01]


def printed(folder):
    paper = io.StringIO()
    tell(folder, Console(file=paper, width=80, force_terminal=True, color_system=None, highlight=False))
    return paper.getvalue()


def sweep(folder, found):
    for each in found:
        write(folder, each)
    return folder


def test_the_first_line_is_the_answer():
    assert answer(one(rows(T1, T3, T2))) == (
        "resnet18 on jpeg, batch 64, 4 workers: storage-bound: of 12.1 s an epoch, 5.3 s (5.1 to 5.5) wait for "
        "storage, 1.2 s (1.0 to 1.4) for preprocessing."
    )


def test_one_run_of_each_tells_no_interval_and_says_so():
    said = sentences(one(rows([5.6], [6.8], [12.1])))
    assert "5.3 s wait for storage, 1.2 s for preprocessing." in said[0]
    assert any("ran only once" in text for text in said)


def test_what_would_help_most_is_the_least_that_helps_as_much():
    said = best(one(rows(T1, T3, T2)))
    assert said.startswith("Most would help: a storage 2 times as fast, for 6.80 s an epoch in place of 12.1 s.")
    assert "from 44 % of the dataset in memory" in said


@pytest.mark.parametrize(
    ("times", "cores", "said"),
    [
        ((2.0, 12.0, 12.0), 8, "8 loader processes"),
        ((2.0, 12.0, 12.0), 4, "no more cores"),
        ((12.0, 12.0, 12.0), 8, "a faster device"),
    ],
)
def test_what_helps_follows_the_verdict(times, cores, said):
    assert said in best(one(rows(*map(spread, times), cores=cores)))


def test_loader_processes_are_those_of_each_rank():
    ddp = {"workers": 2, "strategy": {"name": "ddp", "ranks": 2}}
    found = rows(*map(spread, (2.0, 12.0, 12.0)), cores=8, job_keys=ddp, devices=2)
    assert "4 loader processes a rank, for" in best(one(found))
    assert "no more cores" in best(one(rows(*map(spread, (2.0, 12.0, 12.0)), cores=4, job_keys=ddp, devices=2)))


def test_without_loader_processes_having_some_may_help_most():
    found = one(rows(*map(spread, (5.0, 8.0, 12.0)), job_keys={"workers": 0}))
    assert "1 loader process," in best(found)


def test_nothing_is_advised_while_it_is_undecided():
    found = one(rows(spread(11.4), [11.2, 11.5, 11.8], [11.7, 12.0, 12.3]))
    assert best(found) is None
    assert "undecided what bounds it" in sentences(found)[0]
    assert sentences(found)[1] == ("Undecided: fetch stall may matter or not; about 12 repeats of each would tell.")


def test_a_dataset_in_memory_is_told_as_such():
    found = one(rows(T1, T3, T3, job_keys={"layout": "memory"}))
    assert "lives in memory: storage plays no part" in answer(found)
    assert "wait for storage" not in answer(found)


def test_the_second_verdict_is_that_with_the_dataset_in_memory():
    assert "With the dataset in memory: preprocessing-bound." in sentences(one(rows(T1, T3, T2)))


def test_why_there_is_no_energy_is_said_once():
    said = [text for text in sentences(one(rows(T1, T3, T2))) if "energy" in text.lower()]
    assert said == ["No energy of the stalls: 9 of 9 runs measured none: no meter here."]


def test_energy_is_told_with_what_it_covers():
    joules = {"tensors": 500.0, "warm": 550.0, "cold": 850.0}
    found = one([
        replace(each, energy_covers="gpu0", metrics={**each.metrics, "steady/energy_j": joules[each.keys["supply"]]})
        for each in rows(T1, T3, T2)
    ])  # fmt: skip
    assert "Energy (gpu0): of 850 J an epoch, 300 J (300 to 300) for storage, 50 J (50 to 50) for preprocessing." in (
        sentences(found)
    )


def test_a_stall_sweep_is_printed_in_eighty_columns_and_written(tmp_path):
    text = printed(sweep(tmp_path, rows(T1, T3, T2, steady={"fetch_stall_s": 6.4})))
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "storage-bound" in text.splitlines()[0] + text.splitlines()[1]
    assert "What if (predicted)" in text
    (values,) = json.loads((tmp_path / "stalls.json").read_text())
    assert values["fetch"]["value"] == pytest.approx(5.3)
    assert values["verdict"]["bound"] == "storage-bound"
    page = (tmp_path / "stalls.md").read_text()
    assert page.startswith(f"# Stalls: {tmp_path.name}\n\n**resnet18 on jpeg")
    assert "| cold | none in the page cache | 6, 7, 8 | 12.1 (11.9 to 12.4) | - |" in page


def test_a_plain_sweep_is_a_table_and_what_to_run(tmp_path):
    found = [row(n, "warm", 2.0 + n, job_keys={"cache": "keep"}, typed={"batch": str(n)}) for n in range(2)]
    text = printed(sweep(tmp_path, found))
    assert "No stall analysis: it takes whole runs of supply=tensors, warm and cold. Run:" in text
    assert "experiment=stalls" in text
    lines = text.splitlines()
    assert lines[1].split()[:3] == ["run", "batch", "state"]
    assert lines[2].split() == ["0", "0", "whole", "2.00", "-", "-", "-", "-"]
    assert not (tmp_path / "stalls.json").exists()


def test_what_is_left_out_is_counted_and_rehearsals_decide_nothing(tmp_path):
    for each in rows(T1, T3, T2):
        write(tmp_path, each, rehearsal=["rehearse=true"])
    text = printed(tmp_path)
    assert "Left out: 9 of 9 runs: a rehearsal (rehearse=true)." in text


def test_a_condition_that_is_missing_is_named(tmp_path):
    text = printed(sweep(tmp_path, rows([], T3, T2)))
    assert "no whole run of supply=tensors" in " ".join(text.split())
    assert not (tmp_path / "stalls.md").exists()


def test_a_condition_that_ran_on_another_host_is_missing_on_this_and_said_to_be_there():
    other, *found = [replace(each, host="h1") for each in rows([1.0], T3, T2)]
    here, there = analyses([*found, replace(other, host="h2")])
    assert incomplete(here).startswith(
        "resnet18 on jpeg, batch 64, 4 workers, h1: no stall analysis: no whole run of supply=tensors on that host, "
        "beside which no other's stands (tensors ran on h2). Run: "
    )
    assert "supply=warm, cold on that host, beside which no other's stands (warm ran on h1; cold ran on h1)" in (
        incomplete(there)
    )


def test_what_is_without_limit_is_null_in_json():
    (values,) = plain_values([one(rows(T1, T3, T3, job_keys={"layout": "memory"}))])
    assert values["rates"]["storage"] is None
    json.dumps(values, allow_nan=False)
