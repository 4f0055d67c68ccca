"""The test cluster's own files: safe by default, valid for both composes, and clear when Docker is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import REPO

FOLDER = REPO / "docker"
CLUSTER = FOLDER / "cluster.sh"
SCRIPTS = [*sorted(FOLDER.glob("*.sh")), *sorted((REPO / ".ci").iterdir())]
COMPOSES = [["docker-compose"], ["docker", "compose"]]


def read_compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    return found


def test_every_host_is_reached_from_this_machine_only_and_cannot_change_its_keys() -> None:
    services = read_compose()["services"]
    assert list(services) == [f"host-{k}" for k in range(4)]
    for name, service in services.items():
        assert service["hostname"] == name and service["init"] is True
        assert service["ports"] == ["127.0.0.1::22"]
        keys, shared = service["volumes"]
        assert keys.endswith(f"/{name}:/keys:ro") and shared == "shared:/shared"


def test_the_compose_file_has_no_key_that_one_of_the_composes_rejects() -> None:
    """1.29 does not know `name`; v2 complains of `version`."""
    assert set(read_compose()) == {"x-host", "services", "networks", "volumes"}


@pytest.mark.parametrize("compose", COMPOSES, ids=" ".join)
def test_compose_takes_the_file(compose: list[str]) -> None:
    if shutil.which(compose[0]) is None or subprocess.run([*compose, "version"], capture_output=True).returncode:
        pytest.skip(f"found no {' '.join(compose)}")
    done = subprocess.run(
        [*compose, "--file", FOLDER / "compose.yaml", "config", "--quiet"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_sshd_takes_keys_only_and_only_of_the_plain_user() -> None:
    lines = (FOLDER / "sshd_config").read_text().splitlines()
    wanted = {"PermitRootLogin no", "PasswordAuthentication no", "KbdInteractiveAuthentication no"}
    assert wanted | {"AllowUsers trainer"} <= set(lines)


def test_the_image_does_not_depend_on_the_tree() -> None:
    """A changed source file must not cost a build: code travels by sync."""
    copied = re.findall(r"^COPY (?:--from=\S+ )?(\S+)", (FOLDER / "Dockerfile").read_text(), re.MULTILINE)
    let_in = {line[1:] for line in (FOLDER / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert {name for name in copied if not name.startswith("/")} == let_in


def test_no_file_names_a_registry() -> None:
    files = [*SCRIPTS, *(path for path in FOLDER.iterdir() if path.is_file())]
    elsewhere = re.compile(r"https?://(?!127\.0\.0\.1|local\b)")
    assert [path.name for path in files if elsewhere.search(path.read_text())] == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_every_script_parses(path: Path) -> None:
    subprocess.run(["bash", "-n", path], check=True)


def run_cluster(tmp_path: Path, *args: str, docker: str | None = None) -> tuple[int, str]:
    """With nothing on PATH but the shell's tools and, if given, a stand-in for docker."""
    for tool in ("bash", "dirname", "sh"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    if docker is not None:
        (tmp_path / "docker").write_text(f"#!/bin/sh\n{docker}\n")
        (tmp_path / "docker").chmod(0o755)
    env = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run([CLUSTER, *args], env=env, capture_output=True, text=True, timeout=30)
    return done.returncode, done.stderr


def test_a_machine_without_docker_is_told_what_to_install(tmp_path: Path) -> None:
    code, said = run_cluster(tmp_path, "up")
    assert code == 1 and said.startswith("cluster: found no docker; install Docker")


def test_an_engine_that_does_not_answer_is_told_with_its_remedy(tmp_path: Path) -> None:
    code, said = run_cluster(tmp_path, "up", docker="echo 'is the docker daemon running?' >&2; exit 1")
    assert code == 1
    assert "no Docker engine answers: is the docker daemon running?" in said
    assert "systemctl start docker" in said


def test_a_missing_compose_is_told(tmp_path: Path) -> None:
    code, said = run_cluster(tmp_path, "up", docker='[ "$1" = version ] && echo 20.10 || exit 1')
    assert code == 1 and "found neither 'docker compose' nor docker-compose" in said


def test_an_unknown_command_is_told(tmp_path: Path) -> None:
    assert run_cluster(tmp_path, "upp") == (1, "cluster: wanted image, up, start, stop, down or clean, found 'upp'\n")
