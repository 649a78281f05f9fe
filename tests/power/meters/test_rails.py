"""The rails and the total of every supported board, in every layout of its sensor files."""

import time
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml
from boards import LAYOUTS, WITHOUT_TABLE, set_cell, write
from timed import after_samples, next_renewal

from epochmeter.machine import jetson
from epochmeter.power.cross_checks import find_disagreements
from epochmeter.power.meters import rails
from epochmeter.power.meters.rails import filter_response, find_rails, open_rails, total_of
from epochmeter.power.meters.rapl import other_meter_hint
from epochmeter.power.uncertainty import Response
from epochmeter.power.window_energy import energy_of_window

CONF = Path(__file__).parents[3] / "conf/device"
JETPACK4, SINGLE, THOR = filter_response(0.00084, 64), Response(0, 0.0, 0.0066), Response(0.0505, 0.0, 0.0505)
RESPONSES = {"iio": {JETPACK4}, "hwmon": {SINGLE}, "thor": {SINGLE, THOR}}
"""Responses in the device tree (iio), and those of device files, as drivers do not report them."""


def opened(root: Path, board: str):
    file = CONF / f"{board}.yaml"
    device = yaml.safe_load(file.read_text()) if file.exists() else {}
    tables = {name: device.get(name) for name in ("rails", "sensors")}
    return closing(open_rails(gpus=[], root=root, period_s=0.005, **tables))


@pytest.mark.parametrize(("board", "layout"), LAYOUTS)
@pytest.mark.parametrize("hwmon", [1, 5])
def test_every_rail_is_a_domain_with_its_power_and_the_total_is_the_module(tmp_path, board, layout, hwmon):
    tree = write(tmp_path, board, layout, hwmon=hwmon)
    with opened(tmp_path, board) as meter:
        covers = "input of the carrier board" if board == "thor" else "module"
        assert (meter.energy["source"], meter.energy["covers"]) == ("sampled", covers)
        assert set(meter.energy["domains"]) == set(tree.board.total.split())
        assert meter.domains.keys() == meter.read().keys() == tree.board.rails.keys()
        powers = meter.drain(time.monotonic_ns())
        assert powers.total_w[-1] == pytest.approx(tree.board.total_w())
        assert {name: values[-1] for name, values in powers.watts.items()} == pytest.approx(tree.board.shown_w())
        assert (meter.energy["reason"] is None) == (board not in WITHOUT_TABLE)
        assert {domain.response for domain in meter.domains.values()} == RESPONSES.get(board, RESPONSES[layout])
    tree.show(0.4)
    assert {name: rail.read() for name, rail in find_rails(tmp_path)} == pytest.approx(tree.board.shown_w(0.4))


PARTS = {
    "nano": ("POM_5V_GPU", "POM_5V_CPU"),
    **dict.fromkeys(("nx", "orin_nano", "orin_nx"), ("VDD_CPU_GPU_CV", "VDD_SOC")),
    "agx_orin": ("VDDQ_VDD2_1V8AO",),
    "thor": ("VDD_GPU", "VDD_CPU_SOC_MSS"),
}
"""Rails of each board that are parts of its total, and not added to it."""


@pytest.mark.parametrize(("board", "layout"), LAYOUTS)
def test_parts_of_a_board_are_at_most_its_total_unless_an_input_is_missing(tmp_path, board, layout):
    tree = write(tmp_path, board, layout)
    with opened(tmp_path, board) as meter:
        (parts, relation, total), *others = meter.cross_checks or [(None, "at most", ())]
    assert (set(parts or ()), relation, others) == (set(PARTS.get(board, ())), "at most", [])
    for share in (0.1, 0.4, 1.0):
        assert [*find_disagreements(meter.cross_checks, tree.board.shown_w(share), lambda names: 0.0)] == []
    missing = {name: 0.05 * watts if name in total else watts for name, watts in tree.board.shown_w().items()}
    (found,) = find_disagreements(meter.cross_checks, missing, lambda names: 0.0) if parts else [None]
    assert found is None or found.reference_j == pytest.approx(0.05 * tree.board.total_w())


@pytest.mark.timed
@pytest.mark.parametrize(("share", "contradicts"), [(1.0, False), (0.05, True)])
def test_input_rail_with_a_part_of_the_power_is_contradicted_by_the_parts(tmp_path, share, contradicts):
    tree = write(tmp_path, "orin_nano")
    input_w, parts_w = tree.board.total_w(), tree.board.total_w() * 4.5 / 8
    current = next(file for file in tree.files("VDD_IN") if file.name.startswith("curr"))
    current.write_text(f"{round(float(current.read_text()) * share)}\n")
    with opened(tmp_path, "orin_nano") as meter:
        before = next_renewal(meter)
        after = after_samples(meter, before, 8)
        seconds = (after.at_ns - before.at_ns) * 1e-9
        used = energy_of_window(before, after, meter, seconds)
    differences_w = [found.difference_j / seconds for found in used.disagreements]
    assert differences_w == ([pytest.approx(parts_w - share * input_w, rel=0.05)] if contradicts else [])
    assert (used.metrics["energy_uncertainty_j"] > 0.2 * used.metrics["energy_j"]) == contradicts


@pytest.mark.parametrize(("board", "layout", "step_w"), [("nx", "iio", 0.04), ("agx_orin", "hwmon", 0.4)])
def test_resolution_of_a_rail_is_one_current_step_at_its_voltage(tmp_path, board, layout, step_w):
    """40 uV over 5 mOhm at 5 V, and over 2 mOhm at 20 V."""
    write(tmp_path, board, layout)
    assert next(find_rails(tmp_path))[1].domain.step == pytest.approx(step_w)


@pytest.mark.parametrize(
    ("config", "mode", "response"),
    [
        (0x7C07, 1, filter_response(0.00084, 512)),
        (0x7127, 1, SINGLE),
        (0x3727, 1, filter_response(0.0044, 64)),  # two channels
        (None, 1, filter_response(0.0066, 64)),
        (0x7C07, 0, Response()),  # a read triggers a conversion
    ],
)
def test_averaging_time_with_jetpack_4_is_read_from_the_device_tree(tmp_path, config, mode, response):
    folder = write(tmp_path, "nano").folder(0)
    (folder / "running_mode").write_text(f"{mode}\n")
    file = folder.parent / "of_node/ti,continuous-config"
    file.unlink() if config is None else set_cell(file, config)
    assert [rail.domain.response for _, rail in find_rails(tmp_path)] == [pytest.approx(response)] * 3


def test_a_low_pass_filter_has_the_mean_age_of_its_time_constant():
    response = filter_response(0.0066, 64)
    assert (response.delay_s, response.renewal_s, response.is_filter) == pytest.approx((0.4224, 0.0066, True))
    assert filter_response(0.0066, 1) == SINGLE


TABLE = {"ina3221": {"averaging_s": 0.2, "renewal_s": 0.3, "lag_s": 0.01}}
MEAN16 = filter_response(0.0066, 16)


@pytest.mark.parametrize(
    ("samples", "update_interval", "response"),
    [
        pytest.param(16, 106, MEAN16, id="Linux before 5.14: the time of all samples"),
        pytest.param(16, 7, MEAN16, id="Linux from 5.14 on: the time of one round"),
        pytest.param(1, 7, Response(0.0, 0.0, 0.0066), id="no averaging"),
        pytest.param(4, 3, filter_response(0.002784, 4), id="both fit: the longer one"),
        pytest.param(None, 7, Response(0.2, 0.01, 0.3), id="no samples file: the device's table"),
        pytest.param(16, None, Response(0.2, 0.01, 0.3), id="no interval file: the device's table"),
        pytest.param(1, 0, Response(0.2, 0.01, 0.3), id="a time that the chip cannot have"),
    ],
)
def test_averaging_time_of_a_chip_is_read_from_driver_files(tmp_path, samples, update_interval, response):
    folder = write(tmp_path, "orin_nano").folder(0)
    for name, value in {"samples": samples, "update_interval": update_interval}.items():
        (folder / name).unlink()
        if value is not None:
            (folder / name).write_text(f"{value}\n")
    responses = [rail.domain.response for _, rail in find_rails(tmp_path, TABLE)]
    assert responses == [pytest.approx(response, rel=0.12)] * 3


@pytest.mark.parametrize("layout", ["iio", "hwmon"])
def test_rails_with_one_name_are_separate_domains_and_are_refused_as_a_total(tmp_path, layout):
    tree = write(tmp_path, "agx", layout)
    label = "rail_name_1" if layout == "iio" else "in2_label"
    (tree.folder(1) / label).write_text("GPU\n")  # in place of VDDRQ
    shown = tree.board.shown_w()
    watts = {name: rail.read() for name, rail in find_rails(tmp_path)}
    assert watts.pop("GPU_1-0040_1") == pytest.approx(shown["GPU"])
    assert watts.pop("GPU_1-0041_2") == pytest.approx(shown["VDDRQ"])
    assert watts == pytest.approx({name: shown[name] for name in ("CPU", "SOC", "CV", "SYS5V")})
    with opened(tmp_path, "agx") as meter:
        assert (meter.energy["source"], meter.domains) == ("none", {})
        assert "names GPU, VDDRQ for the total, but there is only GPU_1-0040_1, CPU," in meter.energy["reason"]
    with opened(tmp_path, "another") as meter:
        assert set(meter.energy["domains"]) == {"GPU_1-0040_1", "GPU_1-0041_2", "CPU", "SOC", "CV", "SYS5V"}


def test_board_with_two_input_rails_has_the_carriers_as_total():
    assert total_of(["VDD_IN", "VDD_SOC", "VIN"], {})[:2] == (["VIN"], "input of the carrier board")


def test_jetpack_4_channel_without_file_is_no_rail_and_without_number_a_failure(tmp_path):
    tree = write(tmp_path, "nano")
    (tree.folder(0) / "rail_name_1").write_text("NC\n")
    rails = dict(find_rails(tmp_path))
    assert [*rails] == ["POM_5V_IN", "POM_5V_CPU"]
    for text in ("", "garbage\n", "12 mW\n"):
        (tree.folder(0) / "in_power0_input").write_text(text)
        with pytest.raises(ValueError, match=f"in_power0_input is not a number: '{text.strip()}'"):
            rails["POM_5V_IN"].read()
    (tree.folder(0) / "in_power0_input").unlink()
    assert [name for name, _ in find_rails(tmp_path)] == ["POM_5V_CPU"]


def test_board_without_sensor_files_is_measured_by_jtop_only_if_it_is_a_jetson(tmp_path, monkeypatch):
    """jtop's remedies would be wrong on a laptop that rehearses a Jetson's runs."""
    monkeypatch.setattr(jetson, "JETSON_FILES", [tmp_path / "nv_tegra_release"])
    monkeypatch.setattr(rails, "find_rails", lambda *_: [])
    monkeypatch.setattr(rails, "connect_client", Mock(side_effect=RuntimeError("jtop's client is not installed.")))

    def reason(root):
        with opened(root, "nano") as meter:
            assert meter.energy["source"] == "none"
            return meter.energy["reason"], meter.energy.get("hint")

    none = "No INA3221 or INA238 power sensor below "
    elsewhere = f"{none}{tmp_path}; jtop's service measures this machine, not the one below {tmp_path}."
    assert reason(tmp_path) == (elsewhere, None)
    assert reason(Path("/")) == (f"{none}/; this machine is not a Jetson", other_meter_hint(Path("/")))
    (tmp_path / "nv_tegra_release").touch()
    assert reason(Path("/")) == (f"{none}/; jtop's client is not installed.", None)
