"""Online dynamic batching as torchdata nodes, with exact, elastic state."""

from odb_nodes.batching.budget import Limit, Rounding, TokenBudget
from odb_nodes.batching.cost import Cost
from odb_nodes.batching.packed import Packed
from odb_nodes.batching.padded import Padded
from odb_nodes.build import odb_loader
from odb_nodes.collate import PadCollate
from odb_nodes.errors import (
    CoverageError,
    PeerFailedError,
    SampleError,
    StateError,
    WorkerDiedError,
)
from odb_nodes.loader import OdbLoader
from odb_nodes.loss import OptimizerStep, optimizer_steps, sum_weight, token_weight
from odb_nodes.nodes.align_node import AlignNode
from odb_nodes.nodes.grouping_node import GroupingNode
from odb_nodes.nodes.node_loader import NodeLoader
from odb_nodes.nodes.sample_mapper import SampleMapper
from odb_nodes.nodes.sampler_view import SamplerView
from odb_nodes.nodes.stream_view import StreamView
from odb_nodes.pack import PackCollate
from odb_nodes.report import LoaderReport
from odb_nodes.shared_state import SharedState
from odb_nodes.state.codec import pack_states, state_from_json, state_to_json, unpack_states
from odb_nodes.state.description import describe_state, verify_states
from odb_nodes.state.reshard import reshard_states
from odb_nodes.types import AlignedGroup, OdbBatch, Sample, StepInfo, View

__version__ = "0.1.0"

__all__ = [
    "AlignNode",
    "AlignedGroup",
    "Cost",
    "CoverageError",
    "GroupingNode",
    "Limit",
    "LoaderReport",
    "NodeLoader",
    "OdbBatch",
    "OdbLoader",
    "OptimizerStep",
    "PackCollate",
    "Packed",
    "PadCollate",
    "Padded",
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
    "state_from_json",
    "state_to_json",
    "sum_weight",
    "token_weight",
    "unpack_states",
    "verify_states",
]
