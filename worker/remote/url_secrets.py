"""What of a URL may be shown. The launcher uses it too."""

from __future__ import annotations

import re

# `user:password@` before a host or bucket.
LOGIN = re.compile(r"((?::|%3a)//)[^/@\s]*?(?:@|%40)", re.IGNORECASE)
# What makes a signed link: whoever has it may read.
SIGNED = re.compile(
    r"((?:x-amz-|x-goog-)?(?:signature|credential|security-token)|awsaccesskeyid|googleaccessid|sig"
    r"|(?<![a-z_-])[a-z_-]*token|(?<![a-z_-])(?=[a-z_-]*secret)[a-z_-]+|password|api[_-]?key)(?:=|%3d)[^&\s'\"<>]*",
    re.IGNORECASE,
)


def hide_secrets(text: str) -> str:
    return SIGNED.sub(r"\1=…", LOGIN.sub(r"\1…@", text))
