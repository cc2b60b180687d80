"""More than one worker would be more than one gate: refused, whoever starts them."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from decision_proxy.cli import main
from decision_proxy.one_process import refuse_more_workers, workers_asked
from tests.servers import tokenizer_folder

APPLICATION = """
from decision_proxy.app import create_app
from decision_proxy.settings import Settings
app = create_app(Settings(upstream="http://127.0.0.1:9", tokenizer={tokenizer!r}))
"""


@pytest.mark.parametrize(
    ("arguments", "environment", "count"),
    [
        ([], {}, 1),
        (["m:app", "--workers", "4"], {}, 4),
        (["m:app", "--workers=3"], {}, 3),
        (["-w", "2", "m:app"], {}, 2),
        (["-w2"], {}, 2),
        (["--workers"], {}, 1),
        (["--workers", "one"], {}, 1),
        (["--worker-class", "uvicorn.workers.UvicornWorker"], {}, 1),
        ([], {"WEB_CONCURRENCY": "5"}, 5),
        ([], {"GUNICORN_CMD_ARGS": "--bind=127.0.0.1 --workers=3"}, 3),
        (["--workers", "1"], {"WEB_CONCURRENCY": ""}, 1),
    ],
)
def test_workers_asked(
    arguments: Sequence[str], environment: Mapping[str, str], count: int
) -> None:
    assert workers_asked(arguments, environment) == count


def test_a_process_alone_is_welcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEB_CONCURRENCY", "4")
    refuse_more_workers()


def test_serve_refuses_more_than_one(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--upstream", "http://127.0.0.1:9", "--tokenizer", "x", "--workers", "2"]
    assert main(["serve", *given]) == 2
    said = capsys.readouterr().err
    assert "--workers (or DECISION_PROXY_WORKERS) is wrong: must be 1: one process holds" in said


def test_the_workers_of_uvicorn_refuse_to_start(tmp_path: Path) -> None:
    source = APPLICATION.format(tokenizer=str(tokenizer_folder("qwen3")))
    (tmp_path / "served.py").write_text(source, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-m", "uvicorn", "served:app", "--workers", "2", "--port", "0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "2 workers were asked for, but decision-proxy needs 1" in ended.stderr
