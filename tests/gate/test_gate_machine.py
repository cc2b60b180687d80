"""Whatever happens in whatever order: the gate's invariants hold."""

from array import array

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from decision_proxy.gate import (
    Engine,
    Gate,
    Limits,
    Outcome,
    PolicyName,
    Refusal,
    Ticket,
    Work,
)
from decision_proxy.upstream.warm_blocks import block_keys


def work_on(state: str, shared: int, questions: int, own: int, size: int) -> Work:
    return Work(questions, shared, own, block_keys(state, [array("I", range(shared))]), size)


works = st.builds(
    work_on,
    st.sampled_from("abcd"),
    st.sampled_from([0, 50, 900, 2_000, 9_000]),
    st.integers(1, 64),
    st.integers(1, 1_500),
    st.integers(0, 40),
)


class GateMachine(RuleBasedStateMachine):
    policy: PolicyName = "budget"
    tickets = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        engine = Engine(max_num_batched_tokens=1_000, kv_tokens=12_000)
        limits = Limits(waiting=12, waiting_bytes=200)
        self.gate = Gate(self.policy, engine, lambda: self.now, limits=limits)
        self.waiting: list[Ticket] = []
        self.running: list[Ticket] = []

    def advance(self) -> None:
        for ticket in self.gate.advance():
            self.waiting.remove(ticket)
            if ticket.outcome is not Outcome.EXPIRED:
                self.running.append(ticket)

    @rule(target=tickets, work=works, patience=st.sampled_from([0.5, 3.0, 1e9]))
    def arrive(self, work: Work, patience: float) -> Ticket:
        try:
            ticket = self.gate.arrive(work, deadline_s=self.now + patience)
        except Refusal as refusal:
            self.check_refusal(refusal, work, patience)
            return Ticket(work, self.now, outcome=refusal.outcome)
        self.waiting.append(ticket)
        self.advance()
        return ticket

    def check_refusal(self, refusal: Refusal, work: Work, patience: float) -> None:
        assert 1 <= refusal.retry_after_s <= 60
        if refusal.outcome is Outcome.REJECTED_FULL:
            assert len(self.waiting) == 12 or self.gate.waiting_bytes + work.bytes > 200
        else:
            assert self.gate.expected_wait_s() > patience

    @rule(ticket=consumes(tickets), served=st.booleans())
    def leave(self, ticket: Ticket, served: bool) -> None:
        for _ in range(2):
            self.gate.leave(ticket, served=served)
        self.waiting = [other for other in self.waiting if other is not ticket]
        self.running = [other for other in self.running if other is not ticket]
        self.advance()

    @rule(ticket=tickets)
    def first_answer(self, ticket: Ticket) -> None:
        self.gate.computed(ticket)
        self.advance()

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.advance()

    @rule(brake=st.sampled_from([0.25, 0.5, 1.0]))
    def engine_is_busy_with_others(self, brake: float) -> None:
        self.gate.brake = brake
        self.advance()

    @rule()
    def engine_restarts(self) -> None:
        self.gate.adapt(self.gate.engine)
        self.advance()

    @invariant()
    def counts_are_what_runs(self) -> None:
        assert (self.gate.waiting, self.gate.running) == (len(self.waiting), len(self.running))
        assert self.gate.in_flight == sum(ticket.cost for ticket in self.running)
        assert self.gate.waiting_bytes == sum(ticket.work.bytes for ticket in self.waiting)
        assert len(self.waiting) <= 12
        assert self.gate.waiting_bytes <= 200

    @invariant()
    def cost_is_within_budget_unless_one_runs_alone(self) -> None:
        costly = [ticket for ticket in self.running if ticket.cost]
        assert self.gate.in_flight <= self.gate.capacity or len(costly) == 1

    @invariant()
    def nobody_outlives_its_deadline_in_the_queue(self) -> None:
        assert all(ticket.deadline_s > self.now for ticket in self.waiting)

    @invariant()
    def never_idle_while_somebody_could_run(self) -> None:
        assert self.running or not self.waiting

    @invariant()
    def one_leader_a_state(self) -> None:
        leading = [ticket.leads for ticket in self.running if ticket.leads is not None]
        assert len(leading) == len(set(leading))

    @invariant()
    def first_come_first_served(self) -> None:
        """Who waits for room arrived after everybody of the same kind who was let in."""
        able = [t for t in self.waiting if self.gate.price(t.work) is not None]
        if able:
            head = min(able, key=self.waiting.index)
            cost = self.gate.price(head.work)
            assert cost
            brake = self.gate.brake if self.policy == "budget" else 1.0
            assert self.gate.in_flight + cost > brake * self.gate.capacity


class TurnsMachine(GateMachine):
    policy = "turns"


class OffMachine(GateMachine):
    policy = "off"

    @invariant()
    def nobody_waits(self) -> None:
        assert not self.waiting


TestBudget = GateMachine.TestCase
TestTurns = TurnsMachine.TestCase
TestOff = OffMachine.TestCase
for case in (TestBudget, TestTurns, TestOff):
    case.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
