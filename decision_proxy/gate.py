"""Who may send its reads now. Pure: no waiting, no I/O, and the clock is the caller's.

A decision arrives as a `Ticket`, waits in order, runs, and leaves exactly once, whatever happens.
`Gate.advance` takes every decision and is called after each change; it returns whom to wake.

Policies:

* `off`: everybody runs at once.
* `turns`: the reference rule. A decision is big when it has more than one question and more
  tokens than one engine step; a state in the prefix cache counts once. `slots` big ones run.
* `budget`: the price is the tokens that the engine has not cached. A cold state has one leader;
  others of the same state wait for it, and are priced as warm once it is computed. Small work, an
  eighth of an engine step, passes at once, up to `SMALL_RUNNING` of it. What exceeds the budget
  runs alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from decision_proxy.upstream.warm_blocks import BLOCK_TOKENS, WarmBlocks

PolicyName = Literal["off", "turns", "budget"]
LEAST_RETRY_S, MOST_RETRY_S = 1.0, 60.0
SMALL_RUNNING = 256
SMALL_STEPS = 1 / 8
BUDGET_STEPS = 8


class Outcome(Enum):
    """How a ticket fared; the values are what metrics say."""

    WAITING = "waiting"
    ADMITTED = "admitted"
    BYPASS = "bypass"
    FOLLOWER = "follower"
    EXPIRED = "expired"
    CLIENT_GONE = "client_gone"
    DRAINED = "drained"
    REJECTED_FULL = "rejected_full"
    REJECTED_DEADLINE = "rejected_deadline"


@dataclass(frozen=True, slots=True)
class Work:
    """What a decision asks of the engine, in tokens.

    `shared_tokens`: of the state, once; `own_tokens`: of all prompts together, without it.
    `blocks`: a key for each whole block of BLOCK_TOKENS shared ids, that stands for everything up
    to its end, model, adapter and cache salt included (see `warm_blocks.block_keys`).
    """

    questions: int
    shared_tokens: int
    own_tokens: int
    blocks: tuple[int, ...] = ()
    bytes: int = 0

    def tokens(self, *, cached: bool) -> int:
        """All prompts, the shared part counted once where the engine caches prefixes."""
        times = 1 if cached else self.questions
        return self.own_tokens + times * self.shared_tokens


@dataclass(frozen=True, slots=True)
class Engine:
    """What the gate knows of vLLM; `kv_tokens` bounds the states that can be warm."""

    max_num_batched_tokens: int = 8192
    prefix_caching: bool = True
    priority_scheduling: bool = False
    kv_tokens: int = 400_000


@dataclass(frozen=True, slots=True)
class Limits:
    waiting: int = 1024
    waiting_bytes: int = 256 * 1024 * 1024


@dataclass(eq=False, slots=True)
class Ticket:
    work: Work
    arrived_s: float
    deadline_s: float = math.inf
    outcome: Outcome = Outcome.WAITING
    started_s: float = math.nan
    cost: int = 0
    leads: int | None = None
    followed: bool = False

    def __repr__(self) -> str:
        return f"<{self.outcome.value} cost={self.cost}{'' if self.leads is None else ' leader'}>"


class Refusal(Exception):
    """The gate takes no more; `outcome` says why, `retry_after_s` when to come again."""

    def __init__(self, outcome: Outcome, retry_after_s: float) -> None:
        super().__init__(outcome.value)
        self.outcome = outcome
        self.retry_after_s = retry_after_s


class Gate:
    """`slots`: big decisions at a time under `turns`; `budget_tokens`: in flight under `budget`.

    `brake`, above 0 and up to 1, is the share of the budget that may be used for now.
    """

    def __init__(
        self,
        policy: PolicyName,
        engine: Engine,
        clock: Callable[[], float],
        *,
        slots: int = 2,
        budget_tokens: int | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.policy = policy
        self.engine = engine
        self.warm = WarmBlocks(engine.kv_tokens)
        self.brake = 1.0
        self.draining = False
        self.outcomes: Counter[Outcome] = Counter()
        self._slots = slots
        self._budget_tokens = budget_tokens
        self._limits = limits or Limits()
        self._clock = clock
        self._waiting: list[Ticket] = []
        self._running: set[Ticket] = set()
        self._leaders: dict[int, Ticket] = {}
        self.in_flight = self.small_running = self.waiting_bytes = 0
        self._service_s = 0.0

    def __repr__(self) -> str:
        return (
            f"<Gate {self.policy} {self.in_flight}/{self.capacity} in flight, "
            f"{len(self._running)} running, {len(self._waiting)} waiting>"
        )

    @property
    def capacity(self) -> int:
        """Big decisions under `turns`, tokens under `budget`."""
        if self.policy == "budget":
            return self._budget_tokens or BUDGET_STEPS * self.engine.max_num_batched_tokens
        return self._slots if self.policy == "turns" else 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def reads_running(self) -> int:
        return sum(ticket.work.questions for ticket in self._running)

    def adapt(self, engine: Engine) -> None:
        """The engine was started, maybe as another: its cache is cold."""
        self.engine = engine
        self.warm.reset(engine.kv_tokens)

    def arrive(self, work: Work, *, deadline_s: float = math.inf) -> Ticket:
        """A new ticket at the end of the queue; `advance` says whether it runs.

        Raises Refusal when the queue is full or the deadline cannot be met.
        """
        now = self._clock()
        if refused := self._refusal(work, deadline_s - now):
            self.outcomes[refused] += 1
            raise Refusal(refused, self.retry_after_s())
        ticket = Ticket(work, now, deadline_s)
        self._waiting.append(ticket)
        self.waiting_bytes += work.bytes
        return ticket

    def _refusal(self, work: Work, patience_s: float) -> Outcome | None:
        if self.draining:
            return Outcome.DRAINED
        if patience_s <= 0:
            return Outcome.REJECTED_DEADLINE
        cost = self.price(work)
        if cost == 0 or (cost and not self._waiting and self._fits(cost)):
            return None
        full = len(self._waiting) >= self._limits.waiting
        if full or self.waiting_bytes + work.bytes > self._limits.waiting_bytes:
            return Outcome.REJECTED_FULL
        return Outcome.REJECTED_DEADLINE if self.expected_wait_s() > patience_s else None

    def leave(self, ticket: Ticket, *, served: bool = False) -> None:
        """The ticket is done, however it was; what it held is free. Twice is as good as once.

        served: its reads were answered, so the engine holds its state now.
        """
        if ticket in self._running:
            self._running.remove(ticket)
            self.in_flight -= ticket.cost
            self.small_running -= ticket.outcome is Outcome.BYPASS
            self._learn(ticket)
            self._stop_leading(ticket)
        elif ticket in self._waiting:
            self._end_wait(ticket, Outcome.CLIENT_GONE)
        else:
            return
        if served:
            self.warm.touch(ticket.work.blocks)

    def computed(self, ticket: Ticket) -> None:
        """A first read of the ticket was answered: its state is in the engine's cache now."""
        if ticket in self._running and ticket.leads is not None:
            self._stop_leading(ticket)
            self.warm.touch(ticket.work.blocks)
            freed = max(0, ticket.cost - ticket.work.own_tokens)
            self.in_flight -= freed
            ticket.cost -= freed

    def _stop_leading(self, ticket: Ticket) -> None:
        if ticket.leads is not None:
            del self._leaders[ticket.leads]
            ticket.leads = None

    def drain(self) -> list[Ticket]:
        """Nobody comes in any more; returns those who waited in vain."""
        self.draining = True
        gone = list(self._waiting)
        for ticket in gone:
            self._end_wait(ticket, Outcome.DRAINED)
        return gone

    def advance(self) -> list[Ticket]:
        """Every decision is taken here. Returns the tickets whose wait is over.

        Their outcome says whether they run now or have missed their deadline.
        """
        now = self._clock()
        woken = [ticket for ticket in self._waiting if now >= ticket.deadline_s]
        for ticket in woken:
            self._end_wait(ticket, Outcome.EXPIRED)
        blocked = False
        for ticket in list(self._waiting):
            cost = self.price(ticket.work)
            if cost is None:
                ticket.followed = True
            elif cost and (blocked or not self._fits(cost)):
                blocked = True
            else:
                self._admit(ticket, cost)
                woken.append(ticket)
        return woken

    def next_deadline_s(self) -> float:
        """When `advance` should be called though nothing else happens."""
        return min((ticket.deadline_s for ticket in self._waiting), default=math.inf)

    def expected_wait_s(self) -> float:
        """A guess of how long a new big decision would wait, from how long the last ones ran."""
        big_running = len(self._running) - self.small_running
        return self._service_s * (1 + len(self._waiting)) / max(1, big_running)

    def retry_after_s(self) -> float:
        """When to come again, 1 to 60 s."""
        return min(MOST_RETRY_S, max(LEAST_RETRY_S, self.expected_wait_s()))

    def price(self, work: Work) -> int | None:
        """What `work` would cost now: 0 passes at once, None waits for the leader of its state."""
        if self.policy == "turns":
            return self._turns_price(work)
        return self._budget_price(work) if self.policy == "budget" else 0

    def _turns_price(self, work: Work) -> int:
        if self.engine.priority_scheduling or work.questions == 1:
            return 0
        tokens = work.tokens(cached=self.engine.prefix_caching)
        return int(tokens > self.engine.max_num_batched_tokens)

    def _budget_price(self, work: Work) -> int | None:
        cost = work.tokens(cached=False)
        if self.engine.prefix_caching:
            warm_tokens = BLOCK_TOKENS * self.warm.length(work.blocks)
            cost = work.tokens(cached=True) - warm_tokens
        small = cost <= SMALL_STEPS * self.engine.max_num_batched_tokens
        if small and self.small_running < SMALL_RUNNING:
            return 0
        return None if self._first_cold(work) in self._leaders else cost

    def _first_cold(self, work: Work) -> int | None:
        """The first block of the state that the engine does not hold; None when there is none."""
        if self.policy != "budget" or not self.engine.prefix_caching:
            return None
        warm = self.warm.length(work.blocks)
        return work.blocks[warm] if warm < len(work.blocks) else None

    def _fits(self, cost: int) -> bool:
        room = self.capacity * (self.brake if self.policy == "budget" else 1.0)
        return self.in_flight == 0 or self.in_flight + cost <= room

    def _admit(self, ticket: Ticket, cost: int) -> None:
        work = ticket.work
        admitted = Outcome.FOLLOWER if ticket.followed else Outcome.ADMITTED
        self._end_wait(ticket, admitted if cost else Outcome.BYPASS)
        ticket.cost = cost
        ticket.started_s = self._clock()
        ticket.leads = self._first_cold(work) if cost else None
        if ticket.leads is not None:
            self._leaders[ticket.leads] = ticket
        self._running.add(ticket)
        self.in_flight += cost
        self.small_running += cost == 0

    def _end_wait(self, ticket: Ticket, outcome: Outcome) -> None:
        self._waiting.remove(ticket)
        self.waiting_bytes -= ticket.work.bytes
        ticket.outcome = outcome
        self.outcomes[outcome] += 1

    def _learn(self, ticket: Ticket) -> None:
        if ticket.cost:
            took = self._clock() - ticket.started_s
            self._service_s += (took - self._service_s) * (0.2 if self._service_s else 1.0)
