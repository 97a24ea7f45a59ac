"""How many requests we make, whatever happens: a token bucket, like client-go's."""

import asyncio


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
