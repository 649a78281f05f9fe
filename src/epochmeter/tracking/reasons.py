"""Why a call to a tracker failed, as one line."""

import re

from epochmeter.config.secrets import redact

UNREACHABLE = re.compile(r"API request to (https?://[^/]+).*\(Caused by .*?([^:('\" ][^:('\")]*)['\")]+$")
"""An error of MLflow's client about its server: groups are the address and the innermost cause."""
TIMED_OUT = re.compile(r"(?:read|connect) timeout=(.+)")
AUTOFLUSH = "(raised as a result of Query-invoked autoflush"
"""Begin of the advice to developers that SQLAlchemy may put before an error."""
MAX_REASON = 300  # maximum length of an error's reason


def error_reason(error: Exception) -> str:
    """Return the first line of an error, as MLflow's may be pages long, without secrets."""
    lines = (line for line in str(error).split("\n") if not line.startswith(AUTOFLUSH))
    text = redact(next(lines, "")) or type(error).__name__
    if unreachable := UNREACHABLE.match(text):
        address, cause = unreachable.groups()
        cause = TIMED_OUT.sub(r"no answer within \1 s", cause)
        text = f"request to {address} failed: {cause}"
    return text if len(text) <= MAX_REASON else f"{text[:MAX_REASON]}..."
