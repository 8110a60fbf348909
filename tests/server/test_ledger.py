"""The ledger: limits that hold over several processes, and what a process that died gives back."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing.synchronize import Event

import pytest
from pydantic import SecretStr
from vivavoce_server.access import KeyEntry, Keyring
from vivavoce_server.errors import ApiError
from vivavoce_server.ledger import MAX_KEYS, PROBES, SLOTS, Ledger, NoPlace, NoTokens, create_memory

from tests.support.waiting import HUNG_S

DIGEST = b"digest of a key, which is longer"


@pytest.fixture
def memory() -> Iterator[int]:
    file = create_memory(3)
    yield file
    os.close(file)


def test_places_of_a_key_are_counted_over_all_fronts(memory: int) -> None:
    accounts = [Ledger(3, front, memory).account(DIGEST) for front in range(3)]
    for account in accounts[:2]:
        account.begin(most=2, per_minute=None, requests=1, now_s=10.0)
    assert [account.running(10.0) for account in accounts] == [2, 2, 2]
    with pytest.raises(NoPlace) as full:
        accounts[2].begin(most=2, per_minute=None, requests=1, now_s=10.25)
    assert full.value.next_end_s == 0.75, "a second of speech, of which a quarter is over"
    accounts[0].end(started_s=10.0, now_s=10.5)
    accounts[2].begin(most=2, per_minute=None, requests=1, now_s=10.5)
    assert accounts[1].running(10.5) == 2


def test_the_time_to_come_back_is_that_of_the_oldest_request_of_any_front(memory: int) -> None:
    first, second, third = (Ledger(3, front, memory).account(DIGEST) for front in range(3))
    first.begin(None, None, 1, now_s=1.0)
    second.begin(None, None, 1, now_s=0.0)
    second.end(started_s=0.0, now_s=6.0)  # a mean of 1 s moves by a fifth towards 6 s
    with pytest.raises(NoPlace) as full:
        third.begin(most=1, per_minute=None, requests=1, now_s=2.0)
    assert full.value.next_end_s == pytest.approx(2.0 - 1.0)


def test_requests_a_minute_are_one_bucket(memory: int) -> None:
    accounts = [Ledger(3, front, memory).account(DIGEST) for front in range(3)]
    for account in accounts:
        account.begin(None, per_minute=3, requests=1, now_s=0.0)
    with pytest.raises(NoTokens) as spent:
        accounts[0].begin(None, per_minute=3, requests=1, now_s=0.0)
    assert spent.value.wait_s == 20.0
    accounts[1].begin(None, per_minute=3, requests=1, now_s=20.0)
    with pytest.raises(NoTokens):
        accounts[2].begin(None, per_minute=3, requests=1, now_s=20.0)


def test_a_refused_request_takes_no_place() -> None:
    account = Ledger().account(DIGEST)
    account.begin(most=5, per_minute=1, requests=1, now_s=0.0)
    with pytest.raises(NoTokens):
        account.begin(most=5, per_minute=1, requests=1, now_s=0.0)
    assert account.running(0.0) == 1


def test_a_dead_fronts_places_are_given_back_and_no_others(memory: int) -> None:
    ledgers = [Ledger(3, front, memory) for front in range(3)]
    for ledger in ledgers:
        ledger.account(DIGEST).begin(None, None, 1, now_s=0.0)
        assert ledger.take_session(9)
        ledger.count_keyless(2)
    ledgers[0].clear(1)
    assert ledgers[2].account(DIGEST).running(0.0) == 2
    assert (ledgers[2].sessions, ledgers[2].keyless) == (2, 4)


def test_live_connections_are_counted_over_all_fronts(memory: int) -> None:
    one, two = Ledger(3, 0, memory), Ledger(3, 1, memory)
    assert [ledger.take_session(3) for ledger in (one, two, one, two)] == [True, True, True, False]
    one.give_session()
    assert two.take_session(3)
    assert (one.sessions, two.sessions) == (3, 3)


def test_a_front_is_ahead_of_those_that_accept_and_have_fewer_connections(memory: int) -> None:
    ledgers = [Ledger(3, front, memory) for front in range(3)]
    assert not ledgers[0].is_ahead, "no front accepts yet"
    ledgers[0].count_connections(1)
    assert not ledgers[0].is_ahead
    ledgers[1].count_connections(0)
    assert [ledger.is_ahead for ledger in ledgers[:2]] == [True, False]
    ledgers[1].count_connections(None)
    assert not ledgers[0].is_ahead
    for ledger, connections in zip(ledgers, (100, 106, 108), strict=True):
        ledger.count_connections(connections)
    assert [ledger.is_ahead for ledger in ledgers] == [False, False, True]
    ledgers[0].clear(0)
    assert not ledgers[2].is_ahead


def hold_the_lock(memory: int, has_it: Event) -> None:
    ledger = Ledger(3, 1, memory)
    with ledger.locked():
        ledger.account(DIGEST)
        has_it.set()
        signal.pause()


def test_the_lock_of_a_process_that_is_killed_is_free(memory: int) -> None:
    context = multiprocessing.get_context("fork")
    has_it = context.Event()
    holder = context.Process(target=hold_the_lock, args=(memory, has_it))
    holder.start()
    assert has_it.wait(HUNG_S)
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    holder.join(HUNG_S)
    assert Ledger(3, 0, memory).take_session(1)


def take_and_give(memory: int, front: int, rounds: int) -> None:
    account = Ledger(3, front, memory).account(DIGEST)
    for _ in range(rounds):
        account.begin(None, per_minute=10**6, requests=1, now_s=0.0)
        account.end(started_s=0.0, now_s=0.0)


def test_no_count_is_lost_when_processes_count_at_once(memory: int) -> None:
    context = multiprocessing.get_context("fork")
    ledger, rounds = Ledger(3, 0, memory), 2000
    ledger.account(DIGEST).begin(None, per_minute=10**6, requests=1, now_s=0.0)
    workers = [context.Process(target=take_and_give, args=(memory, front, rounds)) for front in (1, 2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(HUNG_S)
        assert worker.exitcode == 0
    slot = ledger.slot_of(int.from_bytes(DIGEST[:8], "little"), 0.0)
    assert ledger.tokens[slot] == 10**6 - 1 - 2 * rounds
    assert ledger.account(DIGEST).running(0.0) == 1


def test_a_key_with_nothing_left_to_tell_gives_its_slot_up() -> None:
    ledger = Ledger()
    home = 5
    same_home = [home + SLOTS * number for number in range(PROBES + 1)]
    slots = [ledger.slot_of(key, 0.0) for key in same_home[:PROBES]]
    assert slots == list(range(home, home + PROBES))
    kept = ledger.account((home + SLOTS).to_bytes(8, "little"))
    kept.begin(None, None, 1, now_s=0.0)
    spent = ledger.account(home.to_bytes(8, "little"))
    spent.begin(None, 60, 1, now_s=0.0)
    spent.end(started_s=0.0, now_s=0.0)
    # The first has spent a token, and the second runs.
    assert ledger.slot_of(same_home[PROBES], 0.5) == home + 2
    assert ledger.slot_of(same_home[2], 1.0) == home, "its token has come back"
    assert kept.running(1.0) == 1


def test_keys_up_to_the_limit_find_a_slot_each() -> None:
    ledger = Ledger()
    digests = [os.urandom(8) for _ in range(MAX_KEYS)]
    for digest in digests:
        ledger.account(digest).begin(1, None, 1, now_s=0.0)
    assert int(ledger.running.sum()) == MAX_KEYS
    assert all(ledger.account(digest).running(0.0) == 1 for digest in digests[:100])


def test_a_reload_of_one_keyring_keeps_what_another_counts(memory: int) -> None:
    entry = KeyEntry(key=SecretStr("sk-a"), max_concurrent=1)
    here, there = (Keyring([("alice", entry)], Ledger(3, front, memory)) for front in range(2))
    with here.find("sk-a").speaking():
        there.replace([("alice", entry), ("bob", KeyEntry(key=SecretStr("sk-b")))])
        with pytest.raises(ApiError, match="may have 1 running"), there.find("sk-a").speaking():
            pass
    with there.find("sk-a").speaking():
        assert not here.find("sk-a").has_place
