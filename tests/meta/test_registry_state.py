"""The registry's state machine: bounds of its history, exact times, and a property of watching."""

from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.meta.contract import ANY_VERSION, Entry
from millrace.meta.state import CHANGE_BYTES_TARGET, Journal, RegistryState

KEYS = st.sampled_from(["a", "a/1", "a/2", "b", "b/1"])
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, st.integers(0, 3)),
        st.tuples(st.just("delete"), KEYS, st.just(0)),
        st.tuples(st.just("grant"), st.just(""), st.integers(1, 40)),
        st.tuples(st.just("revoke"), st.just(""), st.integers(1, 3)),
        st.tuples(st.just("pass"), st.just(""), st.integers(1, 30)),
    ),
    max_size=60,
)


def run(state: RegistryState, operations: list[tuple[str, str, int]]) -> list[dict[str, Entry]]:
    """The listing after each revision, as far as operations showed it."""
    now_ms = 0
    pictures = {0: dict[str, Entry]()}
    for name, key, number in operations:
        match name:
            case "set":
                state.expire(now_ms)
                lease = number if state.lease_ttl_ms(number) else 0
                state.set(key, b"v", ANY_VERSION, lease, now_ms)
            case "delete":
                state.delete(key, ANY_VERSION, now_ms)
            case "grant":
                state.grant(number, now_ms)
            case "revoke":
                state.revoke(number, now_ms)
            case _:
                now_ms += number
        entries, revision = state.list("", now_ms)
        pictures[revision] = {entry.key: entry for entry in entries}
    return [pictures.get(revision, {}) for revision in range(state.revision + 1)]


@given(OPERATIONS, st.sampled_from(["", "a", "a/", "b/1"]))
@settings(max_examples=150, deadline=None)
def test_listing_plus_changes_is_the_later_listing(
    operations: list[tuple[str, str, int]], prefix: str
) -> None:
    state = RegistryState(history_records_max=12)
    run(state, operations)
    replica = RegistryState(history_records_max=1_000)
    pictures = run(replica, operations)
    assert replica.list("", 0) == state.list("", 0)
    final = {e.key: e for e in state.list(prefix, 0)[0]}
    for revision, picture in enumerate(pictures):
        change = state.changes(prefix, revision, state.revision)
        if change.lost:
            assert revision < state.revision - 8
            continue
        if not picture and revision:
            continue  # Several revisions in one operation: no listing was taken in between.
        built = {key: entry for key, entry in picture.items() if key.startswith(prefix)}
        for entry in change.entries:
            built[entry.key] = entry
        assert {key: entry for key, entry in built.items() if entry.version} == final


def test_history_is_bounded_by_records_and_bytes() -> None:
    state = RegistryState(history_records_max=100, history_bytes_max=100_000)
    for _ in range(1_000):
        state.set("small", b"", ANY_VERSION, 0, 0)
        assert len(state._history) <= 100
    for _ in range(50):
        state.set("large", b"x" * 10_000, ANY_VERSION, 0, 0)
        assert state._history_bytes <= 100_000
    assert state.changes("", 0, state.revision).lost
    assert state.changes("", state.revision + 1, state.revision).lost
    assert not state.changes("", state.revision - 3, state.revision).lost


def test_a_value_larger_than_the_whole_history_is_only_lost_to_watchers() -> None:
    state = RegistryState(history_bytes_max=1_000)
    state.set("large", b"x" * 2_000, 0, 0, 0)
    assert state.changes("", 0, 1).lost
    assert state.get("large", 0).version == 1
    state.set("small", b"", 0, 0, 0)
    assert [e.key for e in state.changes("", 1, 2).entries] == ["small"]


def test_changes_come_in_pieces() -> None:
    state = RegistryState()
    for number in range(10):
        state.set(f"k/{number}", b"x" * (CHANGE_BYTES_TARGET // 2), 0, 0, 0)
    revision, keys, pieces = 0, [], 0
    while revision < state.revision:
        change = state.changes("", revision, state.revision)
        revision, pieces = change.revision, pieces + 1
        keys += [entry.key for entry in change.entries]
    assert keys == [f"k/{number}" for number in range(10)]
    assert pieces == 5


def test_a_lease_ends_at_its_time_and_its_keys_go_together() -> None:
    state = RegistryState()
    lease = state.grant(100, now_ms=50)
    state.set("b", b"", 0, lease, 50)
    state.set("a", b"", 0, lease, 50)
    assert state.next_due_ms() == 151
    state.expire(150)
    assert state.get("a", 150).version
    state.keep_alive(lease, 150)
    assert state.get("a", 250).version
    state.expire(251)
    assert state.list("", 251) == ((), 3)
    assert [e.key for e in state.changes("", 2, 3).entries] == ["a", "b"]
    assert state.next_due_ms() is None


def test_the_journal_names_what_changed() -> None:
    journal = Journal()
    state = RegistryState(journal=journal)
    assert not journal
    lease = state.grant(10, 0)
    state.set("a", b"", 0, lease, 0)
    assert journal.keys == {"a"} and journal.leases == {lease}
    journal.keys.clear()
    journal.leases.clear()
    state.keep_alive(lease, 5)
    assert not journal
    state.expire(16)
    assert journal.keys == {"a"} and journal.leases == {lease}
    assert state.peek("a") is None and state.lease_ttl_ms(lease) is None
