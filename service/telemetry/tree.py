"""The spans of a request as plain data: what is exported is decided here, how in `traces`.

    POST /v1/chat/completions      or whichever route the request took
    └─ chat {model}
       ├─ render ─ admission ─ queue ─ prefill ─ decode

A request that ended early has the tree up to there. The part that was under way lasts to the end and
says why it ended; parts that never began do not appear. Before the first token nobody outside the
engine knows whether it was waiting or at work, so that is one span. With n > 1 each answer has a
span `choice i` around its part in the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from service.telemetry import conventions as named
from service.telemetry.outcome import FAULTS
from service.telemetry.phases import Phases
from service.telemetry.record import ChoiceRecord, Outcome, RequestRecord
from service.telemetry.timeline import Course, Timeline

PROVIDER = "vllm"

Attribute = str | int | float | bool | Sequence[str]


@dataclass(slots=True)
class Node:
    """One span. Times are on the record's clock; `error` is the type of a fault of ours."""

    name: str
    start_s: float
    end_s: float
    attributes: dict[str, Attribute] = field(default_factory=dict)
    children: list[Node] = field(default_factory=list)
    preempted_s: list[float] = field(default_factory=list)
    error: str | None = None

    @property
    def size(self) -> int:
        """Spans in this tree."""
        return 1 + sum(child.size for child in self.children)


def root_name(route: str) -> str:
    """The name of the span around everything."""
    return f"POST {route}"


def tree(record: RequestRecord, times: Timeline, phases: Phases, outcome: Outcome) -> Node:
    """The spans of a request that is over."""
    attributes = _root_attributes(record, phases, outcome)
    root = Node(root_name(record.route), times.received_s, times.end_s, attributes)
    spans = [root]
    if times.parsed_s is not None:
        chat = Node(f"chat {record.model}", times.parsed_s, times.end_s, _chat_attributes(record, phases))
        chat.children = _parts(record, times, phases)
        root.children = [chat]
        spans.append(chat)
    if outcome != "ok":
        _mark(record, outcome, [*spans, *_under_way(record, times, spans[-1])])
    return root


def _parts(record: RequestRecord, times: Timeline, phases: Phases) -> list[Node]:
    assert times.parsed_s is not None
    if times.rendered_s is None:
        return [Node("render", times.parsed_s, times.end_s)]
    parts = [Node("render", times.parsed_s, times.rendered_s)]
    if times.admitted_s is None:
        return [*parts, Node("admission", times.rendered_s, times.end_s)]
    parts.append(Node("admission", times.rendered_s, times.admitted_s))
    choices = record.choices or [ChoiceRecord()]
    if len(choices) == 1:
        return parts + _engine_parts(record, choices[0], times.courses[0], phases)
    for index, (choice, course) in enumerate(zip(choices, times.courses, strict=True)):
        node = Node(f"choice {index}", course.start_s, course.end_s, {named.CHOICE: index})
        node.children = _engine_parts(record, choice, course, phases)
        parts.append(node)
    return parts


def _engine_parts(record: RequestRecord, choice: ChoiceRecord, course: Course, phases: Phases) -> list[Node]:
    if course.first_token_s is None:
        return [Node("queue_or_prefill", course.start_s, course.end_s)]
    work: dict[str, Attribute] = {
        named.COMPUTED_TOKENS: phases.computed_tokens,
        named.CACHED_TOKENS: phases.cached_tokens,
    }
    if phases.forecast_tokens is not None:
        work[named.FORECAST_TOKENS] = phases.forecast_tokens
    if phases.miss is not None:
        work |= {named.MISS_INDEX: phases.miss.index, named.MISS_CAUSE: phases.miss.cause}
    waits = [] if course.scheduled_s is None else [Node("queue", course.start_s, course.scheduled_s)]
    prefill = (
        Node("queue_or_prefill", course.start_s, course.first_token_s, work)
        if course.scheduled_s is None
        else Node("prefill", course.scheduled_s, course.first_token_s, work)
    )
    decode = Node("decode", course.first_token_s, course.end_s, _decode_attributes(record, choice, course))
    for noticed_s in choice.preempted_s:
        (prefill if noticed_s == choice.first_delta_s else decode).preempted_s.append(noticed_s)
    return [*waits, prefill, decode]


def _under_way(record: RequestRecord, times: Timeline, chat: Node) -> list[Node]:
    """The parts that had not ended when the request did: none, when only reading was left."""
    if not chat.children or record.complete:
        return []
    if len(times.courses) < 2:
        return chat.children[-1:]
    choices = chat.children[-len(times.courses) :]
    return [
        node.children[-1] for node, course in zip(choices, times.courses, strict=True) if not course.finished
    ]


def _mark(record: RequestRecord, outcome: Outcome, spans: list[Node]) -> None:
    kind = outcome if record.error is None else record.error.code
    for span in spans:
        span.attributes[named.OUTCOME] = outcome
        if outcome != "client_abort":
            span.attributes[named.ERROR_TYPE] = kind
        if outcome in FAULTS:
            span.error = kind


def _root_attributes(record: RequestRecord, phases: Phases, outcome: Outcome) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {
        named.HTTP_METHOD: "POST",
        named.HTTP_ROUTE: record.route,
        named.URL_PATH: record.route,
        named.REQUEST_ID: record.request_id,
        named.TENANT: record.tenant,
        named.OUTCOME: outcome,
    }
    if record.status is not None:
        attributes[named.HTTP_STATUS] = record.status
    if phases.bound_by is not None:
        attributes[named.BOUND_BY] = phases.bound_by
    if phases.ttft_ms is not None:
        attributes[named.TTFT_MS] = phases.ttft_ms
    if record.client_wait_s:
        attributes[named.CLIENT_WAIT_MS] = 1e3 * record.client_wait_s
    return attributes


def _chat_attributes(record: RequestRecord, phases: Phases) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {
        named.OPERATION: "chat",
        named.PROVIDER: PROVIDER,
        named.REQUEST_MODEL: record.model,
        named.REQUEST_STREAM: record.stream,
    }
    if record.content is not None:
        attributes[named.INPUT_MESSAGES] = record.content.asked()
    if record.n > 1:
        attributes[named.REQUEST_CHOICES] = record.n
    if record.budget is not None:
        attributes[named.REQUEST_MAX_TOKENS] = record.budget.max_output_tokens
        if record.budget.action != "none":
            attributes[named.BUDGET_ACTION] = record.budget.action
            attributes[named.DROPPED_MESSAGES] = record.budget.dropped_messages
    if record.begun:
        attributes |= _answer_attributes(record, phases)
    return attributes


def _answer_attributes(record: RequestRecord, phases: Phases) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {
        named.RESPONSE_MODEL: record.model,
        named.OUTPUT_TOKENS: record.output_tokens,
        named.CACHE_READ_TOKENS: phases.cached_tokens,
    }
    if record.budget is not None:
        attributes[named.INPUT_TOKENS] = record.budget.prompt_tokens
    if record.content is not None:
        attributes[named.OUTPUT_MESSAGES] = record.content.answered([one.finish for one in record.choices])
    if record.response_id:
        attributes[named.RESPONSE_ID] = record.response_id
    if record.reasoning_tokens:
        attributes[named.REASONING_TOKENS] = record.reasoning_tokens
    if record.stream and phases.ttft_ms is not None:
        attributes[named.TIME_TO_FIRST_CHUNK_S] = phases.ttft_ms / 1e3
    if finishes := [choice.finish for choice in record.choices if choice.finish is not None]:
        attributes[named.FINISH_REASONS] = finishes
    return attributes


def _decode_attributes(record: RequestRecord, choice: ChoiceRecord, course: Course) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {named.DECODE_STEPS: course.decode_steps}
    if record.reasoning_tokens and record.n == 1:
        attributes[named.THOUGHT_TOKENS] = record.reasoning_tokens
    if course.decode_steps:
        attributes[named.TPOT_MS] = 1e3 * course.decode_s / course.decode_steps
    if record.stream and record.longest_gap_s:
        attributes[named.LONGEST_GAP_MS] = 1e3 * record.longest_gap_s
    if choice.preempted_s:
        attributes[named.PREEMPTIONS] = len(choice.preempted_s)
    return attributes
