"""The objects of one bucket: read, written on a condition, listed and removed, each within a time limit."""

from __future__ import annotations

import errno
import re
from typing import Any, NamedTuple

from hostmesh.worker.errors import CheckpointError
from hostmesh.worker.saving.stores.url import TIMEOUT_VARIABLE, limit_silence, make_spec, read_timeout

# Seconds to wait for a store that has not answered last time.
SHORT_TIMEOUT = 5.0
# How tensorstore calls the generation of an object that is not there.
ABSENT = b"\x02"
STATUS = re.compile(r"http_response_code='(\d+)'")
# What is cut from a store's words: its own address book, and the body of its answer, which may repeat a key.
DETAIL = re.compile(r"\s*\[[a-z_-]+='.*", re.DOTALL)


class StoreError(OSError, CheckpointError):
    """An OSError as other places raise it, and where nobody catches it a message for the user."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class Found(NamedTuple):
    data: bytes
    generation: bytes  # another one after each change


class Objects:
    """By their whole names in the bucket. Every failure is a StoreError in plain words."""

    def __init__(self, scheme: str, bucket: str) -> None:
        import tensorstore

        limit_silence()
        self._timeout = self._current_timeout = read_timeout()
        self.address = f"{scheme}://{bucket}"
        self._range = tensorstore.KvStore.KeyRange
        self._store = self._wait(tensorstore.KvStore.open(make_spec(scheme, bucket, "")))

    def read(self, name: str) -> Found | None:
        answer = self._wait(self._store.read(name))
        return Found(answer.value, answer.stamp.generation) if answer.state == "value" else None

    def write(self, name: str, data: bytes) -> bytes:
        """The new generation."""
        return bytes(self._wait(self._store.write(name, data)).generation)

    def create(self, name: str, data: bytes) -> bytes | None:
        """The generation; None if there is one. `data` must be like no other's."""
        return self._write_if(name, data, ABSENT)

    def replace(self, name: str, data: bytes, generation: bytes) -> bytes | None:
        """The new generation; None if it is no longer what it was."""
        return self._write_if(name, data, generation)

    def list(self, beginning: str) -> list[str]:
        """Looked through here once more: there are stores that ignore where a list is to begin. And tensorstore 0.1.86
        takes Google's refusal to list for an empty list; that to read any object it tells."""
        if self.address.startswith("gs:"):
            self.read(f"{beginning}.no-such-object")
        end = beginning[:-1] + chr(ord(beginning[-1]) + 1)  # the name that would come after all of these
        found = self._wait(self._store.list(self._range(beginning, end)))
        return sorted(name for name in map(bytes.decode, found) if name.startswith(beginning))

    def remove(self, name: str) -> None:
        self._wait(self._store.write(name, None))

    def remove_all(self, beginning: str) -> None:
        for removal in [self._store.write(name, None) for name in self.list(beginning)]:
            self._wait(removal)

    def _write_if(self, name: str, data: bytes, generation: bytes) -> bytes | None:
        if new := self._wait(self._store.write(name, data, if_equal=generation)).generation:
            return bytes(new)
        # Refused. Or the answer to a first try was lost, and the second try found what the first had written.
        found = self.read(name)
        return found.generation if found is not None and found.data == data else None

    def _wait(self, future: Any) -> Any:
        try:
            answer = future.result(timeout=self._current_timeout)
            self._current_timeout = self._timeout
            return answer
        except TimeoutError:
            why = f"it did not answer within {self._current_timeout:g} s ({TIMEOUT_VARIABLE} sets how long to wait)"
            self._current_timeout = min(SHORT_TIMEOUT, self._timeout)  # a program that ends because of it ends soon
        except Exception as error:
            why = explain(error)
        raise StoreError(errno.EIO, why, self.address)


def explain(error: BaseException) -> str:
    """What a store said, without keys, tokens, bodies and places in tensorstore's source."""
    text = str(error)
    status = (STATUS.findall(text) or [""])[-1]
    said = DETAIL.sub("", text.splitlines()[0] if text else type(error).__name__).strip()
    if "InvalidAccessKeyId" in text or "SignatureDoesNotMatch" in text or status == "401":
        return f"the store refuses these credentials ({_name_answer(text, status)})"
    if status == "403" or "PERMISSION_DENIED" in text or "UNAUTHENTICATED" in text:
        return f"these credentials may not do that ({_name_answer(text, status)})"
    if "NoSuchBucket" in text or (status == "404" and "NOT_FOUND" in text):
        return f"there is no such bucket ({_name_answer(text, status)})"
    if "Failed to parse response metadata" in text:  # of a list from Google: its words were an error's, not JSON
        return "there is no such bucket, or it may not be listed"
    if "CURL error" in text or "retry attempts failed" in text:
        return f"it did not answer: {said[said.rfind('All ') :]}; {TIMEOUT_VARIABLE} sets how long to try"
    if "redentials" in text or "OAuth" in text or "auth provider" in text:
        return f"no credentials were found that can be used: {said}"
    return said if isinstance(error, ValueError) else f"{type(error).__name__}: {said}"  # tensorstore has no other


def _name_answer(text: str, status: str) -> str:
    """`NoSuchBucket, 404`."""
    code = re.search(r"<Code>(\w+)</Code>", text) or re.search(r"\b(NoSuchBucket|InvalidAccessKeyId)\b", text)
    return ", ".join(part for part in (code[1] if code else "", status) if part) or "no reason given"
