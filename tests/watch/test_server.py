"""The web server of the live view, on loopback: pages, access, and the number of readings of the folder."""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection
from itertools import pairwise
from types import SimpleNamespace

import live
import pytest
import watched
from project import wait_until

from epochmeter.report.formatting import metric_title
from epochmeter.results.metrics import find, is_known
from epochmeter.shared.problem import InputError
from epochmeter.watch import server
from epochmeter.watch.server import Feed, changes_since, open_server, to_json
from epochmeter.watch.watcher import Watcher

EVIL = "</script><script>alert(1)</script>"


@contextmanager
def serving(read, **options):
    """Serve what `read` returns, at a free port unless one is given."""
    opened = open_server(read, **{"port": 0, **options})
    threading.Thread(target=opened.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield opened
    finally:
        opened.shutdown()
        opened.server_close()


def get(opened, path="/", **headers):
    connection = HTTPConnection("127.0.0.1", opened.server_address[1], timeout=10)
    connection.request("GET", path, headers=headers)
    return connection.getresponse()


def next_event(response):
    """Return the content of the next event of a stream."""
    data, end = (response.readline().decode().rstrip("\n") for _ in range(2))
    assert (data[:6], end) == ("data: ", "")
    return json.loads(data[6:])


@pytest.fixture
def record(tmp_path):
    record = live.start(tmp_path / "0", name=EVIL)
    live.append_epoch(record, 0)
    return record


def test_titles_and_units_of_the_page_are_those_of_the_table_of_metrics():
    table = json.loads(server.metric_table())
    assert table["figures"][0] == ["Time per epoch", "e2e_s", "s", 3]
    assert ["Energy per epoch", "energy_j", "J", 1] in table["figures"]
    assert table["figures"][-1] == ["Training accuracy", "train_accuracy", "%", 1]
    rows = [(title, f"epoch/{name}", unit) for title, name, unit, _ in table["figures"]]
    rows += [(title, name, unit) for title, name, unit in table["totals"]]
    assert rows == [(metric_title(name), name, find(name).symbol) for _, name, _ in rows]
    assert all(is_known(name) for _, name, _ in rows)
    assert table["columns"][-1] == ["Data stall", "stall_fraction", "%"]
    assert table["parts"]["data_stall"] == "data stall"
    assert {unit for _, _, unit, _ in table["figures"]} - {"", "%", "°C", "samples/s"} <= table["units"].keys()


def test_the_page_has_the_state_as_data_and_runs_only_its_own_script(record):
    with serving(Watcher(record.folder).read) as opened:
        response = get(opened)
        page = response.read().decode()
    policy = response.headers["Content-Security-Policy"]
    nonce = policy.partition("script-src 'nonce-")[2].partition("'")[0]
    assert (page.count("<script"), page.count(f'<script nonce="{nonce}"')) == (3, 1), "data, and the script"
    assert "unsafe" not in policy
    state = json.loads(page.partition('id="state">')[2].partition("</script>")[0])
    view = Watcher(record.folder).read().active[0]
    shown = state["snapshot"]["active"][0]
    assert shown["name"] == EVIL
    assert shown["metrics"] == view.metrics
    assert shown["power"]["total_w"]["values"] == view.power["total_w"].values
    assert shown["gauges"]["cpu1_utilization"] == {"latest": 0.1, "times_s": [], "values": []}


def test_without_a_token_requests_must_be_addressed_to_loopback(record):
    hosts = {"127.0.0.1:9": 200, "localhost": 200, "[::1]:8600": 200, "rebound.example": 403, "[": 403, "": 403}
    with serving(Watcher(record.folder).read) as opened:
        assert {host: get(opened, Host=host).status for host in hosts} == hosts


def test_with_an_address_each_request_needs_the_token(record):
    with serving(Watcher(record.folder).read, host="127.0.0.1", metrics=True) as opened:
        query = opened.url.partition("/?")[2]
        token = query.partition("token=")[2]
        assert len(token) >= 20
        for path in ("/", "/events", "/metrics", "/else"):
            assert [get(opened, path).status, get(opened, f"{path}?token={token}x").status] == [403, 403]
        assert get(opened, f"/?{query}").status == 200
        for scheme, status in {"Bearer": 200, "bearer": 200, "BEARER ": 200, "Basic": 403, "": 403}.items():
            assert get(opened, "/metrics", Authorization=f"{scheme} {token}").status == status, scheme


@pytest.mark.timed
def test_a_flood_of_slow_clients_has_few_threads_and_stops_no_requests(record, monkeypatch):
    """Some send a part of a request, and others request a large page that they do not read."""
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 8)
    monkeypatch.setattr(server, "page_template", lambda: SimpleNamespace(render=lambda **_: " " * (1 << 24)))
    with serving(Watcher(record.folder).read) as opened, ExitStack() as open_sockets:
        before = threading.active_count()
        viewer = get(opened, "/events")
        assert next_event(viewer)["is_full"]
        for number in range(60):
            slow = open_sockets.enter_context(socket.create_connection(opened.server_address))
            slow.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"\r\n" * (number % 6 == 0))
        started_s = time.monotonic()
        assert get(opened, "/else").status == 404
        assert time.monotonic() - started_s < 2
        wait_until(lambda: threading.active_count() - before <= 8, 5)
        assert next_event(viewer)["is_full"] is False


def test_a_long_request_is_cut_and_not_kept(record):
    """A client without the token could else fill the memory."""
    with serving(Watcher(record.folder).read) as opened, socket.create_connection(opened.server_address) as client:
        client.settimeout(10)
        header = b"x: " + b"y" * 60_000 + b"\r\n"
        with suppress(ConnectionError):
            client.sendall(b"GET / HTTP/1.1\r\n" + 50 * header + b"Host: localhost\r\n\r\n")
        with suppress(ConnectionError):
            assert b" 200 " not in client.recv(100)


@pytest.mark.timed
def test_a_stream_has_the_state_and_then_the_changes_within_two_seconds(record):
    with serving(Watcher(record.folder).read) as opened:
        stream = get(opened, "/events")
        first = next_event(stream)
        assert (first["is_full"], len(first["snapshot"]["active"][0]["power"]["total_w"]["values"])) == (True, 10)
        appended_s = time.monotonic()
        live.append_epoch(record, 1, e2e_s=12.0)
        while (change := next_event(stream))["snapshot"]["active"][0]["splits"]["last"]["title"] == "1 (warm-up)":
            pass
        assert time.monotonic() - appended_s < 2
        assert change["is_full"] is False
        assert change["snapshot"]["active"][0]["metrics"]["steady/e2e_s"] == 12.0


@pytest.mark.timed
def test_threads_share_one_reading_per_period(monkeypatch):
    monkeypatch.setattr(server, "PERIOD_S", 0.1)
    read_s = []
    last = Feed(lambda: read_s.append(time.monotonic()))
    with ThreadPoolExecutor(10) as viewers:
        while time.monotonic() < read_s[0] + 0.5:
            assert len({id(latest) for latest in viewers.map(lambda number: last.latest(), range(10))}) <= 2
    assert len(read_s) >= 3
    assert min(later - earlier for earlier, later in pairwise(read_s)) >= 0.1


def test_changes_are_written_once_for_viewers_with_the_same_state(record, monkeypatch):
    feed, written, write = Feed(Watcher(record.folder).read), [], server.to_json
    monkeypatch.setattr(server, "to_json", lambda *arguments, **keys: written.append(keys) or write(*arguments, **keys))
    first, text = feed.changed_since(None)
    assert json.loads(text)["is_full"]
    live.append_epoch(record, 1)
    monkeypatch.setattr(feed, "_due_s", 0.0)
    monkeypatch.setattr(server, "PERIOD_S", 1000.0)
    texts = {feed.changed_since(first)[1] for _ in range(100)}
    assert [json.loads(change)["is_full"] for change in texts] == [False]
    latest, text = feed.changed_since(None)
    assert (latest is feed.latest(), json.loads(text)["is_full"], len(written)) == (True, True, 3)


def test_a_folder_that_cannot_be_read_keeps_its_last_state_but_has_no_metrics(record, monkeypatch):
    monkeypatch.setattr(server, "PERIOD_S", 0.0)
    with serving(Watcher(record.folder).read, metrics=True) as opened:
        assert get(opened, "/metrics").status == 200
        snapshot, error = opened.feed.latest()
        (record.folder / "job.json").write_text("{")
        kept, why = opened.feed.latest()
        assert (kept is snapshot, error) == (True, "")
        assert json.loads(to_json(kept, why))["error"] == why != ""
        assert get(opened, "/metrics").status == 503


def test_changes_have_new_samples_and_the_rows_that_differ(record):
    watcher = Watcher(record.folder)
    before = watcher.read()
    live.append_epoch(record, 1)
    after = watcher.read()
    old, new, change = (view.active[0].power["total_w"] for view in (before, after, changes_since(before, after)))
    assert change.times_s[0] == old.times_s[-1]
    assert [*old.times_s[:-1], *change.times_s] == [*new.times_s]
    folder = record.folder.parent / "sweep"
    watched.write_points(folder, *([f"batch={batch}"] for batch in (8, 16, 32)))
    watched.write_ended(folder, 0, 2.0, 100.0, batch=8)
    watcher = Watcher(folder)
    before = watcher.read()
    watched.write_ended(folder, 1, 1.0, 80.0, batch=16)
    rows = [(row.number, row.state, row.is_on_front) for row in changes_since(before, watcher.read()).runs]
    assert rows == [(0, "completed", False), (1, "completed", True)]


def test_numbers_that_are_not_finite_are_null(record):
    live.append_epoch(record, 1, train_loss=float("nan"))
    state = json.loads(to_json(Watcher(record.folder).read(), ""), parse_constant=pytest.fail)
    assert state["snapshot"]["active"][0]["splits"]["last"]["metrics"]["train_loss"] is None


def test_a_port_in_use_is_refused_or_the_next_one_is_used(record, monkeypatch):
    read = Watcher(record.folder).read
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(InputError, match=f"`{port}`.*\n.*hint: leave `port=` out"):
            open_server(read, port=port)
        monkeypatch.setattr(server, "DEFAULT_PORT", port)
        with serving(read, port=None) as opened:
            assert port < opened.server_address[1] < port + server.PORTS_TRIED
    with pytest.raises(InputError, match=r"`192.0.2.1`.*\n.*`host=` for this machine"):
        open_server(read, host="192.0.2.1", port=0)
