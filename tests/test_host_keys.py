"""What known_hosts files say, and which host keys are believed."""

from __future__ import annotations

import base64
import shutil
import stat
import subprocess
import threading
from pathlib import Path

import pytest
from sshd import fingerprint_of, make_key, public_half

from hostmesh.launcher.errors import Unreachable
from hostmesh.launcher.transports.ssh.host_keys import KnownHosts, fingerprint, name_host

KIND = "ssh-ed25519"
KEY, OTHER = b"\0\0\0\x0bssh-ed25519" + b"k" * 36, b"\0\0\0\x0bssh-ed25519" + b"o" * 36
needs_keygen = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")


def line(names: str, key: bytes = KEY, kind: str = KIND) -> str:
    return f"{names} {kind} {base64.b64encode(key).decode()}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "known_hosts"


def check(file: Path, *names: str, key: bytes = KEY, accept_new: bool = False, kind: str = KIND) -> None:
    KnownHosts([file]).check(names, kind, key, accept_new)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("gpu-7", "gpu-7"),
        ("gpu-7", "GPU-7"),
        ("a,gpu-7,b", "gpu-7"),
        ("[gpu-7]:2222", "[gpu-7]:2222"),
        ("gpu-*", "gpu-7"),
        ("gpu-?", "gpu-7"),
        ("[*.example]:2222", "[a.example]:2222"),
        ("fe80::1%eth0", "fe80::1%eth0"),
    ],
)
def test_a_known_key_is_believed(file: Path, written: str, name: str) -> None:
    file.write_text(line(written))
    check(file, name)


@pytest.mark.parametrize("written", ["gpu-8", "gpu-77", "[gpu-7]:2222", "gpu-*,!gpu-7", "|1|nonsense", "|1|!|?"])
def test_a_key_of_another_name_is_not_believed(file: Path, written: str) -> None:
    file.write_text(line(written))
    with pytest.raises(Unreachable, match="not known"):
        check(file, "gpu-7")


def test_an_unknown_host_is_refused_with_its_fingerprint_the_file_and_two_ways_out(file: Path) -> None:
    with pytest.raises(Unreachable) as refused:
        check(file, "gpu-7")
    for part in ("gpu-7", fingerprint(KEY), str(file), "connect once with ssh", "accept_new_host_keys: true"):
        assert part in str(refused.value)
    assert not file.exists()


@pytest.mark.parametrize("accept_new", [False, True])
def test_a_changed_key_is_always_refused(file: Path, accept_new: bool) -> None:
    file.write_text("# a comment\n" + line("gpu-7", OTHER))
    with pytest.raises(Unreachable) as refused:
        check(file, "gpu-7", accept_new=accept_new)
    told = str(refused.value)
    for part in (fingerprint(KEY), fingerprint(OTHER), f"{file} line 2", "ssh-keygen", "-R 'gpu-7'", "in between"):
        assert part in told
    assert "connect once" not in told


def test_a_key_of_another_kind_does_not_pass_for_a_new_one(file: Path) -> None:
    file.write_text(line("gpu-7", OTHER, kind="ssh-rsa"))
    with pytest.raises(Unreachable, match="changed"):
        check(file, "gpu-7", accept_new=True)


def test_one_of_several_known_keys_is_enough(file: Path) -> None:
    file.write_text(line("gpu-7", OTHER) + line("gpu-7"))
    check(file, "gpu-7")


def test_a_revoked_key_is_refused_even_where_it_is_known(file: Path) -> None:
    file.write_text(line("gpu-7") + line("@revoked *"))
    with pytest.raises(Unreachable, match="@revoked"):
        check(file, "gpu-7", accept_new=True)


def test_an_authority_is_not_a_host_key(file: Path) -> None:
    file.write_text(line("@cert-authority *"))
    with pytest.raises(Unreachable, match="not known"):
        check(file, "gpu-7")


def test_broken_lines_are_passed_over(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\ngpu-7\ngpu-7 ssh-ed25519\ngpu-7 ssh-ed25519 ***\n\n@\n" + line("gpu-7").encode())
    check(file, "gpu-7")


def test_a_port_falls_back_to_the_bare_name_only_where_that_fits(file: Path) -> None:
    names = name_host("gpu-7", 2222, None)
    file.write_text(line("gpu-7"))
    check(file, *names)
    with pytest.raises(Unreachable, match="not known"):  # another sshd than the one on port 22
        check(file, *names, key=OTHER)


def test_names_follow_port_and_alias() -> None:
    assert name_host("gpu-7", 22, None) == ("gpu-7",)
    assert name_host("gpu-7", 2222, None)[0] == "[gpu-7]:2222"
    assert name_host("gpu-7", 2222, "alias") == ("alias",)


def test_a_host_is_asked_for_the_kinds_it_is_known_by(file: Path) -> None:
    file.write_text(line("gpu-7", kind="ssh-rsa") + line("@revoked gpu-7") + line("other"))
    assert KnownHosts([file]).kinds_of(["gpu-7"]) == ["ssh-rsa"]


def test_an_accepted_key_is_added_and_then_known(file: Path) -> None:
    check(file, "gpu-7", accept_new=True)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    check(file, "gpu-7")


def test_an_added_line_does_not_run_into_an_unfinished_one(file: Path) -> None:
    file.write_text(line("gpu-1").rstrip("\n"))
    check(file, "gpu-7", accept_new=True)
    check(file, "gpu-1")
    check(file, "gpu-7")


def test_many_threads_add_each_host_once_and_no_half_lines(file: Path) -> None:
    known = KnownHosts([file])
    names = [f"gpu-{number}" for number in range(50)]
    threads = [
        threading.Thread(target=known.check, args=([name], KIND, name.encode() * 100, True))
        for name in names
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(file.read_text().splitlines()) == sorted(
        line(name, name.encode() * 100).rstrip("\n") for name in names
    )


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a file" / "known_hosts"
    file.parent.write_text("in the way")
    with pytest.raises(Unreachable, match="cannot be added to .*known_hosts"):
        check(file, "gpu-7", accept_new=True)


def test_hashed_names_can_be_added(file: Path) -> None:
    KnownHosts([file], hash_names=True).check(["gpu-7"], KIND, KEY, True)
    assert file.read_text().startswith("|1|")
    check(file, "gpu-7")
    with pytest.raises(Unreachable):
        check(file, "gpu-8")


@needs_keygen
def test_names_hashed_by_ssh_keygen_are_understood(file: Path) -> None:
    key = make_key(file.parent / "key")
    file.write_text(f"gpu-7 {public_half(key)}\n")
    subprocess.run(["ssh-keygen", "-H", "-f", str(file)], check=True, capture_output=True, timeout=240)
    assert "gpu-7" not in file.read_text()
    blob = base64.b64decode(public_half(key).split()[1])
    check(file, "gpu-7", key=blob)
    assert fingerprint(blob) == fingerprint_of(key)
