"""The help pages of the commands, and docs/configuration.md."""

import ast
import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from epochmeter.config import help
from epochmeter.config.suggestions import CONF, entry_keys, list_choices

ROOT = Path(__file__).parents[2]
ENTRIES = ["train", "report", "doctor"]


def page_of(entry):
    doc = ast.get_docstring(ast.parse((ROOT / "src" / f"{entry}.py").read_text()), clean=False)
    return help.help_page(entry, doc)


@pytest.mark.parametrize("entry", ENTRIES)
def test_help_page_has_summary_examples_exit_codes_and_all_keys_with_comments(entry):
    page = page_of(entry)
    assert [line for line in page.splitlines() if len(line) > help.COLUMNS] == []
    assert re.match(r"[A-Z][^\n]+(\n[^\n]+)*\.\n\n", page)
    assert page.count(f"python src/{entry}.py") >= 3
    assert "\nExit code: 0" in page
    _, keys = entry_keys(entry)
    names = [f"{key}.{name}" for key, part in keys.items() if isinstance(part, dict) for name in part]
    names += [key for key, part in keys.items() if not isinstance(part, dict)]
    assert [name for name in names if not re.search(rf"\n  {name}=\S.*  \S", page)] == []


def test_help_page_lists_all_options_of_all_groups():
    words = page_of("train").replace(",", " ").split()
    for path in (ROOT / "conf").glob("*/**/[!_]*.yaml"):
        group, *choice = path.relative_to(ROOT / "conf").with_suffix("").parts
        assert group == "hydra" or {group, "/".join(choice)} <= {*words}


def test_keys_and_values_are_read_as_yaml_reads_them(tmp_path, monkeypatch):
    text = "# a file\ndefaults:\n  - a: b # one\nkey: 1 # effect\npart: # section\n  deep: a b\n  other: [] # none\n"
    (tmp_path / "mine.yaml").write_text(text)
    monkeypatch.setattr(help, "CONF", tmp_path)
    keys = dict(help.commented_keys("mine"))
    assert keys == {"key": ("1", "effect"), "part.deep": ("a b", "section"), "part.other": ("[]", "none")}
    parsed = OmegaConf.create(text)
    assert [str(OmegaConf.select(parsed, name)) for name in keys] == [value for value, _ in keys.values()]


def test_docs_of_the_configuration_name_every_option_and_key():
    text = (ROOT / "docs/configuration.md").read_text()
    named = {name for quoted in re.findall(r"`([^`]+)`", text) for name in re.split(r"[=\s]", quoted)}
    keys = {key for entry in ("train", "report") for key, _ in help.commented_keys(entry)}
    choices = {choice for group in entry_keys("train")[0] if group != "experiment" for choice in list_choices(group)}
    assert keys | choices <= named


def test_docs_of_the_configuration_have_the_sampling_period_of_every_meter():
    (row,) = re.findall(r"^\| `meter.period_s`.*", (ROOT / "docs/configuration.md").read_text(), re.MULTILINE)
    periods = {meter: OmegaConf.load(CONF / f"meter/{meter}.yaml").get("period_s") for meter in list_choices("meter")}
    for meter, period_s in periods.items():
        assert period_s is None or re.search(rf" {period_s} of [^,;]*`{meter}`", row), meter
