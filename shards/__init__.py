"""What a shard is and how one runs: package manifest, weight store, graph cut, stage runtimes."""

import sys

# OpenVINO's and NNCF's Python packages report their use over the internet. We tell nobody: where this module is missing
# they stay silent. It must be so before the first of them is imported, and everything of ours imports shards first.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
