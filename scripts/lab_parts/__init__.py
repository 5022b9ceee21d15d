"""A lab of PCs on one machine: network namespaces on a bridge, with a rate and a delay for each one's link.

    with Lab(nodes=3, rate="1gbit", delay_ms=2) as lab:
        server = lab.hosts[0].start(["python3", "-m", "http.server"])
        server.wait_for("Serving HTTP")
        lab.hosts[1].run(["curl", f"http://{lab.hosts[0].ipv4}:8000/"])
        lab.cut(1)

A host shares the machine's files, processors and memory. Its network, host name, process numbers and home folder are
its own. Nothing of it can be seen on, or reach, the machine's network.

Limits:

- Linux only, as root or where users may make namespaces; needs the commands of iproute2 and util-linux.
- A delay is kept by a Python process for each link (`delay.py`). It moves about 2 Gbit/s of large TCP segments, and
  about 50,000 small packets a second; on busy processors it adds some milliseconds of its own.
- A rate counts what TCP and IP add, so of 1 Gbit/s about 0.95 is left for data.
"""

from lab_parts.host import Host
from lab_parts.lab import Lab
from lab_parts.namespaces import LabError
from lab_parts.process import Process

__all__ = ["Host", "Lab", "LabError", "Process"]
