import os
import re
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from stub import executable

from epochmeter.config import job, resolvers
from epochmeter.config.identity import identity
from epochmeter.config.script import (
    check_placeholders,
    code_digest,
    filled_command,
    find_program,
    is_program,
    recorded_command,
)
from epochmeter.config.secrets import CONCEALED, conceal
from epochmeter.config.suggestions import CONF
from epochmeter.config.validation import check_values
from epochmeter.config.versions import DEFAULTS
from epochmeter.run.preflight import check_capacity
from epochmeter.shared.problem import InputError

COMMAND = [
    *("torchrun", "--nproc-per-node", "{script.ranks}", "train.py", "--lr={script.lr}", "{lr}", "a${lr}", r"\${a}")
]


@pytest.fixture
def composed_script():
    def compose_script(*overrides, command=COMMAND):
        resolvers.register(lambda command, resume: None, command=command)
        with initialize_config_dir(str(CONF), **DEFAULTS):
            return job.composed_job(compose("train", overrides=[*overrides]), overrides)

    yield compose_script
    resolvers.register(None)


def test_command_has_the_values_of_its_placeholders_and_no_other_changes(composed_script):
    composed = composed_script("script.lr=1e-4", "script.ranks=4")
    assert filled_command(composed) == [
        *("torchrun", "--nproc-per-node", "4", "train.py", "--lr=0.0001", "{lr}", "a${lr}", r"\${a}")
    ]
    assert composed.measure.command == COMMAND
    assert (composed.strategy.name, composed.strategy.ranks) == ("script", 4)
    assert composed.model.name == composed.dataset.name == "script"
    check_values(composed)


@pytest.mark.parametrize("option", ["--num_gpus", "--num-processes", "--nproc_per_node"])
def test_number_of_ranks_is_read_from_an_argument_and_zero_is_none(composed_script, option):
    for value, strategy in {"0": ("single", 1), "1": ("script", 1), "64": ("script", 64)}.items():
        for arguments in ([f"{option}={value}"], [option, value]):
            composed = composed_script(command=["train.py", *arguments])
            assert (composed.strategy.name, composed.strategy.ranks) == strategy
            check_values(composed)
            check_capacity(composed, Path("/"))


def test_script_is_traced_only_on_request_and_its_kernels_are_not_counted(composed_script):
    for overrides, traced in {
        (): ("script", None),
        ("profiler=none",): ("script", None),
        ("profiler=torch",): ("torch", 5),
        ("profiler.steps=9",): ("torch", 9),
    }.items():
        profiler = composed_script("script.lr=1", "script.ranks=1", *overrides).profiler
        assert (profiler.name, profiler.spec.get("steps")) == traced
    with pytest.raises(InputError, match="`profiler=ncu` cannot "):
        composed_script("script.lr=1", "script.ranks=1", "profiler=ncu")


def test_data_source_of_a_script_replays_its_loaders_or_prepares_its_page_cache(composed_script):
    sources = {}
    for name in ("replay", "cached", "storage", "unchanged"):
        composed = composed_script(f"data_source={name}", "measure.data=/usr", command=["train.py"])
        sources[name] = composed.measure.replay, composed.cache
    assert sources == {
        "replay": (True, "keep"), "cached": (False, "warm"), "storage": (False, "cold_each_epoch"),
        "unchanged": (False, "keep"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("command", "data", "sources"),
    [
        (None, None, "synthetic,cached,storage"),
        (["train.py"], "/usr", "replay,cached,storage"),
        (["train.py"], None, "replay,unchanged"),
    ],
)
def test_experiment_compares_the_data_sources_that_can_be_set(command, data, sources):
    root = OmegaConf.create({"measure": {"command": command, "data": data}})
    assert resolvers.data_sources(_root_=root) == sources


def test_identity_depends_on_values_and_code_and_folder(composed_script, tmp_path, monkeypatch):
    def of(value):
        return identity(composed_script(f"script.lr={value}", command=["train.py", "{script.lr}"]), None)

    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("1")
    first = of(1)
    assert first == of(1) != of(2)
    (tmp_path / "train.py").write_text("2")
    assert first != of(1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/train.py").write_text("1")
    monkeypatch.chdir(tmp_path / "other")
    assert first != of(1)
    (tmp_path / "other/package").mkdir()
    before = code_digest(["-m", "package.train"])
    (tmp_path / "other/package/train.py").touch()
    assert before != code_digest(["-m", "package.train"]) == code_digest(["python", "package/train.py"])


def test_placeholders_and_values_must_match():
    check_placeholders(["{script.lr}{script.lr}", "{}"], ["meter", "script.lr"])
    with pytest.raises(InputError, match=re.escape("`{script.lr}` has no value")):
        check_placeholders(["{script.lr}"], [])
    with pytest.raises(InputError, match=r"`script\.lr=` is not used by the command"):
        check_placeholders(["{lr}"], ["script.lr"])


def test_programs_are_neither_files_nor_modules(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_program("python3") == f"{os.path.dirname(sys.executable)}/python3"
    assert find_program(executable(tmp_path / "own-launcher", "#!/bin/sh\n").name) == f"{tmp_path}/own-launcher"
    assert [is_program([word]) for word in ("train.py", "-m", "torchrun")] == [False, False, True]
    assert not is_program(None)


def test_two_secrets_are_two_configurations_and_only_the_started_command_has_them(composed_script, monkeypatch):
    """They may be typed, or be in the environment."""
    monkeypatch.setenv("OWN", "hunter3")
    command = ["t.py", "--api-key", "{script.k}", "--password", conceal("hunter1"), "--lr", "{script.lr}"]

    def composed(key):
        return composed_script(f"script.k={key}", "script.lr=0.1", command=command)

    first, second, third = map(composed, (conceal("hunter2"), conceal("hunter4"), "${oc.env:OWN}"))
    assert filled_command(first) == ["t.py", "--api-key", "hunter2", "--password", "hunter1", "--lr", "0.1"]
    assert filled_command(third)[2] == "hunter3"
    assert len({identity(each, None) for each in (first, second, third)}) == 3
    assert identity(first, None) == identity(composed(conceal("hunter2")), None)
    for each in (first, second, third):
        assert "hunter" not in " ".join([*recorded_command(each), str(each.to_dict())])
        assert len(CONCEALED.findall(" ".join(recorded_command(each)))) == 2


def test_hidden_arguments_are_requested_before_they_are_read(composed_script):
    hidden = ["t.py", conceal("--lr"), conceal("{script.lr}")]
    composed = composed_script("script.lr=0.1", "measure.hide_arguments=true", command=hidden)
    assert filled_command(composed) == ["t.py", "--lr", "0.1"]
    assert [CONCEALED.fullmatch(word) is not None for word in recorded_command(composed)] == [False, True, True]
    assert CONCEALED.fullmatch(composed.script["lr"]), "the values of placeholders are hidden too"
    with pytest.raises(InputError, match=r"give it on the command line: `measure\.hide_arguments=true`"):
        composed_script("script.lr=0.1", "measure.hide_arguments=true", command=["t.py", "--lr", "{script.lr}"])
