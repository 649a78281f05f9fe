"""Runs from folders and from MLflow by the names of their sweeps."""

import pytest
from sweeps import row, write

from epochmeter.report.runs import load
from epochmeter.report.runs.load import load_runs, with_links
from epochmeter.results.run_info import build_run_info

FIRST, SECOND, THIRD = (f"2026-11-{day}_12-00-00-{name}" for day, name in ((20, "aa"), (21, "bb"), (22, "cc")))


def none():
    raise AssertionError("MLflow is not asked")


@pytest.fixture
def multirun(tmp_path):
    """Three sweeps: of a study, of none, and of it again."""
    folder = tmp_path / "multirun"
    for name, study, numbers in ((FIRST, "edge/grid", (0, 1)), (SECOND, None, (0,)), (THIRD, "edge/grid", (0, 3))):
        for number in numbers:
            typed = {"experiment": study} if study else {"batch": "64"}
            write(folder / name, row(number, "storage", 1.0 + number, typed=typed))
    (folder / "reports").mkdir()
    return folder


def names(sweep):
    return [f"{each.number}:{each.name[-4:]}" for each in sweep.runs]


def asked(multirun, *sweeps, study=None, source="records", shown=none):
    return load_runs(sweeps, study, source, multirun, shown)


def test_newest_sweep_is_the_default(multirun):
    sweep = asked(multirun)
    assert (sweep.folder, sweep.title) == (multirun / THIRD, THIRD)
    assert [each.number for each in sweep.runs] == [0, 3]


@pytest.mark.parametrize(
    ("sweeps", "study", "told"),
    [
        ((FIRST, SECOND), None, ["0:aa/0", "1:aa/1", "2:bb/0"]),
        (("2026-11-2[01]*",), None, ["0:aa/0", "1:aa/1", "2:bb/0"]),
        ((FIRST, "*aa"), None, ["0:aa/0", "1:aa/1"]),
        ((), "edge/grid", ["0:aa/0", "1:aa/1", "2:cc/0", "3:cc/3"]),
        ((SECOND, THIRD), "edge/grid", ["0:cc/0", "3:cc/3"]),
    ],
)
def test_several_sweeps_are_numbered_consecutively(multirun, sweeps, study, told):
    assert names(asked(multirun, *sweeps, study=study)) == told


def test_sweep_is_named_by_a_folder_or_a_run_folder(multirun):
    assert len(asked(multirun, str(multirun / FIRST)).runs) == 2
    assert names(asked(multirun, str(multirun / FIRST / "1"))) == ["1:aa/1"]


def test_damaged_records_are_named_with_their_sweep(multirun):
    (multirun / FIRST / "1" / "job.json").write_text("{")
    assert list(asked(multirun, FIRST, SECOND).unreadable) == [f"{FIRST}/1"]


@pytest.mark.parametrize(
    ("sweeps", "study", "said"),
    [
        (("other",), None, f"sweep=other: no runs there: .* The last one that has is {THIRD}"),
        (("reports",), None, "sweep=reports: no runs there"),
        ((), "smoke", "study=smoke: no run took it. There are runs of: edge/grid. Run: .* -m experiment=smoke"),
    ],
)
def test_missing_sweep_or_study_lists_existing_ones(multirun, sweeps, study, said):
    with pytest.raises(ValueError, match=said):
        asked(multirun, *sweeps, study=study)


def test_without_runs_the_error_suggests_a_command(tmp_path):
    with pytest.raises(ValueError, match=r"There are no runs yet\. Run first: python src/train.py"):
        asked(tmp_path / "multirun")


METRICS = {"steady/e2e_s": 2.5, "steady/energy_j": 40.0, "total/energy_j": 90.0, "epoch/e2e_s": 2.4, "val/loss": 1.0,
           "step/train_loss": 2.0, "power/total_w": 9.0}  # fmt: skip
COUNTED = {"source": "counter", "covers": "GPUs used", "reason": None}


def as_shown(sweep, number, state="completed", status="FINISHED", metrics=METRICS, **run):
    summary = {"state": state} if state else None
    job = {"batch": 64 + number, "strategy": {"name": "ddp", "ranks": 2}, "power_limit": None}
    described = {"number": number, "sweep_id": sweep, "host": "orin", "overrides": [f"batch={64 + number}"],
                 "rehearsal": [], "energy": COUNTED, "training": {"ranks": 4, "torch": "2.9"}, **run}  # fmt: skip
    epoch = {"window": "epoch", "epoch": 3, "metrics": {"epoch/e2e_s": 2.5, "epoch/steps": 9}}
    told = build_run_info(job, described, {"cpu": {"model": "Xeon", "cores": 8}}, [epoch], summary)
    return {"run_id": f"id{number}", "sweep_id": sweep, "params": {}, "metrics": metrics, "facts": told,
            "tags": {"epochmeter.folder": f"/elsewhere/{sweep}/{number}"}, "status": status,
            "link": f"http://127.0.0.1/#/{number}", "reused_as": []}  # fmt: skip


def test_published_run_equals_its_record(tmp_path):
    shown = [as_shown(FIRST, 0), as_shown(SECOND, 7), as_shown(SECOND, 3)]
    sweep = asked(tmp_path, source="mlflow", shown=lambda: shown)
    assert (sweep.folder, [each.number for each in sweep.runs]) == (tmp_path / SECOND, [3, 7])
    told = sweep.runs[0]
    assert told.job == {"batch": 67, "strategy": {"name": "ddp", "ranks": 2}, "power_limit": None}
    assert told.metrics == {name: METRICS[name] for name in ("steady/e2e_s", "steady/energy_j", "total/energy_j")}
    assert told.epochs == {3: {"epoch/e2e_s": 2.5}}
    assert (told.excluded_because, told.energy_covers, told.energy_source) == (None, "GPUs used", "counter")
    assert (told.host, told.link, told.devices, told.cores) == ("orin", "http://127.0.0.1/#/3", 4, 8)
    assert told.folder is None, "it is elsewhere"
    assert told.platform == {"host": "orin", "CPU": "Xeon, 8 cores", "torch": "2.9"}
    assert sweep.varied() == ["batch"]


def test_reused_run_is_part_of_both_sweeps_and_once_of_their_union(tmp_path):
    reused = {**as_shown(FIRST, 0), "reused_as": [(SECOND, 3), (THIRD, 0)]}
    shown = [reused, as_shown(SECOND, 0)]
    found = asked(tmp_path, SECOND, source="mlflow", shown=lambda: shown)
    assert [(each.number, each.sweep, each.name, each.reused) for each in found.runs] == [
        (0, SECOND, f"{SECOND}/0", ""),
        (3, SECOND, f"{FIRST}/0", f"{FIRST}/0"),
    ]
    assert [each.name for each in asked(tmp_path, THIRD, source="mlflow", shown=lambda: shown).runs] == [f"{FIRST}/0"]
    both = asked(tmp_path, FIRST, SECOND, source="mlflow", shown=lambda: shown)
    assert [(each.sweep, each.reused) for each in both.runs] == [(FIRST, ""), (SECOND, "")]


def test_published_run_without_result_has_a_reason(tmp_path):
    unmeasured = {"source": "none", "covers": None, "reason": "no meter here"}
    shown = [
        as_shown(FIRST, 0, "failed", "FAILED"),
        as_shown(FIRST, 1, None, "KILLED", metrics={}),
        as_shown(FIRST, 2, rehearsal=["rehearse=true", "device=nano"]),
        as_shown(FIRST, 3, metrics={"steady/e2e_s": 1.0}, energy=unmeasured),
        as_shown(FIRST, 4, metrics={}),
        as_shown(FIRST, 5, "completed", "RUNNING", metrics={}),
    ]
    sweep = asked(tmp_path, source="mlflow", shown=lambda: shown)
    assert [each.state for each in sweep.runs] == ["failed", "unfinished", *["completed"] * 4]
    assert [each.excluded_because for each in sweep.runs] == [
        "not completed (failed)",
        "not completed (unfinished)",
        "a rehearsal (rehearse=true; device=nano)",
        None,
        "no epoch after its warm-up: give more epochs",
        "not completed (completed)",
    ]
    assert sweep.runs[2].rehearsal == ["rehearse=true", "device=nano"]
    assert (sweep.runs[3].energy_covers, sweep.runs[3].no_energy) == (None, "no meter here")


def test_run_published_without_metadata_is_reported(tmp_path):
    bare, strange = {**as_shown(FIRST, 4), "facts": None}, {**as_shown(FIRST, 5), "facts": None, "tags": {}}
    sweep = asked(tmp_path, source="mlflow", shown=lambda: [as_shown(FIRST, 0), bare, strange])
    assert list(sweep.unreadable) == ["4", "id5"]
    assert "python src/publish.py" in sweep.unreadable["4"]


def test_published_sweeps_are_named_or_matched(tmp_path):
    shown = [as_shown(FIRST, 0), as_shown(SECOND, 1), as_shown(THIRD, 2)]
    sweep = asked(tmp_path, "*", source="mlflow", shown=lambda: shown)
    assert [each.number for each in sweep.runs] == [0, 1, 2]
    with pytest.raises(ValueError, match=f"sweep=other: MLflow has no run of it. There are: {FIRST}"):
        asked(tmp_path, "other", source="mlflow", shown=lambda: shown)
    with pytest.raises(ValueError, match="MLflow has no runs yet"):
        asked(tmp_path, source="mlflow", shown=list)


def test_newest_published_sweep_is_the_default(tmp_path):
    last = "2026-11-20_12-00-00.10-aa"
    shown = [as_shown(name, 0) for name in ("baseline", last, "2026-11-20_12-00-00.2-aa", FIRST)]
    assert asked(tmp_path, source="mlflow", shown=lambda: shown).folder == tmp_path / last


def test_server_error_is_reported(tmp_path):
    def away():
        raise ConnectionError("refused\nand pages of it")

    with pytest.raises(ValueError, match=r"source=mlflow: the runs cannot be loaded: ConnectionError: refused$"):
        asked(tmp_path, source="mlflow", shown=away)


def test_runs_have_the_links_of_their_pages(multirun):
    sweep = with_links(asked(multirun, FIRST), {f"{FIRST}/1": "http://127.0.0.1/#/1"})
    assert [each.link for each in sweep.runs] == [None, "http://127.0.0.1/#/1"]


def test_other_sweeps_are_not_searched(multirun, monkeypatch):
    looked = []
    has_runs = load.has_runs
    monkeypatch.setattr(load, "has_runs", lambda folder: looked.append(folder.name) or has_runs(folder))
    asked(multirun, FIRST)
    asked(multirun, "*bb")
    assert {name for name in looked if "*" not in name} == {FIRST, SECOND}


def test_unknown_source_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"source=report\.csv: give records or mlflow"):
        asked(tmp_path, source="report.csv")
