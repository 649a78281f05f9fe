"""Hints work when followed: each situation is produced, the hint is read from what is printed, and it is followed.

Commands that need a registry, root or hardware are not run: their target, key, option or file must exist.
"""

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from project import ROOT
from sweeps import row, write

from epochmeter.commands import report
from epochmeter.config import installation
from epochmeter.config.app import friendly_hydra_errors
from epochmeter.config.entries import COMMANDS
from epochmeter.config.script import ATTACHED
from epochmeter.config.suggestions import entry_keys, list_choices, merged_defaults
from epochmeter.config.validation import key_rules
from epochmeter.power.meters import rapl
from epochmeter.power.meters.rails import open_jtop
from epochmeter.power.meters.rapl import find_zones, open_estimate, open_rapl
from epochmeter.report.charts import vega
from epochmeter.report.output.report import answer_lines
from epochmeter.run.plan import command_line
from epochmeter.run.preflight import check_accelerator, check_capacity, validate_job
from epochmeter.shared import tool
from epochmeter.tracking.tensorboard import check_tensorboard

SOURCE = ROOT / "src"
HINT_ARGUMENTS = {
    "input_error": 1,
    "machine_error": 1,
    "worker_error": 2,
    "Problem": 1,
    "SearchError": 1,
    "NullMeter": 1,
}
"""Function -> position of the hint in its arguments."""
CONTAINER_OPTIONS = ("systempaths", "unmask")  # of Docker and Podman
HINT_NAMES = re.compile("hint|remedy", re.IGNORECASE)
FOLLOWED = {
    "model=resnt18": "model=resnet18",
    "checkpoint.evry=1": "checkpoint.every=1",
    "modle=resnet18": "model=resnet18",
    "+bach=8": "batch=8",
    "--batch=8": "batch=8",
    "model.name=resnet18": "model=resnet18",
    "meter=estimate": "meter=estimate meter.tdp_w=65",
    "meter=none meter.tdp_w=65": "meter=estimate meter.tdp_w=65",
    "dataset.pixels=256": "dataset.pixels=256 dataset=jpeg",
    "dataset=imagefolder": "dataset=imagefolder dataset.root=/folder",
    "hydra.run.dir=/tmp/x": "hydra.run.dir=FOLDER/0",
    "strategy.ranks=2": "strategy.ranks=2 strategy=ddp",
    "strategy=dp strategy.ranks=2": "strategy=ddp strategy.ranks=2",
    "strategy=dp precision=bf16": "strategy=ddp precision=bf16",
    "strategy=ddp dataset.on_bad=skip": "strategy=ddp dataset.on_bad=error",
    "deterministic=true cudnn_benchmark=true": "deterministic=true cudnn_benchmark=false",
    "power_limit=auto clocks=locked": "power_limit=auto clocks=keep",
    "workers=100000": "workers=64",
    "strategy=ddp strategy.ranks=100000": "strategy=ddp strategy.ranks=32",
    "budget.carbon_g=1": "budget.carbon_g=1 footprint.intensity=FRA",
    "budget.cost=1": "budget.cost=1 footprint.price=0.25 footprint.currency=EUR",
    "budget.stop=true budget.time_s=9": "budget.time_s=9",
    "footprint.price=1": "footprint.price=1 footprint.currency=EUR",
    "tracking=server": "tracking=server tracking.uri=http://HOST:5000",
    "model=[lenet,resnet50]": "-m model=lenet,resnet50",
    "batch=8,16": "-m batch=8,16",
    "-m dataset=tensors,digits dataset.count=64": "-m dataset=tensors dataset.count=64",
}
"""Arguments that are refused -> the same with the first advice of the hint."""
EXTRAS = re.findall(r"^([a-z]+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
"""Names of the extras in pyproject.toml, among others."""


def literal_hints():
    """Yield file, line and text of each hint in the sources; computed parts are `{}`."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            texts = []
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                place = HINT_ARGUMENTS.get(name, len(node.args))
                texts += node.args[place : place + 1]
            if isinstance(node, ast.Assign | ast.keyword):
                targets = node.targets if isinstance(node, ast.Assign) else [ast.Name(node.arg or "")]
                named = any(isinstance(target, ast.Name) and HINT_NAMES.search(target.id) for target in targets)
                texts += [node.value] if named else []
            for text in filter(None, map(text_of, texts)):
                yield path.relative_to(SOURCE), node.lineno if hasattr(node, "lineno") else 0, text


def text_of(node):
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    return ""


def known_keys():
    """Return all keys of all commands by dotted names, also of the groups' options."""
    keys = {*key_rules(), "hydra.run.dir", "hydra.sweep.dir", "hydra.sweeper.trials", "hydra/sweeper", "hydra/launcher"}
    for entry in COMMANDS:
        groups, own = entry_keys(entry)
        keys |= {*groups, *own}
        keys |= {f"{name}.{key}" for name, value in own.items() if isinstance(value, dict) for key in value}
        for group in groups:
            keys |= {f"{group}.{key}" for option in list_choices(group) for key in merged_defaults(group, option)}
    launcher = (ROOT / "conf/hydra/launcher/slurm.yaml").read_text()
    return keys | {f"hydra.launcher.{key}" for key in re.findall(r"^(\w+):", launcher, re.MULTILINE)}


def test_targets_keys_options_and_files_in_all_hints_exist():
    targets = re.findall(r"^([\w. -]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    targets = {name for line in targets for name in line.split()}
    keys, missing, count = known_keys(), [], 0
    key_pattern = re.compile(r"(?<![\w./{$-])((?:[a-z_]+[./])*[a-z_]{3,})=(?![=\w]*\()")
    for path, line, text in literal_hints():
        count += 1
        where = f"{path}:{line}"
        for name in re.findall(r"`make (?:-C \S+ )?([\w./-]+)|\bmake (\.venv/\.with-\w+)", text):
            target = "".join(name)
            extra = target.removeprefix(".venv/.with-")
            missing += [] if target in targets or extra in EXTRAS or "{" in target else [f"{where}: make {target}"]
        for entry in re.findall(r"python src/(\w+)\.py", text):
            missing += [] if (SOURCE / f"{entry}.py").is_file() else [f"{where}: src/{entry}.py"]
        for file in re.findall(r"\bdocs/[\w/-]+\.md", text):
            missing += [] if (ROOT / file).is_file() else [f"{where}: {file}"]
        for key in key_pattern.findall(text):
            is_known = key in keys or key.startswith(("script.", "key", "device.slurm.")) or key in CONTAINER_OPTIONS
            missing += [] if is_known else [f"{where}: {key}="]
        for group, option in re.findall(r"\b([a-z_]+(?:/[a-z]+)?)=([a-z_]\w*)(?![\w.(/])", text):
            options = list_choices(group) if (ROOT / "conf" / group).is_dir() else []
            missing += [f"{where}: {group}={option}"] if options and option not in options else []
    assert missing == []
    assert count > 200


def read_hint(arguments, order, root):
    """Compose and check a command in-process; return what it prints, empty if it is accepted."""
    many, overrides = "-m" in arguments, [argument for argument in arguments if argument != "-m"]
    try:
        with friendly_hydra_errors(arguments, "train"):
            points = sweep_points(overrides) if many else [overrides]
            for point in points:
                request = order(*point)
                validate_job(request.job, request.choices, request.overrides)
                check_accelerator(request.job, is_gpu=False)
                check_capacity(request.job, root)
    except SystemExit as end:
        return str(end)
    return ""


def sweep_points(overrides):
    """Return the configurations of a sweep over one key."""
    swept = next((override for override in overrides if "," in override), overrides[0])
    key, _, values = swept.partition("=")
    others = [override for override in overrides if override != swept]
    return [[f"{key}={value}", *others] for value in values.split(",")]


@pytest.mark.parametrize("typed", FOLLOWED)
def test_command_is_accepted_with_the_advice_of_its_hint(order, tmp_path, monkeypatch, typed):
    (folder := tmp_path / "folder").mkdir()
    monkeypatch.setattr("epochmeter.run.preflight.usable_cores", lambda: 2)
    printed = read_hint(typed.split(), order, tmp_path)
    assert printed.startswith("error: ")
    advised = re.sub("FOLDER|/folder", str(folder), FOLLOWED[typed]).replace("HOST", "localhost")
    hint = printed.partition("hint: ")[2]
    new = [word for word in FOLLOWED[typed].split() if word not in typed.split()]
    for word in new:  # the advice is in the hint itself, if only without the value that was typed
        key, _, value = word.partition("=")
        assert word in hint or (f"{key}=" in hint and value in typed), printed
    assert read_hint(advised.split(), order, tmp_path) == ""


def test_meter_of_another_machine_advises_one_that_works_here(tmp_path):
    hint = open_jtop(gpus=[], root=Path("/")).energy["hint"]
    named = re.findall(r"`(meter=[^`]+)`", hint)
    assert named
    opened = {"meter=rapl": open_rapl, "meter=estimate meter.tdp_w=65": lambda **keys: open_estimate(**keys, tdp_w=65)}
    for advice in named:
        meter = opened[advice](gpus=[], root=Path("/"))
        assert meter.energy["source"] in ("counter", "sampled", "estimated")
        meter.close()


@pytest.mark.parametrize("name", ["energy_uj", "name"])
def test_command_for_an_unreadable_rapl_file_names_that_file_below_the_root(tmp_path, monkeypatch, name):
    root = tmp_path / "a root"
    zone = root / "sys/class/powercap/intel-rapl:0"
    zone.mkdir(parents=True)
    for file, text in {"name": "package-0\n", "energy_uj": "5\n", "max_energy_range_uj": "262143328850\n"}.items():
        (zone / file).write_text(text)
    assert find_zones(root).keys() == {"cpu0"}
    read_text = Path.read_text

    def refused(path, *arguments, **keys):
        if path == zone / name:
            raise PermissionError(13, "Permission denied", str(path))
        return read_text(path, *arguments, **keys)

    monkeypatch.setattr(rapl.Path, "read_text", refused)
    with pytest.raises(RuntimeError) as raised:
        find_zones(root)
    command = raised.value.problems[0].hint.partition("boot: ")[2]
    (zone / name).chmod(0o400)
    subprocess.run(["sh", "-c", command.removeprefix("sudo ")], check=True)
    assert (zone / name).stat().st_mode & 0o444 == 0o444


def test_command_of_a_missing_package_has_a_target_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("epochmeter.tracking.tensorboard.find_spec", lambda name: None)
    for folder in (ROOT, tmp_path):
        monkeypatch.chdir(folder)
        with pytest.raises(ValueError, match="needs the package tensorboard") as refused:
            check_tensorboard({"tensorboard": True})
        command = re.search(r"install it: `([^`]+)`", refused.value.problems[0].hint)[1]
        program, *words = shlex.split(command)
        steps = subprocess.run([program, "--dry-run", *words], capture_output=True, text=True, check=True)
        assert "error" not in steps.stderr
    monkeypatch.setattr(installation, "IS_INSTALLED", True)
    for extra in ("optuna", "tensorboard"):
        assert installation.install_command(extra) == tool.install_command(extra)
        assert extra in EXTRAS


@pytest.mark.parametrize("name", ["2026-11-20_12-00-00-1a2b3c4d", "my sweep's [1], 2"])
def test_report_command_of_a_sweep_finds_it(tmp_path, monkeypatch, name):
    """In this process, without charts."""
    folder = tmp_path / ("multirun" if name.startswith("2026") else "else where") / name
    for number, batch in enumerate((8, 16)):
        write(folder, row(number, "storage", 1.0 + number, typed={"batch": str(batch)}))
    (line,) = [line for line in answer_lines(folder) if line.startswith("Report: ")]
    python, entry, *arguments = shlex.split(line.removeprefix("Report:"))
    assert (python, entry) == ("python", "src/report.py")
    monkeypatch.setattr("gc.disable", lambda: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the command sets it for its process
    monkeypatch.setattr(vega, "find_spec", lambda name: None)
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose("report", overrides=[*arguments, "tracking=none"])
    assert not report.task(config)
    assert (folder / "report.md").is_file()


def test_command_of_a_meter_is_that_of_its_script(monkeypatch):
    monkeypatch.setenv(ATTACHED, "5")
    monkeypatch.setattr(sys, "argv", ["-c", "meter=none", "--", "my train.py", "--lr", "0.1"])
    python = Path(sys.executable).name
    assert shlex.split(command_line()) == [python, "my train.py", "--lr", "0.1"]
    monkeypatch.setattr(sys, "argv", ["epochmeter run", "--", "my train.py"])
    assert shlex.split(command_line()) == [python, "my train.py"]
    monkeypatch.delenv(ATTACHED)
    monkeypatch.setattr(sys, "argv", ["src/measure.py", "meter=none", "--", "train.py"])
    assert shlex.split(command_line()) == [python, "src/measure.py", "meter=none", "--", "train.py"]
