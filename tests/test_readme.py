"""The commands in README.md: they compose, their values are valid, and the targets of make exist."""

import re
import shlex
from pathlib import Path

from epochmeter.config.suggestions import check_overrides
from epochmeter.config.validation import check_values

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^(?:srun .*?)?python src/train\.py (.*?)(?: {2,}#.*)?$", README, re.MULTILINE)


def first_value(override):
    """Return an override with the first value of a sweep: `batch=8,16` -> `batch=8`."""
    key, _, value = override.partition("=")
    value = value if "(" in value else value.partition(",")[0]
    return f"{key}={value}"


def test_commands_of_the_readme_compose_to_valid_configurations(order):
    assert len(COMMANDS) >= 10
    for command in COMMANDS:
        overrides = [first_value(word) for word in shlex.split(command) if word != "-m"]
        request = order(*(text for text in overrides if "(" not in text and not text.startswith(("hydra/", "hydra."))))
        check_overrides(request.overrides, request.choices)
        check_values(request.job)


def test_the_make_targets_of_the_readme_exist():
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z][a-z0-9-]*)", README)) <= targets


def test_the_links_of_the_readme_lead_to_files():
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", README)
    assert [link for link in links if not (ROOT / link).exists()] == []
