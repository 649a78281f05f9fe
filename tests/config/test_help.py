"""The help pages of the commands, and docs/configuration.md."""

import ast
import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from epochmeter.config.help import COLUMNS, MOST_USED, commented_keys, help_page, two_columns
from epochmeter.config.suggestions import CONF, entry_keys, list_choices

ROOT = Path(__file__).parents[2]
ENTRIES = ["train", "report", "doctor"]


@pytest.fixture
def printed():
    """printed("train") -> the page of an entry."""
    return lambda entry: help_page(
        entry, ast.get_docstring(ast.parse((ROOT / "src" / f"{entry}.py").read_text()), clean=False)
    )


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_help_page_fits_a_screen(printed, entry):
    lines = printed(entry).splitlines()
    assert len(lines) <= 60
    assert [line for line in lines if len(line) > COLUMNS] == []


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_help_page_has_summary_examples_and_exit_codes(printed, entry):
    text = printed(entry)
    assert re.match(r"[A-Z][^\n]+(\n[^\n]+)*\.\n\n", text)
    assert text.count(f"python src/{entry}.py") >= 3
    assert "\nExit code: 0" in text


def test_all_options_of_all_groups_are_listed(printed):
    words = printed("train").replace(",", " ").split()
    for path in (ROOT / "conf").glob("*/**/[!_]*.yaml"):
        group, *choice = path.relative_to(ROOT / "conf").with_suffix("").parts
        assert group == "hydra" or {group, "/".join(choice)} <= {*words}


def test_shared_base_files_are_not_listed_as_options(printed):
    assert (ROOT / "conf/experiment/edge/_study.yaml").exists()
    assert "study" not in printed("train").replace("/", " ").replace("_", " ").replace(",", " ").split()


def test_the_most_used_keys_are_listed_with_defaults_and_comments(printed):
    assert re.search(r"\n  batch=16 +batch size per rank", printed("train"))
    assert re.search(r"\n  checkpoint.every=null +checkpoint interval", printed("train"))


def test_every_listed_key_has_a_comment():
    told = dict(commented_keys((ROOT / "conf" / "train.yaml").read_text()))
    assert [name for name in MOST_USED["train"] if not told[name][1]] == []


@pytest.mark.parametrize("entry", ["report", "doctor"])
def test_all_keys_of_commands_with_few_keys_are_listed(printed, entry):
    _, keys = entry_keys(entry)
    names = [f"{key}.{name}" for key, part in keys.items() if isinstance(part, dict) for name in part]
    names += [key for key, part in keys.items() if not isinstance(part, dict)]
    text = printed(entry)
    assert [name for name in names if f"\n  {name}=" not in text and not name.startswith("hydra.")] == []


def test_keys_and_values_are_read_as_yaml_reads_them():
    text = "# a file\ndefaults:\n  - a: b # one\nkey: 1 # what it is\npart: # of it\n  deep: a b\n  other: [] # none\n"
    told = dict(commented_keys(text))
    assert told == {"key": ("1", "what it is"), "part.deep": ("a b", ""), "part.other": ("[]", "none")}
    read = OmegaConf.create(text)
    assert [str(OmegaConf.select(read, name)) for name in told] == [value for value, _ in told.values()]


def test_long_comments_are_wrapped_within_their_column():
    one, two = two_columns([("a", "word " * 30), ("longer", "")]).splitlines()[:2]
    assert one.startswith("  a       word")
    assert two.startswith("          word")


def test_docs_of_the_configuration_name_every_option_and_key():
    told = (ROOT / "docs/configuration.md").read_text()
    named = {name for quoted in re.findall(r"`([^`]+)`", told) for name in re.split(r"[=\s]", quoted)}
    keys = {key for entry in ("train", "report") for key, _ in commented_keys((CONF / f"{entry}.yaml").read_text())}
    listed_choices = {
        choice for group in entry_keys("train")[0] if group != "experiment" for choice in list_choices(group)
    }
    assert keys | listed_choices <= named


def test_docs_of_the_configuration_have_the_sampling_period_of_every_meter():
    (told,) = re.findall(r"^\| `meter.period_s`.*", (ROOT / "docs/configuration.md").read_text(), re.MULTILINE)
    periods = {meter: OmegaConf.load(CONF / f"meter/{meter}.yaml").get("period_s") for meter in list_choices("meter")}
    for meter, period_s in periods.items():
        assert period_s is None or re.search(rf" {period_s} of [^,;]*`{meter}`", told), meter
