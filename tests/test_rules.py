"""Who may import whom, and what nobody may: the rules that keep the two halves apart and the start light."""

from __future__ import annotations

import ast
import functools
import resource
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from conftest import LAUNCH, REPO, clean_env

import hostmesh
from hostmesh.launcher.bundle import OF_THE_AGENT, find_modules, is_wanted_first

LAUNCHER = sorted((REPO / "launcher").rglob("*.py"))
WORKER = sorted((REPO / "worker").rglob("*.py"))
SHIPPED = [Path(path).resolve() for path in find_modules(*OF_THE_AGENT).values()]


@functools.cache
def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def offences(paths: Iterable[Path], is_wrong: Callable[[str], bool]) -> dict[str, list[str]]:
    """What modules import and must not."""
    found = {str(path.relative_to(REPO)): sorted(filter(is_wrong, imports(path))) for path in paths}
    return {name: wrong for name, wrong in found.items() if wrong}


def test_the_launcher_imports_of_the_worker_only_what_both_need() -> None:
    shared = (
        *("identity", "recording.record", "compiling.names", "compiling.store", "audit.last_word", "job.options"),
        "remote.url_secrets",
    )
    allowed = tuple(f"hostmesh.worker.{name}" for name in shared)
    assert not offences(LAUNCHER, lambda name: name.startswith("hostmesh.worker") and not name.startswith(allowed))


def test_the_worker_imports_nothing_of_the_launcher() -> None:
    assert not offences(WORKER, lambda name: name.startswith("hostmesh.launcher"))


def test_libraries_of_object_stores_are_imported_in_one_folder_only() -> None:
    libraries = {"fsspec", "s3fs", "gcsfs", "aiohttp", "aiobotocore", "botocore", "boto3", "yarl"}
    others = [path for path in [*LAUNCHER, *WORKER] if "remote" not in path.parts]
    assert not offences(others, lambda name: name.partition(".")[0] in libraries)


# A system of data -> the modules of worker/ that import it. hugging_face.py leaves the columns of its tables to two
# others; files of the Hub are a store. What a user has made with grain is read without importing it.
SYSTEMS = {
    "absl": {"sources/grain.py"},
    "array_record": {"sources/array_record.py"},
    "datarax": {"sources/datarax.py"},
    "datasets": {"sources/hugging_face.py"},
    "grain": set(),
    "huggingface_hub": {"remote/stores/hub.py"},
    "pyarrow": {"sources/arrow_bytes.py", "sources/arrow_columns.py"},
    "tensorflow": {"sources/tf_data_state.py"},
    "tensorflow_datasets": {"sources/tfds.py"},
    "torch": {"sources/torch.py"},
    **dict.fromkeys(("pandas", "polars", "torchdata", "torchvision", "transformers", "webdataset"), set()),
}


def test_a_system_of_data_is_imported_by_its_own_source_only() -> None:
    importers: dict[str, set[str]] = {name: set() for name in SYSTEMS}
    for path in WORKER:
        for name in {name.partition(".")[0] for name in imports(path) | loaded_by_name(path)} & SYSTEMS.keys():
            importers[name].add(str(path.relative_to(REPO / "worker")))
    assert importers == SYSTEMS


def loaded_by_name(path: Path) -> set[str]:
    """As in `load("datasets", …)` and `import_module("datasets")`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = ast.unparse(node.func).rpartition(".")[2]
            if called in ("load", "import_module", "__import__") and isinstance(node.args[0].value, str):
                found.add(node.args[0].value)
    return found


def test_opening_files_of_this_host_imports_no_library_of_object_stores() -> None:
    check = (
        "import sys; from hostmesh.worker.sources import open_source; open_source('digits:train');"
        " assert not {'fsspec', 's3fs', 'aiohttp', 'botocore'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", check], env=clean_env(), check=True)


def test_what_is_shipped_needs_only_itself_and_the_standard_library() -> None:
    known = {"hostmesh", *sys.stdlib_module_names}
    assert not offences(SHIPPED, lambda name: name.partition(".")[0] not in known)
    modules = [
        path for path in SHIPPED if path.parent.name != "hostmesh"
    ]  # whose names are imported when they are used
    of_launcher = ("agent", "protocol")
    shipped = tuple(f"hostmesh.launcher.{name}" for name in of_launcher)
    shipped += ("hostmesh.worker.identity", "hostmesh.worker.recording.record", "hostmesh.worker.audit.last_word")
    shipped += ("hostmesh.worker.compiling.names", "hostmesh.worker.compiling.store")
    assert not offences(
        modules, lambda name: name.startswith("hostmesh.") and name.count(".") > 1 and not name.startswith(shipped)
    )


def test_the_folders_are_imported_by_the_packages_name_only() -> None:
    """`launcher` and `worker` are names that users have for their own modules."""
    assert not offences([*LAUNCHER, *WORKER], lambda name: name.partition(".")[0] in ("launcher", "worker"))


def test_what_is_shipped_parses_on_python_3_9() -> None:
    for path in SHIPPED:
        ast.parse(path.read_text(), feature_version=(3, 9))


@pytest.mark.parametrize(
    "module",
    [
        "hostmesh.launcher.cli",
        "hostmesh.launcher.launch",
        "hostmesh",
        "hostmesh.worker.process.as_python.boot",
        "hostmesh.worker.distributed",
        "hostmesh.worker.job.options",
    ],
)
def test_importing_does_not_import_jax(module: str) -> None:
    check = f"import sys, {module}; assert not {{'jax', 'jaxlib', 'numpy', 'yaml', 'fabric'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], env=clean_env(), check=True)


DRY_RUN = ["--local", "2", "--dry-run", "--", "true"]


def test_agents_of_this_machine_start_before_what_only_others_need_is_imported() -> None:
    late = {"hostmesh.launcher.cluster.file", "hostmesh.launcher.agent.guardian", "socket", "traceback"}
    modules = "hostmesh.launcher.launch, hostmesh.launcher.transports.local"
    run = f"import sys, {modules}; from hostmesh.launcher.cli import launch; launch({DRY_RUN})"
    check = f"{run}; assert not {late} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], env=clean_env(), check=True)


def test_what_the_nursery_imports_is_written_first() -> None:
    """It begins before the rest of the package is there."""
    begin = "import sys, hostmesh.worker.process.nursery; from hostmesh.worker.distributed import prepare_jax"
    told = "; prepare_jax(); import jax; print(*(module for module in sys.modules if module.startswith('hostmesh')))"
    done = subprocess.run(
        [sys.executable, "-c", begin + told], env=clean_env(), check=True, capture_output=True, text=True
    )
    names = [module.replace(".", "/") for module in done.stdout.split()]
    assert len(names) > 10
    assert [name for name in names if not any(map(is_wanted_first, (f"{name}.py", f"{name}/__init__.py")))] == []


def test_help_takes_less_than_a_third_of_a_second() -> None:
    """In processor time, which a busy machine stretches less; the quickest of three, as caches of it are shared."""
    assert min(measure_help() for _ in range(3)) < 0.3


def measure_help() -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*LAUNCH, "--help"], env=clean_env(), stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_every_module_opens_with_its_duty() -> None:
    modules = [*LAUNCHER, *WORKER]
    assert [path for path in modules if not (ast.get_docstring(ast.parse(path.read_text())) or "").strip()] == []


@pytest.mark.parametrize("name", hostmesh.__all__)
def test_every_public_name_has_a_docstring(name: str) -> None:
    """Of its own: what a dataclass or NamedTuple writes for itself begins with its name and a bracket."""
    text = getattr(hostmesh, name).__doc__ or ""
    assert text.strip() and not text.startswith(f"{name}(")
