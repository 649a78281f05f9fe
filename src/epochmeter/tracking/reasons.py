"""Why a call to a tracker failed, as one line."""

import re

from epochmeter.config.secrets import redact

UNREACHABLE = re.compile(r"API request to (https?://[^/]+).*\(Caused by .*?([^:('\" ][^:('\"]*)['\")]+$")
"""An error of MLflow's client about its server: groups are the address and the innermost cause."""
MAX_REASON = 300  # maximum length of an error's reason


def error_reason(error: Exception) -> str:
    """Return the first line of an error, as MLflow's may be pages long, without secrets."""
    text = redact(str(error).partition("\n")[0]) or type(error).__name__
    if unreachable := UNREACHABLE.match(text):
        text = "request to {} failed: {}".format(*unreachable.groups())
    return text if len(text) <= MAX_REASON else f"{text[:MAX_REASON]}..."
