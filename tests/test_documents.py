"""README, compose and Dockerfile say what the code does."""

import re
from pathlib import Path

import pytest
import yaml

from decision_proxy.cli import fields, flag, parser, variable
from decision_proxy.settings import Settings

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def settings_table() -> list[str]:
    rows = []
    for path, field in fields():
        default = field.get_default(call_default_factory=True, validated_data={})
        shown = "required" if field.is_required() else "" if default in (None, {}) else default
        rows.append(f"| `{flag(path)}` | `{variable(path)}` | {shown} | {field.description} |")
    return rows


def test_the_settings_table_is_the_settings() -> None:
    found = [line for line in README.splitlines() if line.startswith("| `--")]
    assert found == settings_table()


def test_every_path_of_the_proxy_is_in_the_readme() -> None:
    source = (ROOT / "decision_proxy" / "app.py").read_text(encoding="utf-8")
    for path in re.findall(r'Route\("([^"]+)"', source):
        assert path in README


def test_the_readme_stays_short_and_its_commands_exist() -> None:
    assert len(README.splitlines()) <= 150
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"\bmake ([a-z]+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for command in set(re.findall(r"decision-proxy (serve|check|ask|demo)", README)):
        assert command in parser().format_help()


def test_the_published_bench_is_the_last_result() -> None:
    table = (ROOT / "bench" / "results" / "splice.md").read_text(encoding="utf-8")
    rows = [line for line in table.splitlines() if line.startswith("|")]
    assert rows
    assert all(row in README for row in rows)


def test_every_variable_of_the_compose_file_is_a_setting() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    proxy = compose["services"]["proxy"]
    known = {variable(path) for path, _ in fields()}
    given = {name for name in proxy["environment"] if name.startswith("DECISION_PROXY_")}
    assert given <= known
    required = {variable(path) for path, field in fields() if field.is_required()}
    assert required <= given
    assert proxy["depends_on"] == {"vllm": {"condition": "service_healthy"}}


def test_the_image_carries_the_proxy_alone_and_no_root() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert "USER 10001" in lines
    assert 'ENTRYPOINT ["decision-proxy"]' in lines
    known = {variable(path) for path, _ in fields()}
    named = {name for line in lines for name in re.findall(r"DECISION_PROXY_\w+", line)}
    assert named <= known
    assert not any("vllm" in line.split("#")[0] for line in lines)


ONE_VALUE_ONLY = {("workers",)}


@pytest.mark.parametrize("path", [path for path, _ in fields() if path not in ONE_VALUE_ONLY])
def test_every_setting_can_be_given_by_its_variable(
    path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {
        "upstream": "http://10.0.0.1:9/",
        "host": "0.0.0.0",
        "dialect": "typesafe",
        "aliases": '{"a": "b"}',
        "user_text_specials": "split",
        "chat_template": str(ROOT / "README.md"),
        "bodies_bytes": "5000",
        "policy": "budget",
        "prefix_caching": "false",
        "priority_scheduling": "true",
    }
    monkeypatch.setenv("DECISION_PROXY_UPSTREAM", "http://127.0.0.1:8000")
    monkeypatch.setenv("DECISION_PROXY_TOKENIZER", "somewhere")
    monkeypatch.setenv(variable(path), values.get(path[-1], "3"))
    monkeypatch.setenv("DECISION_PROXY_LIMITS__BODY_BYTES", "4096")
    chosen = Settings()
    for name in path:
        chosen = getattr(chosen, name)
    default = dict(fields())[path].get_default(call_default_factory=True, validated_data={})
    assert chosen != default
