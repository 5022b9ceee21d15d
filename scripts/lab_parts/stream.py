"""Asks for one long answer after the other, and prints the time of each piece of text that comes.

    python3 stream.py URL

A line is the seconds of the monotonic clock, which is one for all hosts of a lab. Needs nothing but the standard
library, so that it takes little from those that are measured.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request

_TOKENS = 400
_REQUEST = {
    "messages": [{"role": "user", "content": "Tell a very long story about a lighthouse."}],
    "stream": True,
    "max_tokens": _TOKENS,
    "temperature": 1.0,
    "logit_bias": {"2": -100},  # it shall not end early
}


def main(url: str) -> None:
    """Ask for ever."""
    body = json.dumps(_REQUEST).encode()
    while True:
        request = urllib.request.Request(f"{url}/v1/chat/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    print(time.monotonic(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
