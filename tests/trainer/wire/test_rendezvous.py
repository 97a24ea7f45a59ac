"""The store of a sender, over sockets."""

import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.rendezvous import MOST_BYTES, RemoteStore, SenderStore

HERE = "127.0.0.1"
LOST_ANSWERS = """
#include <netdb.h>
#include <unistd.h>
int getnameinfo(const struct sockaddr *a, socklen_t b, char *c, socklen_t d, char *e, socklen_t f, int flags) {
    if (!(flags & NI_NUMERICHOST))
        sleep(5);
    return EAI_AGAIN;
}
"""
"""A name server whose answers are lost, for the process that loads this."""
FIND_EIGHT = """
import time
from rljob_trainer.wire.weights.rendezvous import RemoteStore, SenderStore
began = time.monotonic()
senders = [SenderStore("127.0.0.1") for _ in range(8)]
for sender in senders:
    sender.set("said", "yes")
    assert [RemoteStore(sender.offer).get("said", 10.0) for _ in range(3)] == ["yes"] * 3
assert time.monotonic() - began < 5, "a name was looked up"
"""


def test_no_name_server_is_asked_for_the_names_of_peers(tmp_path: Path) -> None:
    library = tmp_path / "lost.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", library, "-"], input=LOST_ANSWERS.encode(), check=True)
    subprocess.run([sys.executable, "-c", FIND_EIGHT], env=os.environ | {"LD_PRELOAD": str(library)}, check=True)


def test_both_sides_read_what_either_has_set() -> None:
    home = SenderStore(HERE)
    worker = RemoteStore(home.offer)
    home.set("a", "ä" * 10**6)
    worker.set("b", "1\n2")
    assert worker.get("a") == "ä" * 10**6 and worker.get("b") == home.get("b") == "1\n2"


def test_only_what_is_kept_stays() -> None:
    home = SenderStore(HERE)
    worker = RemoteStore(home.offer)
    for key in ("u/0", "u/at/a/0", "u2/0", "v/0", "v"):
        home.set(key, "1")
    home.keep(["u", "v"])
    assert [worker.get(key) for key in ("u/0", "u/at/a/0", "v/0")] == ["1"] * 3 and len(home) == 3


@pytest.mark.parametrize("setter", ["home", "worker"])
def test_all_who_wait_for_a_value_get_it_when_it_is_set(setter: str) -> None:
    home = SenderStore(HERE)
    workers = [RemoteStore(home.offer) for _ in range(50)]
    with ThreadPoolExecutor(50) as pool:
        found = [pool.submit(worker.get, "a", 60.0) for worker in workers]
        assert RemoteStore(home.offer).get("a", 0.2) is None
        began = time.monotonic()
        {"home": home, "worker": RemoteStore(home.offer)}[setter].set("a", "now")
        assert [future.result() for future in found] == ["now"] * 50
        assert time.monotonic() - began < 30


def test_who_waits_learns_at_once_that_the_sender_is_gone() -> None:
    home = SenderStore(HERE)
    worker = RemoteStore(home.offer)
    assert worker.get("a") is None
    threading.Timer(0.2, lambda held: held.clear(), [held := [home]]).start()
    del home
    began = time.monotonic()
    with pytest.raises(ConnectionError):
        worker.get("a", 60.0)
    assert time.monotonic() - began < 30 and held == []


def test_a_sender_that_does_not_answer_is_given_up_and_never_misread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "SILENT_SECONDS", 0.2)
    with socket.create_server((HERE, 0)) as hangs:
        worker = RemoteStore(protocol.Offer(*hangs.getsockname()))
        with pytest.raises(TimeoutError):
            worker.get("a")
        with pytest.raises(OSError):
            worker.get("b")


def test_workers_that_come_all_at_once_find_a_sender_that_is_busy() -> None:
    home, free = SenderStore(HERE), threading.Event()
    assert RemoteStore(home.offer).get("a") is None, "it serves"
    home._values._loop.call_soon_threadsafe(free.wait)
    with ExitStack() as workers:
        try:
            for _ in range(200):
                workers.enter_context(socket.create_connection((HERE, home.offer.port), 10))
        finally:
            free.set()


@pytest.mark.parametrize(
    "sent", [b"\xff\xff\xff\xff", b"\0\0\0\2{}", b"\0\0\0\2[]", b"\0\0\0\1\xff", b"GET / HTTP/1.1\r\n\r\n"]
)
def test_who_speaks_another_language_is_disconnected_and_harms_nobody(sent: bytes) -> None:
    home = SenderStore(HERE)
    with socket.create_connection((HERE, home.offer.port), 10) as stranger:
        stranger.sendall(sent)
        assert stranger.recv(1) == b""
    home.set("a", "1")
    assert RemoteStore(home.offer).get("a") == "1"


def test_a_worker_writes_no_more_than_a_bound() -> None:
    home = SenderStore(HERE)
    worker = RemoteStore(home.offer)
    worker.set("a", "x" * (MOST_BYTES + 1))
    with pytest.raises(OSError):
        worker.get("a")
    assert home.get("a") is None
