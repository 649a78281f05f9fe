"""The check for private words in names and texts."""

import pytest
from words import ANYWHERE, findings, is_private


def test_names_and_texts_use_plain_words():
    assert findings() == []


@pytest.mark.parametrize("name", ["found", "Told", "is_whole", "wasTold", "test_it_tells_why", "asked_for"])
def test_private_name_is_found(name):
    assert is_private(name)


@pytest.mark.parametrize("name", ["not_found", "left_out", "is_known", "wholesale", "tabletop", "essay"])
def test_plain_name_is_not_found(name):
    assert not is_private(name)


def test_method_call_is_no_word_of_a_sentence():
    assert ANYWHERE.search("what it tells")
    assert not ANYWHERE.search("position = file.tell()")
