"""A file of questions, in JSON or YAML, as JSON would mean it: `no` is a word, a key is text."""

import json
import re
from typing import Any

import yaml

MEANING = {
    "tag:yaml.org,2002:bool": re.compile(r"true|false"),
    "tag:yaml.org,2002:null": re.compile(r"null|~|"),
    "tag:yaml.org,2002:int": re.compile(r"-?(?:0|[1-9][0-9]*)"),
    "tag:yaml.org,2002:float": re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"),
    "tag:yaml.org,2002:merge": re.compile(r"<<"),
}


class NotQuestions(Exception):
    """What is wrong with the file; its name goes ahead of it."""


class Loader(yaml.SafeLoader):
    """Names such as `no`, `on`, `12:30` and `2026-01-31` stay what they look like."""

    yaml_implicit_resolvers: dict[str | None, list[tuple[str, re.Pattern[str]]]] = {  # noqa: RUF012
        None: [(tag, re.compile(f"(?:{meant.pattern})$")) for tag, meant in MEANING.items()]
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        self.flatten_mapping(node)
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                key.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep=deep)


def read_questions(text: str) -> dict[str, Any]:
    """Id to question; `{"questions": {…}}` is taken too."""
    questions = _json(text)
    if questions is None:
        questions = _yaml(text)
    if not isinstance(questions, dict):
        raise NotQuestions("must map each question's id to the question")
    inner = questions.get("questions")
    return inner if isinstance(inner, dict) and len(questions) == 1 else questions


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _yaml(text: str) -> Any:
    try:
        return yaml.load(text, Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise NotQuestions(f"is neither JSON nor YAML: {error}") from error
