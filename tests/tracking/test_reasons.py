"""Why a call to a tracker failed, as one line."""

import pytest

from epochmeter.tracking.reasons import MAX_REASON, error_reason

FULL = "(sqlite3.OperationalError) database or disk is full"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{FULL}\n[SQL: INSERT INTO metrics]", FULL),
        (f"(raised as a result of Query-invoked autoflush; consider using x)\n{FULL}\n[SQL: ...]", FULL),
        ("", "OSError"),
        ("at postgresql://me:secret@db/mlflow\nmore", "at postgresql://***@db/mlflow"),
        ("x" * 1000, "x" * MAX_REASON + "..."),
        (
            "API request to http://127.0.0.1:9/api/2.0 failed with exception HTTPConnectionPool(host='h', port=9):"
            " Max retries exceeded (Caused by NewConnectionError('<...>: Failed to connect: [Errno 111] refused'))",
            "request to http://127.0.0.1:9 failed: [Errno 111] refused",
        ),
        (
            "API request to http://h:9/api/2.0 failed with exception HTTPConnectionPool(host='h', port=9): Max retries"
            " exceeded (Caused by NameResolutionError(\"HTTPConnection(host='h', port=9): Failed to resolve 'h' ([Errno"
            ' -2] Name or service not known)"))',
            "request to http://h:9 failed: [Errno -2] Name or service not known",
        ),
        (
            "API request to http://h:9/api/2.0 failed with exception HTTPConnectionPool(host='h', port=9): Max retries"
            " exceeded (Caused by ReadTimeoutError(\"HTTPConnectionPool(host='h', port=9): Read timed out. (read"
            ' timeout=30)"))',
            "request to http://h:9 failed: no answer within 30 s",
        ),
    ],
)
def test_reason_is_one_short_line_without_secrets_and_without_advice_to_developers(text, reason):
    assert error_reason(OSError(text)) == reason
