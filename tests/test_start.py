"""Promise 1: from one command to processes that know each other, warm and cold alike."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import LAUNCH, REPO, Launch, Script, Start, await_true, clean_env

WARM_AND_COLD = pytest.mark.parametrize("how", [[], ["--cold"]], ids=["warm", "cold"])

JOIN = """
import jax, jax.numpy as jnp
from jax.experimental import multihost_utils
{join}
ids = multihost_utils.process_allgather(jnp.array([jax.process_index()]))
print("RESULT", jax.process_count(), jax.local_device_count(), sorted(ids.ravel().tolist()), flush=True)
"""


def results(output: str) -> list[str]:
    return sorted(re.findall(r"RESULT (.*)", output))


@pytest.mark.newest
@WARM_AND_COLD
@pytest.mark.parametrize(
    "join", ["jax.distributed.initialize()", "import hostmesh; hostmesh.join()"], ids=["bare", "join"]
)
@pytest.mark.quick("bare-warm")
def test_processes_join_each_other(launch: Launch, script: Script, how: list[str], join: str) -> None:
    done = launch("--local", "3", "--devices", "2", *how, script(JOIN.format(join=join)))
    assert done.returncode == 0, done.stderr + done.stdout
    assert results(done.stdout) == ["3 2 [0, 1, 2]"] * 3
    assert "separately" not in done.stderr


@pytest.mark.slow
def test_variables_of_another_scheduler_do_not_win(launch: Launch, script: Script) -> None:
    slurm = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "9", "SLURM_PROCID": "5", "SLURM_LOCALID": "0"}
    slurm |= {"SLURM_STEP_NODELIST": "nowhere", "SLURM_STEP_NUM_TASKS": "9"}
    done = launch("--local", "2", script(JOIN.format(join="jax.distributed.initialize()")), env=slurm)
    assert results(done.stdout) == ["2 1 [0, 1]"] * 2, done.stdout


def test_join_alone_does_nothing(script: Script, tmp_path: Path) -> None:
    name = script("import hostmesh, sys; assert hostmesh.join() is None; assert 'jax' not in sys.modules")
    subprocess.run([sys.executable, name], cwd=tmp_path, env=clean_env(), check=True)


@pytest.mark.slow
def test_process_zero_that_finishes_first_makes_nobody_abort(launch: Launch, script: Script) -> None:
    name = script(
        "import jax, time, os\njax.distributed.initialize()\njax.devices()\n"
        "time.sleep(1.5 * (jax.process_index() > 0))\nprint('RESULT done')\n"
    )
    done = launch("--local", "3", name)
    assert done.returncode == 0, done.stdout
    assert results(done.stdout) == ["done"] * 3
    assert "ABORT" not in done.stdout.upper()


def test_a_process_that_fails_does_not_wait_in_the_shutdown_barrier(start: Start, script: Script) -> None:
    run = start(
        "--local",
        "2",
        script(
            "import jax, time\njax.distributed.initialize()\nif jax.process_index(): raise KeyError('x')\n"
            "time.sleep(99)\n"
        ),
    )
    joined = run.await_event("joined", count=2)["time"]
    assert run.await_event("process exited", process_id=1)["time"] - joined < 30
    assert run.wait() == 1


def test_a_process_that_never_joins_is_pointed_at(start: Start, script: Script) -> None:
    text = "import os, jax\nif os.environ['HOSTMESH_PROCESS_ID'] == '0': jax.distributed.initialize()\n"
    run = start("--local", "2", script(text))
    run.await_event("process exited", process_id=1)
    await_true(lambda: "process 1 ended without calling jax.distributed.initialize" in run.stderr, 20, "a hint")


def test_a_module_is_run_as_python_does(launch: Launch, tmp_path: Path) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "go.py").write_text(
        "import sys\nfrom . import __name__ as package\nprint('RESULT', __name__, package, sys.argv[1:])\n"
    )
    done = launch("--local", "2", "-m", "pack.go", "--steps", "3", "--json")
    assert results(done.stdout) == ["__main__ pack ['--steps', '3', '--json']"] * 2


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        ([], []),
        (["--steps", "50", "--batch-size=128", "--span-processes", "--lr=-1e-3"],) * 2,
        (["--source", "a b", "--devices", "2", "--tail", "", "--json"], ["--source", "a b", "--tail", ""]),
    ],
)
def test_without_a_script_the_built_in_job_gets_its_options(
    launch: Launch, tmp_path: Path, args: list[str], wanted: list[str]
) -> None:
    (tmp_path / "c.yaml").write_text("transport: local\nhosts: [here]\n")
    for where in (["--local", "2"], ["--hosts", "c.yaml"]):
        done = launch(*args, *where, "--dry-run", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["argv"] == ["-m", "hostmesh.worker", *wanted]


def test_what_follows_the_script_is_its_own_even_if_the_built_in_job_knows_it(launch: Launch, script: Script) -> None:
    name = script("import sys; print('RESULT', sys.argv[1:])")
    done = launch("--local", "2", name, "--steps", "3", "--mesh=x")
    assert results(done.stdout) == ["['--steps', '3', '--mesh=x']"] * 2


def test_data_files_of_the_worker_package_travel_with_it(launch: Launch, script: Script) -> None:
    """To a private folder on the host: what a worker reads there must be the file, byte for byte."""
    text = (
        "import hashlib, pathlib, hostmesh\nfolder = pathlib.Path(hostmesh.__file__).parent / 'worker'\n"
        "assert 'hostmesh-' in str(folder)\n"
        "for file in sorted(folder.rglob('*.npz')):\n"
        "    print('RESULT', file.relative_to(folder), hashlib.sha256(file.read_bytes()).hexdigest())\n"
    )
    done = launch("--local", "1", script(text))
    files = sorted((REPO / "worker").rglob("*.npz"))
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    assert files and results(done.stdout) == [
        f"{file.relative_to(REPO / 'worker')} {digest}" for file, digest in zip(files, digests, strict=True)
    ]


def test_a_command_finds_its_identity_in_its_environment(launch: Launch) -> None:
    text = "echo RESULT $HOSTMESH_PROCESS_ID $HOSTMESH_NUM_PROCESSES $HOSTMESH_HOST $HOSTMESH_LOCAL_PROCESS_ID"
    done = launch("--local", "2", "--", "sh", "-c", text)
    assert results(done.stdout) == ["0 2 localhost 0", "1 2 localhost 1"]


@pytest.mark.slow
def test_a_python_command_can_join_too(launch: Launch, script: Script) -> None:
    done = launch("--local", "2", "--", sys.executable, script(JOIN.format(join="import hostmesh; hostmesh.join()")))
    assert results(done.stdout) == ["2 1 [0, 1]"] * 2, done.stdout


@WARM_AND_COLD
@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("import sys; sys.exit(7)", 7, None),
        ("import sys; sys.exit('gone wrong')", 1, "gone wrong"),
        ("raise SystemExit(300)", 300 & 0xFF, None),
        ("raise SystemExit(75)", 75, None),
        ("import os; os._exit(9)", 9, None),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137, None),
        ("def f(:", 1, "SyntaxError"),
        ("1/0", 1, "ZeroDivisionError: division by zero"),
    ],
)
@pytest.mark.quick("import sys; sys.exit(7)")
def test_exit_codes_are_pythons(
    launch: Launch, script: Script, how: list[str], text: str, code: int, said: str | None
) -> None:
    done = launch("--local", "2", *how, script(text))
    assert done.returncode == code, done.stdout + done.stderr
    assert said is None or said in done.stdout


@WARM_AND_COLD
def test_all_that_python_calls_success_is_success(launch: Launch, script: Script, how: list[str]) -> None:
    endings = [
        "print('end')",
        "print('end'); sys.exit()",
        "threading.Timer(0.2, print, ['late end']).start()",
        "print('half an end', end=''); sys.stdout.flush()",
    ]
    text = "".join(f"if os.environ['HOSTMESH_PROCESS_ID'] == '{k}': {ending}\n" for k, ending in enumerate(endings))
    done = launch("--local", str(len(endings)), *how, script("import os, sys, threading\n" + text))
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"[{k} localhost] {said}" for k, said in enumerate(("end", "end", "late end", "half an end"))
    ]


@WARM_AND_COLD
def test_a_traceback_shows_the_users_frames_only(launch: Launch, script: Script, how: list[str]) -> None:
    done = launch("--local", "2", *how, script("def f():\n    raise ValueError('x')\nf()\n"))
    assert "boot.py" not in done.stdout
    assert 'script.py", line 2, in f' in done.stdout


# Each process sets the variables of one group and imports jax in one of the forms.
LATE_VARIABLES = """
import json, os
import numpy
settings, form = json.loads(os.environ["CASES"])[int(os.environ["HOSTMESH_PROCESS_ID"])]
os.environ.update({name: value for name, value, _, _ in settings})
exec(form)
print("RESULT", json.dumps([form, [[name, str(eval(check))] for name, _, check, _ in settings]]), flush=True)
"""

IMPORTS = ["import jax", "from jax import numpy; import jax", "import jax.numpy as jnp; import jax"]
SETTINGS = [
    [
        ("JAX_ENABLE_X64", "1", "jax.numpy.arange(2).dtype", "int64"),
        ("JAX_NUM_CPU_DEVICES", "3", "jax.local_device_count()", "3"),
        ("JAX_DEFAULT_MATMUL_PRECISION", "highest", "jax.config.jax_default_matmul_precision", "highest"),
    ],
    [("XLA_FLAGS", "--xla_force_host_platform_device_count=4", "jax.local_device_count()", "4")],
]


@pytest.mark.newest
@WARM_AND_COLD
@pytest.mark.slow
def test_variables_set_before_the_scripts_own_import_count(launch: Launch, script: Script, how: list[str]) -> None:
    cases = [(settings, form) for settings in SETTINGS for form in IMPORTS]
    done = launch("--local", str(len(cases)), *how, script(LATE_VARIABLES), env={"CASES": json.dumps(cases)})
    wanted = [[form, [[name, value] for name, _, _, value in settings]] for settings, form in cases]
    assert sorted(map(json.loads, results(done.stdout))) == sorted(wanted), done.stdout + done.stderr


def test_a_variable_that_cannot_be_applied_ends_with_a_word_about_cold(launch: Launch, script: Script) -> None:
    text = "import os\nos.environ['JAX_FORCE_TPU_INIT'] = '1'\nimport jax\nprint('RESULT', 1)\n"
    done = launch("--local", "2", script(text))
    assert done.returncode == 1
    assert "JAX_FORCE_TPU_INIT" in done.stdout and "--cold" in done.stdout
    assert results(done.stdout) == []


@pytest.mark.slow
def test_a_worker_may_launch_something_itself(launch: Launch, script: Script) -> None:
    text = (
        "import os, subprocess, sys\nif os.environ['HOSTMESH_PROCESS_ID'] == '0':\n"
        f"    inner = [*{LAUNCH!r}, '--runs', 'inner', '--show', 'all', '--local', '2', '--']\n"
        "    subprocess.run([*inner, 'sh', '-c', 'echo RESULT $HOSTMESH_RUN_ID'], check=True)\n"
        "print('RESULT', os.environ['HOSTMESH_RUN_ID'])\n"
    )
    done = launch("--local", "2", script(text))
    assert done.returncode == 0, done.stdout
    runs = results(done.stdout)
    assert len(runs) == 4 and len(set(runs)) == 2


def test_warm_workers_differ_in_their_randomness(launch: Launch, script: Script) -> None:
    text = "import random, numpy.random\nprint('RESULT', random.random(), numpy.random.rand())\n"
    values = [value for line in results(launch("--local", "2", script(text)).stdout) for value in line.split()]
    assert len(set(values)) == 4


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("no_such_module", "ModuleNotFoundError"),
        ("json.no_such", "ModuleNotFoundError"),
        ("antigravity_hm", "KeyError: 5"),
    ],
)
@pytest.mark.quick("no_such_module")
def test_a_preload_that_fails_says_so_and_starts_cold(
    launch: Launch, script: Script, tmp_path: Path, module: str, said: str
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "antigravity_hm.py").write_text("raise KeyError(5)")
    (tmp_path / "c.yaml").write_text(
        f"transport: local\nhosts: [here]\nprocesses_per_host: 2\npreload: [{module}]\nrun: {{script: script.py}}\n"
    )
    script("print('RESULT fine')")
    done = launch("--hosts", "c.yaml", env={"PYTHONPATH": f"{REPO / 'src'}:{tmp_path / 'lib'}"})
    assert done.returncode == 0
    assert results(done.stdout) == ["fine"] * 2
    assert "no warm start on here" in done.stderr and said in done.stderr and "starting cold" in done.stderr


@pytest.mark.slow
def test_a_preloaded_package_built_on_jax_sees_late_variables(launch: Launch, script: Script, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "onjax.py").write_text("import jax\ndef kind(): return jax.numpy.arange(2).dtype\n")
    (tmp_path / "c.yaml").write_text(
        "transport: local\nhosts: [here]\nprocesses_per_host: 2\npreload: [onjax]\nrun: {script: script.py}\n"
    )
    script("import os\nos.environ['JAX_ENABLE_X64'] = 'true'\nimport onjax\nprint('RESULT', onjax.kind())\n")
    done = launch("--hosts", "c.yaml", env={"PYTHONPATH": f"{REPO / 'src'}:{tmp_path / 'lib'}"})
    assert results(done.stdout) == ["int64"] * 2, done.stdout


@WARM_AND_COLD
def test_spawned_children_of_a_worker_find_its_main_module(launch: Launch, script: Script, how: list[str]) -> None:
    """multiprocessing's spawn imports the script again, by its path; a data loader's workers start so."""
    text = (
        "import multiprocessing\ndef square(x): return x * x\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool: print('RESULT', pool.map(square, [3]))\n"
    )
    done = launch("--local", "2", *how, script(text))
    assert results(done.stdout) == ["[9]"] * 2, done.stdout


def test_warm_is_warm_and_cold_is_cold(start: Start, script: Script) -> None:
    name = script("pass")
    for how, warm in (([], True), (["--cold"], False)):
        run = start("--local", "2", *how, name)
        assert run.await_event("process started")["warm"] is warm
        assert run.wait() == 0
    assert start("--local", "1", name).await_event("process started")["warm"] is False


def test_the_run_folder_tells_the_whole_story(start: Start, script: Script) -> None:
    run = start("--local", "2", "--cold", script("print('hi')"))
    assert run.wait() == 0
    plan: dict[str, Any] = json.loads((run.run_folder / "plan.json").read_text())
    assert plan["run"] == run.id and plan["num_processes"] == 2
    lines = (run.run_folder / "events.jsonl").read_text().splitlines()
    names = [json.loads(line)["event"] for line in lines]
    assert names[0] == "run started" and names[-1] == "run ended" and names.count("process exited") == 2
    assert run.result["exit_code"] == 0 and run.result["exits"] == {"0": 0, "1": 0}
    assert [run.log(k) for k in range(2)] == [b"hi\n"] * 2
    assert not list(run.run_folder.rglob("*.partial"))


# Nobody waits for a step: they pile up, each with collectives of its own, on two devices of each process.
PILE_UP = """
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

jax.distributed.initialize()
mesh = Mesh(jax.devices(), "data")

def put(array, spec):
    return jax.make_array_from_callback(array.shape, NamedSharding(mesh, spec), lambda index: array[index])

@jax.jit
def step(weights, rows):
    def loss(weights):
        out = rows
        for weight in weights:
            out = jnp.tanh(out @ weight)
        return (out**2).mean()
    value, grads = jax.value_and_grad(loss)(weights)
    return [weight - 0.1 * grad for weight, grad in zip(weights, grads)], value

rows = put(np.ones((64, 64), np.float32), P("data"))
weights = [put(np.eye(64, dtype=np.float32), P()) for _ in range(4)]
for _ in range(60):
    weights, value = step(weights, rows)
print("the loss is", float(value))
"""


@pytest.mark.slow
def test_steps_that_pile_up_on_cpu_devices_do_not_lock_up(launch: Launch, script: Script) -> None:
    """On two cores they would, with the threads XLA takes by itself."""
    done = launch("--local", "4", "--devices", "2", script(PILE_UP), timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("the loss is") == 4


def test_the_threads_of_cpu_devices_may_be_set_by_the_user(launch: Launch, script: Script) -> None:
    program = script("import os\nprint('threads', os.environ.get('NPROC'))\n")
    assert "threads 5" in launch("--local", "1", program, env={"NPROC": "5"}).stdout
    assert "threads 40" in launch("--local", "1", "--devices", "10", program, env={"NPROC": ""}).stdout
