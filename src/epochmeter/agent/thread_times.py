"""What a thread does while it is off the processor: whether it waits for a core, and whether others work for it."""

import importlib
import math
import os
import sys
import threading
import time
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Any, Callable, Iterator, Optional, Tuple

from epochmeter.agent.frames import Suppressed, pass_on
from epochmeter.worker.timeline import monotonic_ns

MAX_LAG_NS = 10**8  # by which the kernel's count of a thread's processor time may be behind its clock
MAX_READING_NS = 50 * 1000  # longest time to read the three clocks without losing the core
MAX_TRIES = 3
SCHEDSTAT = "schedstat"  # file of the kernel with a thread's processor time and waits for a core
FEEDER = "QueueFeederThread"  # a thread of a DataLoader worker that sends its batches


def nanoseconds_of(clock: int) -> int:
    """Return the time of a clock; Python 3.6 only has it in float seconds."""
    return time.clock_gettime_ns(clock) if hasattr(time, "clock_gettime_ns") else int(time.clock_gettime(clock) * 1e9)


thread_ns: Callable[[], int] = getattr(time, "thread_time_ns", lambda: nanoseconds_of(time.CLOCK_THREAD_CPUTIME_ID))
"""Processor time of the current thread."""


def module_of_python(name: str) -> Any:
    """Return a C module of the standard library, also if a file next to the script has its name.

    It is not in `sys.modules` afterwards, where the script would find it in place of that file.
    """
    folder = os.path.dirname(os.__file__)
    spec = PathFinder.find_spec(name, [os.path.join(folder, "lib-dynload"), folder])
    if spec is None or spec.loader is None:
        return importlib.import_module(name)  # a part of the interpreter itself
    absent = object()
    earlier: Any = sys.modules.get(name, absent)
    try:
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        if earlier is not absent:
            sys.modules[name] = earlier
        else:
            sys.modules.pop(name, None)  # Python 3.6 adds it
    return module


resource = module_of_python("resource")


class RunQueue:
    """Clocks of the current thread, with its waits for a core while it was ready to run, as Linux counts them."""

    def __init__(self) -> None:
        self.process = os.getpid()
        try:
            self._descriptor = os.open("/proc/thread-self/{}".format(SCHEDSTAT), os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            pass_on(error)
            self._descriptor = -1

    def __del__(self) -> None:
        try:  # the script may have closed it, and opened another one
            if os.readlink("/proc/self/fd/{}".format(self._descriptor)).endswith(SCHEDSTAT):
                os.close(self._descriptor)
        except Exception:  # at the interpreter's end, modules such as `contextlib` may be gone
            pass

    def waited_ns(self, cpu_ns: int) -> float:
        """Return how long the thread has waited for a core until now; NaN if not known. `cpu_ns` is `thread_ns()`."""
        try:
            running, waited, _ = os.pread(self._descriptor, 64, 0).split()
            # If the script has closed all files, this may be another one.
            return int(waited) if 0 <= cpu_ns + MAX_READING_NS - int(running) < MAX_LAG_NS else math.nan
        except (OSError, ValueError) as error:
            pass_on(error)
            return math.nan

    def now(self) -> Tuple[int, int, float]:
        """Return the time, the thread's processor time, and how long it has waited for a core; NaN if not known.

        They are read again if the thread has lost its core between them.
        """
        for _ in range(MAX_TRIES):
            now_ns, cpu_ns = monotonic_ns(), thread_ns()
            waited_ns = self.waited_ns(cpu_ns)
            if monotonic_ns() - now_ns < MAX_READING_NS:
                break
        return now_ns, cpu_ns, waited_ns


_of_thread = threading.local()


def own_run_queue() -> RunQueue:
    """Return the clocks of the current thread, which keeps them; a forked process has its own."""
    queue: Optional[RunQueue] = getattr(_of_thread, "queue", None)
    if queue is None or queue.process != os.getpid():
        queue = _of_thread.queue = RunQueue()
    return queue


class Helpers:
    """The processor time, from now on, of threads and processes that may work for the current thread.

    Threads without Python that run now are left out: torch's own spin for some time after each operation. So are the
    threads that send a worker's batches.
    """

    def __init__(self) -> None:
        self._apart = [clock_of(thread) for thread in threads_apart()]
        self._begun_ns = self._total_ns()

    def worked_ns(self) -> float:
        """Return the processor time since it was made."""
        return max(0.0, self._total_ns() - self._begun_ns)

    def _total_ns(self) -> float:
        apart_ns = 0
        for clock in self._apart:
            with Suppressed(OSError):  # the thread has ended
                apart_ns += nanoseconds_of(clock)
        return nanoseconds_of(time.CLOCK_PROCESS_CPUTIME_ID) - thread_ns() - apart_ns + children_ns()


def threads_apart() -> Iterator[int]:
    """Yield the threads of this process that work for no other thread, by their numbers in Linux."""
    of_python = {getattr(thread, "native_id", None): thread for thread in threading.enumerate()}  # from 3.8 on
    if None in of_python:
        return
    own = of_python.keys()
    sharer = getattr(sys.modules.get("multiprocessing.resource_sharer"), "_resource_sharer", None)
    sends = (FEEDER, getattr(getattr(sharer, "_thread", None), "name", FEEDER))
    yield from (number for number, thread in of_python.items() if number and thread.name in sends)
    for number in map(int, os.listdir("/proc/self/task")):
        if number not in own and content("/proc/self/task/{}/stat".format(number)).rpartition(b")")[2][1:2] == b"R":
            yield number


def clock_of(thread: int) -> int:
    """Return the clock with the processor time of a thread of this process (clock_getcpuclockid, in Linux)."""
    return (~thread << 3) | 6


def children_ns() -> float:
    """Return the processor time of the child processes, and of the ended ones that were waited for."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total_ns: float = (ended.ru_utime + ended.ru_stime) * 1e9
    for thread in os.listdir("/proc/self/task"):
        for child in content("/proc/self/task/{}/children".format(thread)).split():
            times = content("/proc/{}/{}".format(int(child), SCHEDSTAT)).split()
            total_ns += int(times[0]) if times else 0
    return total_ns


def content(path: str) -> bytes:
    """Return the content of a small file of the kernel; nothing if there is none, as of a thread that has ended."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        pass_on(error)
        return b""
    try:
        return os.read(descriptor, 4096)
    except OSError as error:
        pass_on(error)
        return b""
    finally:
        os.close(descriptor)
