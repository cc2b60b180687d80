"""`decision-proxy check`: what the proxy would find at a live vLLM, a line for each check."""

import asyncio
import logging
import math
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass

from jinja2 import TemplateError
from rich.console import Console
from rich.markup import escape

from decision_proxy.admission import Admission, Workers, loop_time
from decision_proxy.errors import ProxyError
from decision_proxy.gate import Engine, Gate
from decision_proxy.prompt.opaque import Contents
from decision_proxy.prompt.prompts import Prompts
from decision_proxy.prompt.tokenizer import Tokenizer, TokenizerError
from decision_proxy.questions import Decision, Kind, Option, Question
from decision_proxy.reads.decider import Decider
from decision_proxy.reads.next_token import NextToken
from decision_proxy.reads.served import Model, Served, build
from decision_proxy.settings import Settings
from decision_proxy.upstream.discovery import Upstream, discover
from decision_proxy.upstream.reads import ReadClient

STATE = "The parcel arrived on 3 May, one day late; the box was torn. Überraschung: 今日は。\n\n"
ENDINGS = ("", "\n", "\n\n ", "\r\n", "'", "42", "é", "👩‍💻", "<|im_end|>", "。")
QUESTIONS = ("Question: Was it late?", "  indented", "\n\nblank", "'s", "7", "́combining")


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    detail: str
    verdict: str = "ok"


def check(settings: Settings) -> int:
    """Returns 0 when every check passes, else 1."""
    logging.getLogger("decision_proxy").setLevel(logging.ERROR)
    console = Console(soft_wrap=True)
    return asyncio.run(_check(settings, console))


async def _check(settings: Settings, console: Console) -> int:
    failed = False
    async for finding in _findings(settings):
        failed |= finding.verdict == "FAIL"
        colour = {"ok": "green", "warn": "yellow", "FAIL": "red"}[finding.verdict]
        console.print(
            f"[{colour}]{finding.verdict:<4}[/]  {finding.name:<10} {escape(finding.detail)}"
        )
    if failed:
        print("decision-proxy check: not fit for use as configured", file=sys.stderr)
    return int(failed)


async def _findings(settings: Settings) -> AsyncIterator[Finding]:
    try:
        prompts = Prompts(
            Tokenizer.load(settings.tokenizer, chat_template=settings.prompt.chat_template),
            settings.prompt,
        )
        yield _tokenizer(prompts)
        yield _splice(prompts)
    except TokenizerError as error:
        yield Finding("tokenizer", str(error), "FAIL")
        return
    except (TemplateError, ProxyError) as error:
        yield Finding("template", f"the chat template cannot be used: {error}", "FAIL")
        return
    served = Served(settings, prompts)
    try:
        upstream = await discover(
            str(settings.upstream), api_key=served.api_key(), settings=settings.reads
        )
        yield _server(upstream)
        yield _logprobs(upstream)
        yield _transport(upstream)
        model = build(upstream, prompts, settings.aliases)
        yield await _parity(served, upstream)
        for finding in _labels(model.family):
            yield finding
        served.model = model
        yield await _read(settings, served, model)
    except ProxyError as error:
        yield Finding("vLLM", error.message, "FAIL")


def _tokenizer(prompts: Prompts) -> Finding:
    tokenizer = prompts.tokenizer
    vocabulary = len(tokenizer.hf)
    followed = (
        "rendered once for all questions"
        if prompts.template.followable
        else ("rendered for each question, as it may look into the text")
    )
    return Finding("tokenizer", f"{vocabulary} tokens; chat template {followed}")


def _splice(prompts: Prompts) -> Finding:
    splicer = prompts.splicer
    how = {
        "cut": "cuts at proven boundaries",
        "seam": f"overlapping windows ({splicer.boundaries.unprovable})",
        "full": f"every prompt whole ({splicer.boundaries.unprovable}; {splicer.seams.unprovable})",
    }[splicer.method]
    tails = [f"{question}\nA: yes\nAnswer." for question in QUESTIONS]
    for ending in ENDINGS:
        head = STATE * 40 + ending + "\n\n"
        rendered = prompts.template.render(Contents(head, tails))
        spliced = splicer.splice(rendered.head, rendered.tails)
        whole = prompts.tokenizer.encode_many([rendered.head + t for t in rendered.tails])
        if spliced.full_ids() != whole:
            return Finding("splice", f"differs from whole prompts after {ending!r}", "FAIL")
    count = len(ENDINGS) * len(QUESTIONS)
    return Finding("splice", f"{how}; equal to whole prompts on {count} of {count}")


def _server(upstream: Upstream) -> Finding:
    names = ", ".join(model.name for model in upstream.models)
    longest = upstream.models[0].max_model_len
    return Finding("vLLM", f"{upstream.version}, serves {names}, max_model_len {longest}")


def _logprobs(upstream: Upstream) -> Finding:
    if upstream.logprobs_fault is None:
        return Finding("logprobs", "full-vocabulary log probabilities of the labels")
    return Finding(
        "logprobs",
        f"{upstream.logprobs_fault}; start vLLM with --logprobs-mode raw_logprobs",
        "FAIL",
    )


def _transport(upstream: Upstream) -> Finding:
    if upstream.takes_lists:
        return Finding("transport", "one list request for each decision")
    return Finding("transport", "one request for each question (this server takes no lists)")


async def _parity(served: Served, upstream: Upstream) -> Finding:
    comparison = await served.compare(upstream)
    if comparison.difference is not None:
        return Finding("parity", comparison.difference, "FAIL")
    if not comparison.compared:
        return Finding("parity", "vLLM has no /tokenize route, so nothing was compared", "warn")
    return Finding("parity", f"token ids equal vLLM's own for {comparison.compared} chats")


def _labels(family: NextToken) -> list[Finding]:
    findings = []
    for kind in Kind:
        usable = len(family.labels.ids[kind])
        reasons = list(family.labels.unsuitable[kind].values())
        name = kind.name.lower()
        if not reasons:
            findings.append(Finding("labels", f"{name}: all {usable} labels are one token each"))
        else:
            verdict = "warn" if usable >= 2 else "FAIL"  # noqa: PLR2004 - a question has two options
            findings.append(Finding("labels", f"{name}: {'; '.join(reasons[:3])}", verdict))
    return findings


async def _read(settings: Settings, served: Served, model: Model) -> Finding:
    question = Question("check", Kind.NOUL, "Was it late?", (Option("yes"), Option("no")))
    decision = Decision("check", None, STATE, (question,))
    key = served.api_key()
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    workers = Workers(1)
    try:
        async with ReadClient(str(settings.upstream), settings.reads) as reads:
            decider = Decider(served, reads, workers, Admission(Gate("off", Engine(), loop_time)))
            decided = await decider.decide(decision, headers, deadline_s=math.inf)
    finally:
        workers.close()
    answer = decided.answers()[0]
    return Finding(
        "read",
        f"{model.name} answers: P(yes) {answer.probabilities[0]:.4f}, "
        f"label mass {answer.label_mass:.4f}, {answer.input_tokens} tokens",
    )
