"""YAML files are read as OmegaConf reads them, and a changed file is read again."""

import os

import pytest
from omegaconf import OmegaConf
from project import ROOT

from epochmeter.config.yaml_files import read_mapping

CONF = ROOT / "conf"


def test_every_file_of_the_configuration_is_read_as_omegaconf_reads_it():
    files = sorted(CONF.rglob("*.yaml"))
    for file in files:
        assert read_mapping(file) == OmegaConf.to_container(OmegaConf.load(file)), file
    assert len(files) > 50


def test_numbers_and_dates_have_the_types_that_omegaconf_gives_them(tmp_path):
    file = tmp_path / "types.yaml"
    file.write_text("a: 1e3\nb: 2026-11-30\nc: 1:30\nd: .inf\ne: off\nf: null\ng: 0o17\nh: 1_000.5\ni: ${a}\n")
    assert read_mapping(file) == OmegaConf.to_container(OmegaConf.load(file))


@pytest.mark.parametrize("text", ["a: 1\na: 2\n", "a: [1\n", "- 1\n", "word\n", "", "a: !!python/object:os.system x\n"])
def test_a_damaged_file_and_one_without_a_mapping_are_left_to_omegaconf(tmp_path, text):
    file = tmp_path / "other.yaml"
    file.write_text(text)
    assert read_mapping(file) is None
    assert read_mapping(tmp_path / "missing.yaml") is None


def test_a_changed_file_is_read_again_and_a_changed_content_does_not_affect_the_next_reader(tmp_path):
    file = tmp_path / "keys.yaml"
    file.write_text("a: {b: 1}\n")
    os.utime(file, ns=(1, 1))
    content = read_mapping(file)
    content["a"]["b"] = 9
    assert read_mapping(file) == {"a": {"b": 1}}
    file.write_text("a: {b: 2}\n")
    assert read_mapping(file) == {"a": {"b": 2}}
