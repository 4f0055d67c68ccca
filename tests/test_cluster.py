"""A cluster file is read whole, every problem at once, or frozen."""

from __future__ import annotations

import dataclasses
import os
import random
import re
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from conftest import busyness, clean_env

from hostmesh.launcher.cluster.file import read_cluster
from hostmesh.launcher.cluster.local import local_cluster
from hostmesh.launcher.cluster.model import Cluster, HangTimeout, Host, Job, Setup, Ssh, Sync
from hostmesh.launcher.errors import ClusterError, UsageError

CONFIGS = Path(__file__).parent.parent / "cluster_configs"
# `make cluster` writes files there too, for hosts that come and go.
SHIPPED = sorted(path for path in CONFIGS.glob("*.yaml") if not path.name.startswith("docker"))

FULL = """\
name: v5e-16
transport: ssh
hosts:
  - tpu-[0-1].example
  - {address: 34.1.2.3, internal_address: 10.0.0.9, user: me, port: 2222, processes: 2, python: /opt/python}
processes_per_host: 2
local_devices: [[0, 1], [2, 3]]
python: ~/venv/bin/python
agent_python: python3.11
ssh: {accept_new_host_keys: true, known_hosts: known, jump: "me@b:22,c", connect_timeout: 5, at_once: 8}
workdir: ~/job
sync: {from: src, exclude: [data/]}
setup: ["pip install -r requirements.txt"]
env: {JAX_PLATFORMS: cuda, SEED: 7, EMPTY: ""}
secrets: [WANDB_API_KEY]
preload: [numpy, orbax.checkpoint]
lease: 2.5
grace: 20
keep_going: true
restarts: 3
hang_timeout: 300
metrics: all
programs: off
run: {script: train.py, args: [--steps, 1000]}
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(text: str | bytes) -> None:
    Path("cluster.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())


def read(text: str | bytes) -> Cluster:
    write(text)
    return read_cluster("cluster.yaml")


def problems_of_path(path: str) -> list[str]:
    with pytest.raises(ClusterError) as caught:
        read_cluster(path)
    return caught.value.problems


def problems(text: str | bytes) -> list[str]:
    write(text)
    found = problems_of_path("cluster.yaml")
    assert all(problem.startswith("cluster.yaml:") for problem in found)
    return [problem.removeprefix("cluster.yaml:") for problem in found]


def addresses(entry: str) -> list[str]:
    return [host.address for host in read(f"hosts: [{entry!r}]").hosts]


def test_every_key_is_read() -> None:
    cluster = read(FULL)
    python = "~/venv/bin/python"
    assert cluster == Cluster(
        hosts=(
            Host("tpu-0.example", 2, python),
            Host("tpu-1.example", 2, python),
            Host("34.1.2.3", 2, "/opt/python", "me", 2222, "10.0.0.9"),
        ),
        name="v5e-16",
        transport="ssh",
        agent_python="python3.11",
        ssh=Ssh(True, str(Path("known").absolute()), jump="me@b:22,c", connect_timeout=5.0, at_once=8),
        workdir="~/job",
        sync=Sync("src", ("data/",)),
        setup=Setup(("pip install -r requirements.txt",)),
        env={"JAX_PLATFORMS": "cuda", "SEED": "7", "EMPTY": ""},
        secrets=("WANDB_API_KEY",),
        local_devices=((0, 1), (2, 3)),
        preload=("numpy", "orbax.checkpoint"),
        lease=2.5,
        grace=20.0,
        keep_going=True,
        restarts=3,
        hang_timeout=HangTimeout(300.0),
        metrics="all",
        programs="off",
        run=Job(script="train.py", args=("--steps", "1000")),
    )


def test_hosts_alone_are_enough() -> None:
    assert read("hosts: [a]") == Cluster((Host("a", 1),), name="cluster", transport="ssh")


@pytest.mark.parametrize("config", SHIPPED, ids=lambda path: path.name)
def test_shipped_configs_are_valid_and_short(config: Path) -> None:
    assert read_cluster(config).name == config.stem
    assert len(config.read_text().splitlines()) < 70


def test_there_are_shipped_configs() -> None:
    assert {path.name for path in SHIPPED} >= {"local.yaml", "tpu-pod.yaml", "gpu-nodes.yaml"}


@pytest.mark.parametrize("config", ["tpu-pod.yaml", "gpu-nodes.yaml"])
def test_what_a_shipped_config_only_suggests_is_valid_too(config: str) -> None:
    for name in ("id_ed25519", "ssh_config", "known_hosts"):
        Path(name).touch()
    text = (CONFIGS / config).read_text().replace("~/.ssh/id_ed25519", "id_ed25519")
    suggested = re.sub("# (?=(identity_files|known_hosts|config|jump|secrets): )", "", text)
    cluster = read(suggested)
    assert cluster.ssh.jump == "me@bastion.example:22" and cluster.secrets == ("WANDB_API_KEY",)
    assert None not in (cluster.ssh.config, cluster.ssh.known_hosts) and cluster.ssh.identity_files


def test_a_cluster_cannot_be_changed() -> None:
    cluster = read(FULL)
    with pytest.raises(dataclasses.FrozenInstanceError):
        cluster.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        cluster.env["A"] = "b"  # type: ignore[index]


def test_local_means_cpu_unless_env_says_otherwise() -> None:
    assert read("hosts: [a]\ntransport: local").env == {"JAX_PLATFORMS": "cpu"}
    assert read("hosts: [a]\ntransport: local\nenv: {JAX_PLATFORMS: cuda}").env == {"JAX_PLATFORMS": "cuda"}
    assert read("hosts: [a]").env == {}


def test_local_cluster_is_one_host_with_cpu_devices() -> None:
    assert local_cluster(4) == Cluster((Host("localhost", 4),), env={"JAX_PLATFORMS": "cpu"})


@pytest.mark.parametrize("processes", [0, -1, 1025])
def test_local_cluster_needs_a_sensible_number(processes: int) -> None:
    with pytest.raises(UsageError, match=f"^--local: found {processes}, wanted from 1 to 1024 processes$"):
        local_cluster(processes)


def test_yaml_is_imported_only_to_read_a_file() -> None:
    code = "import sys, hostmesh.launcher.cluster.local as c; c.local_cluster(2); sys.exit('yaml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=clean_env(), timeout=240).returncode == 0


@pytest.mark.parametrize(
    ("entry", "expanded"),
    [
        ("tpu-[0-3].example", ["tpu-0.example", "tpu-1.example", "tpu-2.example", "tpu-3.example"]),
        ("10.0.0.[08-11]", ["10.0.0.08", "10.0.0.09", "10.0.0.10", "10.0.0.11"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("gpu-[a,b]", ["gpu-a", "gpu-b"]),
        ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
        ("r[0-1]n[a,b].x", ["r0na.x", "r0nb.x", "r1na.x", "r1nb.x"]),
        ("n[5-5]", ["n5"]),
        ("fe80::1%eth0", ["fe80::1%eth0"]),
    ],
)
def test_brackets_stand_for_many_hosts(entry: str, expanded: list[str]) -> None:
    assert addresses(entry) == expanded


def test_a_mapping_with_a_range_gives_every_host_its_settings() -> None:
    cluster = read("hosts: [{address: 'n[0-1]', internal_address: '10.0.0.[4,9]', port: 2, processes: 3}]")
    assert cluster.hosts == (
        Host("n0", 3, port=2, internal_address="10.0.0.4"),
        Host("n1", 3, port=2, internal_address="10.0.0.9"),
    )


def test_ten_thousand_hosts_are_the_limit() -> None:
    assert len(addresses("n[1-10000]")) == 10_000
    assert problems("hosts: ['n[1-10000]', m]") == ["1: hosts: found 10001 hosts, wanted at most 10000"]


def test_a_huge_range_is_counted_and_not_expanded() -> None:
    started = time.process_time()
    entry = "n" + "[0-999999999]" * 15
    (problem,) = problems(f"hosts: ['{entry}']")
    assert problem == f"1: hosts: found {10**135} hosts, wanted at most 10000"
    (problem,) = problems(f"hosts: [{{address: a, internal_address: '{entry}'}}]")
    where = "1: hosts[0].internal_address"
    assert problem == f"{where}: found {10**135} addresses, wanted 1: one for each address"
    assert time.process_time() - started < 1 * busyness()


def test_whole_numbers_become_text_as_they_are_written() -> None:
    cluster = read("hosts: [a]\nenv: {A: 007, B: -1}\nrun: {module: m, args: [1_000, 3]}")
    assert cluster.env == {"A": "007", "B": "-1"}
    assert cluster.run == Job(module="m", args=("1_000", "3"))


def test_anchors_and_aliases_work() -> None:
    cluster = read("hosts:\n- {address: a, python: &py /opt/py}\n- {address: b, python: *py}")
    assert [host.python for host in cluster.hosts] == ["/opt/py", "/opt/py"]


def test_a_byte_order_mark_and_windows_lines_are_fine() -> None:
    assert read(b"\xef\xbb\xbfhosts:\r\n- a\r\n").hosts == (Host("a", 1),)


AN_ADDRESS = "a host name or address such as gpu-7 or gpu-[0-7]; user and port have keys of their own"
BRACKETS = "brackets with a rising range or a list, such as [0-3] or [a,b]"
A_NAME = "a name of letters, digits and _ that begins with neither a digit nor the reserved HOSTMESH_"
A_PATH = "a path on one line that does not begin with '-'"
A_WORD = "text in quotes (without NUL) or a whole number"
PROCESSES = "from 1 to 1024 processes"
HOST_KEYS = "address, internal_address, user, port, processes, python"
TPU = "one process on a TPU host: several need the TPU_* bounds variables, which are not supported yet"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "1: found an empty file, wanted a mapping with 'hosts'"),
        ("# only a comment\n", "1: found an empty file, wanted a mapping with 'hosts'"),
        (b"hosts: [a]\nname: \xff\n", "2: found bytes that are no UTF-8, wanted UTF-8 text"),
        ("hosts: [a]\nname: x\0y\n", "2: not valid YAML: special characters are not allowed"),
        ('hosts: [a]\nname: "\\UFFFFFFFF"\n', re.compile("2: not valid YAML: .+")),
        (
            "name: a\nhosts: [a\n",
            re.compile(r"3: not valid YAML: while parsing a flow sequence, expected ',' or .*"),
        ),
        ("hosts: [*nowhere]", "1: not valid YAML: found undefined alias 'nowhere'"),
        ("hosts: [a]\n---\nhosts: [b]", re.compile("2: not valid YAML: expected a single document .*")),
        ("name: a\n" + "[" * 5000, re.compile("2: .*")),
        ("hosts: " + "[" * 5000, "1: found lists or mappings nested too deeply to be read"),
    ],
)
def test_an_unreadable_text_is_one_problem(text: str | bytes, problem: str | re.Pattern[str]) -> None:
    (found,) = problems(text)
    assert problem.fullmatch(found) if isinstance(problem, re.Pattern) else found == problem


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("nowhere.yaml", "no such file or directory"),
        (".", "is a directory"),
        ("x" * 300, "file name too long"),
    ],
)
def test_a_path_that_is_no_file_is_named(path: str, reason: str) -> None:
    assert problems_of_path(path) == [f"{path}: {reason}; wanted a cluster YAML file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_named() -> None:
    Path("cluster.yaml").touch(mode=0)
    assert problems_of_path("cluster.yaml") == ["cluster.yaml: permission denied; wanted a cluster YAML file"]


def test_an_endless_file_is_refused() -> None:
    wanted = "/dev/zero: found more than 1048576 bytes, wanted a cluster YAML file"
    assert problems_of_path("/dev/zero") == [wanted]


@pytest.mark.parametrize("top", ["[a, b]", "just text", "5", "---"])
def test_the_top_must_be_a_mapping(top: str) -> None:
    (problem,) = problems(top)
    kinds = {
        "[a, b]": "a list",
        "just text": "'just text' (text)",
        "5": "5 (a whole number)",
        "---": "nothing",
    }
    assert problem.startswith(f"1: found {kinds[top]}, wanted a mapping with keys from name, transport,")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name: a", "1: missing key 'hosts'"),
        ("hosts: []", "1: hosts: found an empty list, wanted a list of hosts: 1 to 10000 of them"),
        ("hosts:", "1: hosts: found nothing, wanted a list of hosts"),
        ("hosts: gpu-a", "1: hosts: found 'gpu-a' (text), wanted a list of hosts"),
        (
            "hosts:\n- a\n- 5",
            "3: hosts[1]: found 5 (a whole number), wanted an address or a mapping with an address",
        ),
        ("hosts: [[a]]", "1: hosts[0]: found a list, wanted an address or a mapping with an address"),
        ("hosts: [{port: 22}]", "1: hosts[0]: missing key 'address'"),
        ("hosts: [{}]", "1: hosts[0]: missing key 'address'"),
        ("hosts: [{address: 5}]", f"1: hosts[0].address: found 5 (a whole number), wanted {AN_ADDRESS}"),
        ("hosts:\n- a\n- b\n- a", "4: hosts[2]: host a is already on line 2"),
        ("hosts:\n- n[0-3]\n- {address: n2}", "3: hosts[1]: host n2 is already on line 2"),
        (
            "hosts: [a, {address: b, port: 1}, {address: b, port: 1}]",
            "1: hosts[2]: host b is already on line 1",
        ),
        (
            "hosts:\n- address: n[0-3]\n  internal_address: m[0-2]",
            "3: hosts[0].internal_address: found 3 addresses, wanted 4: one for each address",
        ),
    ],
)
def test_hosts_must_be_a_list_of_different_addresses(text: str, problem: str) -> None:
    assert problems(text) == [problem]


def test_one_address_may_serve_several_ports() -> None:
    assert len(read("hosts: [{address: a, port: 1}, {address: a, port: 2}, a]").hosts) == 3


@pytest.mark.parametrize(
    ("entry", "wanted"),
    [
        ("", AN_ADDRESS),
        ("a b", AN_ADDRESS),
        ("a\\n", AN_ADDRESS),
        ("a\\0", AN_ADDRESS),
        ("-oProxyCommand=x", AN_ADDRESS),
        ("-[1-2]", AN_ADDRESS),
        ("me@a", AN_ADDRESS),
        ("a:22", AN_ADDRESS),
        ("a,b", AN_ADDRESS),
        ("$(x)", AN_ADDRESS),
        ("{0}", AN_ADDRESS),
        ("n[0-3", AN_ADDRESS),
        ("n0-3]", AN_ADDRESS),
        ("n[[0-3]]", AN_ADDRESS),
        ("n[3-1]", BRACKETS),
        ("n[]", BRACKETS),
        ("n[1,]", BRACKETS),
        ("n[1, 2]", BRACKETS),
        ("n[1-]", BRACKETS),
        ("n[a-c]", BRACKETS),
        ("n[0-9999999999]", BRACKETS),
        ("[-o]", BRACKETS),
        ("n[{0}]", BRACKETS),
    ],
)
def test_a_bad_address_is_refused(entry: str, wanted: str) -> None:
    shown = entry.replace("\\0", "\\x00")
    text = f'hosts:\n- ok\n- "{entry}"\n- address: also-ok\n  internal_address: "{entry}"'
    assert problems(text) == [
        f"3: hosts[1]: found '{shown}', wanted {wanted}",
        f"5: hosts[2].internal_address: found '{shown}', wanted {wanted}",
    ]


def test_a_line_break_inside_brackets_is_refused() -> None:
    assert problems('hosts: ["n[0\\n]"]') == [f"1: hosts[0]: found 'n[0\\n]', wanted {AN_ADDRESS}"]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("port: 70000", "port: found 70000, wanted a port from 1 to 65535"),
        ("port: 0", "port: found 0, wanted a port from 1 to 65535"),
        ("port: -1", "port: found -1, wanted a port from 1 to 65535"),
        ("port: 0x16", "port: found 0x16, wanted a port from 1 to 65535"),
        ("port: 022", "port: found 022, wanted a port from 1 to 65535"),
        (f"port: {'9' * 5000}", f"port: found {'9' * 57}..., wanted a port from 1 to 65535"),
        ('port: "22"', "port: found '22' (text), wanted a port from 1 to 65535"),
        ("port: 22.5", "port: found 22.5 (a number), wanted a port from 1 to 65535"),
        ("port: !!int a", "port: found a, wanted a port from 1 to 65535"),
        ("processes: 0", f"processes: found 0, wanted {PROCESSES}"),
        ("processes: -2", f"processes: found -2, wanted {PROCESSES}"),
        ("processes: yes", f"processes: found yes (a boolean), wanted {PROCESSES}"),
        ("user: 5", "user: found 5 (a whole number), wanted a user name"),
        ("user: -l", "user: found '-l', wanted a user name"),
        ("user: ''", "user: found '', wanted a user name"),
        ("python: [a]", f"python: found a list, wanted {A_PATH}"),
        ("python: ''", f"python: found '', wanted {A_PATH}"),
        ("internal_address: {}", f"internal_address: found a mapping, wanted {AN_ADDRESS}"),
    ],
)
def test_a_hosts_settings_are_checked(settings: str, problem: str) -> None:
    assert problems(f"hosts:\n- address: a\n  {settings}") == [f"3: hosts[0].{problem}"]


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("name: 5", "name: found 5 (a whole number), wanted text on one line"),
        ("name: no", "name: found no (a boolean), wanted text on one line"),
        ("name: 2024-01-01", "name: found 2024-01-01 (a date), wanted text on one line"),
        (
            "name: !!python/name:os.system ''",
            "name: found  (tagged python/name:os.system), wanted text on one line",
        ),
        ('name: "a\\0b"', "name: found 'a\\x00b', wanted text on one line"),
        ('name: "a\\ud800"', "name: found 'a\\ud800', wanted text on one line"),
        ("transport: shh", "transport: found 'shh', wanted one of local, ssh, docker, slurm, kubernetes"),
        ("transport: [ssh]", "transport: found a list, wanted one of local, ssh, docker, slurm, kubernetes"),
        ("processes_per_host: true", f"processes_per_host: found true (a boolean), wanted {PROCESSES}"),
        ("processes_per_host: 0", f"processes_per_host: found 0, wanted {PROCESSES}"),
        ("processes_per_host: -1", f"processes_per_host: found -1, wanted {PROCESSES}"),
        ("processes_per_host: 2000", f"processes_per_host: found 2000, wanted {PROCESSES}"),
        ("python: 3.11", f"python: found 3.11 (a number), wanted {A_PATH}"),
        ("agent_python: {}", f"agent_python: found a mapping, wanted {A_PATH}"),
        ("agent_python: -c", f"agent_python: found '-c', wanted {A_PATH}"),
        ("workdir: ", f"workdir: found nothing, wanted {A_PATH}"),
        ("workdir: '~'", None),
        ("sync: src\nworkdir: w", "sync: found 'src' (text), wanted a mapping with keys from from, exclude"),
        ("sync: {from: 1}\nworkdir: w", f"sync.from: found 1 (a whole number), wanted {A_PATH}"),
        ("sync: {exclude: data/}\nworkdir: w", "sync.exclude: found 'data/' (text), wanted a list of patterns"),
        ("sync: {exclude: [a, 1]}\nworkdir: w", "sync.exclude[1]: found 1 (a whole number), wanted text on one line"),
        ("setup: make", "setup: found 'make' (text), wanted a list of commands"),
        ("setup: [make, 1]", "setup[1]: found 1 (a whole number), wanted text on one line"),
        ("env: [A]", "env: found a list, wanted a mapping of names to text"),
        ("env: {A-B: c}", f"env: found 'A-B', wanted {A_NAME}"),
        ("env: {1A: c}", f"env: found '1A', wanted {A_NAME}"),
        ("env: {'': c}", f"env: found '', wanted {A_NAME}"),
        ("env: {HOSTMESH_RUN: c}", f"env: found 'HOSTMESH_RUN', wanted {A_NAME}"),
        ("env: {NO: c}", "env: found NO (a boolean), wanted text as a key; put it in quotes"),
        ("env: {[a]: c}", "env: found a list, wanted text as a key; put it in quotes"),
        ("env: {A: true}", f"env.A: found true (a boolean), wanted {A_WORD}"),
        ("env: {A: 0.5}", f"env.A: found 0.5 (a number), wanted {A_WORD}"),
        ("env: {A: }", f"env.A: found nothing, wanted {A_WORD}"),
        ("env: {A: [b]}", f"env.A: found a list, wanted {A_WORD}"),
        ('env: {A: "b\\0"}', f"env.A: found 'b\\x00', wanted {A_WORD}"),
        ("env: {A: b, A: c}", "env: duplicate key 'A'; it is already on line 2"),
        ("secrets: KEY", "secrets: found 'KEY' (text), wanted a list of environment names"),
        ("secrets: [a b]", f"secrets[0]: found 'a b', wanted {A_NAME}"),
        ("secrets: [HOSTMESH_KEY]", f"secrets[0]: found 'HOSTMESH_KEY', wanted {A_NAME}"),
        ("secrets: [{KEY: value}]", f"secrets[0]: found a mapping, wanted {A_NAME}"),
        ("metrics: some", "metrics: found 'some', wanted 0 (those of process 0) or all"),
        ("programs: maybe", "programs: found 'maybe', wanted one of stop, warn, off"),
        ("programs: no", "programs: found no, wanted one of stop, warn, off"),
        ("metrics: 1", "metrics: found 1, wanted 0 (those of process 0) or all"),
        ("preload: numpy", "preload: found 'numpy' (text), wanted a list of modules"),
        ("preload: [a-b]", "preload[0]: found 'a-b', wanted a dotted name such as package.module"),
        ("lease: 0.5", "lease: found 0.5, wanted 1 second or more"),
        ("lease: .nan", "lease: found .nan, wanted 1 second or more"),
        ("lease: .inf", "lease: found .inf, wanted 1 second or more"),
        ("lease: 10s", "lease: found '10s' (text), wanted 1 second or more"),
        ("lease: true", "lease: found true (a boolean), wanted 1 second or more"),
        ("restarts: -1", "restarts: found -1, wanted a whole number, 0 or more"),
        ("restarts: 1.5", "restarts: found 1.5 (a number), wanted a whole number, 0 or more"),
        ("restarts: false", "restarts: found false (a boolean), wanted a whole number, 0 or more"),
        ("grace: 0", "grace: found 0, wanted more than 0 seconds"),
        ("grace: 20s", "grace: found '20s' (text), wanted more than 0 seconds"),
        ("keep_going: 1", "keep_going: found 1 (a whole number), wanted true or false"),
        ("keep-going: true", "unknown key 'keep-going'; nearest is 'keep_going'"),
        ("hang_timeout: -3.5", "hang_timeout: found -3.5, wanted 0 seconds (never) or more"),
        ("hang_timeout: 5:00", "hang_timeout: found 5:00, wanted 0 seconds (never) or more"),
        ("hang_timeout: off", "hang_timeout: found off (a boolean), wanted 0 seconds (never) or more"),
        ("hang_timeout: {step: soon}", "hang_timeout.step: found 'soon' (text), wanted 0 seconds (never) or more"),
        ("hang_timeout: [5]", "hang_timeout: found a list, wanted 0 seconds (never) or more"),
        ("<<: {name: a}", "merge keys ('<<') are not supported; write the keys out"),
        ("5: a", "found 5 (a whole number), wanted text as a key; put it in quotes"),
        ("hosts: [b]", "duplicate key 'hosts'; it is already on line 1"),
    ],
)
def test_a_clusters_settings_are_checked(setting: str, problem: str | None) -> None:
    text = f"hosts: [a]\n{setting}"
    if problem is None:
        read(text)
    else:
        assert problems(text) == [f"2: {problem}"]


A_MODULE = "a dotted name such as package.module"
ONE_OF = "exactly one of script, module, command"


@pytest.mark.parametrize(
    ("run", "problem"),
    [
        (
            "train.py",
            "run: found 'train.py' (text), wanted a mapping with keys from script, module, command, args",
        ),
        ("{}", f"run: found none, wanted {ONE_OF}"),
        ("{args: [a]}", f"run: found none, wanted {ONE_OF}"),
        ("{script: a.py, module: b}", f"run: found script and module, wanted {ONE_OF}"),
        ("{script: 5}", f"run.script: found 5 (a whole number), wanted {A_PATH}"),
        ("{script: -c}", f"run.script: found '-c', wanted {A_PATH}"),
        ("{module: train.py/x}", f"run.module: found 'train.py/x', wanted {A_MODULE}"),
        ("{module: a..b}", f"run.module: found 'a..b', wanted {A_MODULE}"),
        ("{module: [a]}", f"run.module: found a list, wanted {A_MODULE}"),
        ("{command: make all}", "run.command: found 'make all' (text), wanted a program and its arguments"),
        (
            "{command: []}",
            "run.command: found an empty list, wanted a program and its arguments: 1 to 10000 of them",
        ),
        (
            "{command: [make, 2]}",
            "run.command[1]: found 2 (a whole number), wanted text without NUL characters",
        ),
        ("{script: a.py, args: --x}", "run.args: found '--x' (text), wanted a list of arguments"),
        ("{script: a.py, args: [0.1]}", f"run.args[0]: found 0.1 (a number), wanted {A_WORD}"),
        ("{script: a.py, args: [true]}", f"run.args[0]: found true (a boolean), wanted {A_WORD}"),
        ("{script: a.py, arg: [a]}", "run: unknown key 'arg'; nearest is 'args'"),
    ],
)
def test_run_is_one_thing_with_arguments(run: str, problem: str) -> None:
    assert problems(f"hosts: [a]\nrun: {run}") == [f"2: {problem}"]


DEVICES = "auto or a list with one list of device ids for each process"
DEVICE = "a device id, 0 or more"


@pytest.mark.parametrize(
    ("devices", "problem"),
    [
        ("all", f"local_devices: found 'all', wanted {DEVICES}"),
        ("4", f"local_devices: found 4 (a whole number), wanted {DEVICES}"),
        ("[]", f"local_devices: found an empty list, wanted {DEVICES}: 1 to 1024 of them"),
        ("[[0], 1]", "local_devices[1]: found 1 (a whole number), wanted device ids"),
        ("[[0], []]", "local_devices[1]: found an empty list, wanted device ids: 1 to 64 of them"),
        ("[[0], [-1]]", f"local_devices[1][0]: found -1, wanted {DEVICE}"),
        ("[[0], [true]]", f"local_devices[1][0]: found true (a boolean), wanted {DEVICE}"),
        ("[[0], ['1']]", f"local_devices[1][0]: found '1' (text), wanted {DEVICE}"),
        ("[[0], [1, 0]]", "local_devices: found device 0 2 times, wanted each device once on a host"),
        ("[[0]]", "local_devices: found 1 lists of devices, wanted 2: one for each process on a"),
    ],
)
def test_local_devices_fit_the_processes(devices: str, problem: str) -> None:
    assert problems(f"hosts: [a]\nprocesses_per_host: 2\nlocal_devices: {devices}") == [f"3: {problem}"]


def test_local_devices_fit_every_host() -> None:
    text = "hosts: [a, {address: b, processes: 3}]\nprocesses_per_host: 2\nlocal_devices: [[0], [1]]"
    wanted = "3: local_devices: found 2 lists of devices, wanted 3: one for each process on b"
    assert problems(text) == [wanted]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("proceses_per_host: 4", "unknown key 'proceses_per_host'; nearest is 'processes_per_host'"),
        ("sync: {form: .}\nworkdir: w", "sync: unknown key 'form'; nearest is 'from'"),
        ("sync: {zzz: .}\nworkdir: w", "sync: unknown key 'zzz'; valid keys are from, exclude"),
    ],
)
def test_an_unknown_key_gets_the_nearest_one(text: str, problem: str) -> None:
    assert problems(f"name: a\nhosts: [a]\n{text}") == [f"3: {problem}"]


def test_an_unknown_key_of_a_host_gets_the_nearest_one() -> None:
    text = "hosts:\n- address: a\n  prot: 22\n- address: b\n  zzzz: 1"
    assert problems(text) == [
        "3: hosts[0]: unknown key 'prot'; nearest is 'port'",
        f"5: hosts[1]: unknown key 'zzzz'; valid keys are {HOST_KEYS}",
    ]


def test_local_processes_are_not_synced() -> None:
    text = "transport: local\nhosts: [a]\nsync: {from: .}"
    assert problems(text) == ["3: sync: local processes run in place; remove sync"]


def test_what_is_synced_lands_in_a_workdir() -> None:
    wanted = "a workdir beside it: where on the hosts the code lands"
    assert problems("hosts: [a]\nsync: {from: .}") == [f"2: sync: found no workdir, wanted {wanted}"]


def test_relative_ssh_files_begin_at_the_cluster_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not where launch is started."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("conf/keys/id", "conf/hosts", "conf/ssh_config", "home/.ssh/id"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    ssh = "{identity_files: [keys/id, ~/.ssh/id], known_hosts: ../conf/hosts, config: ssh_config}"
    Path("conf/cluster.yaml").write_text(f"hosts: [a]\nssh: {ssh}")
    assert read_cluster("conf/cluster.yaml").ssh == Ssh(
        known_hosts=f"{tmp_path}/conf/hosts",
        identity_files=(f"{tmp_path}/conf/keys/id", f"{tmp_path}/home/.ssh/id"),
        config=f"{tmp_path}/conf/ssh_config",
    )


def test_one_identity_file_needs_no_list(tmp_path: Path) -> None:
    Path("id").touch()
    assert read("hosts: [a]\nssh: {identity_files: id}").ssh.identity_files == (f"{tmp_path}/id",)


def test_no_ssh_file_at_all_may_be_meant() -> None:
    ssh = read("hosts: [a]\nssh: {config: /dev/null, known_hosts: /dev/null}").ssh
    assert (ssh.config, ssh.known_hosts) == ("/dev/null", "/dev/null")


def test_known_hosts_may_be_missing_only_when_new_keys_are_accepted(tmp_path: Path) -> None:
    found = read("hosts: [a]\nssh: {known_hosts: new, accept_new_host_keys: true}").ssh
    assert found.known_hosts == f"{tmp_path}/new"
    for accept in ("", ", accept_new_host_keys: false"):
        (problem,) = problems(f"hosts: [a]\nssh: {{known_hosts: new{accept}}}")
        assert problem == f"2: ssh.known_hosts: found 'new', wanted {A_FILE} '{tmp_path}/new'"
    (problem,) = problems("hosts: [a]\nssh: {known_hosts: ., accept_new_host_keys: true}")
    assert problem == f"2: ssh.known_hosts: found '.', wanted {A_FILE} '{tmp_path}'"


@pytest.mark.parametrize(("text", "value"), [("true", True), ("True", True), ("yes", True), ("off", False)])
def test_a_boolean_is_what_yaml_says_it_is(text: str, value: bool) -> None:
    assert read(f"hosts: [a]\nssh: {{accept_new_host_keys: {text}}}").ssh.accept_new_host_keys is value


A_FILE = "a file that can be read; there is none at"
HOPS = "jump hosts such as me@bastion:22, with commas between them"


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("accept_new_host_keys: 1", "accept_new_host_keys: found 1 (a whole number), wanted true or false"),
        ("accept_new_host_keys: 'true'", "accept_new_host_keys: found 'true' (text), wanted true or false"),
        ("accept_new_host_keys: !!bool maybe", "accept_new_host_keys: found maybe, wanted true or false"),
        ("accept_new_host_keys:", "accept_new_host_keys: found nothing, wanted true or false"),
        ("config: nowhere", f"config: found 'nowhere', wanted {A_FILE} '{{folder}}/nowhere'"),
        ("config: .", f"config: found '.', wanted {A_FILE} '{{folder}}'"),
        ('config: "a\\e[2J"', f"config: found 'a\\x1b[2J', wanted {A_FILE} '{{folder}}/a\\x1b[2J'"),
        ("config: 5", f"config: found 5 (a whole number), wanted {A_PATH}"),
        ("known_hosts: [a]", f"known_hosts: found a list, wanted {A_PATH}"),
        ("identity_files: no", "identity_files: found no (a boolean), wanted a file or a list of files"),
        ("identity_files: id", f"identity_files: found 'id', wanted {A_FILE} '{{folder}}/id'"),
        ("identity_files: [id]", f"identity_files[0]: found 'id', wanted {A_FILE} '{{folder}}/id'"),
        ("jump: -oProxyCommand=x", f"jump: found '-oProxyCommand=x', wanted {HOPS}"),
        ("jump: me@-x", f"jump: found 'me@-x', wanted {HOPS}"),
        ("jump: a b", f"jump: found 'a b', wanted {HOPS}"),
        ("jump: a,", f"jump: found 'a,', wanted {HOPS}"),
        ("jump: 'a:70000,b'", f"jump: found 'a:70000,b', wanted {HOPS}"),
        ("jump: [a]", f"jump: found a list, wanted {HOPS}"),
        ("connect_timeout: 0.5", "connect_timeout: found 0.5, wanted from 1 to 600 seconds"),
        ("connect_timeout: 601", "connect_timeout: found 601, wanted from 1 to 600 seconds"),
        ("at_once: 0", "at_once: found 0, wanted from 1 to 1000 connections"),
        ("at_once: 1001", "at_once: found 1001, wanted from 1 to 1000 connections"),
    ],
)
def test_ssh_settings_are_checked(setting: str, problem: str, tmp_path: Path) -> None:
    wanted = problem.replace("{folder}", str(tmp_path))
    assert problems(f"hosts: [a]\nssh:\n  {setting}") == [f"3: ssh.{wanted}"]


def test_an_unknown_ssh_key_gets_the_nearest_one() -> None:
    assert problems("hosts: [a]\nssh: {idenity_file: a}") == [
        "2: ssh: unknown key 'idenity_file'; nearest is 'identity_files'"
    ]
    (problem,) = problems("hosts: [a]\nssh: yes")
    assert problem.startswith("2: ssh: found yes (a boolean), wanted a mapping with keys from accept_new_host_keys,")


@pytest.mark.parametrize("jump", ["b", "me@b", "b:22", "me@b:22,you@c.d-e:65535", "me@[fe80::1%eth0]:22", "10.0.0.1"])
def test_jump_hosts_have_users_and_ports(jump: str) -> None:
    assert read(f"hosts: [a]\nssh: {{jump: '{jump}'}}").ssh.jump == jump


@pytest.mark.parametrize("transport", ["local", "docker", "kubernetes"])
def test_ssh_settings_are_for_ssh(transport: str) -> None:
    text = f"transport: {transport}\nhosts: [a]\nssh: {{at_once: 4}}"
    assert problems(text) == [f"3: ssh: transport {transport} does not use SSH; remove ssh"]


def test_containers_have_names_and_no_ports() -> None:
    text = "transport: docker\nhosts:\n- a\n- address: b-[1-2]\n  port: 22"
    assert problems(text) == ["5: hosts[1].port: docker reaches a container by its name; remove port"]
    cluster = read("transport: docker\nhosts: [{address: a_1, internal_address: 10.0.0.2, user: me}]")
    assert cluster.hosts == (Host("a_1", 1, user="me", internal_address="10.0.0.2"),)


def test_local_processes_may_be_set_up() -> None:
    assert read("transport: local\nhosts: [a]\nsetup: [make]").setup == Setup(("make",))


def test_a_setup_may_name_what_it_depends_on() -> None:
    text = "hosts: [a]\nworkdir: w\nsync: {from: .}\nsetup:\n  run: [make, make install]\n  inputs: [requirements.txt]"
    assert read(text).setup == Setup(("make", "make install"), ("requirements.txt",))
    assert read("hosts: [a]\nsetup: {run: [make]}").setup == Setup(("make",))


@pytest.mark.parametrize(
    "setup, problem",
    [
        ("{inputs: [a]}", "2: setup: missing key 'run'"),
        ("{run: make}", "2: setup.run: found 'make' (text), wanted a list of commands"),
        ("{run: [make], input: [a]}", "2: setup: unknown key 'input'; nearest is 'inputs'"),
        ("{run: [make], inputs: []}", None),
        ("{run: [make], inputs: [a]}", "2: setup.inputs: found no sync, wanted a sync beside it: inputs are among"),
    ],
)
def test_a_setup_that_makes_no_sense_is_told(setup: str, problem: str | None) -> None:
    found = problems(f"hosts: [a]\nsetup: {setup}")
    assert any(line.startswith(problem or "2: setup.inputs: found an empty list, wanted") for line in found), found


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"])
def test_the_visible_devices_are_said_once(name: str) -> None:
    (problem,) = problems(f"hosts: [a]\nlocal_devices: [[0, 1]]\nenv: {{{name}: '2,3'}}")
    wanted = "either this or local_devices, which sets it for each process"
    assert problem == f"3: env.{name}: found '2,3', wanted {wanted}"
    assert read(f"hosts: [a]\nenv: {{{name}: '2,3'}}").env == {name: "2,3"}


def test_a_secret_is_not_also_in_env() -> None:
    text = "hosts: [a]\nenv: {KEY: x}\nsecrets:\n- OTHER\n- KEY"
    assert problems(text) == ["5: secrets[1]: found 'KEY', wanted a name that env does not set as well"]


@pytest.mark.parametrize("platforms", ["tpu", "tpu,cpu"])
@pytest.mark.parametrize("hosts", ["[a, {address: b, processes: 4}]", "[b]\nprocesses_per_host: 4"])
def test_several_processes_on_a_tpu_host_are_refused(platforms: str, hosts: str) -> None:
    text = f'env:\n  JAX_PLATFORMS: "{platforms}"\nhosts: {hosts}'
    found = f"'{platforms}' with 4 processes on b"
    assert problems(text) == [f"2: env.JAX_PLATFORMS: found {found}, wanted {TPU}"]


def test_every_problem_is_reported_in_one_go() -> None:
    text = """\
transport: local
name: [a]
proceses_per_host: 4
hosts:
- -oProxyCommand=x
- address: gpu-a
  port: 70000
- gpu-b
- gpu-b
processes_per_host: 0
sync: {}
env: {A-B: true, JAX_PLATFORMS: tpu}
secrets: [JAX_PLATFORMS, 5]
run: {module: a-b, args: [0.5]}
name: b
"""
    assert problems(text) == [
        "2: name: found a list, wanted text on one line",
        "3: unknown key 'proceses_per_host'; nearest is 'processes_per_host'",
        f"5: hosts[0]: found '-oProxyCommand=x', wanted {AN_ADDRESS}",
        "7: hosts[1].port: found 70000, wanted a port from 1 to 65535",
        "9: hosts[3]: host gpu-b is already on line 8",
        f"10: processes_per_host: found 0, wanted {PROCESSES}",
        "11: sync: local processes run in place; remove sync",
        f"12: env: found 'A-B', wanted {A_NAME}",
        f"12: env.A-B: found true (a boolean), wanted {A_WORD}",
        f"13: secrets[1]: found 5 (a whole number), wanted {A_NAME}",
        f"14: run.module: found 'a-b', wanted {A_MODULE}",
        f"14: run.args[0]: found 0.5 (a number), wanted {A_WORD}",
        "15: duplicate key 'name'; it is already on line 2",
    ]


def test_a_problem_line_cannot_forge_another() -> None:
    (problem,) = problems('hosts: [a]\nenv: {"X\\ncluster.yaml:9: \\e[2J": true}')[:1]
    assert problem.startswith("2: env: found 'X\\ncluster.yaml:9: \\x1b[2J'")


# Each letter is a list of nine of the letter before it: spelt out, the last holds 9**20 items.
NESTED = "a: &a [x]\n" + "".join(
    f"{new}: &{new} [{f'*{old},' * 9}]\n" for old, new in pairwise("abcdefghijklmnopqrstu")
)
BAD_KEYS = ", ".join(f"k{number}: 1" for number in range(1000))


@pytest.mark.parametrize(
    "text",
    [
        NESTED,
        NESTED + "hosts: [a]\n? *u\n: 1\n",
        f"hosts: [&h {{{BAD_KEYS}}}{', *h' * 9000}]",
        f"hosts: [a]\nlocal_devices: [&d [{'0,' * 64}]{', *d' * 1000}]",
        f"hosts: [a]\nlocal_devices: [&d [{'x,' * 64}]{', *d' * 1000}]",
        "hosts: &h [*h, *h]",
        "hosts: [&h 'n[1-9999]', " + "*h, " * 5000 + "]",
        "hosts: [a]\nenv:\n" + "".join(f"  k{number}: 1.5\n" for number in range(20_000)),
    ],
    ids=["nested", "nested key", "hosts", "devices", "bad devices", "itself", "ranges", "many keys"],
)
def test_a_bomb_is_a_short_error(text: str) -> None:
    started = time.process_time()
    assert len(problems(text)) <= 1001
    assert time.process_time() - started < 10 * busyness()


SCALARS = [
    "",
    "true",
    "-1",
    "0",
    "[]",
    "{}",
    "[",
    "'",
    "&a",
    "*a",
    "!!int x",
    "\t",
    "\0",
    "n[",
    "<<",
    "1.5",
    "é",
    "\ud7ff",
]


def mutate(lines: list[str], choose: random.Random) -> list[str]:
    at = choose.randrange(len(lines))
    replacement = choose.choice(SCALARS)
    words = re.split(r"([\s,:\[\]{}]+)", lines[at])
    words[choose.randrange(len(words))] = replacement
    line, reworded = lines[at], "".join(words)
    changed = choose.choice([[], [reworded], [replacement], [line, line], [line + replacement]])
    return lines[:at] + changed + lines[at + 1 :]


def test_a_mutated_file_is_a_cluster_or_a_cluster_error() -> None:
    started = time.process_time()
    outcomes: set[type] = set()
    for seed in range(300):
        choose = random.Random(seed)
        lines = FULL.splitlines()
        for _ in range(choose.randint(1, 3)):
            lines = mutate(lines, choose)
        try:
            outcomes.add(type(read("\n".join(lines))))
        except ClusterError as error:
            assert all(re.match(r"cluster\.yaml:\d+: \S", problem) for problem in error.problems)
            outcomes.add(ClusterError)
    assert outcomes == {Cluster, ClusterError}
    assert time.process_time() - started < 20 * busyness()
