"""The worker's end of the socket to the steward: a JSON object a line.

The steward answers only what it is asked: `ask` waits, `say` does not.
"""

import contextlib
import ctypes
import faulthandler
import json
import signal
import socket

PROGRESS_NS = 500 * 1000 * 1000
PR_SET_PDEATHSIG = 1


class Link:
    """Joined to the steward's socket at `path` as a rank, None: as what started them; a steward that is gone ends it.

    Each process has a link of its own, so that whatever happens to it is heard; what is asked, the one that `speaks`
    asks, the first rank of the node.
    """

    def __init__(self, path, rank=0, speaks=True):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._answers = self._socket.makefile("r", encoding="utf-8")
        self._progress_ns = 0
        self.say("joined", rank=rank, speaks=speaks)

    def say(self, kind, **facts):
        self._socket.sendall(line(kind, **facts))

    def ask(self, kind, **facts):
        """Says it and waits for the answer, a dict."""
        self.say(kind, **facts)
        answer = self._answers.readline()
        if not answer:
            raise SystemExit("the steward is gone")
        return json.loads(answer)

    def progress(self, steps, now_ns, facts=dict):
        """Tells how many steps the open window has done, at most twice a second; only then `facts` are asked for.

        What a steward that is stopped leaves no room for is not told: training waits for nobody to hear it.
        """
        if now_ns - self._progress_ns >= PROGRESS_NS:
            self._progress_ns = now_ns
            with contextlib.suppress(BlockingIOError):  # so short a line goes whole or not at all
                self._socket.send(line("progress", steps=steps, **facts()), socket.MSG_DONTWAIT)


def line(kind, **facts):
    """What is said, as it goes over the socket."""
    return (json.dumps(dict(facts, kind=kind)) + "\n").encode("utf-8")


class Together:
    """The link of all ranks of a strategy: once all have come, the first one asks, and the answer is everyone's.

    With several nodes the first of each asks its own steward, and what all stewards answer `ask_all` tells.
    """

    def __init__(self, link, strategy):
        self._link, self._strategy = link, strategy
        self._first = strategy.rank == 0

    def ask(self, kind, **facts):
        return self.ask_all(kind, **facts)[0]

    def ask_all(self, kind, **facts):
        self._strategy.share(None)
        answers = self._strategy.gather(self._link.ask(kind, **facts) if self._strategy.speaks else None)
        return [answer for answer in answers if answer is not None]

    def progress(self, steps, now_ns, facts=dict):
        if self._first:
            self._link.progress(steps, now_ns, facts)


def die_with_parent():
    """Has the kernel kill this process when its parent ends, however that ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def tell_where():
    """Has a crash, and the steward's SIGUSR1, leave in the log what each thread was at."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
