"""The end of the reader of the output, such as `head`, is an error that commands end quietly by."""

import io
from unittest.mock import Mock

import pytest

from epochmeter.console.plain import PlainConsole


def test_output_whose_reader_has_ended_is_a_broken_pipe():
    closed = Mock(spec=io.StringIO, write=Mock(side_effect=BrokenPipeError))
    with pytest.raises(BrokenPipeError):
        PlainConsole(file=closed).print("text")
