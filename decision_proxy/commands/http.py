"""uvicorn's HTTP/1.1, answering what is not HTTP in JSON too."""

import h11
import orjson
from uvicorn.protocols.http.h11_impl import H11Protocol

from decision_proxy.errors import RequestError, error_body, error_headers
from decision_proxy.wire.responses import request_id


class JsonProtocol(H11Protocol):
    def send_400_response(self, msg: str) -> None:
        """Nothing more can be understood on this connection: say so, if there is still a way."""
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            self._write_refusal(RequestError(msg))
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()

    def _write_refusal(self, refusal: RequestError) -> None:
        value = request_id(None)
        headers = {
            "content-type": "application/json",
            "connection": "close",
            "x-request-id": value,
            "x-typesafe-request-id": value,
            **error_headers(refusal),
        }
        body = orjson.dumps(error_body(refusal, "vllm"))
        for event in (
            h11.Response(
                status_code=refusal.status,
                headers=[*headers.items(), ("content-length", str(len(body)))],
                reason=b"Bad Request",
            ),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
