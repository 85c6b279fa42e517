"""The registered alignment policies. A new one is a module of its own and an entry here.

Every signature, the verifier, the simulator and the tests take the names from this registry.
"""

from odb_nodes.protocol.policy import Policy
from odb_nodes.protocol.sliding import SlidingPolicy
from odb_nodes.protocol.tumbling import TumblingPolicy

POLICIES: dict[str, Policy] = {
    policy.name: policy for policy in (SlidingPolicy(), TumblingPolicy())
}
DEFAULT_POLICY = SlidingPolicy.name
_RENAMED = {"carry": "sliding", "paper": "tumbling"}


def find_policy(name: str) -> Policy:
    """The registered policy of that name.

    Raises:
        ValueError: There is none; names those there are.
    """
    if name in POLICIES:
        return POLICIES[name]
    renamed = f": {name!r} is called {_RENAMED[name]!r} now" if name in _RENAMED else ""
    raise ValueError(f"policy must be one of {sorted(POLICIES)}, got {name!r}{renamed}")
