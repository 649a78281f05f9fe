import pytest
from controls import Board

from epochmeter.power.knobs.jetson import open_fan

DUTY = "sys/class/hwmon/hwmon2/pwm1"


def test_manual_fan_is_restored_to_its_duty(root_board):
    fan = open_fan(root_board.with_service_fan().root)
    (root_board.root / "nvfancontrol").unlink()
    assert fan.get() == "manual 77"
    fan.set("manual 255")
    fan.set("manual 77")
    assert root_board.read(DUTY) == "77"


@pytest.mark.parametrize(
    ("machine", "setting", "command"),
    [
        (Board.with_kernel_fan, "temp_control 77", "echo 1 | sudo tee {root}/sys/devices/pwm-fan/temp_control"),
        (Board.with_service_fan, "quiet 77", "sudo systemctl start nvfancontrol"),
        (Board.with_service_fan, "manual 77", "echo 77 | sudo tee {root}/sys/class/hwmon/hwmon2/pwm1"),
    ],
)
def test_manual_command_restores_the_controller_of_the_fan(board, machine, setting, command):
    assert open_fan(machine(board).root).by_hand(setting) == command.format(root=board.root)
