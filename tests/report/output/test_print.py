"""The analyses of a sweep that are printed and written, by what its runs allow."""

import io
import json

import pytest
from rich.console import Console
from sweeps import ddp, reaching, row, rows, trained, write

from epochmeter.report.output.report import answer_lines, print_analyses


def printed(folder, width=80, **options):
    paper = io.StringIO()
    console = Console(file=paper, width=width, force_terminal=True, color_system=None, highlight=False)
    print_analyses(folder, console, **options)
    return " ".join(paper.getvalue().split())


def sweep(folder, runs):
    for run in runs:
        energy = {"source": "counter", "covers": run.energy_covers, "reason": None} if run.energy_covers else None
        write(folder, run, rehearsal=run.rehearsal, energy=energy)
    return folder


def files(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def test_answer_and_report_command_are_one_line_each(tmp_path):
    for number, (e2e_s, joules) in enumerate([(2.0, 30.0), (1.0, 40.0), (4.0, 20.0)]):
        batch = 8 * (number + 1)
        write(tmp_path / "sweep", row(number, "storage", e2e_s, steady={"energy_j": joules}, job_keys={"batch": batch},
              typed={"batch": str(batch)}), energy={"source": "counter", "covers": "gpu0", "reason": None})  # fmt: skip
    answer, report = answer_lines(tmp_path / "sweep")
    assert "Fastest: " in answer
    assert answer.index("batch 16") < answer.index("Least energy: ") < answer.index("batch 24")
    assert report.startswith("Report:  python src/report.py sweep=sweep  ->  ")
    assert answer_lines(tmp_path / "sweep", is_choice=False) == [report]
    assert answer_lines(tmp_path / "empty") == []


def test_runs_on_several_devices_have_scaling_and_questions_without_failed_ones(tmp_path):
    sweep(tmp_path, [trained(0, 100.0), ddp(1, 190.0)])
    write(tmp_path, ddp(2, 999.0), state="failed")
    text = printed(tmp_path, width=40)
    assert "resnet152 on jpeg ddp x 2 64 weak 190 1.90" in text, "numbers are complete in a narrow terminal"
    for content in (text, (tmp_path / "scaling.md").read_text()):
        assert "Left out: 1 of 3 runs: not completed (failed)." in content
    assert [part for part in ("999", "experiment=stalls") if part in text] == []
    assert files(tmp_path) == ["questions.json", "questions.md", "scaling.json", "scaling.md"]
    (values,) = json.loads((tmp_path / "scaling.json").read_text())["compared"]
    assert (values["kind"], values["efficiency"]["value"]) == ("weak", pytest.approx(0.95))
    page = (tmp_path / "scaling.md").read_text()
    assert page.startswith(f"# Scaling: {tmp_path.name}\n\n**resnet152 on jpeg: ddp on")
    assert json.loads((tmp_path / "questions.json").read_text())["overhead"]


def test_runs_with_a_target_have_time_and_energy_to_it(tmp_path):
    text = printed(sweep(tmp_path, [reaching(0, 100.0, 900.0), reaching(1, 60.0, 1000.0, batch=128)]))
    assert "jpeg, accuracy of at least 0.9: Fastest: batch 128: 60.0 s, 1.00 kJ" in text
    assert files(tmp_path) == ["targets.json", "targets.md"]
    (values,) = json.loads((tmp_path / "targets.json").read_text())
    assert [point["on_front"] for point in values["points"]] == [True, True]


def test_rehearsals_alone_are_analyzed_below_a_banner(tmp_path):
    reason = "strategy.ranks=2 asked for, this machine has 1 GPU"
    runs = [trained(0, 100.0, rehearsal=[reason]), ddp(1, 101.0, rehearsal=[reason])]
    text = printed(sweep(tmp_path, runs))
    assert text.startswith(f"REHEARSAL, not a result of the requested configuration: {reason}.")
    assert (tmp_path / "scaling.md").read_text().splitlines()[2].startswith("**REHEARSAL, not a result")


@pytest.mark.parametrize(
    ("runs", "of_sources", "written"),
    [
        (rows([1.5, 1.6], [3.7, 3.8], [12.0, 12.1]), "fetch-bound", ["stalls.json", "stalls.md"]),
        ([trained(0, 100.0), trained(1, 110.0, batch=128)], "experiment=stalls", []),
        ([], "", []),
    ],
)
def test_other_sweeps_have_only_the_stall_analysis_of_their_data_sources(tmp_path, runs, of_sources, written):
    sweep(tmp_path, runs)
    assert printed(tmp_path) == ""
    assert of_sources in printed(tmp_path, of_sources=True)
    assert files(tmp_path) == written
