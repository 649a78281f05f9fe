"""The windows of a script on several nodes: each node leaves its own in a shared folder, and the first joins them.

The nodes' clocks may differ by any time, so that windows are joined by their numbers: the ranks of a process group
train the same epochs. No node waits for another one while it measures. The first node records a window when the others
have left theirs, or without them after `NODE_WAIT_S`.

    .nodes/JOB.STEP/first           path of the first node's run folder
    .nodes/JOB.STEP/NUMBER/0        record of another node
    .nodes/JOB.STEP/NUMBER/windows  its windows: a JSON object per line, at last `{"end": true}`
"""

import json
import time
from array import array
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from epochmeter.machine.energy_codes import EnergyCode
from epochmeter.results.metrics import EPOCH
from epochmeter.results.run_folder import READ_ERRORS
from epochmeter.results.run_info import RankPlace
from epochmeter.run.nodes import ScriptNode
from epochmeter.segmentation.communication import joined_rows
from epochmeter.segmentation.script import MeasuredWindow, ScriptWindows, with_common_phases, without_sums
from epochmeter.shared.problem import Place, Problem
from epochmeter.shared.protocol import NodeWindow, RankWindow, WindowMeasured, decode, encode
from epochmeter.shared.record import RANK_INTERVALS, Record

NODE_WAIT_S = 10.0  # how long a window waits for those of the other nodes; a shared file system may show them late
POLL_S = 0.2  # period of looking for the windows of other nodes, at the script's end
OF_NODES = [name for name, metric in EPOCH.items() if metric.ranks == "sum of nodes"]
FIRST, WINDOWS, END = "first", "windows", "end"
NO_WINDOW = "node {} has left no window {}: its ranks are absent, and so are sums over ranks and nodes."
NOT_LEFT = "it has left no window at this time, as it was killed or lost its connection"
LOST = "{}, and {} was killed or does not respond"
OTHER_STEPS = "node {} made {} steps in window {}, and the first node {}."


class NodeRanks(NamedTuple):
    """A window of another node."""

    steps: int
    ranks: list[RankWindow]
    node: NodeWindow
    rows: "array[float]"  # of its ranks, one after another
    rank_steps: int


class JoinedWindow(NamedTuple):
    """A window of all nodes."""

    measured: MeasuredWindow
    nodes: list[NodeWindow]
    notes: list[str]


class Nodes(Protocol):
    """What the loop over a script's windows needs of the nodes."""

    def joined(self, taken: Iterable[MeasuredWindow], *, is_final: bool) -> Iterator[JoinedWindow]:
        """Yield the windows that are complete, in order; finally, after waiting for the other nodes."""

    def leave(self, measured: MeasuredWindow, line: Mapping[str, Any], no_energy: str) -> None:
        """Leave a window that was recorded, with its line, for the first node."""

    def end(self) -> None:
        """Note that there are no further windows."""

    def lost(self) -> list[str]:
        """Return the names of the other nodes that were killed or do not respond, when the script has failed."""

    @property
    def possible_borders_ns(self) -> list[int]:
        """Borders of windows that were taken and are not joined yet."""

    @property
    def places(self) -> list[RankPlace]:
        """Where the ranks of other nodes are."""


class SingleNode:
    """The only node."""

    @property
    def possible_borders_ns(self) -> list[int]:
        return []

    @property
    def places(self) -> list[RankPlace]:
        return []

    def joined(self, taken: Iterable[MeasuredWindow], *, is_final: bool) -> Iterator[JoinedWindow]:
        return (JoinedWindow(measured, [], []) for measured in taken)

    def leave(self, measured: MeasuredWindow, line: Mapping[str, Any], no_energy: str) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""

    def lost(self) -> list[str]:
        return []


class OtherNode(SingleNode):
    """A node other than the first, which leaves its windows."""

    def __init__(self, node: ScriptNode, windows: ScriptWindows) -> None:
        assert node.folder
        self._node, self._windows = node, windows
        self._file = node.folder / str(node.number) / WINDOWS
        self._rows = 0  # of all ranks so far
        self._counts: dict[str, int] = defaultdict(int)  # windows so far, by name

    def leave(self, measured: MeasuredWindow, line: Mapping[str, Any], no_energy: str) -> None:
        name, energy = line["window"], line["energy"]
        metrics = {key: line["metrics"][f"{name}/{key}"] for key in OF_NODES if f"{name}/{key}" in line["metrics"]}
        others = [line["flags"]["gpu_shared"]] if "gpu_shared" in line.get("flags", {}) else []
        codes = [reason["code"] for reason in line.get("energy_reasons", [])]
        node = NodeWindow(
            self._name, metrics, dict(energy["joules"]), dict(energy["term"]), no_energy, others, [], codes
        )
        ranks = [rank._replace(node=self._node.number) for rank in measured.ranks]
        message = WindowMeasured(ranks, [node], measured.rank_steps)
        content = json.loads(encode(message))
        steps = int(ranks[0].parts.get("steps", 0))
        places = self._windows.places
        line_of_window = {"window": name, "number": self._counts[name], "steps": steps, "places": places}
        self._append({**line_of_window, "measured": content, "rows_before": self._rows})
        self._counts[name] += 1
        self._rows += len(ranks) * measured.rank_steps

    def end(self) -> None:
        self._append({END: True})

    @property
    def _name(self) -> str:
        return self._node.name or str(self._node.number)

    def _append(self, line: Mapping[str, Any]) -> None:
        with suppress(OSError), open(self._file, "a") as file:  # without space, the first node notes what is missing
            file.write("\n" + json.dumps(line) + "\n")  # the first ends a line that is incomplete


class _LeftWindows:
    """The windows that another node has left so far."""

    def __init__(self, node: ScriptNode, number: int) -> None:
        assert node.folder
        self._folder, self.name = node.folder / str(number), str(number)
        self._of_name: dict[str, dict[int, NodeRanks]] = defaultdict(dict)
        self._offset, self.has_ended = 0, False
        self.places: list[RankPlace] = []
        self.silent: set[str] = set()  # names of windows that it is not waited for

    def read(self) -> None:
        with suppress(OSError), open(self._folder / WINDOWS, "rb") as file:
            file.seek(self._offset)
            lines = file.read()
            lines = lines[: lines.rfind(b"\n") + 1]
            self._offset += len(lines)
            for line in filter(None, lines.splitlines()):
                with suppress(*READ_ERRORS):  # a damaged line, as on a full disk: its window is absent
                    self._add(json.loads(line))

    def window(self, name: str, number: int) -> NodeRanks | None:
        return self._of_name[name].get(number)

    def may_leave(self, name: str, number: int) -> bool:
        """Return whether a window may still come: the node has neither ended nor left a later one."""
        return not (self.has_ended or name in self.silent or max(self._of_name[name], default=-1) > number)

    def _add(self, line: Mapping[str, Any]) -> None:
        if END in line:
            self.has_ended = True
            return
        message: WindowMeasured = decode(json.dumps(line["measured"]))
        (node,), count = message.nodes, len(message.ranks) * message.rank_steps
        rows = Record(self._folder / "0").rank_rows(line["rows_before"], count) if count else array("f")
        self.name, self.places = node.node, line["places"]
        self.silent.discard(line["window"])
        left = NodeRanks(line["steps"], message.ranks, node, rows, message.rank_steps)
        self._of_name[line["window"]][line["number"]] = left


class FirstNode(SingleNode):
    """The first node, which joins the windows of all."""

    def __init__(self, node: ScriptNode, record: Record, windows: ScriptWindows) -> None:
        assert node.folder
        self._windows = windows
        self._others = [_LeftWindows(node, number) for number in range(1, node.nodes)]
        self._waiting: deque[tuple[MeasuredWindow, float]] = deque()  # with the times until which they wait
        self._counts: dict[str, int] = defaultdict(int)  # windows so far, by name
        node.folder.mkdir(parents=True, exist_ok=True)
        (node.folder / FIRST).write_text(str(record.folder.absolute()))

    @property
    def possible_borders_ns(self) -> list[int]:
        windows = [measured.window for measured, _ in self._waiting]
        return [border for window in windows for border in (window.opened_ns, window.closed_ns)]

    @property
    def places(self) -> list[RankPlace]:
        return [place for other in self._others for place in other.places]

    def joined(self, taken: Iterable[MeasuredWindow], *, is_final: bool) -> Iterator[JoinedWindow]:
        until_s = time.monotonic() + NODE_WAIT_S
        self._waiting += [(measured, until_s) for measured in taken]
        while self._waiting:
            measured, until_s = self._waiting[0]
            window = measured.window
            if not self._windows.lacks_ranks:  # the nodes do not train together
                self._waiting.popleft()
                self._counts[window.name] += 1  # as the other nodes count theirs: later ones may be joined
                yield JoinedWindow(measured, [], [])
                continue
            found = self._found(window.name)
            number = self._counts[window.name]
            awaited = [other for other, left in found if not left and other.may_leave(window.name, number)]
            if awaited and time.monotonic() < until_s:
                if not is_final:
                    return
                time.sleep(POLL_S)
                continue
            for other in awaited:
                other.silent.add(window.name)
            self._waiting.popleft()
            self._counts[window.name] += 1
            yield join(measured, found, self._counts[window.name])

    def lost(self) -> list[str]:
        if not self._windows.lacks_ranks:
            return []
        has_waited = any(other.silent for other in self._others)
        until_s = time.monotonic() + (0.0 if has_waited else NODE_WAIT_S)
        while True:
            for other in self._others:
                other.read()
            missing = [other.name for other in self._others if not other.has_ended]
            if not missing or time.monotonic() > until_s:
                return missing
            time.sleep(POLL_S)

    def _found(self, name: str) -> list[tuple[_LeftWindows, NodeRanks | None]]:
        for other in self._others:
            other.read()
        return [(other, other.window(name, self._counts[name])) for other in self._others]


def join(measured: MeasuredWindow, found: Sequence[tuple[_LeftWindows, NodeRanks | None]], number: int) -> JoinedWindow:
    """Return a window with those of other nodes; `number` counts windows of its name from 1 on."""
    ranks, steps, notes = [*measured.ranks], int(measured.ranks[0].parts.get("steps", 0)), []
    parts = [(len(ranks), measured.rank_steps, measured.rank_rows)]
    nodes = []
    for other, left in found:
        if left is None:
            notes.append(NO_WINDOW.format(other.name, number))
            nodes.append(NodeWindow(other.name, {}, {}, {}, NOT_LEFT, [], [], [EnergyCode.NOT_READ.value]))
            continue
        if left.steps != steps:
            notes.append(OTHER_STEPS.format(other.name, left.steps, number, steps))
        ranks += left.ranks
        nodes.append(left.node)
        parts.append((len(left.ranks), left.rank_steps, left.rows))
    if any(left is None for _, left in found):
        ranks[0] = without_sums(ranks[0])
    rows, rank_steps = joined_rows([of_rank for part in parts for of_rank in _rows_of_each(*part)])
    joined = measured._replace(ranks=with_common_phases(ranks), rank_rows=rows, rank_steps=rank_steps)
    return JoinedWindow(joined, nodes, notes)


def _rows_of_each(ranks: int, steps: int, rows: "array[float]") -> Iterator["array[float]"]:
    """Yield the rows of each rank of a node; they are empty if they are not known."""
    size = steps * len(RANK_INTERVALS)
    return (rows[rank * size : (rank + 1) * size] for rank in range(ranks))


def open_nodes(node: ScriptNode, record: Record, windows: ScriptWindows) -> Nodes:
    """Return the nodes of a script, as this one sees them."""
    if node.folder is None:
        return SingleNode()
    return FirstNode(node, record, windows) if node.is_first else OtherNode(node, windows)


def with_lost(problem: Problem, lost: Sequence[str]) -> Problem:
    """Return the problem of a script that has failed, with the nodes that were lost."""
    names = f"node{'s' if len(lost) > 1 else ''} {', '.join(lost)}"
    return Problem(LOST.format(problem.message, names), problem.hint, "node", Place(host=",".join(lost)))


def hand_over(node: ScriptNode, record: Record, *, is_joined: bool) -> Path:
    """Move the record of another node to its place; return where it is then.

    That is in the run of the first node, or next to it if the nodes have not trained together.
    """
    assert node.folder
    name = node.name or str(node.number)
    with suppress(OSError):
        first = Path((node.folder / FIRST).read_text())
        apart = first.parent.with_name(f"{first.parent.name}-{name}") / "0"
        target = first / "nodes" / name if is_joined else apart
        target.parent.mkdir(exist_ok=True)
        record.folder.rename(target)
        return target
    return record.folder
