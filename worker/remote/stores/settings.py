"""What the environment says of a store, checked before anybody asks it: its libraries tell little, and late."""

from __future__ import annotations

import json
import os
from urllib.parse import urlsplit

from hostmesh.worker.errors import DataError
from hostmesh.worker.remote.url_secrets import hide_secrets

# Files of certificates to trust, for S3.
CERTIFICATES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
GOOGLE_FILE = "GOOGLE_APPLICATION_CREDENTIALS"


def find_address(*names: str) -> str:
    """Of the first of these variables that is set; empty where none is."""
    name = next((name for name in names if os.environ.get(name)), None)
    if name is None:
        return ""
    text = os.environ[name]
    try:
        address = urlsplit(text)
        is_address = address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise DataError(
            f"{name} names no server: found {hide_secrets(text)!r}, wanted its address with http:// or https://, as in"
            " https://store.example.org:9000"
        )
    return text


def check_certificates() -> None:
    """The first of these variables that is set names a file or folder of certificates."""
    name = next((name for name in CERTIFICATES if os.environ.get(name)), None)
    if name is None:
        return
    import ssl  # takes a while, and nobody else may need it

    path = os.environ[name]
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(**({"capath": path} if os.path.isdir(path) else {"cafile": path}))
    except ssl.SSLError:
        raise DataError(
            f"{name} names {path}, in which there is no certificate; wanted a file in the form PEM"
        ) from None
    except OSError as error:
        raise DataError(
            f"{name} names {path}, which cannot be read: {error.strerror}; wanted a file of certificates"
        ) from None


def check_google_file() -> None:
    path = os.environ.get(GOOGLE_FILE)
    if not path:
        return
    how = "wanted a file with the key of an account; without this variable gcloud's login is used"
    try:
        with open(path, "rb") as file:
            found = json.load(file)
    except OSError as error:
        raise DataError(f"{GOOGLE_FILE} names {path}, which cannot be read: {error.strerror}; {how}") from None
    except ValueError:
        raise DataError(f"{GOOGLE_FILE} names {path}, which is no JSON; {how}") from None
    if not isinstance(found, dict) or "type" not in found:
        raise DataError(f"{GOOGLE_FILE} names {path}, which holds no credentials; {how}")
