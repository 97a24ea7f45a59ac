"""Addresses of this machine, seen by real sockets."""

import socket

import pytest

from rljob_trainer.machine import any_address, interface_of, loopback

pytestmark = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this kernel has no IPv6")


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_an_address_is_found_on_its_interface(address: str) -> None:
    assert interface_of(address) == "lo"


def test_nobody_has_an_address_of_another_machine() -> None:
    assert interface_of("2001:db8::7") is None


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_what_is_bound_to_any_address_is_reached_by_both_families(address: str) -> None:
    with socket.socket(socket.AF_INET6) as listener:
        listener.bind((any_address(), 0))
        listener.listen()
        socket.create_connection((address, listener.getsockname()[1]), timeout=5).close()


def test_the_loopback_of_a_machine_with_ipv4_is_that() -> None:
    assert loopback() == "127.0.0.1"
