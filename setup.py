"""What a wheel contains; everything else about the package is in pyproject.toml.

In a checkout the full-size configurations are the folder ``configs``. Installed, they are
``titan_integration.configs``: a package must not claim a name as common as that at the top.
"""

from setuptools import find_packages, setup

CONFIGS = "titan_integration.configs"
OURS = ("odb_nodes", "titan_integration", "hf_integration")

setup(
    packages=[
        *find_packages(include=[part for name in OURS for part in (name, f"{name}.*")]),
        CONFIGS,
    ],
    package_dir={CONFIGS: "configs"},
)
