"""What a person sees at the end of a command, in twelve recorded situations: terminal, report, answer and MLflow.

Each file of tests/situations/ was read by somebody who then knew what is established, what is not, and what to do next.
"""

import json
import re
from pathlib import Path

import pytest
from documents import assert_conforms
from golden import assert_text
from situations import SITUATIONS, write_situation

from epochmeter.config.schema import Job
from epochmeter.console import run_end, sweep_end
from epochmeter.report.build import build_report
from epochmeter.report.output.report import answer_lines, first_sentences
from epochmeter.report.runs.load import read_sweep
from epochmeter.results.answer_fields import SCHEMA
from epochmeter.results.run_folder import RunFolder
from epochmeter.results.sweep_files import read_points
from epochmeter.tracking.run_export import run_note

FOLDER = Path(__file__).parent / "situations"
LINE_END = "\n"
ANSWERED = ("state", "states", "errors", "doubts", "choices", "bottlenecks", "no_energy", "next_steps", "unmet")


@pytest.mark.parametrize("name", SITUATIONS)
def test_output_at_the_end_of_a_command_is_as_it_was_approved(name, terminal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep = tmp_path / "multirun" / name
    results = write_situation(sweep, SITUATIONS[name])
    if len(results) == 1:
        record = RunFolder(results[0].folder)
        run_end.print_run(terminal, record.record.windows(), Job.from_dict(record.job), results[0])
    else:
        sweep_end.print_sweep(terminal, results, answer_lines(sweep), read_points(sweep))
    report = build_report(read_sweep(sweep))
    answers = [page.values for page in report.pages if page.name == "answer"]
    texts = {
        "Terminal": terminal.console.file.getvalue(),
        "Report": "\n\n".join([f"# {report.heading}", *report.banner, first_sentences(report.pages), *report.notes]),
        "answer.json": json.dumps([_answered(answer) for answer in answers], indent=1),
        "MLflow": run_note(RunFolder(sweep / "0")),
    }
    assert all(answer["schema"] == SCHEMA for answer in answers)
    for answer in answers:
        assert_conforms("answer", answer)
    text = "\n".join(f"===== {title}\n{text.rstrip().lstrip(LINE_END)}\n" for title, text in texts.items())
    assert_text(FOLDER / f"{name}.txt", _without_place(text, tmp_path))


def _answered(answer: dict[str, object]) -> dict[str, object]:
    return {key: answer[key] for key in ANSWERED if key in answer}


def _without_place(text: str, root: Path) -> str:
    """Return a text without the folder of the test, the host, and digits that differ between machines."""
    text = text.replace(f"{root}/", "").replace(str(root), "")
    text = re.sub(r"Measured on `[^`]*`", "Measured on `host`", text)
    text = re.sub(r"(\d\.\d{5})\d+", r"\1", text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
