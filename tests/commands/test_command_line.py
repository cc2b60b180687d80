"""The command line: what is wrong is said in one sentence, with the way to put it right."""

from typing import Any

import pytest

from decision_proxy import cli
from decision_proxy.cli import fields, flag, main, variable
from decision_proxy.settings import Settings

FITTING = ["--upstream", "http://127.0.0.1:1", "--tokenizer", "somewhere"]


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings that `serve` would run with."""
    found: list[Settings] = []
    monkeypatch.setattr("decision_proxy.commands.serve.serve", found.append)
    return found


@pytest.mark.parametrize(
    ("flags", "variables", "words"),
    [
        ([], {}, "--upstream (or DECISION_PROXY_UPSTREAM) is required"),
        ([*FITTING, "--port", "99999"], {}, "--port (or DECISION_PROXY_PORT) is wrong"),
        ([*FITTING, "--upstream", "http://u:p4ss@h"], {}, "no user name or password"),
        ([*FITTING, "--upstream", "http://h/v1/"], {}, "must end before /v1"),
        ([*FITTING, "--upstream", "http://h/?x=p4ss"], {}, "no query"),
        ([*FITTING, "--upstream", "ftp://h"], {}, "--upstream"),
        ([*FITTING, "--upstream", "h:8000"], {}, "--upstream"),
        ([*FITTING, "--aliases", "{p4ss"], {}, "must be a JSON object"),
        ([*FITTING, "--aliases", '{"a": 1}'], {}, "--aliases"),
        ([*FITTING, "--dialect", "french"], {}, "'vllm' or 'typesafe'"),
        ([*FITTING, "--limits-questions", "401"], {}, "--limits-questions"),
        ([*FITTING, "--reads-timeout-s", "nan"], {}, "--reads-timeout-s"),
        ([*FITTING, "--reads-timeout-s", "inf"], {}, "--reads-timeout-s"),
        ([*FITTING, "--shutdown-s", "0"], {}, "--shutdown-s"),
        ([*FITTING, "--prompt-chat-template", "/no/file"], {}, "cannot be read"),
        (FITTING, {"ALIASES": "{p4ss"}, "DECISION_PROXY_ALIASES is wrong: it must be a JSON"),
        (FITTING, {"LIMITS": "[p4ss"}, "DECISION_PROXY_LIMITS is wrong: it must be a JSON"),
        (FITTING, {"LIMITS": "[1]"}, "DECISION_PROXY_LIMITS) is wrong: it must be a JSON"),
        (FITTING, {"LIMITS__NOPE": "1"}, "DECISION_PROXY_LIMITS__NOPE) is not a setting"),
        (FITTING, {"UPSTREAM_API_KEY": "p4ss\nword"}, "without white space"),
        (FITTING, {"UPSTREAM_API_KEY": "p4ssé"}, "printable ASCII"),
    ],
)
@pytest.mark.parametrize("command", ["serve", "check"])
def test_a_wrong_setting_is_one_sentence_without_its_value(
    *,
    command: str,
    flags: list[str],
    variables: dict[str, str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"DECISION_PROXY_{name}", value)
    assert main([command, *flags]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert words in said.err
    assert "p4ss" not in said.err
    assert all(line.startswith("decision-proxy: ") for line in said.err.splitlines())
    assert "Traceback" not in said.err


def test_a_flag_wins_over_its_variable_within_a_group_too(
    chosen: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DECISION_PROXY_PORT", "1")
    monkeypatch.setenv("DECISION_PROXY_LIMITS__QUESTIONS", "7")
    monkeypatch.setenv("DECISION_PROXY_LIMITS__OPTIONS", "8")
    main(["serve", *FITTING, "--port", "2", "--limits-options", "9"])
    [settings] = chosen
    assert settings.port == 2
    assert (settings.limits.questions, settings.limits.options) == (7, 9)


def test_an_empty_variable_is_none(chosen: list[Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    for path, field in fields():
        if not field.is_required():
            monkeypatch.setenv(variable(path), "")
    main(["serve", *FITTING])
    assert chosen == [Settings(upstream="http://127.0.0.1:1", tokenizer="somewhere")]


def test_flags_are_never_abbreviated(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--upst", "http://127.0.0.1:1", "--tokenizer", "somewhere"])
    assert ended.value.code == 2
    assert "--upst" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["nope"], ["ask"], ["serve", "--nope"]])
def test_wrong_usage_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: decision-proxy" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["serve", "check"])
def test_help_names_every_setting_its_variable_and_its_default(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for path, field in fields():
        assert flag(path) in shown
        assert f"[{variable(path)}]" in shown
        default = field.get_default(call_default_factory=True, validated_data={})
        if not field.is_required() and default not in (None, {}):
            assert f"Default: {default}." in shown


def test_ctrl_c_ends_a_command_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_args: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("decision_proxy.commands.check.check", interrupted)
    assert main(["check", *FITTING]) == cli.INTERRUPTED
