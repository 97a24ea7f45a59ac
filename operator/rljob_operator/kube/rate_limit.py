"""How many requests we make, whatever happens: a token bucket, like client-go's."""

import asyncio
from collections import defaultdict

import aiohttp


class RateLimiter:
    """`qps` requests a second in the long run, `burst` at once. First come, first served."""

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
    """A client middleware: a watch that the server ends at once is not begun again at once."""

    def __init__(self, qps: float = 1.0, burst: int = 10) -> None:
        self._by_path: defaultdict[str, RateLimiter] = defaultdict(lambda: RateLimiter(qps, burst))

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if "watch" in request.url.query:
            await self._by_path[request.url.path].wait()
        return await handler(request)
