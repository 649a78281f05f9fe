"""A stub of jtop's service for the real client: `python jtop_service.py SOCKET SCRIPT`; it runs until it is killed.

SCRIPT is JSON: `power`, as the service reports it (default: each rail has as many watts as seconds since boot, modulo
1000); `hardware`, of the board; `interval_s`; `version`; `last`, the number of the last sample; `locked`, whether the
clocks are locked; `mute`, true: it does not answer.
"""

import json
import queue
import sys
import threading
import time
from itertools import count
from multiprocessing.managers import SyncManager
from typing import Any

import jtop
from jtop.core.common import get_key

MODES = {"models": ["15W", "7W"], "default": {"name": "15W", "id": 0}}


class Requests(queue.Queue):
    """The clients' requests, without those to change a setting: these are only noted."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[dict] = []

    def put(self, item: dict, *args: Any, **options: Any) -> None:
        if {"nvp", "jc", "fan"} & item.keys():
            self.changes.append(item)
        else:
            super().put(item, *args, **options)


class Service:
    def __init__(self, script: dict[str, Any]) -> None:
        self.script = script
        self.requests = Requests()
        self.event = threading.Event()
        self.data: dict[str, Any] = {}
        self.ticking: threading.Thread | None = None

    def hear(self) -> None:
        """Answers each client's first request as the service does; the rest it puts in the queue is its pulse."""
        while True:
            request = self.requests.get()
            if "init" in request:  # our own answer, not yet fetched
                self.requests.put(request)
                time.sleep(0.01)
            elif "interval" in request and not self.script.get("mute"):
                interval_s = self.script.get("interval_s", request["interval"])
                if not self.ticking:
                    self.ticking = threading.Thread(target=self.tick, args=(interval_s,), daemon=True)
                    self.ticking.start()
                self.requests.put({"init": self.facts(interval_s)})

    def facts(self, interval_s: float) -> dict[str, Any]:
        version = self.script.get("version", jtop.__version__)
        board = {"hardware": self.script.get("hardware", {"Module": "a stand-in"})}
        return {"version": version, "board": board, "interval": interval_s, "memory": "",
                "fan": {"pwmfan": ["quiet", "cool", "manual"]}, "jc": True, "nvpmodel": MODES}  # fmt: skip

    def tick(self, interval_s: float) -> None:
        for number in count():
            with open("/proc/uptime") as file:
                uptime_s = float(file.read().split()[0])
            self.data.update(self.sample(uptime_s))
            self.event.set()
            time.sleep(interval_s)
            if number == self.script.get("last"):
                return

    def sample(self, uptime_s: float) -> dict[str, Any]:
        milliwatts = round(uptime_s % 1000 * 1000)
        rising = {"rail": {"VDD_SOC": {"power": milliwatts}}, "tot": {"name": "VDD_IN", "power": 2 * milliwatts}}
        memory = {"RAM": {"tot": 1, "used": 1}, "SWAP": {"tot": 0, "used": 0}}
        mode = {"status": [True, True], "thread": False, "model": {"name": "15W", "id": 0}}
        clocks = {"enable": self.script.get("locked", False), "thread": "inactive", "config": True, "boot": False}
        fan = {"pwmfan": {"profile": "quiet", "speed": [30.0]}}
        power = self.script.get("power", rising)
        gauges = {"temperature": {"CPU": {"temp": 41.5, "online": True}}, "engines": {}}
        gauges |= {
            "cpu": {"total": {}, "cpu": [{"freq": {"cur": 729600}}]},
            "gpu": {"ga10b": {"freq": {"cur": 306000}}},
        }
        return {"uptime": uptime_s, "power": power, **gauges, "mem": memory, "fan": fan, "nvp": mode, "jc": clocks}


class Manager(SyncManager):
    pass


def serve(service: Service, socket: str) -> Any:
    """Return the server of a service, which hears already."""
    for name, shared in (("get_queue", service.requests), ("sync_data", service.data), ("sync_event", service.event)):
        Manager.register(name, callable=lambda shared=shared: shared)
    threading.Thread(target=service.hear, daemon=True).start()
    return Manager(address=socket, authkey=get_key().encode()).get_server()


if __name__ == "__main__":
    server = serve(Service(json.loads(sys.argv[2])), sys.argv[1])
    print("ready", flush=True)
    server.serve_forever()
