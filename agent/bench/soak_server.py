"""The server of `bench soak` in a process of its own, so that what it holds is not mixed with what its clients do.

A JSON line begins it and is answered with where it is; each further line has its garbage collected, and is answered
with how many objects are left. It ends with its stdin.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

from agent.serving import Serving
from pipeline.running import RunningModel, RunOptions
from shards.errors import EdgeAgentError


def _main() -> None:
    wanted = json.loads(sys.stdin.readline())
    try:
        serving = Serving(Path(wanted["package"]), RunOptions.model_validate(wanted["options"]), port=0)
    except EdgeAgentError as error:
        _say({"failed": str(error)})
        return
    with serving:
        model = serving.model
        assert isinstance(model, RunningModel)
        _say(
            {
                "url": serving.url,
                "stages": [stage.pid for stage in model.chain.stages],
                "kv_tokens": model.chain.kv_tokens,
                "vocabulary": model.manifest.facts.vocabulary,
                "context": model.manifest.facts.context_length,
            }
        )
        for _ in sys.stdin:
            gc.collect()
            _say({"objects": len(gc.get_objects())})


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _main()
