"""A scripted /proc: the counters of the processor, of processes and of their threads."""

import shutil

from project import put

STAT = "{pid} ({name}) S {parent} " + "0 " * 9 + "{ticks} 0 0 0 " + "0 " * 4 + "{started} 0\n"


class ScriptedProc:
    """The folder `root`/proc; a process that is written again has its new counters."""

    def __init__(self, root):
        self.root = root
        (root / "proc").mkdir(exist_ok=True)

    def processor(self, user=0, system=0, idle=0):
        """Write the ticks of all cores since boot."""
        put(self.root, {"proc/stat": f"cpu  {user} 0 {system} {idle} 0 0 0 0 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n"})

    def process(self, pid, ticks=0, name="python", parent=1, started=5, children=(), threads=None):
        """Write a process; `threads` has the nanoseconds that each ran and waited, by default of none."""
        values = {"pid": pid, "name": name, "parent": parent, "ticks": ticks, "started": started}
        files = {
            "stat": STAT.format(**values),
            "comm": f"{name}\n",
            f"task/{pid}/children": " ".join(map(str, children)),
        }
        for thread, (ran_ns, waited_ns) in (threads or {}).items():
            files[f"task/{thread}/schedstat"] = f"{ran_ns} {waited_ns} 3\n"
        self.end(pid)
        put(self.root, {f"proc/{pid}/{file}": text for file, text in files.items()})

    def end(self, pid):
        """Remove a process."""
        shutil.rmtree(self.root / f"proc/{pid}", ignore_errors=True)
