"""The layers import one way, lazy imports counted; torch loads only where it may; the README's tree is the tree."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "astraflow"

LAYERS: dict[str, int] = {
    "astraflow.errors": -1,
    "astraflow.registry": 0,
    "astraflow.core.config": 0,
    "astraflow.core.data": 1,
    "astraflow.core.text": 2,
    "astraflow.core.observability": 2,
    "astraflow.core.model": 3,
    "astraflow.core.protocol": 3,
    "astraflow.core.workflow": 4,
    "astraflow.core.dataset": 4,
    "astraflow.core.weight_manager": 4,
    "astraflow.dataflow": 5,
    "astraflow.raas": 5,
    "astraflow.train_worker": 5,
    "astraflow.evolution": 5,
    "astraflow.dashboard": 5,
    "astraflow.launch": 6,
    "astraflow.cli": 7,
}
PROGRAMS = ("astraflow.dataflow", "astraflow.raas", "astraflow.train_worker")
MAY_IMPORT_TORCH = re.compile(
    r"core/model/|core/weight_manager/tensors\.py|raas/engines/embedded/"
    r"|train_worker/(?!config\.py|trainer/astraflow_client\.py)"
)
IN_ONE_FILE = {
    "uvicorn", "httpx", "reasoning_gym", "math_verify", "xxhash", "omegaconf", "yaml",
    "transformers", "wandb", "swanlab", "trackio", "tensorboard", "bokeh",
}  # fmt: skip


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(file: Path) -> set[str]:
    """Every module that a file imports anywhere in it, function bodies included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            names.add(node.module or "")
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def unit(module: str) -> str | None:
    """The layered package that a module belongs to."""
    matches = [name for name in LAYERS if module == name or module.startswith(name + ".")]
    return max(matches, key=len) if matches else None


FILES = sorted(PACKAGE.rglob("*.py"))


def test_every_module_has_a_layer() -> None:
    free = {"astraflow", "astraflow.core"}
    assert [module_name(f) for f in FILES if unit(module_name(f)) is None and module_name(f) not in free] == []


def test_layers_import_downwards_only() -> None:
    wrong = []
    for file in FILES:
        own = unit(module_name(file))
        for name in imports(file):
            other = unit(name)
            if own is None or other is None or own == other:
                continue
            if own == "astraflow.launch" and other in PROGRAMS:
                if not (name in PROGRAMS or name.startswith(f"{other}.config")):
                    wrong.append(f"{module_name(file)} → {name} (launch imports only config of a program)")
            elif LAYERS[other] >= LAYERS[own]:
                wrong.append(f"{module_name(file)} → {name}")
    assert wrong == []


def test_torch_is_imported_only_where_it_may() -> None:
    wrong = []
    for file in FILES:
        roots = {name.split(".")[0] for name in imports(file)}
        if "torch" in roots and not MAY_IMPORT_TORCH.search(str(file.relative_to(PACKAGE))):
            wrong.append(str(file))
    assert wrong == []


def test_heavy_and_optional_packages_are_imported_in_one_file_each() -> None:
    users: dict[str, set[str]] = defaultdict(set)
    for file in FILES:
        for name in imports(file):
            if name.split(".")[0] in IN_ONE_FILE:
                users[name.split(".")[0]].add(str(file.relative_to(ROOT)))
    users["yaml"].discard("astraflow/evolution/skillbank/text_file.py")  # compile.py needs PyYAML and nothing else
    assert {name: files for name, files in users.items() if len(files) > 1} == {}


@pytest.mark.parametrize(
    "statement",
    [
        "import astraflow",
        "import astraflow.launch.config",
        "import astraflow.cli.main",
        "import astraflow.dataflow.app",
        "import astraflow.core.text.tokenizer",
        "import astraflow.core.protocol",
        "import astraflow.core.weight_manager.receiver, astraflow.core.weight_manager.sender_agent",
        "import astraflow.core.workflow.impl.rlvr",
        "import astraflow.raas.app",
        "import astraflow.train_worker.config, astraflow.train_worker.trainer.astraflow_client",
    ],
)
def test_what_must_start_fast_loads_nothing_heavy(statement: str) -> None:
    heavy = ("torch", "transformers", "ray", "reasoning_gym")
    code = f"{statement}\nimport sys\nprint([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_the_readme_shows_every_folder() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    shown = set(re.findall(r"^\| `([\w./-]+/)` ", readme, re.MULTILINE))
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    folders = {f"{path.split('/')[0]}/" for path in tracked if "/" in path and not path.startswith(".")}
    packages = {
        f"{folder.relative_to(ROOT)}/"
        for parent in (PACKAGE, PACKAGE / "core")
        for folder in parent.iterdir()
        if (folder / "__init__.py").exists() and folder.name != "core"
    }
    assert shown == folders - {"astraflow/"} | packages


def test_tests_mirror_the_package() -> None:
    special = {"laws", "contracts", "golden", "system"}
    modules = {file.relative_to(PACKAGE).with_suffix("") for file in FILES}
    orphans = []
    for test in (ROOT / "tests").rglob("test_*.py"):
        place = test.relative_to(ROOT / "tests")
        if place.parts[0] in special or place.name in (
            "test_architecture.py",
            "test_docs.py",
            "test_config_consumers.py",
        ):
            continue
        module = place.with_name(place.name.removeprefix("test_")).with_suffix("")
        if (
            module not in modules
            and module.parent / module.name not in {m.parent for m in modules}
            and not any(m.parent == module.parent for m in modules)
        ):
            orphans.append(str(place))
    assert orphans == []
