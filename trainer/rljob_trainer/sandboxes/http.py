"""Asking a server that a program has started in a sandbox."""

from collections.abc import Mapping

import aiohttp

from rljob_trainer.sandboxes.sandbox import MOST_BYTES, SandboxError


async def asked(
    host: str, method: str, port: int, path: str, body: bytes, headers: Mapping[str, str], seconds: float
) -> tuple[int, bytes]:
    """As ClaimedSandbox.http. `host`: as in a URL."""
    url = f"http://{host}:{port}/{path.removeprefix('/')}"
    limit = aiohttp.ClientTimeout(total=seconds)
    try:
        async with (
            aiohttp.ClientSession(timeout=limit) as client,
            client.request(method, url, data=body, headers=headers, allow_redirects=False) as answer,
        ):
            content = await answer.content.read(MOST_BYTES + 1)
            while len(content) <= MOST_BYTES:
                more = await answer.content.read(MOST_BYTES + 1 - len(content))
                if not more:
                    break
                content += more
    except TimeoutError as error:
        raise SandboxError(f"{method} {url} took longer than {seconds:g} s") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise SandboxError(f"{method} {url}: {type(error).__name__}: {error}") from error
    if len(content) > MOST_BYTES:
        raise SandboxError(f"{method} {url} was answered with more than {MOST_BYTES} bytes")
    return answer.status, content
