"""The public command on a CPU rank that may be told to die; started by ``check``.

transformers 5.6.0 asks ``torch.load`` for the device "cpu:0", which torch 2.14 does not know.
"""

import os
import signal
from typing import Any

import torch

from hf_integration.llamafactory import __main__ as command
from hf_integration.training.callbacks import RunCallback

_load = torch.load


def _load_on_cpu(*args: Any, **kwargs: Any) -> Any:
    return _load(*args, **{**kwargs, "map_location": "cpu"})


def _die(self: RunCallback, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
    _on_step_end(self, args, state, control, **kwargs)
    if state.global_step == int(os.environ.get("DIES", 0)):
        os.kill(os.getpid(), signal.SIGKILL)


_on_step_end = RunCallback.on_step_end

if __name__ == "__main__":
    torch.load = _load_on_cpu  # type: ignore[assignment]
    RunCallback.on_step_end = _die  # type: ignore[method-assign]
    command.main()
