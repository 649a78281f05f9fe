"""The worker's end of the socket to the steward: a JSON object a line.

The steward answers only what it is asked: `ask` waits, `say` does not.
"""

import ctypes
import json
import signal
import socket

PROGRESS_NS = 500 * 1000 * 1000
PR_SET_PDEATHSIG = 1


class Link:
    """Joined to the steward's socket at `path`; a steward that is gone ends the worker."""

    def __init__(self, path):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._answers = self._socket.makefile("r", encoding="utf-8")
        self._progress_ns = 0

    def say(self, kind, **facts):
        self._socket.sendall((json.dumps(dict(facts, kind=kind)) + "\n").encode("utf-8"))

    def ask(self, kind, **facts):
        """Says it and waits for the answer, a dict."""
        self.say(kind, **facts)
        answer = self._answers.readline()
        if not answer:
            raise SystemExit("the steward is gone")
        return json.loads(answer)

    def progress(self, steps, now_ns):
        """Tells how many steps the open window has done, at most twice a second."""
        if now_ns - self._progress_ns >= PROGRESS_NS:
            self._progress_ns = now_ns
            self.say("progress", steps=steps)


def die_with_parent():
    """Has the kernel kill this process when its parent ends, however that ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
