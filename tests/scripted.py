"""The events of a script's threads at known times, and the windows that they give."""

from epochmeter.segmentation.process import ProcessWindows
from epochmeter.shared import events
from epochmeter.shared.events import HAS_GRADIENTS, Event

MILLISECOND = 10**6
NONE = float("nan")
TRAINING, EVALUATION = 1, 2  # loaders


class Script:
    """Writes the events of a thread; every act takes a known time in ms."""

    def __init__(self):
        self.now_ns = 0
        self.events = []

    def write(self, kind, ms=0.0, value=NONE, thing=0, other=0, flags=0):
        begun_ns, self.now_ns = self.now_ns, self.now_ns + round(ms * MILLISECOND)
        self.events.append(Event(self.now_ns, begun_ns, value, thing, other, 0, 0, flags, kind))

    def begin(self, number, length=3, loader=TRAINING):
        self.write(events.PASS, 0, float(length), number, loader, HAS_GRADIENTS)

    def fetch(self, number, ms=1):
        self.write(events.BATCH, ms, 4.0, number)

    def train(self, ms=10):
        self.write(events.FORWARD_ENDED)
        self.write(events.BACKWARD)
        self.write(events.STEP, ms, 0.1, 9)

    def evaluate(self, number, length=2):
        self.begin(number, length, EVALUATION)
        for _ in range(length):
            self.fetch(number)
            self.write(events.FORWARD, 5)
        self.end(number)

    def end(self, number):
        self.write(events.END, 1, NONE, number)


def windows_of(*scripts):
    process = ProcessWindows(500)
    process.add({number: script.events for number, script in enumerate(scripts)}, is_final=True)
    return process
