"""Imports flow one way, and only one module knows torch.distributed."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "odb_nodes"
LAYERS = [
    {"errors", "types", "permutation"},
    {
        "accumulate",
        "budget",
        "cutting",
        "views",
        "grouping",
        "alignment",
        "collate",
        "counters",
        "drops",
        "content",
    },
    {"held"},
    {"schema", "state", "reshard", "blob", "realise", "rounds", "rules"},
    {"transport", "torchdata_compat"},
    {"exchange", "sampler_view", "stream_view"},
    {"mapper"},
    {"grouping_node"},
    {"align_node"},
    {"loader"},
    {"__init__"},
]


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def layer_of(name: str) -> int:
    return next(level for level, names in enumerate(LAYERS) if name in names)


def test_every_module_has_a_layer() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py")}
    assert modules <= set().union(*LAYERS)


def test_modules_import_from_their_own_layer_or_below() -> None:
    for path in PACKAGE.glob("*.py"):
        for name in imports_of(path):
            if name.startswith("odb_nodes."):
                assert layer_of(name.split(".")[1]) <= layer_of(path.stem), (path.name, name)
            assert not name.startswith(("titan_integration", "configs", "tools")), path.name


def test_only_the_transport_knows_torch_distributed() -> None:
    users = [
        path.name
        for path in PACKAGE.glob("*.py")
        if any(name.startswith("torch.distributed") for name in imports_of(path))
    ]
    assert users == ["transport.py"]


def test_nothing_in_the_library_reads_the_environment() -> None:
    for path in PACKAGE.glob("*.py"):
        assert "environ" not in path.read_text(), path.name
        assert "getenv" not in path.read_text(), path.name
