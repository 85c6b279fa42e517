"""Online dynamic batching as torchdata nodes, with exact, elastic state."""

from odb_nodes.batching.budget import Limit, Rounding, TokenBudget
from odb_nodes.collate import PadCollate
from odb_nodes.errors import (
    CoverageError,
    PeerFailedError,
    SampleError,
    StateError,
    WorkerDiedError,
)
from odb_nodes.loader import OdbLoader, odb_loader
from odb_nodes.loss import optimizer_steps, sum_weight
from odb_nodes.nodes.align_node import AlignNode
from odb_nodes.nodes.grouping_node import GroupingNode
from odb_nodes.nodes.sample_mapper import SampleMapper
from odb_nodes.nodes.sampler_view import SamplerView
from odb_nodes.nodes.stream_view import StreamView
from odb_nodes.shared_state import SharedState
from odb_nodes.state.codec import pack_states, unpack_states
from odb_nodes.state.description import describe_state, verify_states
from odb_nodes.state.reshard import reshard_states
from odb_nodes.types import (
    AlignedGroup,
    OdbBatch,
    Sample,
    StepInfo,
    View,
    token_weight,
)

__all__ = [
    "AlignNode",
    "AlignedGroup",
    "CoverageError",
    "GroupingNode",
    "Limit",
    "OdbBatch",
    "OdbLoader",
    "PadCollate",
    "PeerFailedError",
    "Rounding",
    "Sample",
    "SampleError",
    "SampleMapper",
    "SamplerView",
    "SharedState",
    "StateError",
    "StepInfo",
    "StreamView",
    "TokenBudget",
    "View",
    "WorkerDiedError",
    "describe_state",
    "odb_loader",
    "optimizer_steps",
    "pack_states",
    "reshard_states",
    "sum_weight",
    "token_weight",
    "unpack_states",
    "verify_states",
]
