"""List what this machine can measure and set: `python src/doctor.py --help`."""

from epochmeter.__main__ import start

if __name__ == "__main__":
    start("doctor")
