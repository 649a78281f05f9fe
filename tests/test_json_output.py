"""`format=json` of every command, and the published schemas of the documents for other programs."""

import json
import os
import sys

import pytest
from documents import KINDS, assert_conforms
from golden import assert_text
from project import ROOT, put

from epochmeter.config import json_output
from epochmeter.config.errors import refuse
from epochmeter.shared.problem import Place, Problem, input_error

QUIET = ("tracking=none", "meter=none", "device=cpu")
PLAIN_SCRIPT = "import sys\nsys.stdout.write('no end of line')\nsys.exit(3)\n"


def run(project, entry, *arguments):
    """Run a command with `format=json`; return the document, which is the only line of its output, and its texts."""
    done = project.run(entry, "format=json", *arguments)
    (line,) = done.stdout.splitlines()
    document = json.loads(line)
    assert_conforms("output", document)
    assert (document["command"], document["exit_code"]) == (entry, done.returncode)
    return document, done.stderr


@pytest.mark.parametrize("name", KINDS)
def test_published_schema_is_made_from_the_types(name, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import json_schema

    assert_text(ROOT / f"docs/{name}.schema.json", json_schema.schema_text(name), "run `python docs/json_schema.py`")


@pytest.mark.parametrize("name", KINDS)
def test_published_schema_is_valid_for_other_programs(name):
    validator = pytest.importorskip("jsonschema", reason="jsonschema is not installed").Draft202012Validator
    schema = json.loads((ROOT / f"docs/{name}.schema.json").read_text())
    validator.check_schema(schema)
    assert list(validator(schema).iter_errors({"schema": "1"})) != []


def test_runs_their_report_and_their_state_are_one_document_each(new_project):
    project = new_project()
    sweep, texts = run(project, "train", *project.stubbed("-m", batch="8,16", tracking="none"))
    assert [result["state"] for result in sweep["result"]["runs"]] == ["completed", "completed"]
    assert sweep["result"]["runs"][0]["metrics"]["steady/e2e_s"] > 0
    assert sweep["result"]["runs"][0]["no_energy"]["message"]
    assert "Answer:" in texts
    again, _ = run(project, "train", *project.stubbed("-m", batch="8,16", tracking="none"))
    assert [result["earlier"] for result in again["result"]["runs"]] == [True, True]

    report, _ = run(project, "report", "tracking=none")
    answer = report["result"]["pages"]["answer"]
    assert_conforms("answer", answer)
    assert answer["states"] == {"completed": 2}
    assert any(path.endswith("/answer.json") for path in report["result"]["files"])

    state, _ = run(project, "watch")
    assert (state["result"]["state"], state["result"]["counts"]) == ("completed", {"completed": 2})
    assert [each["number"] for each in state["result"]["runs"]] == [0, 1]

    published, _ = run(project, "publish")
    assert [each["problem"] for each in published["result"]["runs"]] == [None, None]
    assert published["result"]["runs"][0]["link"].startswith("http")


def test_document_of_a_script_is_the_last_line_after_its_output(new_project):
    project = new_project()
    put(project.root, {"own.py": PLAIN_SCRIPT})
    done = project.run("measure", "format=json", f"machine.lock_dir={project.root}", *QUIET, "own.py", "format=json")
    script, line = done.stdout.splitlines()
    document = json.loads(line)
    assert_conforms("output", document)
    (ran,) = document["result"]["runs"]
    assert script == "no end of line"
    assert (done.returncode, document["exit_code"], ran["exit_code"]) == (3, 3, 3)
    assert project.record().job()["measure"]["command"][1:] == ["format=json"]


@pytest.mark.parametrize(
    ("entry", "arguments"),
    [
        ("train", ["batch=0", "epochs=none"]),
        ("measure", ["nothing.py"]),
        ("watch", ["page=true"]),
        ("doctor", ["device=none"]),
        ("publish", ["nowhere"]),
    ],
)
def test_refused_command_has_its_problems_as_data(new_project, entry, arguments):
    document, texts = run(new_project(), entry, *arguments)
    assert document["exit_code"] == 1
    if entry != "publish":  # has a result for the other folders
        assert document["result"] is None
        assert all(problem["message"] in texts for problem in document["problems"])
        assert any(problem["hint"] for problem in document["problems"])


def test_quantities_of_the_machine_are_rows(new_project):
    document, _ = run(new_project(), "doctor", "device=cpu")
    rows = {row["quantity"]: row for row in document["result"]["rows"]}
    assert all(row["why"] for row in rows.values() if not row["offered"])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["format=json"], True),
        (["format=text", "-m", "format=json"], True),
        (["format=json", "format=text"], False),
        (["format=json", "--help"], False),
        (["format=json", "--cfg", "job"], False),
        (["sweep.format=json"], False),
        ([], False),
    ],
)
def test_last_format_counts_unless_another_output_is_requested(arguments, expected):
    assert json_output.is_requested(arguments) is expected


def end_with(code):
    def main():
        json_output.set_result({"loss": float("nan"), "text": "\x1b[2J"})
        if isinstance(code, BaseException):
            raise code
        sys.exit(code)

    return main


def test_end_of_a_command_decides_exit_code_and_problems(capfd):
    def document(main):
        code = json_output.run("train", main)
        (line,) = capfd.readouterr().out.splitlines()
        return code, json.loads(line)

    code, shown = document(end_with(2))
    assert (code, shown["exit_code"], shown["problems"]) == (2, 2, [])
    assert shown["result"] == {"loss": None, "text": "\N{REPLACEMENT CHARACTER}[2J"}
    code, shown = document(end_with("error: a text"))
    assert (code, shown["problems"][0]["message"]) == (1, "error: a text")
    code, shown = document(lambda: refuse(input_error("no", "do this", key="batch")))
    assert (code, shown["problems"]) == (1, [Problem("no", "do this", where=Place("batch")).to_fields()])
    with pytest.raises(RuntimeError):
        json_output.run("train", end_with(RuntimeError("unexpected")))
    shown = json.loads(capfd.readouterr().out)
    assert (shown["exit_code"], shown["problems"][0]["message"]) == (1, "RuntimeError: unexpected")


def test_document_that_cannot_be_written_is_an_error(capfd):
    stdout = os.dup(1)
    with open("/dev/full", "w") as full:
        os.dup2(full.fileno(), 1)
        try:
            with pytest.raises(SystemExit, match="cannot write the output"):
                json_output.run("train", lambda: 0)
        finally:
            os.dup2(stdout, 1)
            os.close(stdout)
