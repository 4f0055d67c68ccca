"""Why a store gave no data, without the words of its libraries: these may hold signatures and names of requests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto

from hostmesh.worker.errors import StoreError
from hostmesh.worker.remote.url_secrets import hide_secrets
from hostmesh.worker.remote.urls import bucket_of, scheme_of

CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "hf": "HF_TOKEN, or `hf auth login`",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, or `gcloud auth application-default login`",
}


class Kind(Enum):
    NO_BUCKET = auto()
    NO_FILE = auto()
    DENIED = auto()
    NO_CREDENTIALS = auto()
    CHANGED = auto()
    NO_ANSWER = auto()  # the only one that may pass: it is tried again
    REFUSED = auto()


class StoreFailure(Exception):
    """One answer of a store, or none. `words` are our own, or a code such as `SlowDown`."""

    def __init__(self, kind: Kind, words: str = "") -> None:
        super().__init__(kind.name, words)
        self.kind, self.words = kind, words


# Codes of answers, beside their HTTP status.
BY_CODE = {
    "NoSuchBucket": Kind.NO_BUCKET,
    "InvalidBucketName": Kind.NO_BUCKET,
    "NoSuchKey": Kind.NO_FILE,
    "PreconditionFailed": Kind.CHANGED,
    "InvalidRange": Kind.CHANGED,
    "ExpiredToken": Kind.DENIED,
    "RequestTimeout": Kind.NO_ANSWER,
    "SlowDown": Kind.NO_ANSWER,
    "Throttling": Kind.NO_ANSWER,
}
BY_STATUS = {
    401: Kind.DENIED,
    403: Kind.DENIED,
    404: Kind.NO_FILE,
    410: Kind.NO_FILE,
    408: Kind.NO_ANSWER,
    412: Kind.CHANGED,
    416: Kind.CHANGED,
    425: Kind.NO_ANSWER,
    429: Kind.NO_ANSWER,
}
# Classes of errors without an answer, and those that they derive from, by name: nothing needs to be imported for it.
CREDENTIALS_MISSING = {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "SSOError"}
CREDENTIALS_MISSING |= {"ProfileNotFound", "TokenRetrievalError", "DefaultCredentialsError", "RefreshError"}
MAY_PASS = {"HTTPClientError", "ClientError", "TimeoutError", "ConnectionError", "IncompleteReadError"}
MAY_PASS |= {"ServerTimeoutError", "TransportError", "gaierror", "FSTimeoutError", "SSLError"}
SAFE = re.compile(r"[A-Za-z0-9_.-]{1,60}")


def of_code(code: str, status: int) -> StoreFailure:
    """Of an answer that names its reason by a word."""
    words = code if SAFE.fullmatch(code) and not code.isdecimal() else f"HTTP status {status}"
    if code in BY_CODE:
        return StoreFailure(BY_CODE[code], words)
    return StoreFailure(of_status(status or int(code if code.isdecimal() else 0)).kind, words)


def of_status(status: int) -> StoreFailure:
    kind = Kind.NO_ANSWER if status >= 500 else BY_STATUS.get(status, Kind.REFUSED)
    return StoreFailure(kind, f"HTTP status {status}")


def of_transport(error: BaseException) -> StoreFailure:
    """Of an error that is no answer: a connection that was refused or lost, a timeout, credentials that are missing."""
    classes = {kind.__name__ for kind in type(error).__mro__}
    if classes & CREDENTIALS_MISSING:
        return StoreFailure(Kind.NO_CREDENTIALS, type(error).__name__)
    return StoreFailure(Kind.NO_ANSWER if classes & MAY_PASS else Kind.REFUSED, type(error).__name__)


@contextmanager
def wants_own_words() -> Iterator[None]:
    """A proxy before the store, or a page to log in, answers as if all were well: then it is not what a store says."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError):
        raise StoreFailure(Kind.NO_ANSWER, "what came is not in the store's own form") from None


def as_store_error(failure: StoreFailure, url: str, where: str, tries: int = 1, seconds: float = 0.0) -> StoreError:
    """`where` is the address that was asked, or empty for the store's own."""
    return StoreError(f"{hide_secrets(url)} {_tell(failure, url, where, tries, seconds)}")


def _tell(failure: StoreFailure, url: str, where: str, tries: int, seconds: float) -> str:
    kind, code = failure.kind, f" ({failure.words})" if failure.words else ""
    at = f" at {hide_secrets(where)}" if where else ""
    credentials = CREDENTIALS.get(scheme_of(url))
    if kind is Kind.NO_BUCKET:
        return f"does not exist: there is no bucket {bucket_of(url)}{at}"
    if kind is Kind.NO_FILE:
        return f"does not exist{code}"
    if kind is Kind.DENIED:
        check = f": check the credentials of this process, {credentials}" if credentials else ""
        return f"cannot be read: the store{at} refuses access{code}{check}"
    if kind is Kind.NO_CREDENTIALS:
        return f"cannot be read: this process has no credentials; wanted {credentials}"
    if kind is Kind.CHANGED:
        return (
            f"has changed since it was opened{code}: all rows of a run must come from one version of it;"
            " start again, and write new data under a new name"
        )
    if kind is Kind.NO_ANSWER:
        tried = f"in {tries} tries over {seconds:.0f} s" if tries > 1 else "in one try"
        return f"cannot be read: the store{at} gave no good answer {tried}{code}"
    return f"cannot be read: the store{at} refused{code}"
