"""Where stalls come from, by difference: known answers, computed by hand or published."""

from dataclasses import replace

import pytest
from golden import assert_golden
from sweeps import row, rows, script_rows, spread

from epochmeter.report.analyses.stalls import analyze, stall_power
from epochmeter.report.render import render_macro
from epochmeter.report.runs.data_source import candidates, condition

T1, T3, T2 = [1.5, 1.6, 1.7], [3.7, 3.8, 3.9], [9.0, 9.1, 9.2]


def with_joules(runs, synthetic=500.0, cached=550.0, storage=850.0, covers="gpu0"):
    joules = {"synthetic": synthetic, "cached": cached, "storage": storage}
    return [replace(run, metrics={**run.metrics, "steady/energy_j": joules[condition(run.job)]}, energy_covers=covers)
            for run in runs]  # fmt: skip


def rounds(**sweep):
    """Runs that get seconds slower in each round; with a random order, the differences do not contain the rounds."""
    shifts, times = (0.0, 4.0, 9.0), {"synthetic": 1.5, "cached": 3.7, "storage": 9.0}
    noise = {"synthetic": (0.0, 0.1, -0.1), "cached": (0.1, -0.1, 0.0), "storage": (-0.1, 0.0, 0.1)}
    return [
        row(3 * place + turn, name, seconds + shifts[turn] + noise[name][turn],
            job_keys={"repeat": turn, "sweep": sweep})
        for place, (name, seconds) in enumerate(times.items()) for turn in range(3)
    ]  # fmt: skip


def resident(name, fraction):
    """Only the runs of one data source have an unusual page-cache residency."""
    return [replace(run, metrics={**run.metrics, "steady/page_cache_residency_before": fraction})
            if condition(run.job) == name else run for run in rows(T1, T3, T2)]  # fmt: skip


def waiting(domain):
    """Preprocessing stalls training for 8 of 10 s, at 10 W. 8 workers save 5 s of idling, on a GPU the wait."""
    runs = rows([2.0], [10.0], [10.0], steady={"steps": 1000.0}, total={"idle_power_w": 10.0}, cores=8,
                energy_domains=[domain])  # fmt: skip
    return with_joules(runs, 100.0, 500.0, 500.0)


STEPS = {"steps": 1000.0}
SIX = rows([5.0, 5.0], [6.0, 6.0], [12.0, 12.0], steady=STEPS)
EIGHT = {"workers": 8, "power_limit": 15}
ONCE = {
    "fetch": (5.0, 6.0, 12.0), "prep": (5.0, 11.5, 12.0), "compute": (12.0, 12.0, 12.0),
    "stalls below compute": (7.0, 9.0, 12.0),
}  # fmt: skip
REPEATED = {
    "less than 2 %": (12.0, 12.05, 12.1), "prep below compute": (1.62, 1.68, 1.69),
    "stalls together above compute": (5.4, 7.4, 12.0), "far below zero": (2.46, 0.28, 0.52),
}  # fmt: skip
DEVICE = {"compute_s": 1.0, "copy_s": 3.5, "overhead_s": 0.4}
HOSTS = {
    **{f"{name}, once": rows(*([seconds] for seconds in times)) for name, times in {**ONCE, **REPEATED}.items()},
    **{f"{name}, repeated": rows(*(spread(seconds, 0.001) for seconds in times)) for name, times in REPEATED.items()},
    "stall of 0.5 +- 0.7": rows(spread(11.4), spread(11.5, 0.3), spread(12.0, 0.3)),
    "stalls 0.6 +- 1.3 s longer than compute": rows(spread(5.1, 0.3), spread(6.1, 0.3), spread(10.8, 0.3)),
    "two equal parts": rows([1.00, 1.01, 0.99], [0.997, 1.003, 0.993], [2.0, 2.01, 1.99]),
    "copy": rows(spread(5.0), spread(6.0), spread(7.0), steady=DEVICE),
    "copy, no stalls": rows(*[spread(5.0)] * 3, steady=DEVICE),
    "two configurations": [*rows(T1, T3, T2, typed={"workers": "4"}),
                           *rows(*[spread(5.6)] * 3, job_keys=EIGHT, typed={key: str(EIGHT[key]) for key in EIGHT})],
    "other samples": [*rows(T1, T3, T2), row(20, "storage", T2[0], samples=999.0)],
    "cached ran once": rows([1.0, 1.1], [2.0], [5.0, 5.1]),
    "below zero": rows([5.0], [7.0], [6.99]),
    "paired": rounds(repeats=3, order="random"), "not paired": rounds(repeats=None, order="grid"),
    "60 % warm": resident("cached", 0.6), "30 % cold": resident("storage", 0.3),
    "unknown": rows(T1, T3, T2, steady={"page_cache_residency_before": None}),
    "warm cold run": rows(T1, spread(6.8), spread(6.8), steady={"page_cache_residency_before": 1.0}),
    "the device limits": rows(*map(spread, (12.0, 12.0, 12.0)), cores=8),
    # 80 ms disk, 80 ms decoding, 20 ms compute per batch, one worker: 1.43 s with storage 10 times faster.
    "disk": rows([0.32], [1.30], [2.58], steady={"steps": 16.0}, job_keys={"workers": 1}, cores=2),
    "no workers": rows(*map(spread, (8.0, 10.0, 12.0)), job_keys={"workers": 0}, steady={"steps": 1000.0}),
    "preprocessing": rows(*map(spread, (2.0, 12.0, 12.0)), steady={"steps": 1000.0}),
    "no energy of one": [*with_joules(SIX)[:-1], SIX[-1]],
    "two scopes": [*with_joules(SIX[:1], covers="module"), *with_joules(SIX[1:])],
}  # fmt: skip
RANKS = {"job_keys": {"strategy": {"name": "ddp", "ranks": 2}}, "devices": 2}
CORES = {
    "more workers than cores": rows([1.0] * 2, [12.0] * 2, [12.0] * 2, steady=STEPS, cores=2),
    # Both of 2 cores train for 1 s; 1 s of preprocessing makes 1.5 s, however many workers do it.
    "training": rows([1.0] * 2, [1.5] * 2, [1.5] * 2, steady={**STEPS, "cpu_utilization": 1.0}, cores=2,
                     job_keys={"workers": 1}),
    "workers of two ranks": rows([2.0] * 2, [12.0] * 2, [12.0] * 2, steady=STEPS, cores=12, **RANKS),
    "more workers of two ranks": rows([2.0] * 2, [12.0] * 2, [12.0] * 2, steady=STEPS, cores=4, **RANKS),
    "hidden by training": rows([12.0] * 2, [12.0] * 2, [12.0] * 2),
}  # fmt: skip


def test_power_of_a_short_stall_is_the_idle_power():
    assert stall_power(500, 501, 10.0, 10.1, 30.0) == 30
    assert stall_power(500, 490, 10.0, 12.0, 30.0) == 30, "noise is no negative power"


DDP = {"workers": 2, "strategy": {"name": "ddp", "ranks": 2}}


@pytest.mark.parametrize(
    ("case", "runs"),
    [
        ("", with_joules(rows(T1, T3, T2, steady={"data_stall_s": 6.4, "data_stall_model_s": 6.6}))),
        ("cores", [replace(run, host=host) for host, own in CORES.items() for run in own]),
        ("idle_power", [*waiting("VDD_IN"), *(replace(run, host="gpu") for run in waiting("gpu0"))]),
        ("in_memory", [replace(run, storage={"medium": "ram"}) for run in rows(T1, T3, T3)]),
        ("undecided", rows(spread(2.46), spread(0.28), spread(0.52))),
        ("more_repeats", rows(spread(5.1, 0.3), spread(6.1, 0.3), spread(10.8, 0.3))),
        ("saturated_storage", rows([0.5], [1.0], [9.0], steady={"steps": 1000.0}, cores=8)),
        ("workers_per_rank", rows(*map(spread, (2.0, 12.0, 12.0)), cores=8, job_keys=DDP, devices=2)),
        ("assumptions", rows(T1, T3, T2, steady={"page_cache_residency_before": 0.5})),
        ("no_more_cores", rows(*map(spread, (2.0, 12.0, 12.0)), cores=4, job_keys=DDP, devices=2)),
    ],
)
def test_text(case, runs):
    assert_golden("stalls", analyze(runs), case)


def test_each_host_has_its_verdict_and_the_most_effective_change():
    runs = [replace(run, host=host) for host, own in HOSTS.items() for run in own]
    assert_golden("stalls", analyze(runs), "hosts", with_tables=False)
    verdicts, again = ({one.title: one.verdict for one in analyze(some)} for some in (runs, runs[::-1]))
    assert verdicts == again, "in any order of the runs"


SCRIPT = {"steps": 100.0, "compute_s": 0.9, "overhead_s": 0.1}
UNCHANGED = script_rows(
    replay=spread(1.0), unchanged=spread(3.0), steady={"replay": SCRIPT, "unchanged": {"steps": 100.0}}
)
DIVIDED = script_rows(
    "/data", replay=spread(1.0), cached=spread(2.0), storage=spread(3.0),
    steady={"replay": SCRIPT, "cached": {"steps": 100.0}, "storage": {"steps": 100.0}},
)  # fmt: skip


@pytest.mark.parametrize(("case", "runs"), [("script", UNCHANGED), ("script_files", DIVIDED)])
def test_text_on_a_script(case, runs):
    assert_golden("stalls", analyze(runs), case)


def test_script_whose_files_are_not_known_has_one_data_stall():
    (analysis,) = analyze(UNCHANGED)
    assert analysis.data_stall.value == pytest.approx(2.0)
    assert (analysis.preprocessing, analysis.fetch, analysis.verdict.parts) == (None, None, ("data_stall",))
    (divided,) = analyze(DIVIDED)
    assert [divided.preprocessing.value, divided.fetch.value] == pytest.approx([1.0, 1.0])


def test_undivided_stall_has_its_energy_and_shorter_waits_save_its_power():
    (analysis,) = analyze([replace(run, energy_domains=["gpu0"]) for run in with_joules(UNCHANGED)])
    assert analysis.energy.data_stall.value == pytest.approx(850 - 500)
    assert analysis.energy.wait_w == pytest.approx((850 - 500) / (3.0 - 1.0))
    (prepared,) = (change for change in analysis.predictions if change.change == "prepared")
    assert prepared.energy_j == pytest.approx(500, rel=0.01)
    assert prepared.interval_j.low < prepared.energy_j < prepared.interval_j.high


def test_runs_of_a_script_without_replayed_batches_have_no_analysis():
    assert analyze(script_rows(unchanged=spread(3.0))) == []
    hint = render_macro("stalls.md.j2", "body", analyze([run for run in DIVIDED if not run.is_ideal]))
    assert "no completed run of data_source=replay" in hint
    assert "Run: `python src/measure.py experiment=stalls train.py`" in hint


def test_replayed_runs_are_never_recommended():
    assert {run.keys["data_source"] for run in candidates(UNCHANGED)} == {"unchanged"}
    assert {run.keys["data_source"] for run in candidates(DIVIDED)} == {"storage"}


def test_incomplete_stall_experiment_has_a_command():
    hosts = [row(n, name, 1.0, host=f"h{n // 2}") for n, name in enumerate(("cached", "storage", "synthetic"))]
    cases = {
        "no completed run of data_source=storage on the same host. ": rows(T1, T3, [0.0]),
        "no stall analysis: no completed run of data_source=synthetic on the same host. ": hosts,
    }
    for missing, runs in cases.items():
        hint = render_macro("stalls.md.j2", "body", analyze(runs))
        assert hint.endswith("Run: `python src/train.py -m experiment=stalls model=... dataset=...`\n")
        assert missing in hint
    assert analyze([row(0, "cached", 1.0, typed={"batch": "8"})]) == []
