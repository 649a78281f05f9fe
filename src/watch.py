"""Watch a run or a sweep: `python src/watch.py --help`."""

from epochmeter.__main__ import start

if __name__ == "__main__":
    start("watch")
