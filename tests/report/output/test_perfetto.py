import queue
import threading
import urllib.request

from epochmeter.report.output.perfetto import ORIGIN, open_in_perfetto


def test_timeline_is_served_only_to_perfetto_and_for_a_limited_time(tmp_path, monkeypatch):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(b"trace")
    answers, messages = queue.Queue(), []

    def read(link):
        address = link.partition("url=")[2]
        threading.Thread(target=lambda: answers.put(urllib.request.urlopen(address))).start()

    monkeypatch.setattr("webbrowser.open", read)
    open_in_perfetto(path, messages.append, port=0)
    assert messages[0].startswith(f"Open {ORIGIN}/#!/?url=http://127.0.0.1:")
    answer = answers.get(timeout=10)
    assert (answer.headers["Access-Control-Allow-Origin"], answer.read()) == (ORIGIN, b"trace")
    monkeypatch.setattr("webbrowser.open", lambda link: None)
    open_in_perfetto(path, print, port=0, wait_s=0.05)
