"""What torchtitan 0.3 needs to train on a machine without an accelerator (gloo, CPU tensors)."""

import os
import resource
from collections.abc import Iterable

import torch
import torch._utils
from torch.distributed.fsdp import FSDPModule

from titan_integration import upstream


def is_cpu_only() -> bool:
    """Whether torch finds no accelerator here, so that :func:`patch` is needed, or was done."""
    device_type: str | None = torch._utils._get_available_device_type()
    return device_type in (None, "cpu")


def patch() -> None:
    """Make torchtitan see the device type "cpu". Call before anything imports torchtitan.

    torchtitan binds the device type and module to globals when it is imported, and falls back to
    "cuda" where torch names no accelerator. It also passes ``current_device()`` on to ``barrier``,
    which wants an integer, where torch.cpu returns a string.
    """
    torch._utils._get_available_device_type = lambda: "cpu"
    torch.cpu.current_device = lambda: 0  # type: ignore[assignment, return-value]

    from torch.nn.attention.flex_attention import create_block_mask

    # Compiling the function for masks takes half a minute per process on a CPU, where masks are
    # small anyway.
    upstream.replace_for_cpu(memory_monitor=CpuMemoryMonitor, create_block_mask=create_block_mask)


class CpuMemoryMonitor:
    """Peak resident memory of this process, in the shape of torchtitan's device monitor."""

    device_name = "CPU"

    def __init__(self) -> None:
        pages = os.sysconf("SC_PHYS_PAGES")
        self.device_capacity_gib = pages * os.sysconf("SC_PAGE_SIZE") / 2**30

    def get_peak_stats(self) -> object:
        """The process's peak so far; the system offers no way to reset it."""
        peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        percent = 100 * peak_gib / self.device_capacity_gib
        return upstream.DeviceMemStats(peak_gib, percent, peak_gib, percent, 0, 0)

    def reset_peak_stats(self) -> None:
        """Nothing to reset."""


def sum_without_scaling(model_parts: Iterable[torch.nn.Module]) -> None:
    """Let FSDP sum gradients plainly: gloo cannot scale while it sums, as FSDP asks otherwise."""
    for model in model_parts:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
