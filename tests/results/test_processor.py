"""The two causes of a scarce processor: the run's own threads, and other processes."""

from cases import case, cases
from default_jobs import job_of
from metadata import run_info

from epochmeter.results.processor import (
    Demand,
    busiest_processes,
    cpu_load_warning,
    demand_of,
    is_oversubscribed,
    oversubscription,
    oversubscription_warning,
    processor_warnings,
)

SCRIPT = {"command": ["train.py"]}
VAL = {"window": "val", "epoch": 1, "metrics": {"val/e2e_s": 1.0}}


def epoch(other_fraction, e2e_s=10.0, **processes):
    """An epoch in which others used this fraction, with a flag from 0.5 on; `processes` are their fractions."""
    listed = [{"name": name, "pid": len(name), "fraction": part} for name, part in processes.items()]
    return {
        "window": "epoch",
        "metrics": {"epoch/e2e_s": e2e_s, "epoch/other_cpu_fraction": other_fraction},
        "flags": {"cpu_shared": "epoch 1: x"} if other_fraction > 0.5 else {},
        **({"other_processes": listed} if listed else {}),
    }


def loaded(*fractions):
    return [*map(epoch, fractions)]


def test_load_of_other_processes_is_stated_for_the_epochs_that_it_affected():
    (warning,) = cpu_load_warning([*loaded(0.62, 0.7, 0.2), VAL])
    assert "62 to 70 % of the processor time in 2 of 3 epochs" in warning
    (warning,) = cpu_load_warning(loaded(0.62, 0.623))
    assert "used 62 % of" in warning
    assert cpu_load_warning(loaded(0.2, 0.0)) == []


def test_warning_names_at_most_three_processes_by_the_time_that_they_used():
    windows = [epoch(0.9, 10, make=0.2, sh=0.1, ruby=0.4), epoch(0.9, 30, make=0.5, sh=0.05, perl6=0.03), VAL]
    assert busiest_processes(windows[:2]) == [("make", 4), ("ruby", 4), ("sh", 2)]
    (warning,) = cpu_load_warning(windows, of_sweep=True)
    assert "end make (pid 4), ruby (pid 4) and sh (pid 2), and measure again with `sweep.again=true`" in warning
    assert busiest_processes(loaded(0.9)) == []
    (warning,) = cpu_load_warning([epoch(0.9, i=0.9)])
    assert "hint: end them, " in warning, "pid 1 is not named"


@cases(
    case("more threads", waited=0.3, runnable=2.01, threads=1, is_contended=False, is_flagged=True),
    case("several beside others", waited=0.3, runnable=2.01, threads=2, is_contended=True, is_flagged=True),
    case("one beside others", waited=0.3, runnable=2.01, threads=1, is_contended=True, is_flagged=False),
    case("short waits", waited=0.29, runnable=2.01, threads=2, is_contended=False, is_flagged=False),
    case("as many threads", waited=0.5, runnable=2.0, threads=2, is_contended=False, is_flagged=False),
)
def test_run_is_oversubscribed_by_its_own_threads_only(waited, runnable, threads, is_contended, is_flagged):
    metrics = {"run_queue_wait_fraction": waited, "runnable_threads": runnable, "other_cpu_fraction": 0.5}
    demand = Demand(2, threads, 1, 2)
    assert is_oversubscribed(metrics, demand, is_contended=is_contended) is is_flagged
    assert not is_oversubscribed({"other_cpu_fraction": 0.5}, demand, is_contended=is_contended)


@cases(
    case(
        keys={"workers": 2},
        threads=2,
        demand=Demand(2, 2, 1, 2),
        text="2 DataLoader workers + 2 threads on 2 cores",
        remedy="threads=1",
    ),
    case(
        keys={"workers": 2},
        threads=1,
        demand=Demand(2, 1, 1, 2),
        text="2 DataLoader workers + 1 thread on 2 cores",
        remedy="workers=1",
    ),
    case(
        keys={"workers": 1},
        threads=None,
        demand=Demand(1, None, 1, 2),
        text="1 DataLoader worker on 2 cores",
        remedy="threads=1",
    ),
    case(
        keys={"workers": 4, "synthetic_batches": True},
        threads=8,
        demand=Demand(0, 8, 1, 2),
        text="0 DataLoader workers + 8 threads on 2 cores",
        remedy="threads=2",
    ),
    case(
        keys={"workers": 1, "strategy": {"ranks": 2, "launcher": "torchrun"}},
        threads=1,
        demand=Demand(1, 1, 2, 2),
        text="1 DataLoader worker + 1 thread for each of 2 ranks on 2 cores",
        remedy="workers=0",
    ),
    case(
        keys={"workers": 2, "measure": SCRIPT},
        threads=2,
        demand=Demand(None, 2, 1, 2),
        text="2 threads of torch on 2 cores",
        remedy="OMP_NUM_THREADS=1",
    ),
    case(
        keys={"workers": 2, "measure": SCRIPT},
        threads=1,
        demand=Demand(None, 1, 1, 2),
        text="1 thread of torch on 2 cores",
        remedy="fewer DataLoader workers",
    ),
)
def test_demand_names_workers_threads_and_cores_and_its_remedy_fits_them(keys, threads, demand, text, remedy):
    training = {} if threads is None else {"threads": threads}
    found = demand_of(job_of(**keys), training, 2)
    assert found == demand
    assert str(found) == text
    assert remedy in found.remedy
    assert demand_of(job_of(**keys), training, None) is None


def test_both_causes_have_warnings_of_their_own():
    demand = Demand(2, 2, 1, 2)
    metrics = {"run_queue_wait_fraction": 0.47, "runnable_threads": 3.71, "other_cpu_fraction": 0.5}
    text = oversubscription(metrics, demand, machine_cores=2)
    assert "2 DataLoader workers + 2 threads on 2 cores, of which other processes left 1.0 free; 3.7 " in text
    assert "waited 47 %" in text
    assert "free" not in oversubscription({**metrics, "other_cpu_fraction": 0.01}, demand, machine_cores=2)
    windows = [*loaded(0.6, 0.6), VAL]
    windows[0]["flags"]["oversubscribed"] = f"epoch 1: {text}"
    job, run = job_of(workers=2), run_info(training={"threads": 2}, usable_cores=2)
    others, own = processor_warnings(windows, job, run)
    assert others.startswith("warning: other processes used 60 % of the processor time in 2 of 2 epochs")
    assert own == f"warning: {text} (in 1 of 2 epochs)\n  hint: set `threads=1`"
    assert oversubscription_warning(loaded(0.6), demand) == []
    assert processor_warnings(windows, job, run_info(training={"threads": 2})) == [others]
