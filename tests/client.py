"""A plain HTTP client for tests, with the standard library alone."""

import http.client
import json
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)

    @property
    def message(self) -> str:
        return str(self.body["error"]["message"])


def call(
    url: str, path: str, body: Any = None, *, raw: bytes | None = None, **headers: str
) -> Reply:
    """POST when there is a body, else GET; header names with _ for -."""
    data = json.dumps(body).encode() if body is not None else raw
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if data is not None:
        sent = {"content-type": "application/json", **sent}
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=300)
    try:
        connection.request("GET" if data is None else "POST", path, data, sent)
        response = connection.getresponse()
        return Reply(
            response.status,
            {name.lower(): value for name, value in response.getheaders()},
            response.read(),
        )
    finally:
        connection.close()


def wait_ready(url: str, *, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while (reply := call(url, "/-/ready")).status != 200:
        assert time.monotonic() < deadline, reply.body
