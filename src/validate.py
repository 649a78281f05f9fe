import sys
from os.path import dirname, realpath

if __name__ == "__main__":
    sys.path.insert(0, dirname(realpath(__file__)))  # Python leaves it out if PYTHONSAFEPATH is set
    from epochmeter.__main__ import start

    start("validate")
