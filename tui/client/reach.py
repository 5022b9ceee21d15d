"""Which of a head's addresses can be reached from here."""

from __future__ import annotations

from collections.abc import Iterable

from tui.client.errors import HeadError, KeyWantedError
from tui.client.head_client import HeadClient


async def answers(url: str) -> bool:
    """Whether there is a head, be it one that wants a key."""
    client = HeadClient(url)
    try:
        await client.fleet()
    except KeyWantedError:
        return True
    except HeadError:
        return False
    finally:
        await client.close()
    return True


async def first_that_answers(urls: Iterable[str]) -> str | None:
    """The first URL at which there is a head; an address of a network that is not ours takes seconds to find out."""
    for url in urls:
        if await answers(url):
            return url
    return None
