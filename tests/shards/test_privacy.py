"""Nothing is reported to anybody."""

import subprocess
import sys


def test_openvino_does_not_report_its_use() -> None:
    code = (
        "import shards, openvino.tools.ovc as ovc, sys;"
        "print(sys.modules['openvino_telemetry'], type(ovc.telemetry).__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "openvino.tools.ovc.telemetry_stub"]
