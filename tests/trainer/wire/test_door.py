"""Who comes to a worker's door."""

import socket
import time
from collections.abc import Iterator
from threading import Timer

import pytest

from rljob_trainer.wire.weights import door as doors
from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.door import Door, enter, knock, own_address
from rljob_trainer.wire.weights.polling import CalledOffError

HERE = "127.0.0.1"


def never() -> bool:
    return False


@pytest.fixture(params=[HERE, "::1"])
def door(request: pytest.FixtureRequest) -> Iterator[Door]:
    made = Door(request.param)
    yield made
    made.close()


def test_each_group_gets_its_own_connection_in_whatever_order_they_come(door: Door) -> None:
    ends = {group: enter(*door.address, group) for group in "abc"}
    for group in "cab":
        ends[group].sendall(group.encode())
        assert door.take(group, never).recv(1) == group.encode()


@pytest.mark.parametrize("said", [b"", b"\x05ab", b"\x02\xff\xfe"])
def test_a_stranger_keeps_nobody_out(monkeypatch: pytest.MonkeyPatch, door: Door, said: bytes) -> None:
    monkeypatch.setattr(doors, "KNOCK_SECONDS", 0.2)
    stranger = socket.create_connection(door.address)
    stranger.sendall(said)
    enter(*door.address, "g")
    door.take("g", never)
    stranger.close()


def test_nobody_waits_for_strangers_however_many_they_are_and_whatever_they_say(
    monkeypatch: pytest.MonkeyPatch, door: Door
) -> None:
    monkeypatch.setattr(doors, "KNOCK_SECONDS", 3600)
    strangers = [socket.create_connection(door.address) for _ in range(20)]
    for stranger in strangers[1::2]:
        stranger.sendall(b"\xffno")
    began = time.monotonic()
    enter(*door.address, "g")
    door.take("g", never)
    door.clear()
    assert time.monotonic() - began < 60
    for stranger in strangers:
        stranger.close()


def test_a_stranger_who_says_a_byte_now_and_then_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "KNOCK_SECONDS", 0.3)
    door = Door(HERE)
    stranger = socket.create_connection(door.address)
    began = time.monotonic()
    with pytest.raises(ConnectionError):
        while time.monotonic() < began + 60:
            stranger.sendall(b"\xff")
            door.clear()
            time.sleep(0.05)
    door.close()


def test_a_name_that_comes_byte_by_byte_is_heard_and_what_follows_it_is_for_the_taker(door: Door) -> None:
    before = socket.create_connection(door.address)
    for byte in b"\x02gh":
        before.sendall(bytes([byte]))
        door.clear()
    before.sendall(b"!")
    assert door.take("gh", never).recv(1) == b"!"


def test_whoever_is_not_taken_is_sent_away_in_the_end(monkeypatch: pytest.MonkeyPatch, door: Door) -> None:
    monkeypatch.setattr(doors, "MOST_WAITING", 2)
    ends = [enter(*door.address, f"{i}") for i in range(4)]
    door.take("3", never)
    assert ends[0].recv(1) == b"", "it was closed"
    door.take("2", never)


def test_waiting_ends_when_it_is_called_off_or_nobody_comes(monkeypatch: pytest.MonkeyPatch, door: Door) -> None:
    monkeypatch.setattr(protocol, "SILENT_SECONDS", 0.3)
    with pytest.raises(CalledOffError):
        door.take("g", lambda: True)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="did not connect in time"):
        door.take("g", never)
    assert time.monotonic() - began < 5


def test_a_door_that_is_closed_is_that_of_a_dead_worker(door: Door) -> None:
    assert knock(*door.address) == "there"
    address = door.address
    closing = Timer(0.1, door.close)
    closing.start()
    closing.join()
    assert knock(*address) == "gone"


def test_however_often_somebody_knocks_there_is_room_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "MOST_WAITING", 2)
    monkeypatch.setattr(doors, "KNOCK_SECONDS", 0.5)
    door = Door(HERE)
    for _ in range(3):
        assert [knock(*door.address) for _ in range(2)] == ["there"] * 2
        end = enter(*door.address, "g")
        door.clear()
    end.sendall(b"!")
    assert door.take("g", never).recv(1) == b"!", "who came for a group is kept"
    door.close()


def test_an_address_on_the_way_to_another_machine_is_one_of_this_machine() -> None:
    assert own_address(HERE) == HERE and own_address("::1") == "::1"
