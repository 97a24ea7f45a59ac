"""Upper bounds of the requests that we make: a token bucket, as in client-go."""

import asyncio
from collections import defaultdict

import aiohttp


class RateLimiter:
    """`qps` requests per second on average, up to `burst` at once, in the order in which `wait` is called."""

    def __init__(self, qps: float, burst: int) -> None:
        self._interval, self._burst = 1.0 / qps, burst
        self._next = 0.0
        """Time at which a request could start if each took a whole interval."""

    async def wait(self) -> None:
        now = asyncio.get_running_loop().time()
        self._next = max(self._next, now - self._interval * (self._burst - 1)) + self._interval
        if self._next - self._interval > now:
            await asyncio.sleep(self._next - self._interval - now)


class WatchLimiter:
    """Middleware of an aiohttp client that paces watches, by path: a server that ends each of them at once would be asked in a tight loop."""

    def __init__(self, qps: float = 1.0, burst: int = 10) -> None:
        self._by_path: defaultdict[str, RateLimiter] = defaultdict(lambda: RateLimiter(qps, burst))

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if "watch" in request.url.query:
            await self._by_path[request.url.path].wait()
        return await handler(request)
