"""A validation is made, resumed, refused on a busy machine, kept, shown, and used by later runs."""

import copy
import io
import json
import math
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace

import boards
import pytest
from clocks import time_with
from project import ROOT, put
from recordings import pc
from validation.simulated import A100_POWER, H100_COUNTER, Sensor, bench
from validation.test_lines import PART_TIME, Known, lines

from epochmeter.commands.validate import exit_code
from epochmeter.config.schema import Host
from epochmeter.config.validation import key_rules
from epochmeter.console.plain import PlainConsole
from epochmeter.machine.busy_processes import BusyProcess
from epochmeter.machine.cpu_load import CpuUse
from epochmeter.machine.recorded.recorder import record_machine
from epochmeter.machine.recorded.root import root_folder
from epochmeter.power.knobs.restore_journal import RestoreJournal
from epochmeter.power.meter import EnergyMeter, NullMeter, open_meter
from epochmeter.power.meters.rapl import open_rapl
from epochmeter.power.uncertainty import Response
from epochmeter.report.output.validation import print_validation, write_validation
from epochmeter.results import validation
from epochmeter.results.quantities import NO_BREAK
from epochmeter.results.validation import FAILED, PASSED, UNTESTED, facts_of, machine_identity
from epochmeter.run import validated
from epochmeter.run.capabilities import validation_row
from epochmeter.run.resolve import resolve_plan
from epochmeter.run.validated import find_validation, stored_responses, use_validated
from epochmeter.validation import this_machine, validate
from epochmeter.validation.checks import CHECKS
from epochmeter.validation.validate import Progress, instruments_of, make_checks

TITLES = {check.name: check.title for check in CHECKS}
HOST = {"hostname": "secret-name", "cpu": {"model": "AMD EPYC", "cores": 2}, "kernel": "6.1", "driver": "580.1"}
VERSIONS = {"epochmeter": "1", "python": "3.12", "torch": "2.10", "driver": "580.1", "kernel": "6.1"}


def quiet(monkeypatch):
    """Nobody else uses the machine, unless `use` is set."""
    given = SimpleNamespace(use=CpuUse(0.0))
    load = SimpleNamespace(mark=lambda: None, window=lambda begun_ns, ended_ns: given.use)
    monkeypatch.setattr(validate, "CpuLoad", lambda **_: load)
    monkeypatch.setattr(validate, "OBSERVED_S", 0.0)
    return given


@pytest.fixture
def idle_observer(monkeypatch):
    return quiet(monkeypatch)


def machine(tmp_path, **keys):
    keys = {"minutes": 600.0, "settings": False, "out": None, **keys}
    locks = {"lock_dir": str(tmp_path / "locks"), "state_dir": str(tmp_path / "state"), "root": "/"}
    config = SimpleNamespace(**keys, machine=SimpleNamespace(**locks), meter=SimpleNamespace(name="nvml", to_dict=dict))
    device = SimpleNamespace(name="cuda", python=None)
    return this_machine.Machine(config, HOST, device, True, [])


def begin_in(folder, versions, monkeypatch):
    """Return a function that begins a validation in a folder, or continues the one that is there."""
    given = dict(versions)
    monkeypatch.setattr(validate, "versions_of", lambda machine, python: dict(given))
    monkeypatch.setattr(validate, "find_python", lambda machine: (None, None))

    def begin(**keys):
        of = machine(folder, **keys)
        file = folder / "validation.json"
        return of, Progress(validate.begin(of, file), file)

    begin.versions = given
    return begin


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """begun() -> the progress of a validation in `tmp_path`, continued if there is one."""
    return begin_in(tmp_path, VERSIONS, monkeypatch)


def made(begun, simulated, **keys):
    of, progress = begun(**keys)
    left = [check for check in CHECKS if not progress.is_finished(check.name)]
    make_checks(left, simulated, progress, of, lambda text: None)
    progress.document["instruments"] = instruments_of(simulated, progress)
    return progress, [check.name for check in left]


def right():
    return bench(programs=Known(), on_gpu=True, counter_stated=PART_TIME)


@pytest.fixture(scope="module")
def right_bench():
    """A machine on which one line fails. Each check is made once: what it finds depends on no other test."""
    machine, found, find = right(), {}, validate.find

    def find_once(check, bench):
        if bench is not machine:
            return find(check, bench)
        if check.name not in found:
            found[check.name] = find(check, bench)
        return found[check.name]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(validate, "find", find_once)
        yield machine


@pytest.fixture(scope="module")
def finished(right_bench, tmp_path_factory):
    """A finished validation of that machine, and the text of its file."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patched:
        quiet(patched)
        progress, _ = made(begin_in(folder, VERSIONS, patched), right_bench)
    return progress, progress.file.read_text(), str(folder)


@pytest.fixture
def document(finished):
    """A copy of the finished validation."""
    return copy.deepcopy(finished[0].document)


def test_check_without_time_is_made_by_the_next_call(begun, idle_observer, right_bench, monkeypatch):
    of, progress = begun()
    checks = [check for check in CHECKS if check.name in ("overhead", "peaks")]
    now_s = iter([0.0, 600 * 60.0 - 1, 600 * 60.0 - 1])
    with monkeypatch.context() as patched:
        patched.setattr(validate, "time", time_with(monotonic=now_s.__next__))
        make_checks(checks, right_bench, progress, of, lambda text: None)
    for check in checks:
        (line,) = progress.lines(check.name)
        assert (line["state"], line["again"], line["why"]) == (UNTESTED, True, "no time was left of minutes=600")
    _, left = made(begun, right_bench)
    assert {"overhead", "peaks"} <= set(left)


def test_only_lines_to_test_again_are_made_again(begun, idle_observer, right_bench):
    progress, _ = made(begun, right_bench)
    before = progress.document["lines"]
    progress, left = made(begun, right_bench)
    assert left == []
    assert progress.document["lines"] == before
    begun.versions["driver"] = "590"
    _, left = made(begun, right_bench)
    assert len(left) == len(CHECKS), "another driver"


def test_nothing_passes_on_a_busy_machine_and_all_is_made_again(begun, idle_observer, right_bench):
    idle_observer.use = CpuUse(0.4)
    progress, _ = made(begun, right_bench)
    lines = progress.document["lines"]
    tested = [line for line in lines if line["value"] is not None]
    assert {line["state"] for line in lines} == {UNTESTED}
    assert all(line["again"] and "40 % of the processor time" in line["why"] for line in tested)
    assert not any(one.get("response") for one in progress.document["instruments"]), "of no use for runs"
    idle_observer.use = CpuUse(0.0)
    progress, left = made(begun, right_bench)
    assert {"resolution", "lag", "coverage", "stall", "overhead"} <= set(left)
    assert validation.counts(progress.document["lines"])[PASSED] > 10


def test_readings_that_were_taken_on_a_busy_machine_disturb_later_checks_of_them(
    begun, idle_observer, right_bench, monkeypatch
):
    uses = iter([CpuUse(0.4)])
    monkeypatch.setattr(validate, "CpuLoad", lambda **_: SimpleNamespace(
        mark=lambda: None, window=lambda begun_ns, ended_ns: next(uses, CpuUse(0.0))))  # fmt: skip
    progress, _ = made(begun, right_bench)
    states = {line["check"]: line["state"] for line in progress.document["lines"] if line["subject"] in ("gpu0", "")}
    assert states["lag"] == states["coverage"] == UNTESTED
    assert states["idle_power"] == states["overhead"] == PASSED


def test_document_has_no_name_of_the_host(finished):
    progress, text, folder = finished
    assert "secret-name" not in text
    assert folder not in text
    document = validation.read(progress.file)
    assert document["schema"] == 1
    assert document["machine"]["cpu"] == "AMD EPYC"
    assert document["versions"]["driver"] == "580.1"
    assert all(line["state"] in validation.STATES for line in document["lines"])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 2}', '{"schema": 1, "lines": 3}'])
def test_damaged_or_foreign_document_is_replaced(begun, tmp_path, text):
    (tmp_path / "validation.json").write_text(text)
    _, progress = begun()
    assert progress.document["lines"] == []
    with pytest.raises(ValueError):  # noqa: PT011  # of several kinds
        validation.read(tmp_path / "validation.json")


def stored(tmp_path, meter="rails", name="VDD_IN", covers="module", **response):
    """Keep a validation of HOST in the state folder."""
    measured = {"averaging_s": 0.3, "lag_s": 0.1, "renewal_s": 0.05, "is_filter": False, **response}
    instrument = {"name": name, "source": "sampled", "covers": covers, "response": measured}
    line = {"check": "lag", "subject": name, "value": 0.1, "bound": [None, None], "unit": "s", "state": PASSED,
            "why": "", "hint": "", "again": False}  # fmt: skip
    document = {"schema": 1, "validated": "2026-11-29T12:00:00+00:00", "minutes": 10.0, "settings": False,
                "meter": meter, "versions": VERSIONS, "machine": {}}  # fmt: skip
    document |= {"instruments": [instrument], "lines": [line]}
    validation.store(document, machine_identity(HOST), str(tmp_path / "state"))
    return document


def rails(root):
    spec = {"_target_": "epochmeter.power.meters.rails.open_rails", "rails": {"total": ["VDD_IN"], "covers": "module"}}
    return open_meter({**spec, "period_s": 10.0}, gpus=[], root=root)


def test_meter_uses_the_measured_response_of_its_sensor(tmp_path):
    tree = boards.write(tmp_path / "board", "orin_nano")
    document = stored(tmp_path)
    with_validation, without = rails(tree.root), rails(tree.root)
    used = use_validated(with_validation, document, "rails")
    assert list(used) == ["VDD_IN"]
    assert with_validation.domains["VDD_IN"].response == Response(0.3, 0.1, 0.05)
    assert with_validation.settled_s == pytest.approx(0.45)
    assert without.domains["VDD_IN"].response != Response(0.3, 0.1, 0.05)
    assert with_validation.domains["VDD_SOC"] == without.domains["VDD_SOC"]
    for meter in (with_validation, without):
        meter.close()


@pytest.mark.parametrize(
    "other", [{"meter": "jtop"}, {"name": "VDD_OTHER"}, {"covers": "input of the carrier board"}], ids=str
)
def test_response_of_another_sensor_is_not_used(tmp_path, other):
    tree = boards.write(tmp_path / "board", "orin_nano")
    meter = rails(tree.root)
    assert use_validated(meter, stored(tmp_path, **other), "rails") == {}
    meter.close()


def test_counter_is_renewed_as_measured():
    machine = bench(count=H100_COUNTER, sample=A100_POWER)
    meter = EnergyMeter(counters={"gpu0": machine.instruments["gpu0"]}, total=["gpu0"], covers="all")
    meter.use_responses({"gpu0": Response(0.02, 0.01, 0.02)})
    domain = meter.domains["gpu0"]
    assert (domain.period_s, domain.response.lag_s) == (0.02, 0.01)
    assert meter.instruments["gpu0"].domain == domain


def test_measured_responses_of_one_kind_count_as_the_same(tmp_path):
    """They differ slightly: a counter that adds up the sampled sensor, and the rails of a board."""
    true = Sensor(Response(0.025, 0.0, 0.1011))
    (line,) = lines("coverage", bench(0, count=true, sample=true, counter_stated=PART_TIME, power_stated=PART_TIME))
    details = line["details"]
    assert details["median_half_width"] < 1.1 * details["assumed_median_half_width"]
    tree = boards.write(tmp_path / "board", "agx")
    spec = {"_target_": "epochmeter.power.meters.rails.open_rails", "rails": {"total": ["GPU", "CPU"]}}
    meter = open_meter({**spec, "period_s": 10.0}, gpus=[], root=tree.root)
    meter.use_responses({"GPU": Response(0.300, 0.1, 0.05), "CPU": Response(0.303, 0.101, 0.05)})
    assert meter.drain(2**62).response == Response(0.300, 0.1, 0.05)
    meter.use_responses({"CPU": Response(0.4, 0.1, 0.05)})
    assert meter.drain(2**62).response is None
    meter.close()


def test_another_driver_or_host_or_processor_is_another_machine():
    gpus = [{"vendor": "nvidia", "uuid": "GPU-a"}, {"vendor": "nvidia", "uuid": "GPU-b"}]
    others = [{"driver": "590"}, {"hostname": "b"}, {"cpu": {"model": "Xeon"}}, {"kernel": "6.2"}]
    others += [{"gpus": gpus}, {"gpus": gpus[:1]}, {"gpus": gpus[::-1]}]
    assert len({machine_identity({**HOST, **other}) for other in ({}, *others)}) == 8


@pytest.fixture
def known_host(monkeypatch):
    monkeypatch.setattr(validated.host, "describe", lambda *_: HOST)


def test_run_records_its_validation_and_is_another_measurement_with_it(order, tmp_path, known_host):
    state = f"machine.state_dir={tmp_path / 'state'}"
    before = resolve_plan(order(state, "meter=none"))
    assert before.run.validation is None
    stored(tmp_path, meter="none")
    after = resolve_plan(order(state, "meter=none"))
    facts = after.run.validation
    assert (facts["validated"], facts["version"], facts["passed"]) == ("2026-11-29T12:00:00+00:00", "1", 1)
    stored(tmp_path, meter="none", lag_s=0.2)
    assert resolve_plan(order(state, "meter=none")).run.identity != after.run.identity
    stored(tmp_path, meter="nvml")
    assert resolve_plan(order(state, "meter=none")).run.identity == before.run.identity, "not of this meter"


def test_validation_is_found_by_its_machine_only(tmp_path, known_host, monkeypatch):
    document = stored(tmp_path)
    state = Host(root="/", state_dir=str(tmp_path / "state"))
    assert find_validation(state) == document
    assert find_validation(replace(state, state_dir=str(tmp_path / "other"))) is None
    monkeypatch.setattr(validated.host, "describe", lambda *_: {**HOST, "driver": "590"})
    assert find_validation(state) is None
    assert stored_responses(document, "rails").keys() == {"VDD_IN"}


def test_doctor_has_one_row_with_date_versions_and_counts(tmp_path):
    row = validation_row(stored(tmp_path), ["VDD_IN"])
    assert row.offered
    assert row.source == "2026-11-29, epochmeter 1, driver 580.1"
    assert row.covers == "1 passed, 0 failed, 0 cannot be tested here; runs use the measured response of VDD_IN"
    row = validation_row(None, [])
    assert (row.offered, row.remedy) == (False, "`python src/validate.py` takes ten minutes")


def test_facts_of_a_run_are_read_back(tmp_path):
    facts = facts_of(stored(tmp_path), {"VDD_IN": {"lag_s": 0.1}})
    assert facts["validated_response"] == {"VDD_IN": {"lag_s": 0.1}}
    assert facts["driver"] == "580.1"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_table_fits_the_terminal_and_has_each_line(document, width):
    console = PlainConsole(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    print_validation(document, [], TITLES, console)
    shown = console.file.getvalue()
    assert max(map(len, shown.splitlines())) <= width
    words = " ".join(shown.split())
    for line in document["lines"]:
        if line["value"] is not None:
            assert TITLES[line["check"]].split()[0] in words
    assert "1 failed" in words
    assert f"{validation.counts(document['lines'])[PASSED]} lines passed" in words


def test_page_and_markdown_have_the_failed_line_with_its_reason(document, tmp_path):
    written = write_validation(document, tmp_path, TITLES)
    assert {path.name for path in written} >= {"validation.md"}
    for path in written:
        text = path.read_text().replace(NO_BREAK, " ")
        assert "stated 0.025 s" in text, path.name
        assert "100.0 ms" in text or "100 ms" in text or "0.100 s" in text, path.name


def test_reasons_of_other_users_files_are_text_on_the_page(document, tmp_path):
    document["lines"][0] |= {"state": FAILED, "why": "<script>alert(1)</script>"}
    for path in write_validation(document, tmp_path, TITLES):
        assert "<script>alert(1)" not in path.read_text()


def test_validation_is_kept_for_the_runs_of_its_machine_and_continued(
    begun, idle_observer, right_bench, tmp_path, monkeypatch
):
    """The command itself is a step of `tests/system/test_gpu_session.py`."""
    monkeypatch.setattr(validate, "open_meter", lambda *_, **__: NullMeter("the bench has the instruments"))
    monkeypatch.setattr(validate, "open_bench", lambda *_: right_bench)
    of, said = machine(tmp_path), []
    document = copy.deepcopy(validate.validate(of, tmp_path, said.append))
    assert {line["check"] for line in document["lines"]} == set(TITLES)
    assert not any("checks are finished" in text for text in said)
    kept = list((tmp_path / "state/validations").glob("*.json"))
    assert [json.loads(file.read_text())["lines"] for file in kept] == [document["lines"]]
    for line in document["lines"]:
        line["again"] = line["check"] == "counters"
    (tmp_path / "validation.json").write_text(json.dumps(document))
    made_again = validate.validate(of, tmp_path, said.append)
    assert f"{len(TITLES) - 1} of {len(TITLES)} checks are finished" in "".join(said)
    others = [[line for line in each["lines"] if line["check"] != "counters"] for each in (document, made_again)]
    assert others[0] == others[1]
    assert not any(line["again"] for line in made_again["lines"])
    assert made_again["instruments"] == document["instruments"]


@pytest.mark.parametrize(
    ("value", "is_allowed"), [(10, True), (0.5, False), (math.nan, False), (1e9, False), ("10", False)]
)
def test_duration_is_checked(value, is_allowed):
    assert key_rules("validate")["minutes"].is_allowed(value) == is_allowed


def test_names_of_other_processes_are_printed_and_not_kept(begun, idle_observer, right_bench):
    idle_observer.use = CpuUse(0.4, others=[BusyProcess("secret-program", 7, 0.4)])
    of, progress = begun()
    printed = []
    make_checks([check for check in CHECKS if check.name == "peaks"], right_bench, progress, of, printed.append)
    assert any("secret-program (pid 7) 40 %" in text for text in printed)
    assert "secret-program" not in progress.file.read_text()
    assert "40 % of the processor time" in progress.file.read_text()


@pytest.mark.parametrize(
    ("lines_of", "code"),
    [([], 0), ([PASSED, UNTESTED], 0), ([PASSED, FAILED, "again"], 2), ([PASSED, "again"], 3)],
    ids=str,
)
def test_exit_code_says_whether_a_line_failed_or_is_to_be_tested_again(lines_of, code):
    lines = [{"state": UNTESTED if state == "again" else state, "again": state == "again"} for state in lines_of]
    assert exit_code({"lines": lines}) == code


@pytest.mark.parametrize(
    ("argument", "message"),
    [("minutes=0", "`minutes=0` is not valid"), ("out=/proc/nowhere", "/proc/nowhere"), ("minuts=3", "`minuts`")],
)
def test_wrong_arguments_end_in_one_error(tmp_path, argument, message):
    command = [sys.executable, ROOT / "src/validate.py", argument]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert ended.returncode == 1
    assert "error:" in ended.stderr
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


def test_no_setting_is_changed_for_a_recorded_machine(tmp_path):
    """A replayed board has the settings of its files, and the programs that change them those of this machine."""
    of = machine(tmp_path, settings=True)
    of.config.machine.root = str(boards.write(tmp_path / "board", "orin_nano").root)
    journal = RestoreJournal(str(tmp_path / "state"), root=of.config.machine.root, command="validate")
    with ExitStack() as stack:
        opened = this_machine.open_bench(of, NullMeter("no meter"), journal, stack)
    found = lines("settings_applied", opened)
    assert {"power_limit", "clocks", "fan"} <= {line["subject"] for line in found}
    assert {line["state"] for line in found} == {UNTESTED}
    assert all("this machine" in line["why"] for line in found)


def test_file_that_a_known_program_needs_is_a_reason_and_no_end(begun, idle_observer):
    """Such as a socket below a `TMPDIR` with a long path."""
    programs = Known()
    programs.peaks = lambda: (_ for _ in ()).throw(OSError("AF_UNIX path too long"))
    of, progress = begun()
    checks = [check for check in CHECKS if check.name in ("peaks", "counters")]
    make_checks(checks, bench(programs=programs, on_gpu=True), progress, of, lambda text: None)
    (line,) = progress.lines("peaks")
    assert (line["state"], line["why"]) == (UNTESTED, "AF_UNIX path too long")
    assert {line["state"] for line in progress.lines("counters")} == {PASSED}


def test_reason_of_a_recorded_machine_has_the_name_of_its_archive(tmp_path):
    archive = tmp_path / "board.tar.gz"
    record_machine(archive, put(tmp_path / "machine", pc("a CPU")), 0.05, None, "no load")
    of = machine(tmp_path)
    of.config.machine.root = str(archive)
    journal = RestoreJournal(str(tmp_path / "state"), root=str(archive), command="validate")
    with ExitStack() as stack:
        opened = this_machine.open_bench(of, open_rapl(gpus=[], root=root_folder(archive)), journal, stack)
    assert str(archive) in opened.no_energy.message
    assert str(root_folder(archive)) not in opened.no_energy.message
