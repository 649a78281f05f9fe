"""The help pages of the commands, and docs/configuration.md."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from epochmeter.commands import measure, train
from epochmeter.config import app
from epochmeter.config.suggestions import entry_keys, list_choices

ROOT = Path(__file__).parents[2]
ENTRIES = ["train", "watch", "report", "doctor", "validate"]


@pytest.mark.parametrize("entry", ENTRIES)
def test_help_page_has_summary_examples_exit_codes_and_all_keys_with_comments(entry):
    source = (ROOT / "src/epochmeter/commands" / f"{entry}.py").read_text()
    page = app.help_page(entry, ast.get_docstring(ast.parse(source), clean=False))
    assert [line for line in page.splitlines() if len(line) > app.HELP_COLUMNS] == []
    assert re.match(r"[A-Z][^\n]+(\n[^\n]+)*\.\n\n", page)
    assert page.count(f"python src/{entry}.py") >= 3
    assert "\nExit code: 0" in page
    groups, keys = entry_keys(entry)
    names = [f"{key}.{name}" for key, part in keys.items() if isinstance(part, dict) for name in part]
    names += [key for key, part in keys.items() if not isinstance(part, dict)]
    assert [name for name in names if not re.search(rf"\n  {name}=\S.*  \S", page)] == []
    assert [group for group in groups if not re.search(rf"\n  {group} +\w", page)] == []


def test_help_of_train_and_measure_has_only_keys_that_they_read(monkeypatch, capsys):
    for command, used, unused in ((train, "batch", "script"), (measure, "script", "batch")):
        monkeypatch.setattr("sys.argv", [f"{command.__name__}.py", "--help"])
        command.main()
        names = re.findall(r"^  (\w+)[. =]", capsys.readouterr().out, re.MULTILINE)
        assert {used, "meter", "sweep", "footprint"} <= {*names}
        assert unused not in names
    assert {*names} <= {*measure.KEYS}


def test_docs_of_the_configuration_name_every_option():
    text = re.sub("```.*?```", "", (ROOT / "docs/configuration.md").read_text(), flags=re.DOTALL)
    named = {name for quoted in re.findall(r"`([^`]+)`", text) for name in re.split(r"[=\s]", quoted)}
    choices = {choice for group in entry_keys("train")[0] if group != "experiment" for choice in list_choices(group)}
    assert choices <= named


def test_options_may_be_given_between_overrides():
    arguments = ["batch=8", "--cfg", "job", "--package", "batch", "batch=3"]
    command = [sys.executable, ROOT / "src/train.py", *arguments]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (shown.stdout.split(), shown.stderr) == (["3"], "")
