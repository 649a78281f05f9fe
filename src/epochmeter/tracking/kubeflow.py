"""The status of a TrainJob of Kubeflow Trainer: progress, remaining time and metrics, sent to its controller.

Kubeflow adds the address, a certificate and a token to the pods of a TrainJob (proposal KEP-2779 of kubeflow/trainer).
A thread sends the newest status; nothing waits for it, except the last one, for a few seconds.
"""

import logging
import math
import threading
from collections.abc import Mapping
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from epochmeter.config.secrets import redact
from epochmeter.shared.problem import Problem, format_problem

PREFIXES = ("KUBEFLOW_TRAINER_SERVER_", "KUBEFLOW_TRAINER_STATUS_")
"""Of the environment variables: those of releases since 2.2, and those of the proposal."""
NODE_RANKS = ("PET_NODE_RANK", "JOB_COMPLETION_INDEX")
"""Variables with the number of this pod among those of a TrainJob. All pods have one status: the first one sends it."""
PERIOD_S = 5.0
"""Shortest time between two requests, as Kubeflow asks of its clients."""
MAX_PERIOD_S = 300.0  # after failed requests, each of which doubles the time to the next
LIMIT_S = 5.0  # time limit of a request, and of the wait for the last one
HINT = "the run and its record are not affected; look at the log of Kubeflow's controller"
MAX_METRICS, MAX_CHARACTERS = 256, 64  # limits of Kubeflow's API: metrics, and characters of a name
MAX_REMAINING_S = 2**31 - 1  # likewise


class Endpoint(NamedTuple):
    """Where the status is sent, and the files with the certificate of its authority and the token; empty without."""

    url: str
    certificate: str = ""
    token: str = ""


class TrainerStatus(NamedTuple):
    """The status of a run; None where something is not known."""

    fraction: float | None = None  # of the work that is done
    remaining_s: float | None = None
    metrics: Mapping[str, float | None] = {}

    def document(self) -> dict[str, object]:
        """Return the body of a request."""
        status: dict[str, object] = {}
        if self.fraction is not None:
            status["progressPercentage"] = math.floor(100 * min(max(self.fraction, 0.0), 1.0))
        if self.remaining_s is not None and self.remaining_s <= MAX_REMAINING_S:
            status["estimatedRemainingSeconds"] = math.ceil(max(0.0, self.remaining_s))
        finite = {name: value for name, value in self.metrics.items() if value is not None and math.isfinite(value)}
        named = [
            {"name": name, "value": f"{value:.6g}"} for name, value in finite.items() if len(name) <= MAX_CHARACTERS
        ]
        status["metrics"] = named[:MAX_METRICS]
        status["lastUpdatedTime"] = datetime.now(timezone.utc).isoformat(timespec="seconds")
        return {"trainerStatus": status}


def find_endpoint(environment: Mapping[str, str]) -> Endpoint | None:
    """Return where this pod sends the status of its TrainJob; None outside of a TrainJob, or if another pod does."""
    if any(environment.get(name) not in (None, "", "0") for name in NODE_RANKS):
        return None
    for prefix in PREFIXES:
        if url := environment.get(f"{prefix}URL"):
            return Endpoint(url, environment.get(f"{prefix}CA_CERT", ""), environment.get(f"{prefix}TOKEN", ""))
    return None


class StatusThread:
    """Sends the newest status of a run in a thread: at once, but not more often than every `period_s`.

    The first failed request causes a warning, the others do not. Later ones are sent at growing intervals.
    The thread ends with the process.
    """

    def __init__(self, endpoint: Endpoint, period_s: float = PERIOD_S, limit_s: float = LIMIT_S) -> None:
        self._endpoint, self._period_s, self._limit_s = endpoint, period_s, limit_s
        self._changed = threading.Condition()
        self._next: TrainerStatus | None = None
        self._is_sending = self._is_urgent = self._has_failed = self._has_warned = False
        self._thread = threading.Thread(target=self._run, name="kubeflow", daemon=True)
        self._thread.start()

    def report(self, status: TrainerStatus) -> None:
        """Send a status as soon as that is possible, in place of one that was not sent so far."""
        with self._changed:
            self._next = status
            self._changed.notify_all()

    def flush(self) -> None:
        """Send a status that was not sent so far, and wait for its answer unless the last request failed."""
        with self._changed:
            self._is_urgent = self._next is not None
            self._changed.notify_all()
            if not self._has_failed:
                self._changed.wait_for(lambda: not (self._next or self._is_sending) or self._has_failed, self._limit_s)
            hangs = self._is_sending and not self._has_failed
        if hangs:
            self._warn(f"no answer within {self._limit_s:g} s")

    def _run(self) -> None:
        pause_s = 0.0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_urgent, pause_s)
                self._changed.wait_for(lambda: self._next)
                status, self._next, self._is_urgent = self._next, None, False
                assert status
                self._is_sending = True
            error = send(self._endpoint, status, self._limit_s)
            pause_s = min(2 * max(pause_s, self._period_s), MAX_PERIOD_S) if error else self._period_s
            with self._changed:
                self._is_sending, self._has_failed = False, bool(error)
                self._changed.notify_all()
            if error:
                self._warn(error)

    def _warn(self, error: str) -> None:
        """Print the first error; the run and its record do not depend on the status."""
        if not self._has_warned:
            self._has_warned = True
            problem = Problem(f"Kubeflow does not show the progress of this run: {error}", HINT)
            logging.getLogger(__name__).warning(format_problem(problem, "warning"))


@lru_cache
def status_thread(endpoint: Endpoint) -> StatusThread:
    """Return the thread that sends to this address: one for all runs of a sweep, so that a bad one is tried rarely."""
    return StatusThread(endpoint)


def send(endpoint: Endpoint, status: TrainerStatus, limit_s: float = LIMIT_S) -> str:
    """Send a status to Kubeflow's controller; return why that failed, or nothing.

    The files are read at each request, since Kubernetes renews them. A token is sent on an encrypted connection only.
    """
    # Imported here, since they take time, and only the pods of a TrainJob need them.
    import http.client
    import json
    import ssl
    from urllib.parse import urlsplit

    place = "the address of Kubeflow's controller"
    try:
        address = urlsplit(endpoint.url)
        if address.scheme not in ("http", "https") or not address.hostname:
            return f"`{redact(endpoint.url)}` is not {place}"
        place = address.hostname
        headers = {"Content-Type": "application/json"}
        if address.scheme == "http":
            connection = http.client.HTTPConnection(address.hostname, address.port, timeout=limit_s)
        else:
            context = ssl.create_default_context(cafile=endpoint.certificate or None)
            connection = http.client.HTTPSConnection(address.hostname, address.port, timeout=limit_s, context=context)
            if endpoint.token:
                headers["Authorization"] = f"Bearer {Path(endpoint.token).read_text().strip()}"
        target = address.path + (f"?{address.query}" if address.query else "")
        try:
            connection.request("POST", target, json.dumps(status.document()), headers)
            answer = connection.getresponse()
        finally:
            connection.close()
    except (OSError, ValueError, http.client.HTTPException) as error:
        return redact(f"{place}: {error}")
    return "" if answer.status < 300 else f"{place} answered {answer.status} {answer.reason}"
