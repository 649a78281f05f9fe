"""Decoding of the events in a trace, a JSON file, one by one.

A sliding buffer bounds the memory. Damaged names, which profilers write, cost no other event.
"""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Any

from epochmeter.shared.types import Document

CHUNK_CHARACTERS = 1 << 22
MAX_EVENT_CHARACTERS = 1 << 24  # also of the text before the first event
SEPARATORS = re.compile(r"[\s,]*")
HEADER = re.compile(r'\s*(\{.*?"traceEvents"\s*:\s*)?\[', re.DOTALL)
"""Text before the first event, of a list of events or of an object with such a list."""
NEXT_EVENT = re.compile(r'\}[\s,]*(?=\{\s*"(ph|name|cat|pid|tid|ts|dur|args)"\s*:)')
NOT_A_NUMBER = re.compile("-?(nan|inf)")  # values of counters that are not valid in JSON, as Kineto writes them
MAX_REPAIRS = 100  # of one event
DECODER = json.JSONDecoder(strict=False)  # accepts tabs and line breaks in names


def read_events(file: IO[str]) -> Iterator[Document]:
    """Decode the events of a file one by one, with as many reads as each needs; a damaged event is empty."""
    text = file.read(MAX_EVENT_CHARACTERS)
    if not (header := HEADER.match(text)):
        raise ValueError("it has no `traceEvents`" if text.strip() else "it is empty")
    at = header.end()
    while not text.startswith("]", at := SEPARATORS.match(text, at).end()):  # type: ignore[union-attr]  # matches
        try:
            event, at = DECODER.raw_decode(text, at)
        except json.JSONDecodeError as error:
            if following := NEXT_EVENT.search(text, error.pos):
                event, at = _repaired(text[at : following.start() + 1]), following.end()
            elif more := file.read(CHUNK_CHARACTERS) if len(text) - at <= MAX_EVENT_CHARACTERS else "":
                text, at = text[at:] + more, 0
                continue
            else:  # the last event
                text, at = _repair(text[at:]), 0
                continue
        if isinstance(event, dict):
            yield event


def read_facts(file: IO[str]) -> Document:
    """Return the values before the list of events; empty if there are none, or their text is damaged."""
    header = HEADER.match(file.read(MAX_EVENT_CHARACTERS))
    if not header or not header[1]:
        return {}
    with suppress(ValueError):
        facts: Document = DECODER.decode(f"{header[0]}]}}")
        return facts
    return {}


def _repaired(text: str) -> Any:
    """Decode the text of a damaged event; without success it is empty."""
    with suppress(ValueError):
        return DECODER.raw_decode(_repair(text))[0]
    return {}


def _repair(text: str) -> str:
    """Return text that begins with an event, with valid numbers and with the missing escapes; ValueError if it fails.

    Kineto escapes neither quotes nor backslashes in names.
    """
    for _ in range(MAX_REPAIRS):
        try:
            DECODER.raw_decode(text)
            return text
        except json.JSONDecodeError as error:
            if number := NOT_A_NUMBER.match(text, error.pos):
                text = f"{text[: error.pos]}NaN{text[number.end() :]}"
                continue
            place = -1
            if error.msg.startswith("Invalid \\"):
                place = text.rfind("\\", 0, error.pos + 2)
            elif error.msg.startswith("Expecting ','"):  # a quote within a name ended it
                place = text.rfind('"', 0, error.pos)
            if place < 0:
                raise
            text = f"{text[:place]}\\{text[place:]}"
    raise ValueError("it has an event with too many errors")
