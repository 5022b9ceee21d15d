"""A lab of PCs on this machine: network namespaces on a bridge, with a rate and a delay for each one's link.

    python3 scripts/lab.py shell --nodes 3                build it, say how to get in, and wait for Ctrl-C
    python3 scripts/lab.py run --nodes 3 -- ip addr       run a command on every PC
    python3 scripts/lab.py check --nodes 3 --json         does a fleet find itself and answer? exit code 1 if not
    python3 scripts/lab.py traffic --json                 do tokens flow on while weights are fetched? likewise
    python3 scripts/lab.py slow --package llama --json    is a PC ten times slower left out? likewise

Linux only. Installs edge-agent into .venv beside this project first, unless the Python that runs it has it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import _environment

if TYPE_CHECKING:
    from lab_parts import Lab

    from agent.bench.report import Report
    from shards.progress import Progress


def main() -> int:
    """The command."""
    arguments = _parse()
    try:
        importlib.metadata.version("edge-agent")
    except importlib.metadata.PackageNotFoundError:
        return _run_in_environment()
    from lab_parts import LabError

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return int(arguments.command(arguments))
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def shell(arguments: argparse.Namespace) -> int:
    """Build a lab and keep it until Ctrl-C."""
    from lab_parts import Lab

    with Lab(arguments.nodes, arguments.rate, arguments.delay, arguments.keep) as lab:
        for host in lab.hosts:
            print(f"{host.name}  {host.ipv4}  {host.ipv6}  {host.entry()} [COMMAND...]")
        print("Ctrl-C ends the lab with everything in it.", flush=True)
        while True:
            signal.pause()


def run(arguments: argparse.Namespace) -> int:
    """Run a command on all hosts at once; gives the first exit code that is not 0."""
    from lab_parts import Lab

    with Lab(arguments.nodes, arguments.rate, arguments.delay, arguments.keep) as lab:
        processes = [host.start(arguments.words) for host in lab.hosts]
        codes = [process.wait(timeout=None) for process in processes]
        for host, process in zip(lab.hosts, processes, strict=True):
            for text, stream in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
                for line in text.splitlines():
                    print(f"{host.name}: {line}", file=stream)
    return next((code if code > 0 else 128 - code for code in codes if code), 0)


def check(arguments: argparse.Namespace) -> int:
    """Build a fleet in a lab and see whether it does what was promised."""
    from lab_parts.check import FleetCheck

    return _report(arguments, arguments.nodes + 1, lambda *of: FleetCheck(*of).run(arguments.rounds))


def traffic(arguments: argparse.Namespace) -> int:
    """See whether weights that a node fetches slow the tokens of others."""
    from lab_parts.traffic import TrafficCheck

    return _report(arguments, 3, lambda *of: TrafficCheck(*of).run(arguments.rounds))


def slow(arguments: argparse.Namespace) -> int:
    """See whether a PC that is held back to a tenth is left out; wants a model of 1B parameters or more."""
    from lab_parts.slow import SlowCheck

    return _report(arguments, 2, lambda *of: SlowCheck(*of).run())


def _report(arguments: argparse.Namespace, hosts: int, check: Callable[[Lab, Path, Progress], Report]) -> int:
    """Run a check in a lab, and print its report."""
    from lab_parts import Lab

    from agent.cli import output
    from agent.cli.demo import demo_package

    with (
        output.progress_bars(quiet=arguments.as_json) as progress,
        Lab(hosts, arguments.rate, arguments.delay, arguments.keep) as lab,
    ):
        package = arguments.package or demo_package(progress)
        report = check(lab, package, progress)
    if arguments.as_json:
        output.print_json(report.as_json())
    else:
        for table in report.tables():
            output.show(table)
    return 0 if report.ok else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for function in (shell, run, check, traffic, slow):
        command = commands.add_parser(function.__name__, help=function.__doc__, description=function.__doc__)
        command.set_defaults(command=function)
        if function in (shell, run, check):
            what = "nodes, beside the head" if function is check else "PCs"
            command.add_argument("--nodes", type=int, default=3, help=f"number of {what} (default: 3)")
        rate = "100mbit" if function is traffic else "1gbit"
        command.add_argument("--rate", default=rate, help=f"of each link, each way (default: {rate})")
        command.add_argument("--delay", type=float, default=0.0, metavar="MS", help="of what a PC sends (default: 0)")
        command.add_argument("--keep", type=Path, metavar="FOLDER", help="keep homes and logs in this new folder")
        if function is run:
            command.add_argument("words", nargs="+", metavar="-- COMMAND")
        if function in (check, traffic):
            rounds = 20 if function is check else 5
            command.add_argument("--rounds", type=int, default=rounds, help=f"times to join (default: {rounds})")
        if function in (check, traffic, slow):
            command.add_argument("--package", type=Path, help="the model (default: that of edge-agent demo)")
            command.add_argument("--json", action="store_true", dest="as_json", help="print raw results as JSON")
    return parser.parse_args()


def _run_in_environment() -> int:
    """Run this script again, in an environment that has edge-agent."""
    if Path(sys.prefix) == _environment.ENVIRONMENT:
        raise SystemExit(f"edge-agent is not installed in {_environment.ENVIRONMENT}; delete that folder and try again")
    try:
        _environment.prepare()
    except KeyboardInterrupt:
        return 130
    return _environment.run([_environment.python(), __file__, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
