"""Rows and pages: the lowest free one first, none lost, none owned twice."""

import pytest
from vivavoce_engine.batching.slots import Slots


def test_the_lowest_free_one_is_handed_out_first() -> None:
    rows = Slots("row", 4)
    assert [rows.take() for _ in range(4)] == [0, 1, 2, 3]
    for row in (3, 0, 2):
        rows.release(row)
    assert rows.free == 3
    assert [rows.take() for _ in range(3)] == [0, 2, 3]


def test_there_is_none_until_one_is_released() -> None:
    pages = Slots("page", 1)
    assert pages.free == 1
    pages.take()
    assert pages.free == 0
    with pytest.raises(AssertionError, match="no page is free"):
        pages.take()
    pages.release(0)
    assert pages.free == 1


def test_each_is_released_once() -> None:
    rows = Slots("row", 2)
    rows.release(rows.take())
    with pytest.raises(AssertionError, match="row 0 is not in use"):
        rows.release(0)


def test_the_integrity_check_names_what_nobody_owns() -> None:
    rows = Slots("row", 3)
    rows.take(), rows.take()
    rows.check_integrity({1, 0})
    with pytest.raises(AssertionError, match=r"rows in use \[0, 1\], owned by utterances \[1\]"):
        rows.check_integrity([1])
    with pytest.raises(AssertionError, match="owned by utterances"):
        rows.check_integrity([0, 1, 2])
    with pytest.raises(AssertionError, match=r"owned by utterances \[0, 1, 1\]"):
        rows.check_integrity([1, 0, 1])


def test_the_integrity_check_sees_one_that_is_neither_free_nor_used() -> None:
    pages = Slots("page", 3)
    pages._used.remove(pages.take())
    with pytest.raises(AssertionError, match="a page is lost"):
        pages.check_integrity(())
