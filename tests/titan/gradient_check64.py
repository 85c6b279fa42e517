"""``gradient_check`` in float64, to tell an exact loss from one that is nearly right.

torchtitan trains in float32 or bfloat16 only, and casts rotary embeddings and logits to float32 on
the way. Here every such cast and every float32 setting means float64.
"""

import torch

from tests.titan import gradient_check  # first: it prepares torchtitan for a CPU
from titan_integration.upstream import TORCH_DTYPE_MAP


def main() -> None:
    """Train as the command line says, in float64."""
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]
    TORCH_DTYPE_MAP["float32"] = torch.float64
    gradient_check.main()


if __name__ == "__main__":
    main()
