"""Imports flow one way, read off the folders: a path tells what a file may do."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("odb_nodes", "titan_integration", "hf_integration", "configs", "tools")
# Folders from the bottom up; a module imports from its own layer or from one below. Modules at the
# top of a package are named, folders stand for all that is in them.
LAYERS = (
    ("odb_nodes.errors", "odb_nodes.types", "odb_nodes.arguments", "odb_nodes.report"),
    ("odb_nodes.workers",),
    ("odb_nodes.state", "odb_nodes.batching"),
    ("odb_nodes.protocol", "odb_nodes.samples"),
    ("odb_nodes.nodes",),
    ("odb_nodes.loss", "odb_nodes.collate"),
    ("odb_nodes.pack",),
    ("odb_nodes.vision",),
    ("odb_nodes.loader",),
    ("odb_nodes.build",),
    ("odb_nodes.shared_state",),
    ("odb_nodes",),
    ("odb_nodes.testing",),
    ("titan_integration.errors", "titan_integration.process_groups"),
    ("titan_integration.upstream", "titan_integration.cpu", "titan_integration.source_loss"),
    ("titan_integration.data", "titan_integration.attention"),
    ("titan_integration.vision",),
    ("titan_integration.plan",),
    ("titan_integration.run",),
    ("titan_integration.training",),
    ("titan_integration",),
    ("hf_integration.arguments", "hf_integration.errors", "hf_integration.upstream"),
    ("hf_integration.data",),
    ("hf_integration.training",),
    ("hf_integration.trainer",),
    ("hf_integration",),
    ("hf_integration.llamafactory",),
    ("configs",),
    ("tools",),
)
PURE = ("odb_nodes/batching", "odb_nodes/state", "odb_nodes/protocol")
# Of the pure folders, the modules that touch tensors or other ranks.
IMPURE = {"odb_nodes.state.content", "odb_nodes.protocol.transport"}
MOST_MODULES = 12


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules() -> dict[str, Path]:
    return {name_of(path): path for package in PACKAGES for path in (ROOT / package).rglob("*.py")}


MODULES = modules()


def source_of(node: ast.ImportFrom, path: Path) -> str:
    """What ``from ... import`` imports from; ``from .x`` in ``configs/y.py`` is ``configs.x``."""
    if not node.level:
        return str(node.module)
    package = path.relative_to(ROOT).parts[: -node.level]
    return ".".join([*package, node.module] if node.module else package)


def imports_of(path: Path) -> set[str]:
    """Modules that a file imports, those inside functions and under TYPE_CHECKING included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            module = source_of(node, path)
            names = {f"{module}.{alias.name}" for alias in node.names}
            found |= names & MODULES.keys()
            if names - MODULES.keys():  # `from package import module` needs only the module
                found.add(module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def layer_of(module: str) -> int:
    """The layer of the longest folder or module name that the module lies in."""
    fits = [
        (len(name), level)
        for level, names in enumerate(LAYERS)
        for name in names
        if module == name or module.startswith(f"{name}.")
    ]
    return max(fits)[1]


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_from_its_own_layer_or_below(module: str) -> None:
    for name in imports_of(MODULES[module]):
        if name.split(".")[0] in PACKAGES:
            assert layer_of(name) <= layer_of(module), f"{module} imports {name}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {
        module: {name for name in imports_of(path) if name in MODULES and name != module}
        for module, path in MODULES.items()
        if path.name != "__init__.py"
    }
    while leaves := {m for m, names in graph.items() if not names & graph.keys()}:
        graph = {m: names for m, names in graph.items() if m not in leaves}
    assert not graph, f"a circle of imports among {sorted(graph)}"


def folder_edges() -> dict[str, set[str]]:
    edges: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        if path.name == "__init__.py":
            continue
        folder = module.rpartition(".")[0]
        for name in imports_of(path) & MODULES.keys():
            other = name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]
            if other != folder and other not in PACKAGES and folder not in PACKAGES:
                edges.setdefault(folder, set()).add(other)
    return edges


def test_no_folders_import_each_other_in_a_circle() -> None:
    graph = folder_edges()
    while leaves := {f for f, others in graph.items() if not others & graph.keys()}:
        graph = {f: others for f, others in graph.items() if f not in leaves}
    assert not graph, f"a circle of imports among {sorted(graph)}"


@pytest.mark.parametrize("folder", sorted({path.parent for path in MODULES.values()}))
def test_a_folder_is_small_and_says_what_belongs_there(folder: Path) -> None:
    inside = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
    assert len(inside) <= MOST_MODULES, f"{folder} has {len(inside)} modules"
    doc = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    assert doc, f"{folder}/__init__.py must say what belongs there and what it may import"


@pytest.mark.parametrize("folder", PURE)
def test_pure_folders_know_no_torch(folder: str) -> None:
    for path in (ROOT / folder).glob("*.py"):
        if name_of(path) not in IMPURE:
            torches = [name for name in imports_of(path) if name.split(".")[0].startswith("torch")]
            assert not torches, f"{path} imports {torches}"


def test_only_the_transport_knows_torch_distributed() -> None:
    users = [
        module
        for module, path in MODULES.items()
        if module.startswith("odb_nodes")
        and any(name.startswith("torch.distributed") for name in imports_of(path))
    ]
    assert users == ["odb_nodes.protocol.transport"]


@pytest.mark.parametrize(
    ("upstream", "ours", "user"),
    [
        ("torchdata", ("odb_nodes",), "odb_nodes.nodes.upstream"),
        ("torchtitan", PACKAGES, "titan_integration.upstream"),
    ],
)
def test_one_module_knows_what_is_taken_from_upstream(
    upstream: str, ours: tuple[str, ...], user: str
) -> None:
    users = [
        module
        for module, path in MODULES.items()
        if module.split(".")[0] in ours
        and any(name.split(".")[0] == upstream for name in imports_of(path))
    ]
    assert users == [user]


def test_nothing_in_the_library_reads_the_environment() -> None:
    for path in (ROOT / "odb_nodes").rglob("*.py"):
        assert "environ" not in path.read_text(), path.name
        assert "getenv" not in path.read_text(), path.name
