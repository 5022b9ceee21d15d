"""`python -m agent` is `edge-agent`, for processes that start another one."""

from agent.cli import main

main()
