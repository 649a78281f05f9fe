"""jtop's service on the board below a root: `python jtop_board.py SOCKET ROOT`. The rails are read by its own code."""

import logging
import sys
from typing import Any

from jtop.core import power
from power.jtop_service import Service, serve


class BoardService(Service):
    """The stand-in that the tests have, with the power that jtop finds on the board."""

    def __init__(self, root: str) -> None:
        super().__init__({})
        find = power.find_all_i2c_power_monitor
        power.find_all_i2c_power_monitor = lambda path: find(root + path)
        power.find_all_system_monitor = lambda path: {}
        self.reader = power.PowerService()

    def sample(self, uptime_s: float) -> dict[str, Any]:
        return {**super().sample(uptime_s), "power": self.reader.get_status()}


if __name__ == "__main__":
    logging.disable()  # which rails it leaves out is known
    service = BoardService(sys.argv[2])
    server = serve(service, sys.argv[1])
    print("ready", flush=True)
    server.serve_forever()
