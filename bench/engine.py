"""A model of the step loop of vLLM V1: pure and deterministic, for reads of one token.

In each step the engine computes up to `max_num_batched_tokens` tokens: first of the running
requests, in their order, then of waiting ones, first come, first served, until one does not fit. A
long prompt is computed in chunks. The prefix cache is looked up when a request is first scheduled.

As in vLLM 0.33 with plain attention, blocks can be found as soon as they are scheduled, so that
requests later in the same step already share them; `shares_within_step=False` is how recurrent
states (hybrid models) behave: only what an earlier step computed is shared.

Not modelled: the frontend's own CPU time, decoding (a read ends with its prompt), preemption (one
prompt at most is half computed, and it fits), asynchronous scheduling, priorities.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bench.engine_blocks import BlockPool


@dataclass(frozen=True, slots=True)
class Limits:
    """vLLM's own defaults on an H200, but for the number of blocks: 2 million tokens."""

    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 1024
    blocks: int = 125_000
    block_tokens: int = 16
    prefix_caching: bool = True
    shares_within_step: bool = True


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds. A cold state of 27k tokens takes about 1 s, 64 reads on a warm one about 0.3 s."""

    step_s: float = 8e-3
    token_s: float = 35e-6
    request_s: float = 50e-6
    context_token_s: float = 72e-9

    def of(self, step: "Step") -> float:
        context = sum(part.start for part in step.parts)
        requests = self.request_s * len(step.parts)
        return self.step_s + self.token_s * step.tokens + requests + self.context_token_s * context


@dataclass(frozen=True, slots=True)
class Prompt:
    """`blocks`: for each full block, the hash of all tokens up to its end."""

    tokens: int
    blocks: Sequence[int] = ()


@dataclass(eq=False, slots=True)
class Request:
    prompt: Prompt
    computed: int = 0
    cached: int = 0
    aborted: bool = False
    last_block: int | None = None
    published: int = 0
    private: int = 0

    @property
    def missing(self) -> int:
        return self.prompt.tokens - self.computed


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens `start` to `start + tokens` of one request, computed in one step."""

    request: Request
    start: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Step:
    parts: tuple[Part, ...]

    @property
    def tokens(self) -> int:
        return sum(part.tokens for part in self.parts)


@dataclass(slots=True)
class Counters:
    """Tokens, as in vLLM's metrics: queries and hits of the prefix cache, and what was computed."""

    queries: int = 0
    hits: int = 0
    computed: int = 0
    prompt_tokens: int = 0
    steps: int = 0
    finished: int = 0
    aborted: int = 0


@dataclass(slots=True)
class Scheduler:
    """`start_step` and `finish_step` alternate; requests come and go at any time."""

    limits: Limits = field(default_factory=Limits)
    counters: Counters = field(default_factory=Counters)
    pool: BlockPool = field(init=False)
    _running: list[Request] = field(init=False, default_factory=list)
    _waiting: OrderedDict[Request, None] = field(init=False, default_factory=OrderedDict)
    _step: Step | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.pool = BlockPool(self.limits.blocks)

    def __repr__(self) -> str:
        return f"<Scheduler {self.running} running, {self.waiting} waiting, {self.pool!r}>"

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        return bool(self._running or self._waiting)

    @property
    def cache_usage(self) -> float:
        return self.pool.used / self.pool.capacity

    def add(self, prompt: Prompt) -> Request:
        """Raises ValueError for a prompt that the whole cache could not hold."""
        if prompt.tokens < 1 or self._blocks(prompt.tokens) > self.limits.blocks:
            raise ValueError(f"a prompt of {prompt.tokens} tokens fits into no step")
        request = Request(prompt)
        self._waiting[request] = None
        return request

    def abort(self, request: Request) -> None:
        """A running request keeps its blocks until the step that is going on ends, as in vLLM."""
        if request in self._waiting:
            del self._waiting[request]
            self.counters.aborted += 1
        elif request in self._running:
            request.aborted = True
            if self._step is None:
                self._drop_aborted()

    def start_step(self) -> Step | None:
        """None when there is nothing to do. The step's duration is the caller's business."""
        if self._step is not None:
            raise RuntimeError("the step before has not ended")
        parts = tuple(self._parts())
        if not parts:
            return None
        self._step = Step(parts)
        self.counters.steps += 1
        self.counters.computed += self._step.tokens
        return self._step

    def finish_step(self) -> list[Request]:
        """Ends the step; returns the requests whose prompts are computed now, in order."""
        if self._step is None:
            raise RuntimeError("there is no step to end")
        for part in self._step.parts:
            self._publish(part.request)
        self._step = None
        self._drop_aborted()
        done = [request for request in self._running if not request.missing]
        self._running = [request for request in self._running if request.missing]
        for request in done:
            self._release(request)
            self.counters.finished += 1
            self.counters.prompt_tokens += request.prompt.tokens
        return done

    def _parts(self) -> Iterator[Part]:
        budget = self.limits.max_num_batched_tokens
        for request in self._running:
            if not budget:
                return
            part = self._schedule(request, budget)
            budget -= part.tokens
            yield part
        while budget and self._waiting and len(self._running) < self.limits.max_num_seqs:
            request = next(iter(self._waiting))
            if not self._admit(request):
                return
            part = self._schedule(request, budget)
            budget -= part.tokens
            yield part

    def _admit(self, request: Request) -> bool:
        """Looks the prefix up, and lets the request in if its whole prompt fits into the cache."""
        hit = self._hit(request.prompt)
        tip = request.prompt.blocks[hit - 1] if hit else None
        needed = self._blocks(request.prompt.tokens) - hit
        if needed > self.pool.free - self.pool.idle_before(tip):
            return False
        self.pool.pin(tip)
        request.last_block, request.published = tip, hit
        request.computed = request.cached = hit * self.limits.block_tokens
        if self.limits.prefix_caching:
            self.counters.queries += request.prompt.tokens
            self.counters.hits += request.cached
        del self._waiting[request]
        self._running.append(request)
        return True

    def _hit(self, prompt: Prompt) -> int:
        """The last token is always computed: its logits are what the read is for."""
        if not self.limits.prefix_caching:
            return 0
        most = (prompt.tokens - 1) // self.limits.block_tokens
        return min(self.pool.leading(prompt.blocks), most)

    def _schedule(self, request: Request, budget: int) -> Part:
        part = Part(request, request.computed, min(request.missing, budget))
        before = self._blocks(request.computed)
        request.computed += part.tokens
        taken = self._blocks(request.computed) - before
        self.pool.take_private(taken)
        request.private += taken
        if self.limits.shares_within_step:
            self._publish(request)
        return part

    def _publish(self, request: Request) -> None:
        if not self.limits.prefix_caching:
            return
        full = request.computed // self.limits.block_tokens
        for block in request.prompt.blocks[request.published : full]:
            request.private -= self.pool.publish(block, request.last_block)
            request.last_block = block
        request.published = full

    def _drop_aborted(self) -> None:
        for request in self._running:
            if request.aborted:
                self._release(request)
                self.counters.aborted += 1
        self._running = [request for request in self._running if not request.aborted]

    def _release(self, request: Request) -> None:
        self.pool.unpin(request.last_block)
        self.pool.give_private(request.private)
        request.last_block, request.private = None, 0

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_tokens)
