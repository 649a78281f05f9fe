"""The pages of the documentation: links, navigation, messages, generated parts, commands and the tutorial."""

import ast
import json
import re
import shlex

import pytest
from documents import assert_conforms
from project import ROOT

from epochmeter.config.suggestions import check_overrides
from epochmeter.config.validation import check_values
from epochmeter.machine.energy_codes import EnergyCode
from epochmeter.results.answer_fields import AnswerFields, ChoiceFields
from epochmeter.results.next_step_rules import RULES
from epochmeter.results.validation import STATES, UNTESTED, MachineFacts, Validation, read
from epochmeter.shared import record
from epochmeter.shared.problem import CODES
from epochmeter.tracking.export import CLIENTS
from epochmeter.validation.checks import CHECKS

PAGES = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for (inputs,) in DataLoader(TensorDataset(torch.ones(32, 4)), 8):
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
"""
NOT_COMPOSED = r"^(-|hydra)|\(|\.\.\.|NAME|=squares"  # options, launchers, placeholders


def without_code(page):
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page):
    """The anchors of a page's headings, as GitHub and mkdocs.yml make them."""
    headings = re.findall(r"^#+ (.*)$", without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_to_pages_and_headings_and_nested_lists_are_indented():
    broken = []
    for page in PAGES:
        broken += re.findall(r"(?m)^ {1,3}[-*] .*|\n\n {1,3}\S.*", without_code(page))
        for link, path, anchor in re.findall(r"\]\((?!https?:)(([^)#\s]*)#?([^)\s]*))\)", page.read_text()):
            target = (page.parent / path).resolve() if path else page
            leaves_site = page.parent == ROOT / "docs" and target.parent != page.parent
            if not target.exists() or leaves_site or (anchor and anchor not in anchors(target)):
                broken.append(f"{page.name}: {link}")
    assert broken == []


def test_navigation_has_every_page_once():
    listed = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(page.name for page in PAGES if page.parent == ROOT / "docs")


def test_messages_of_the_troubleshooting_page_are_in_the_source():
    nodes = (node for path in (ROOT / "src").rglob("*.py") for node in ast.walk(ast.parse(path.read_text())))
    texts = "\0".join(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    texts = re.sub(r"\{[^{}]*\}", "\0", texts)
    messages = re.findall(r"^### `(.*)`$", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)
    assert len(messages) >= 40
    assert [text for text in messages if any(part.strip() not in texts for part in text.split("..."))] == []


def test_run_folder_page_has_every_code_of_a_failure():
    page = (ROOT / "docs/run-folder.md").read_text()
    rows = dict(
        re.findall(
            r"^\| `(\w+)` \| (.*) \|$", page.partition("| code | meaning |")[2].partition("\n\n")[0], re.MULTILINE
        )
    )
    assert rows == CODES


def test_run_folder_page_has_every_file_of_the_record():
    files = set(re.findall(r"\b[\w-]+\.(?:json\.gz|jsonl?|bin|csv|pt|nsys-rep)\b", record.__doc__))
    assert {name for name in files if f"`{name}`" not in (ROOT / "docs/run-folder.md").read_text()} == set()


def test_generated_page_of_keys_has_every_key_that_has_a_comment(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import reference

    page = reference.on_page_markdown((ROOT / "docs/keys.md").read_text())
    entries = {path.stem: "" for path in reference.CONF.glob("*.yaml")}
    for group in {*reference.GROUPS} - {*reference.PRESETS}:
        entries |= {f"{group}/{choice}": group.replace("/", ".") + "." for choice in reference.list_choices(group)}
    for entry, prefix in entries.items():
        keys = [prefix + key for key, (_, text) in reference.commented_keys(entry) if text]
        assert [key for key in keys if f"| `{key}` |" not in page] == []


def test_generated_table_of_next_steps_has_every_rule(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import reference

    page = reference.on_page_markdown((ROOT / "docs/bottleneck.md").read_text())
    for rule in RULES:
        changes = [f"`{change.pattern}`".replace("{}", "N") for change in (rule.own, rule.script) if change]
        assert any(line.startswith(f"| {rule.why} | {rule.text} |") for line in page.splitlines()), rule.name
        assert all(change.replace("{:g}", "N") in page for change in changes)


def test_generated_table_of_energy_codes_has_every_code(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import reference

    page = reference.on_page_markdown((ROOT / "docs/energy.md").read_text())
    for code in EnergyCode:
        assert f"| `{code.value}` | {code.effect.value} | {code.meaning} |" in page


def test_generated_tables_of_the_answer_have_every_field_with_a_meaning(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import reference

    page = reference.on_page_markdown((ROOT / "docs/reports.md").read_text())
    for kind in (AnswerFields, ChoiceFields):
        texts = reference.field_texts(kind)
        assert all(f"| `{name}` | {text} |" in page for name, text in texts.items())
        assert [name for name, text in texts.items() if not text] == []


def test_generated_table_of_checks_has_every_check(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import reference

    page = reference.on_page_markdown((ROOT / "docs/validation.md").read_text())
    rows = re.findall(r"^\| (.*?) \| (\S.*) \|$", page, re.MULTILINE)[1:]
    assert [title for title, _ in rows if title != "---"] == [check.title for check in CHECKS]
    assert all(meaning.endswith(".") for title, meaning in rows if title != "---")


def test_table_of_validated_machines_is_made_from_the_files_that_were_sent(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import reference

    monkeypatch.setattr(reference, "VALIDATIONS", tmp_path)
    assert reference.measured_on() == "No validation was sent yet."
    line = {"check": "lag", "subject": "gpu0", "value": 0.02, "bound": [0.01, 0.03], "unit": "s", "state": "passed",
            "why": "", "hint": "", "again": False}  # fmt: skip
    failed, untested = {**line, "state": "failed"}, {**line, "state": UNTESTED, "value": None}
    document = {"schema": 1, "validated": "2026-11-29T12:00:00+00:00", "lines": [line, failed, untested]}
    document |= {"versions": {"epochmeter": "0.1.0", "driver": "580"}, "machine": {"gpus": ["H100"], "cpu": "EPYC"}}
    (tmp_path / "a.json").write_text(json.dumps(document))
    (row,) = reference.measured_on().splitlines()[2:]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:5] == ["2026-11-29, epochmeter 0.1.0, driver 580", "1", "1", "1"]
    assert cells[0].startswith("H100, EPYC")
    assert cells[5] == "; ".join(["lag of a reading (gpu0) 20.0 ms"] * 2)


@pytest.mark.parametrize("path", sorted((ROOT / "docs/validation").glob("*.json")), ids=lambda path: path.stem)
def test_validation_that_was_sent_is_anonymous_and_was_not_disturbed(path):
    document = read(path)
    assert {*document} == {*Validation.__annotations__}
    assert {*document["machine"]} <= {*MachineFacts.__annotations__}
    assert [line for line in document["lines"] if line["again"]] == []
    assert {line["state"] for line in document["lines"]} <= {*STATES}
    assert {line["check"] for line in document["lines"]} == {check.name for check in CHECKS}


def commands(page):
    """The arguments of each `python src/train.py` in a page's blocks of code."""
    text = page.read_text().replace("\\\n", "")
    return re.findall(r"^(?:srun .*?)?python src/train\.py (.*?)(?: {2,}#.*)?$", text, re.MULTILINE)


def test_commands_of_all_pages_compose_and_their_make_targets_exist(order):
    shown = {command for page in PAGES for command in commands(page)}
    assert len(shown) >= 30
    for command in shown:
        words = [word for word in shlex.split(command) if "=" in word and not re.search(NOT_COMPOSED, word)]
        # Of a sweep the first value; a list is one value.
        request = order(*(word if "=[" in word else word.partition(",")[0] for word in words))
        check_overrides(request.overrides, request.choices)
        check_values(request.job)
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        used = re.findall(r"(?:^|`)make ([a-z][a-z0-9-]*)(?: +([a-z][a-z0-9-]*))?", page.read_text(), re.MULTILINE)
        assert {name for names in used for name in names if name} <= targets, page


def quick_keys(project, entry):
    """The keys with which a command takes seconds."""
    if entry == "train":
        return project.stubbed()
    if entry == "measure":
        return ["tracking=none", "meter=none", "device=cpu", f"machine.lock_dir={project.root}"]
    return ["tracking=none"] if entry == "report" else []


@pytest.mark.system
def test_commands_of_the_skill_print_documents_of_the_schema(new_project):
    project = new_project()
    (project.root / "train.py").write_text(SCRIPT)
    text = (ROOT / "skills/epochmeter/SKILL.md").read_text()
    lines = "".join(re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)).splitlines()
    assert len(lines) >= 7
    for line in lines:
        for name, folder in zip(("BEFORE", "AFTER"), project.sweeps()[-2:], strict=False):
            line = re.sub(rf"\b{name}\b", folder.name, line)
        _, entry, *arguments = shlex.split(line)
        entry = entry.removeprefix("src/").removesuffix(".py")
        keys = {argument.partition("=")[0] for argument in arguments}
        quick = [item for item in quick_keys(project, entry) if item.partition("=")[0] not in keys]
        done = project.run(entry, *quick, *arguments)
        document = json.loads(done.stdout.splitlines()[-1])
        assert (document["problems"], document["exit_code"]) == ([], done.returncode), line
        assert done.returncode in ((0, 2, 3) if "gate" in line else (0,)), line
        assert_conforms("output", document)
    front = re.match(r"---\nname: ([a-z0-9-]+)\ndescription: (.+)\n", text)
    assert front
    assert front[1] == "epochmeter"
    assert len(front[2]) <= 1024  # limit of the format


def test_page_of_trackers_has_the_package_and_the_tested_version_of_each():
    text = (ROOT / "docs/trackers.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?\)) \|", text, re.MULTILINE))
    assert rows.keys() == CLIENTS.keys()
    for name, client in CLIENTS.items():
        assert rows[name].startswith(f"{client.package} (")
        assert rows[name].endswith(f"{client.tested})")


@pytest.mark.system
def test_commands_of_the_page_of_trackers_export_to_the_exporter_that_it_shows(project):
    text = (ROOT / "docs/trackers.md").read_text()
    (exporter,) = re.findall(r"^```python\n# my_exporter.py\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (project.root / "my_exporter.py").write_text(exporter)
    (project.root / "other.py").write_text(exporter.replace('f"{run.project}-', 'f"other-'))
    (project.root / "my_script.py").write_text(SCRIPT)
    block = re.search(r"^```\n(pip install wandb.*?)^```", text, re.DOTALL | re.MULTILINE)[1]
    written = []
    for line in block.splitlines()[1:]:
        own = line.replace("trackio", "other:Lines").replace("wandb", "my_exporter:Lines")
        _, entry, *arguments = shlex.split(own, comments=True)
        entry = entry.removeprefix("src/").removesuffix(".py")
        quick = [*quick_keys(project, entry), "tracking=mlflow"] if entry != "publish" else []
        project.run(entry, *quick, *arguments, check=True, PYTHONPATH=str(project.root))
        written.append(len([*project.root.glob("*.jsonl")]))
    assert written == [1, 5, 6, 6], "a run, two runs of a sweep to two trackers, a script, and nothing that lacks"
    for path in project.root.glob("*.jsonl"):
        begun, *epochs, end = map(json.loads, path.read_text().splitlines())
        assert begun["params"]["device"] == "cpu"
        assert end["state"] == "completed"
        assert "epoch/e2e_s" in epochs[0]["metrics"]
        assert end["units"]["epoch/e2e_s"] == "s"


def structure(line):
    """The words of a line up to a colon: heads of columns and names of sections, without values, keys and paths."""
    return re.findall(r"(?<!\S)[A-Za-z]{2,}(?!\S)", line.partition(":")[0])


@pytest.mark.system
def test_commands_of_the_tutorial_print_what_it_shows(project):
    block = re.compile(r"^```text\n\$ python src/(\w+)\.py(.*?)\n(.*?)^```", re.DOTALL | re.MULTILINE)
    examples = block.findall((ROOT / "docs/start.md").read_text())
    assert len(examples) >= 3
    quick = "device=cpu meter=none tracking=none profiler=none roofline.peaks=none machine.lock_dir=."
    for entry, arguments, shown in examples:
        done = project.run(entry, *shlex.split(f"{arguments} {quick if entry == 'train' else ''}"), check=True)
        printed = iter([structure(line) for line in done.stdout.splitlines()])
        # No rows of values; and no best configuration on a machine that other processes use.
        ignored = r"\.\.\.|\|.*\d"
        if "all runs were disturbed" in " ".join(done.stdout.split()):
            ignored += r"|Answer:|Fastest|The best|\| configuration|\*\*What to try"
        compared = (line for line in shown.splitlines() if not re.match(ignored, line))
        assert [line for line in compared if structure(line) not in printed] == []
