"""Row slots: the lowest free one first, none lost, none owned twice."""

import pytest
from vivavoce_engine.rows import Rows


def test_the_lowest_free_row_is_handed_out_first() -> None:
    rows = Rows(4)
    assert [rows.admit() for _ in range(4)] == [0, 1, 2, 3]
    for row in (3, 0, 2):
        rows.release(row)
    assert [rows.admit() for _ in range(3)] == [0, 2, 3]


def test_a_full_table_admits_nobody_until_a_row_is_released() -> None:
    rows = Rows(1)
    assert rows.can_admit()
    rows.admit()
    assert not rows.can_admit()
    with pytest.raises(AssertionError, match="can_admit"):
        rows.admit()
    rows.release(0)
    assert rows.can_admit()


def test_a_row_is_released_once() -> None:
    rows = Rows(2)
    rows.release(rows.admit())
    with pytest.raises(AssertionError, match="row 0 is not in use"):
        rows.release(0)


def test_the_integrity_check_names_a_row_that_nobody_owns() -> None:
    rows = Rows(3)
    rows.admit(), rows.admit()
    rows.check_integrity({0, 1})
    with pytest.raises(AssertionError, match=r"rows in use \{0, 1\}, owned by utterances \{1\}"):
        rows.check_integrity({1})
    with pytest.raises(AssertionError, match="owned by utterances"):
        rows.check_integrity({0, 1, 2})


def test_the_integrity_check_sees_a_row_that_is_neither_free_nor_used() -> None:
    rows = Rows(3)
    rows._used.remove(rows.admit())
    with pytest.raises(AssertionError, match="a row is lost"):
        rows.check_integrity(set())
