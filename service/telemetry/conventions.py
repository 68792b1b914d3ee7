"""Names in spans. One place, since the conventions still move.

HTTP and error names: OpenTelemetry semantic conventions 1.44.0, stable. `gen_ai.*`: the GenAI
conventions as their own repository has them beside 1.44.0, status development. `twophase.*`: ours;
no convention names the phases inside a server.
"""

from __future__ import annotations

HTTP_METHOD = "http.request.method"
HTTP_ROUTE = "http.route"
HTTP_STATUS = "http.response.status_code"
URL_PATH = "url.path"
ERROR_TYPE = "error.type"

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
REQUEST_CHOICES = "gen_ai.request.choice.count"
REQUEST_STREAM = "gen_ai.request.stream"
RESPONSE_ID = "gen_ai.response.id"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK_S = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"

REQUEST_ID = "twophase.request_id"
TENANT = "twophase.tenant"
OUTCOME = "twophase.outcome"
BOUND_BY = "twophase.bound_by"
TTFT_MS = "twophase.ttft_ms"
BUDGET_ACTION = "twophase.budget.action"
DROPPED_MESSAGES = "twophase.budget.dropped_messages"
COMPUTED_TOKENS = "twophase.computed_tokens"
CACHED_TOKENS = "twophase.cached_tokens"
FORECAST_TOKENS = "twophase.cache.forecast_tokens"
MISS_INDEX = "twophase.cache.miss_index"
MISS_CAUSE = "twophase.cache.miss_cause"
THOUGHT_TOKENS = "twophase.reasoning_tokens"
DECODE_STEPS = "twophase.decode_steps"
TPOT_MS = "twophase.tpot_ms"
LONGEST_GAP_MS = "twophase.longest_gap_ms"
CLIENT_WAIT_MS = "twophase.client_wait_ms"
CHOICE = "twophase.choice"
PREEMPTIONS = "twophase.preemptions"
PREEMPTED = "preempted"  # an event: the engine gave this answer's cache away and computes it again
