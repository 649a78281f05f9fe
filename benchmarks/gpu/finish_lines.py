"""Let a validation be finished, except for one check: `python finish_lines.py validation.json CHECK`."""

import json
import sys
from pathlib import Path


def main(path: str, check: str) -> None:
    file = Path(path)
    document = json.loads(file.read_text())
    for line in document["lines"]:
        line["again"] = line["check"] == check
    file.write_text(json.dumps(document))


if __name__ == "__main__":
    main(*sys.argv[1:])
