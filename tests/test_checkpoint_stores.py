"""Checkpoints in object stores, on real servers: as in a folder, and a store that fails is told in one line."""

from __future__ import annotations

import getpass
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_stores import Store
from conftest import HANGS, LAUNCH, Launch, clean_env
from test_paths import StorePath

import hostmesh
from hostmesh.worker.errors import CheckpointError
from hostmesh.worker.saving.stores import url
from hostmesh.worker.saving.stores.bucket import Bucket
from hostmesh.worker.saving.stores.epaths import open_objects
from hostmesh.worker.saving.stores.objects import explain
from hostmesh.worker.saving.stores.url import StoreUrl

JOB = ("--steps", "40", "--batch-size", "32", "--checkpoint-every", "10")
# What one program does with a checkpoint, told on stdin a word at a time; it answers each with a line.
PROGRAM = """
import sys
import jax.numpy as jnp
import hostmesh
from hostmesh.worker.errors import CheckpointError
from hostmesh.worker.saving import ownership

kept = None
for line in sys.stdin:
    word, *rest = line.split()
    try:
        if word == "open":
            kept = hostmesh.Checkpoint(sys.argv[1], data_spec={}, keep=2, read_only="read" in rest)
            print("opened", flush=True)
        elif word == "save":
            for step in map(int, rest):
                kept.save(step, {"w": jnp.full(1 << 16, step, jnp.float32)}, step)
            kept.wait()
            print("saved", flush=True)
        elif word == "restore":
            found = kept.restore({"w": jnp.zeros(1 << 16)})
            print("found", found and (found[1], set(found[0]["w"].tolist())), flush=True)
        elif word == "close":
            kept.close()
            print("closed", flush=True)
    except CheckpointError as error:
        print(error, flush=True)
"""


# One worker has a server.
STORES = [pytest.param(scheme, marks=pytest.mark.xdist_group(scheme)) for scheme in ("gs", "s3")]


@pytest.fixture(scope="module", params=STORES)
def server(request: pytest.FixtureRequest) -> Iterator[Store]:
    store = Store(request.param)
    yield store
    store.close()


@pytest.fixture
def store(server: Store) -> Iterator[Store]:
    yield server
    server.door.fate = lambda method, path: None


@pytest.fixture
def folder(store: Store, tmp_path: Path) -> str:
    return f"{store.scheme}://bucket/{tmp_path.name}"


class Program:
    def __init__(self, folder: str, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, folder],
            env=clean_env({"JAX_PLATFORMS": "cpu", **env}),
            text=True,
            bufsize=1,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def do(self, words: str) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{words}\n")
        return self.process.stdout.readline().strip()

    def close(self) -> str:
        """What it said on stderr."""
        self.process.kill()
        return self.process.communicate()[1]


Begin = Callable[..., Program]


@pytest.fixture
def begin(store: Store, folder: str) -> Iterator[Begin]:
    programs = []

    def make(where: str = folder, secret: str = "", **env: str) -> Program:
        programs.append(Program(where, {**store.env(secret), **env}))
        return programs[-1]

    yield make
    for program in programs:
        program.close()


def names_in(store: Store, folder: str) -> set[str]:
    """Of marks and steps, as the bucket itself lists them."""
    inside = folder.partition("://bucket/")[2]
    if store.scheme == "gs":
        found = json.loads(store.door.ask("GET", "/storage/v1/b/bucket/o").body).get("items", [])
        names = [item["name"] for item in found]
    else:
        import boto3

        client = boto3.client("s3", region_name="us-east-1", endpoint_url=store.door.url, **store.boto_keys)
        names = [item["Key"] for item in client.list_objects_v2(Bucket="bucket").get("Contents", [])]
    return {name[len(inside) + 1 :].partition("/")[0] for name in names if name.startswith(f"{inside}/")}


def store_digits(store: Store) -> list[str]:
    """The options of the job for the same records, from the store."""
    import boto3

    file, source = io.BytesIO(), hostmesh.open_source("digits:train")
    np.savez(file, **source.read(np.arange(len(source))))
    client = boto3.client("s3", region_name="us-east-1", endpoint_url=store.door.url, **store.boto_keys)
    client.put_object(Bucket="bucket", Key="digits.npz", Body=file.getvalue())
    return ["--source", "npz:s3://bucket/digits.npz", "--eval-source", "digits:test"]


def run_job(folder: Path, *args: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LAUNCH, "--show", "all", *args], cwd=folder, env=clean_env(env), capture_output=True, text=True, timeout=HANGS
    )


def read_all(folder: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in folder.glob("runs/**/*") if path.is_file())


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the job comes to undisturbed, in a folder."""
    folder = tmp_path_factory.mktemp("calm")
    done = run_job(folder, "--local", "1", *JOB, "--checkpoint-dir", "saved", env={})
    assert done.returncode == 0, done.stdout + done.stderr
    return read_summary(folder)


def read_summary(folder: Path) -> dict[str, Any]:
    path = max(folder.glob("runs/*/summary.json"), key=os.path.getmtime)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.slow
def test_four_processes_one_killed_and_two_go_on_to_the_same_loss(
    store: Store, folder: str, tmp_path: Path, calm: dict[str, Any]
) -> None:
    """On S3 the records come from there as well."""
    (tmp_path / "faults.yaml").write_text("faults: [{kind: kill, process: 1, step: 25}]\n")
    data = store_digits(store) if store.scheme == "s3" else []
    job = (*JOB, *data, "--checkpoint-dir", folder)
    env = {**store.env(), "HOSTMESH_DATA_CACHE": str(tmp_path / "cache")}
    killed = run_job(tmp_path, "--local", "4", *job, "--chaos", "faults.yaml", env=env)
    assert killed.returncode == 137, killed.stdout + killed.stderr
    done = run_job(tmp_path, "--local", "2", *job, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = read_summary(tmp_path)
    assert summary["resumed_from"] in (10, 20) and f"saved in {folder}" in done.stdout
    assert summary["loss"] == pytest.approx(calm["loss"], abs=1e-5)
    assert summary["eval_loss"] == pytest.approx(calm["eval_loss"], abs=1e-5)
    steps = {name for name in names_in(store, folder) if name.isdecimal()}
    assert len(steps) == 3 and {name.partition(".")[0] for name in names_in(store, folder)} == steps, "nothing is left"
    assert store.secret not in read_all(tmp_path) + killed.stdout + killed.stderr + done.stdout + done.stderr


@pytest.mark.parametrize("wrong", ["bucket", "secret"])
@pytest.mark.quick("gs")
def test_a_bucket_or_a_key_that_is_wrong_is_one_error_before_the_first_step(
    store: Store, folder: str, launch: Launch, tmp_path: Path, wrong: str
) -> None:
    env = store.env("not-the/secret+of-mine") if wrong == "secret" else store.env()
    where = folder.replace("//bucket/", "//no-such-bucket/") if wrong == "bucket" else folder
    run = launch("--local", "2", *JOB, "--checkpoint-dir", where, env=env, all_lines=False)
    said = run.stdout + run.stderr
    why = "there is no such bucket" if wrong == "bucket" else "the store refuses these credentials"
    assert run.returncode == 1 and f"{where} cannot hold checkpoints: {why}" in said
    assert "Traceback" not in said and "step 1" not in said
    assert not [secret for secret in (store.secret, "not-the/secret") if secret in said + read_all(tmp_path)]


def test_steps_are_kept_listed_and_removed_as_in_a_folder(store: Store, folder: str, begin: Begin) -> None:
    """Also by who reads beside the owner; weights and the rest of it are the same code as for folders."""
    program = begin()
    assert program.do("open") == "opened"
    assert program.do("restore") == "found None"
    assert program.do("save 9 10 100") == "saved"
    reader = begin()
    assert reader.do("open read") == "opened"
    assert reader.do("restore") == "found (100, {100.0})"
    assert "is not to be saved" in reader.do("save 101")
    assert program.do("save 101") == "saved"
    assert reader.do("restore") == "found (101, {101.0})"
    assert program.do("close") == "closed"
    assert {name.partition(".")[0] for name in names_in(store, folder)} == {"100", "101"}
    other = begin(f"{folder}-nothing")
    assert "cannot be read: there is no such bucket, or nothing in that folder" in other.do("open read")
    stranger = begin(secret="not-the/secret+of-mine")
    assert f"{folder} cannot be read: the store refuses these credentials" in stranger.do("open read")


@pytest.mark.quick("s3")
def test_of_two_programs_one_owns_and_the_other_is_told_and_follows_when_it_is_killed(
    store: Store, folder: str, begin: Begin
) -> None:
    """What the killed one left of an unfinished save is removed."""
    first, second = begin(), begin()
    assert first.do("open") == "opened"
    assert first.do("save 1") == "saved"
    said = second.do("open")
    assert said.startswith(f"{folder} is in use by -c of {getpass.getuser()}") and f"pid {first.process.pid}" in said
    store.door.fate = lambda method, path: 20.0 if "manifest" in path and method != "GET" else None
    assert first.process.stdin is not None
    first.process.stdin.write("save 2\n")
    while not any(name.startswith("2.") for name in names_in(store, folder)):
        assert first.process.poll() is None
    first.close()
    store.door.fate = lambda method, path: None
    assert second.do("open") == "opened"
    assert second.do("restore") == "found (1, {1.0})"
    assert not any(name.startswith("2.") for name in names_in(store, folder))
    assert second.do("save 2") == "saved"


@pytest.mark.slow
def test_transfers_that_break_are_made_again(store: Store, folder: str, begin: Begin) -> None:
    """Of a slow store: now and then it refuses one for the moment, or its answer ends half-way."""
    count = 0

    def break_some(method: str, path: str) -> int | str | float:
        nonlocal count
        count += 1
        return {8: 503, 16: "cut"}.get(count % 17, 0.1)

    store.door.fate = break_some
    program = begin()
    assert program.do("open") == "opened"
    assert program.do("save 1") == "saved"
    assert program.do("restore") == "found (1, {1.0})"
    assert count > 34


@pytest.mark.parametrize("when", ["before", "while saving"])
@pytest.mark.quick("s3-before")
def test_a_store_that_does_not_answer_is_an_error_within_its_time(
    store: Store, folder: str, begin: Begin, when: str
) -> None:
    program = begin(CHECKPOINT_STORE_TIMEOUT="4")
    if when == "while saving":
        assert program.do("open") == "opened"
    store.door.fate = lambda method, path: 300.0
    said = program.do("open" if when == "before" else "save 1")
    what = f"{folder} cannot hold checkpoints" if when == "before" else f"step 1 could not be saved in {folder}"
    assert said.startswith(f"{what}: it did not answer within 4 s (CHECKPOINT_STORE_TIMEOUT"), said


@pytest.mark.quick("s3")
def test_a_store_that_falls_silent_in_the_middle_of_a_save_is_an_error(store: Store, folder: str, begin: Begin) -> None:
    program = begin(CHECKPOINT_STORE_TIMEOUT="2")
    assert program.do("open") == "opened"
    store.door.fate = lambda method, path: 300.0 if "ocdbt" in path else None
    assert program.do("save 1").startswith(f"step 1 could not be saved in {folder}: it did not answer: ")
    store.door.fate = lambda method, path: None
    assert not {name for name in names_in(store, folder) if name.isdecimal()}


@pytest.mark.quick("s3")
def test_a_mark_is_changed_by_its_owner_alone_also_when_an_answer_was_lost(
    store: Store, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in store.env().items():
        monkeypatch.setenv(name, value)
    open_objects.cache_clear()
    mine, other = Bucket(StoreUrl.parse(folder)), Bucket(StoreUrl.parse(folder))
    assert mine.create(".owner-1") and not other.create(".owner-1")
    mine.write(".owner-1", "mine")
    before = other.read(".owner-1")
    assert before is not None and before.text == "mine"
    mine.touch(".owner-1")
    assert (other.read(".owner-1") or before).changed != before.changed
    mine._own[".owner-1"] = "mine", before.changed  # what is known when the last answer was lost
    now = other.read(".owner-1")
    mine.touch(".owner-1")
    assert other.read(".owner-1") != now
    other._objects.write(f"{StoreUrl.parse(folder).folder}/.owner-1", b"theirs")
    mine.touch(".owner-1")
    mine.write(".owner-1", "mine")
    assert (other.read(".owner-1") or before).text == "theirs"
    open_objects.cache_clear()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("s3://", "wanted a bucket's name after s3://"),
        ("gs://bucket", "wanted a folder in the bucket, as in gs://bucket/run1"),
        ("gs://bucket/a//b", "wanted plain names between the slashes"),
        ("gs://bucket/../b", "wanted plain names between the slashes"),
        ("az://bucket/run1", r"found az://bucket/run1, wanted .* gs://BUCKET/FOLDER or s3://BUCKET/FOLDER"),
        ("gs://data/x?token=hidden", r"found gs://data/x\?…, wanted plain names"),
        ("gs://?token=hidden", "wanted a bucket's name"),
        ("az://data/x?sig=hidden", "wanted a folder that every host mounts"),
        ("s3://AKIA:hidden@bucket/run1", "wanted the bucket alone: credentials come from the environment"),
    ],
)
def test_an_address_that_cannot_be_meant_is_refused(text: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        StoreUrl.parse(text)
    assert "hidden" not in str(caught.value)


def test_a_timeout_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(url.TIMEOUT_VARIABLE, "soon")
    with pytest.raises(
        CheckpointError, match="CHECKPOINT_STORE_TIMEOUT wants a number of seconds above 0, found 'soon'"
    ):
        url.make_spec("gs", "bucket", "run1")


def test_what_a_store_answers_is_told_without_its_body() -> None:
    body = r"[http_response_body='<Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>AKIA1</AWSAccessKeyId>']"
    said = explain(ValueError(f"PERMISSION_DENIED: no {body} [http_response_code='403']"))
    assert said == "the store refuses these credentials (SignatureDoesNotMatch, 403)"


@pytest.mark.quick("s3")
def test_an_object_that_names_the_data_of_another_step_is_refused(
    store: Store, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removing its step would remove them, or all of the folder."""
    for name, value in store.env().items():
        monkeypatch.setenv(name, value)
    open_objects.cache_clear()
    bucket = Bucket(StoreUrl.parse(folder))
    for data in ("7.1f2e", "", "40.1f2e/..", "../40.1f2e"):
        bucket._objects.write(f"{StoreUrl.parse(folder).folder}/40", json.dumps({"data": data}).encode())
        with pytest.raises(CheckpointError, match=f"{folder}/40 is no object of a checkpoint"):
            bucket.remove_step(40)
    open_objects.cache_clear()


@pytest.mark.quick("s3")
def test_the_data_of_a_saved_step_are_shown_from_a_bucket(store: Store, folder: str) -> None:
    inside = folder.partition("://bucket/")[2]
    spec = {"records": 40, "content": "abc", "seed": 0, "batch_size": 4, "tail": "carry", "shuffle": True}
    position = {"version": 1, "loader_state": 7, "data_spec": spec}
    objects = {"40": {"data": "40.1f2e"}, "40.1f2e/position/metadata": position, "50.3a/position/metadata": position}

    def put(name: str, value: Any) -> None:
        data = json.dumps(value).encode()
        if store.scheme == "gs":
            path = f"/upload/storage/v1/b/bucket/o?uploadType=media&name={inside}/{name}"
            assert store.door.ask("POST", path, data).status == 200
        else:
            import boto3

            client = boto3.client("s3", region_name="us-east-1", endpoint_url=store.door.url, **store.boto_keys)
            client.put_object(Bucket="bucket", Key=f"{inside}/{name}", Body=data)

    for name, value in objects.items():
        put(name, value)

    def show(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "hostmesh", "checkpoint", *words]
        return subprocess.run(command, env=clean_env(store.env()), capture_output=True, text=True)

    done = show(folder)
    assert done.returncode == 0, done.stderr
    assert "step       40 (saved: 40)" in done.stdout and "used       7 batches, 28 records" in done.stdout
    done = show(f"{folder}-none")
    assert done.returncode == 2 and f"checkpoint: {folder}-none has no saved step" in done.stderr, done.stderr
    done = show(folder.replace("://", ":/"))
    assert f"wanted a folder or {folder}" in done.stderr
    done = show(f"{folder}?token=hidden")
    assert done.returncode == 2 and "hidden" not in done.stderr


@pytest.mark.parametrize("folder", ["s3:/data/x", Path("gs://data/x"), "az:/x?sig=hidden"])
def test_a_url_that_lost_a_slash_is_no_folder(
    folder: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="which would be a folder on this disk; wanted (s3|gs|az)://.*x") as told:
        hostmesh.Checkpoint(folder, data_spec={})
    assert "hidden" not in str(told.value) and not list(tmp_path.iterdir())
    hostmesh.Checkpoint("./s3:/data/x", data_spec={}).close()
    assert (tmp_path / "s3:" / "data" / "x").is_dir()


def test_a_path_object_of_a_store_is_its_url() -> None:
    with pytest.raises(CheckpointError, match="found s3://b, wanted a bucket's name"):
        hostmesh.Checkpoint(StorePath("s3://b"), data_spec={})  # type: ignore[arg-type]
