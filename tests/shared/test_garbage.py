"""Imports without garbage collection."""

import gc

from epochmeter.shared.garbage import without_collection


def test_what_is_imported_without_collection_is_old_and_collected_again_afterwards():
    assert gc.isenabled()
    with without_collection():
        assert not gc.isenabled()
        imported = [[] for _ in range(10)]
    assert gc.isenabled()
    assert any(thing is imported for thing in gc.get_objects(generation=2))
    assert gc.get_freeze_count() == 0


def test_collection_that_was_off_remains_off():
    gc.disable()
    try:
        with without_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
