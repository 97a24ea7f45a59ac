"""The operator's own server, on real sockets of both families."""

import aiohttp

from rljob_operator.endpoints import serve
from rljob_trainer.machine import free_port


async def test_health_and_metrics_are_served_by_ipv4_and_ipv6() -> None:
    port = free_port()
    server = await serve(port, lambda: "", lambda: b"rljob_jobs 1\n")
    try:
        async with aiohttp.ClientSession() as session:
            for host in ("127.0.0.1", "[::1]"):
                async with session.get(f"http://{host}:{port}/healthz") as health:
                    assert (health.status, await health.text()) == (200, "ok")
                async with session.get(f"http://{host}:{port}/metrics") as metrics:
                    assert await metrics.read() == b"rljob_jobs 1\n"
    finally:
        await server.cleanup()
