"""From a decision to its answers: prompts in the workers, a turn at the gate, then the reads."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from secrets import token_hex

from decision_proxy.admission import Admission, Workers, within
from decision_proxy.errors import UpstreamRefused, UpstreamUnavailable
from decision_proxy.gate import Work
from decision_proxy.questions import Answer, Decision
from decision_proxy.reads.next_token import Plan
from decision_proxy.reads.served import Model, Served
from decision_proxy.upstream.reads import ReadClient, ReadContext, ReadResult


@dataclass(frozen=True, slots=True)
class Decided:
    model: str
    plan: Plan
    results: list[ReadResult]
    by: Model

    def answers(self) -> list[Answer]:
        """CPU work that grows with the number of options."""
        return self.by.family.answers(self.plan, self.results)


class Decider:
    def __init__(
        self, served: Served, reads: ReadClient, workers: Workers, admission: Admission
    ) -> None:
        self.served = served
        self.workers = workers
        self._reads = reads
        self._admission = admission

    async def decide(
        self, decision: Decision, headers: Mapping[str, str], *, deadline_s: float
    ) -> Decided:
        """`headers`: what travels with every read (authorization, trace context).

        `deadline_s`: on the event loop's clock.
        """
        model = self.served.current()
        name = model.name_of(decision.model)
        async with within(deadline_s, "its prompts were made"):
            plan, work = await self.workers.run_while_wanted(
                partial(_planned, model, name, decision)
            )
        context = ReadContext(
            model=name,
            request_id=f"{decision.id}-{token_hex(4)}",
            cache_salt=decision.cache_salt,
            priority=decision.priority,
            headers=headers,
        )
        async with (
            self._admission.turn(work, deadline_s=deadline_s) as computed,
            within(deadline_s, "vLLM worked on it"),
        ):
            results = await self._read(plan, context, model, computed)
        return Decided(name, plan, results, model)

    async def _read(
        self, plan: Plan, context: ReadContext, model: Model, computed: Callable[[], None]
    ) -> list[ReadResult]:
        try:
            return await self._reads.read(
                plan.reads,
                context,
                takes_lists=model.upstream.takes_lists,
                on_first_answer=computed,
            )
        except UpstreamRefused as refused:
            if refused.status != HTTPStatus.NOT_FOUND:
                raise
            # The name was right a moment ago: vLLM came back with another model.
            self.served.doubt()
            raise UpstreamUnavailable("vLLM is changing its model.") from refused
        except UpstreamUnavailable:
            self.served.doubt()
            raise


def _planned(
    model: Model, name: str, decision: Decision, cancelled: Callable[[], bool]
) -> tuple[Plan, Work]:
    plan = model.family.plan(decision, cancelled=cancelled)
    return plan, plan.work(scope=(name, decision.cache_salt))
