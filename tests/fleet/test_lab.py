"""The lab is what it says: a network of its own with a rate and a delay, of which nothing stays."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from eventually import eventually
from lab_parts import Host, Lab, LabError, Process

SCRIPTS = Path(__file__).parents[2] / "scripts"

ECHO = """
import socketserver
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(data)
class Server(socketserver.ThreadingTCPServer):
    address_family = socketserver.socket.AF_INET6
    daemon_threads = True
with Server(("::", 5000), Echo) as server:
    print("listening", flush=True)
    server.serve_forever()
"""


def python(host: Host, code: str, *arguments: object) -> Process:
    """Start a Python program on a host."""
    return host.start([sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)])


def output(host: Host, code: str, *arguments: object) -> str:
    """What a Python program on a host prints."""
    process = python(host, code, *arguments)
    assert process.wait(180) == 0, process.stderr
    return process.stdout.strip()


def echo_server(host: Host) -> Process:
    server = python(host, ECHO)
    server.wait_for("listening", 90)
    return server


def grows(process: Process, seconds: float) -> bool:
    """Whether it prints something more within this time."""
    before = process.stdout
    return eventually(lambda: process.stdout != before, seconds)


def network_namespaces() -> set[str]:
    """All that a process is in, but for those that other workers of the same test run have begun."""
    found: dict[int, str] = {}
    for path in Path("/proc").glob("[0-9]*/ns/net"):
        with suppress(OSError):
            found[int(path.parts[2])] = str(path.readlink())
    this = psutil.Process()
    run = this.parent()
    for other in run.children() if run else []:
        if other != this:
            with suppress(psutil.NoSuchProcess):
                for process in other.children(recursive=True):
                    found.pop(process.pid, None)
    return {namespace for pid, namespace in found.items() if psutil.pid_exists(pid)}


def links() -> str:
    return subprocess.run(["ip", "-o", "link"], capture_output=True, encoding="utf-8", check=True).stdout


def test_hosts_reach_each_other_and_not_the_machine() -> None:
    before, home = links(), network_namespaces()
    with Lab(3) as lab:
        assert links() == before
        assert len(network_namespaces() - home) == 4  # the bridge's and the hosts'
        for host in lab.hosts:
            echo_server(host)
        for host in lab.hosts:
            others = [address for other in lab.hosts if other is not host for address in (other.ipv4, other.ipv6)]
            code = """
                import socket, sys
                for address in sys.argv[1:]:
                    with socket.create_connection((address, 5000), 10) as one:
                        one.sendall(b"hello")
                        print(one.recv(5).decode(), one.getsockname()[0])
            """
            assert output(host, code, *others).split("\n") == [f"hello {host.ipv4}", f"hello {host.ipv6}"] * 2
        assert len({output(host, "import os; print(os.uname().nodename, os.getpid())") for host in lab.hosts}) == 3
        code = """
            import socket
            print([name for _, name in socket.if_nameindex()])
            try:
                socket.create_connection(("192.0.2.1", 80), 10)
            except OSError as error:
                print(error.strerror)
        """
        assert output(lab.hosts[0], code).split("\n") == ["['lo', 'eth0']", "Network is unreachable"]


def test_services_are_found_by_mdns() -> None:
    announce = """
        import sys, time
        from zeroconf import ServiceInfo, Zeroconf
        name, *addresses = sys.argv[1:]
        with Zeroconf() as zeroconf:
            info = ServiceInfo("_lab._tcp.local.", f"{name}._lab._tcp.local.", 80, parsed_addresses=addresses)
            zeroconf.register_service(info)
            print("announced", flush=True)
            time.sleep(600)
    """
    browse = """
        import sys, threading
        from zeroconf import ServiceBrowser, Zeroconf
        wanted, found, done = set(sys.argv[1:]), set(), threading.Event()
        class Listener:
            def add_service(self, zeroconf, kind, name):
                info = zeroconf.get_service_info(kind, name, 10_000)
                found.update(info.parsed_addresses() if info else ())
                if found >= wanted:
                    done.set()
            update_service = remove_service = lambda *_: None
        with Zeroconf() as zeroconf:
            ServiceBrowser(zeroconf, "_lab._tcp.local.", Listener())
            sys.exit(0 if done.wait(90) else f"found only {found}")
    """
    with Lab(3, delay_ms=2) as lab:
        for host in lab.hosts[1:]:
            python(host, announce, host.name, host.ipv4, host.ipv6).wait_for("announced", 90)
        output(lab.hosts[0], browse, *(address for host in lab.hosts[1:] for address in (host.ipv4, host.ipv6)))


def test_multicast_can_be_kept_back() -> None:
    send = """
        import socket, time
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("10.77.0.1"))
            while True:
                one.sendto(b"hello", ("224.0.0.251", 5000))
                time.sleep(0.02)
    """
    receive = """
        import socket
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.bind(("224.0.0.251", 5000))
            group = socket.inet_aton("224.0.0.251") + socket.inet_aton("10.77.0.2")
            one.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
            while True:
                print(one.recv(5), flush=True)
    """
    with Lab(2) as lab:
        receiver = python(lab.hosts[1], receive)
        python(lab.hosts[0], send)
        receiver.wait_for("hello")
        for delay in (0, 1):
            lab.set_delay(1, delay)
            lab.set_multicast(False)
            assert eventually(lambda: not grows(receiver, 0.3))
            lab.set_multicast(True)
            assert grows(receiver, 30)


def test_a_rate_is_kept() -> None:
    megabytes = 1
    send = """
        import socket, sys, time
        address, size = sys.argv[1], int(sys.argv[2])
        with socket.create_connection((address, 5000)) as one:
            one.sendall(b"first")
            one.recv(5)
            began, got = time.monotonic(), 0
            one.sendall(bytes(size))
            while got < size:
                got += len(one.recv(65536))
            print(time.monotonic() - began)
    """
    with Lab(2, rate="100mbit") as lab:
        lab.set_rate(1, "8mbit")
        echo_server(lab.hosts[1])
        seconds = float(output(lab.hosts[0], send, lab.hosts[1].ipv4, megabytes * 10**6))
        assert seconds > megabytes * 0.9  # 1 MB/s; some may leave at once
        for host, rate in zip(lab.hosts, ("100Mbit", "8Mbit"), strict=True):
            assert f"rate {rate}" in host.run(["tc", "qdisc", "show", "dev", "eth0"]).stdout
        with pytest.raises(LabError, match="'fast' is not a rate like 1gbit"):
            lab.set_rate(0, "fast")


def test_delays_are_added_and_overlap() -> None:
    flows, milliseconds = 12, 60
    ping = """
        import socket, sys, threading, time
        address, flows = sys.argv[1], int(sys.argv[2])
        sockets = [socket.create_connection((address, 5000)) for _ in range(flows)]
        firsts, lasts = [], []
        for _ in range(5):  # the machine may be busy for a moment
            began = time.monotonic()
            for one in sockets:
                one.sendall(b"ping")
            times = [one.recv(4) and time.monotonic() - began for one in sockets]
            firsts.append(min(times))
            lasts.append(max(times))
        print(min(firsts), min(lasts))
    """
    with Lab(2, delay_ms=milliseconds) as lab:
        echo_server(lab.hosts[1])
        least, most = map(float, output(lab.hosts[0], ping, lab.hosts[1].ipv6, flows).split())
        assert least >= 2 * milliseconds / 1e3
        assert most < flows * 2 * milliseconds / 1e3  # one after the other
        lab.set_delay(0, 0)
        lab.set_delay(1, 2 * milliseconds)
        least, _ = map(float, output(lab.hosts[0], ping, lab.hosts[1].ipv4, 1).split())
        assert least >= 2 * milliseconds / 1e3


def test_a_connection_survives_changes_and_cuts() -> None:
    talk = """
        import socket, sys, time
        with socket.create_connection((sys.argv[1], 5000)) as one:
            for number in range(10**9):
                one.sendall(b"%09d" % number)
                got = b""
                while len(got) < 9:
                    got += one.recv(9 - len(got))
                assert int(got) == number
                print(number, flush=True)
                time.sleep(0.01)
    """
    with Lab(2) as lab:
        echo_server(lab.hosts[0])
        talker = python(lab.hosts[1], talk, lab.hosts[0].ipv6)
        talker.wait_for("^5$")

        for milliseconds in (3, 40, 1, 0, 5):
            lab.set_delay(0, milliseconds)
            assert grows(talker, 30)
        for index in (0, 1):
            lab.cut(index)
            assert eventually(lambda: not grows(talker, 2.0))  # what was on its way may arrive
            assert not grows(talker, 0.5)
            lab.heal(index)
            assert grows(talker, 30)
        assert talker.returncode is None


def test_each_host_has_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/elsewhere")
    monkeypatch.setenv("https_proxy", "http://elsewhere")
    code = """
        import os, platformdirs
        print(os.getcwd(), platformdirs.user_config_path("x"), platformdirs.user_cache_path("x"))
        print(os.getenv("https_proxy"))
    """
    with Lab(2) as lab:
        for host in lab.hosts:
            folders = [host.home, host.home / ".config/x", host.home / ".cache/x"]
            assert output(host, code).split() == [*map(str, folders), "None"]
        enter = [lab.hosts[1].entry(), "sh", "-c", "hostname; echo $HOME"]
        entered = subprocess.run(enter, capture_output=True, encoding="utf-8", check=True)
        assert entered.stdout.split() == ["pc1", str(lab.hosts[1].home)]


def test_processes_are_ours_to_end() -> None:
    with Lab(1) as lab:
        host = lab.hosts[0]
        done = host.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
        assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")
        with pytest.raises(LabError, match=r"still running after 0\.1 s: sleep 60"):
            host.run(["sleep", "60"], timeout=0.1)
        with pytest.raises(LabError, match=r"(?s)no match of 'two'.*exit code 0.*one"):
            host.start(["echo", "one"]).wait_for("two")
        with pytest.raises(LabError, match=r"exit code 127(?s:.*)not found"):
            host.start(["/nowhere/to/be/found"]).wait_for("anything")

        count = "import time\nfor n in range(10**9):\n    print(n, flush=True)\n    time.sleep(0.01)"
        for end, code in ((Process.terminate, 143), (Process.kill, 137), (Process.interrupt, 130)):
            process = python(host, count)
            process.wait_for("^3$")
            process.suspend()
            assert eventually(lambda: not grows(process, 0.2))  # noqa: B023
            before = process.stdout
            time.sleep(0.2)
            assert process.stdout == before
            process.resume()
            assert eventually(lambda: process.stdout != before)  # noqa: B023
            process.suspend()
            end(process)
            process.resume()
            assert process.wait() == code
            assert "Killed" not in process.stderr
            end(process)  # harmless


@pytest.mark.parametrize("kind", [None, KeyboardInterrupt, ValueError])
def test_nothing_stays(kind: type[BaseException] | None) -> None:
    before = network_namespaces()
    processes: list[Process] = []
    try:
        with Lab(2, delay_ms=1) as lab:
            processes += [host.start(["setsid", "sleep", "600"]) for host in lab.hosts]
            processes[0].suspend()
            assert all(process.pid for process in processes)
            if kind:
                raise kind
    except (KeyboardInterrupt, ValueError) as error:
        assert type(error) is kind
    assert not any(psutil.pid_exists(process.pid) for process in processes if process.pid)
    assert network_namespaces() <= before
    assert not lab.folder.exists()


def test_a_killed_lab_takes_its_processes_along_and_the_next_removes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # the next may be one of another test that runs meanwhile
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = network_namespaces()
    code = f"""
        import json, sys, time
        sys.path.insert(0, {str(SCRIPTS)!r})
        from lab_parts import Lab
        with Lab(2, delay_ms=1) as lab:
            detached = [host.start(["setsid", "--fork", "sleep", "600"]).wait() for host in lab.hosts]
            processes = [host.start(["sleep", "600"]) for host in lab.hosts]
            processes[0].suspend()
            print(json.dumps([str(lab.folder), [process.pid for process in processes]]), flush=True)
            time.sleep(600)
    """
    with Lab(1) as other:
        killed = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE)
        assert killed.stdout is not None
        folder, pids = json.loads(killed.stdout.readline())
        assert Path(folder).exists()
        killed.kill()
        killed.wait()
        killed.stdout.close()
        assert eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids))
        assert eventually(lambda: len(network_namespaces() - before) == 2)
        assert Path(folder).exists()
        with Lab(1):
            assert not Path(folder).exists()
        assert other.folder.exists()


def test_what_a_lab_printed_can_be_kept(tmp_path: Path) -> None:
    with Lab(1, keep=tmp_path / "kept") as lab:
        lab.hosts[0].run(["echo", "hello"])
    assert (tmp_path / "kept/pc0/000-echo.out").read_text("utf-8") == "hello\n"
    with pytest.raises(LabError, match="is not empty"), Lab(1, keep=tmp_path / "kept"):
        pass


def test_the_command() -> None:
    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(SCRIPTS / "lab.py"), *arguments], capture_output=True, encoding="utf-8", timeout=240
        )

    done = command("run", "--nodes", "2", "--", "sh", "-c", "hostname; test $(hostname) = pc0")
    assert (done.returncode, done.stdout) == (1, "pc0: pc0\npc1: pc1\n")
    refused = command("run", "--nodes", "0", "true")
    assert (refused.returncode, refused.stderr) == (1, "error: a lab has 1 to 200 hosts, not 0\n")
    with subprocess.Popen(
        [sys.executable, str(SCRIPTS / "lab.py"), "shell", "--nodes", "2"], stdout=subprocess.PIPE, encoding="utf-8"
    ) as shell:
        assert shell.stdout is not None
        entries = [shell.stdout.readline().split()[3] for _ in range(2)]
        assert "Ctrl-C" in shell.stdout.readline()
        inside = subprocess.run([entries[1], "hostname"], capture_output=True, encoding="utf-8")
        assert inside.stdout == "pc1\n"
        shell.terminate()
        assert shell.wait(90) == 143
    assert not Path(entries[0]).exists()
