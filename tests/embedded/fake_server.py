"""A server to start instead of vLLM or the proxy; flags of its own say how it misbehaves.

--dies         ends at start, with an error in its log
--one-answer   ends after the first answer to a POST
--stubborn     ignores SIGTERM
--unready N    answers 503 with reasons N times, then 200
--fifo PATH    it and a grandchild hold PATH open, so that a reader sees when both are gone
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

ANSWER = {"object": "structured_decision", "answers": {"urgent": {"type": "noul", "true": 0.9}}}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if OPTIONS.unready:
            OPTIONS.unready -= 1
            self.answer(503, {"reasons": ["vLLM does not answer yet"]})
        else:
            self.answer(200, {"status": "ok"})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.answer(200, {**ANSWER, "asked": list(asked["questions"])})
        if OPTIONS.one_answer:
            print("RuntimeError: engine core died", flush=True)
            os._exit(1)

    def answer(self, status: int, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def parse() -> argparse.Namespace:
    flags = argparse.ArgumentParser(allow_abbrev=False)
    flags.add_argument("--port", type=int)
    flags.add_argument("--dies", action="store_true")
    flags.add_argument("--one-answer", action="store_true")
    flags.add_argument("--stubborn", action="store_true")
    flags.add_argument("--unready", type=int, default=0)
    flags.add_argument("--fifo")
    return flags.parse_known_args()[0]


def main() -> None:
    print("non-default args: {}\nResolved architecture: Fake", flush=True)
    if OPTIONS.dies:
        print('Traceback:\n  File "x.py"\nValueError: The model is unreadable', flush=True)
        raise SystemExit(1)
    if OPTIONS.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if OPTIONS.fifo:
        held = os.open(OPTIONS.fifo, os.O_WRONLY)
        sleeper = [sys.executable, "-c", "import signal; signal.pause()"]
        subprocess.Popen(sleeper, pass_fds=[held])
    HTTPServer(("127.0.0.1", OPTIONS.port), Handler).serve_forever()


OPTIONS = parse()

if __name__ == "__main__":
    main()
