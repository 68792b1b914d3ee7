"""A chat request as the service understands it: every field typed, every range checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from service.chat.format import ResponseFormat, StructuredOutputs
from service.chat.messages import MESSAGES_SCHEMA, Message, check_messages
from service.chat.tools import (
    TOOL_CHOICE_SCHEMA,
    TOOLS_SCHEMA,
    Tool,
    ToolChoice,
    check_tool_choice,
    check_tools,
)
from service.engine.sampling import INT64_MAX, Sampling

MAX_STOP_STRINGS = 4
MAX_STOP_LENGTH = 128
MAX_TOKEN_IDS = 1024
TOKEN_KEY = re.compile(r"-?(0|[1-9][0-9]{0,18})")


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _as_token_id(value: object) -> object:
    """JSON's keys are strings. Only one spelling is a token's id: two keys must not name one token."""
    if isinstance(value, str) and TOKEN_KEY.fullmatch(value):
        return int(value)
    raise ValueError("must have token ids in plain digits as keys")


TokenKey = Annotated[int, BeforeValidator(_as_token_id)]
Count = Annotated[int, Field(ge=1, le=INT64_MAX)]
TokenId = Annotated[int, Field(ge=-INT64_MAX, le=INT64_MAX)]  # the model's vocabulary decides later
TokenIds = Annotated[list[TokenId], Field(max_length=MAX_TOKEN_IDS)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]
Word = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]


class StreamOptions(BaseModel):
    """What a stream carries beside its text."""

    model_config = ConfigDict(strict=True, frozen=True)

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None  # padding against eavesdroppers: TLS record sizes are the proxy's


Written = str | Annotated[list[Annotated[int, Field(ge=0, le=INT64_MAX)]], Field(min_length=1)]


class SharedFields(BaseModel):
    """What may be asked of an answer, whatever the prompt. None stands for "not given", as does null."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)

    model: str | None = None

    max_tokens: Count | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None  # lower goes first
    truncation: Literal["disabled", "auto"] | None = None  # the input policy, for this request

    stream: bool | None = None
    stream_options: StreamOptions | None = None

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=INT64_MAX)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    seed: Annotated[int, Field(ge=-INT64_MAX - 1, le=INT64_MAX)] | None = None

    stop: (
        Annotated[
            list[StopString],
            BeforeValidator(_as_list, json_schema_input_type=StopString | list[StopString]),
            Field(max_length=MAX_STOP_STRINGS),
        ]
        | None
    ) = None
    stop_token_ids: TokenIds | None = None
    min_tokens: Annotated[int, Field(ge=0, le=INT64_MAX)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    bad_words: Annotated[list[Word], Field(max_length=MAX_TOKEN_IDS)] | None = None
    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1)] | None = None
    logit_bias: (
        Annotated[
            dict[TokenKey, Annotated[float, Field(ge=-100, le=100)]],
            Field(max_length=MAX_TOKEN_IDS),
        ]
        | None
    ) = None

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None

    # Taken and without effect here: they describe the caller, or what other services do with a request.
    metadata: dict[str, Any] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None


class ChatRequest(SharedFields):
    """The body of `POST /v1/chat/completions`."""

    messages: Annotated[list[Message], BeforeValidator(check_messages), WithJsonSchema(MESSAGES_SCHEMA)]

    max_completion_tokens: Count | None = None
    reasoning_effort: Effort | None = None
    thinking_token_budget: Annotated[int, Field(ge=0, le=INT64_MAX)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    tools: Annotated[list[Tool] | None, BeforeValidator(check_tools), WithJsonSchema(TOOLS_SCHEMA)] = None
    tool_choice: Annotated[
        ToolChoice | None, BeforeValidator(check_tool_choice), WithJsonSchema(TOOL_CHOICE_SCHEMA)
    ] = None
    parallel_tool_calls: bool | None = None

    @property
    def written(self) -> Written | None:
        """What stands in place of messages and template: text, or token ids. A chat has none."""
        return None

    @property
    def wanted_output_tokens(self) -> int | None:
        """The output the caller asked for; `max_completion_tokens` is the newer name and wins."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def output_field(self) -> str:
        """The caller's own name for it."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def adds_generation_prompt(self) -> bool:
        """Whether the template opens the assistant's turn; not by default when one is being continued."""
        return (
            not self.continue_final_message
            if self.add_generation_prompt is None
            else self.add_generation_prompt
        )

    @property
    def offered(self) -> list[Tool]:
        """The tools that may be called. Those of a turn that calls none are not shown to the model either."""
        return [] if self.choice.mode == "none" else self.tools or []

    @property
    def choice(self) -> ToolChoice:
        """Which tool the model has to call: by default that is up to it."""
        return self.tool_choice or ToolChoice("auto" if self.tools else "none")

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def sampling(self, advised: Mapping[str, float]) -> Sampling:
        """The caller's sampling over what the model's makers advise."""
        given = {name: getattr(self, name) for name in SAMPLING_FIELDS}
        chosen = {**advised, **{name: value for name, value in given.items() if value is not None}}
        for name in ("stop", "stop_token_ids", "bad_words", "allowed_token_ids"):
            if name in chosen:
                chosen[name] = tuple(chosen[name])
        chosen["top_logprobs"] = self.top_logprobs or 0 if self.logprobs else None
        return Sampling(**chosen)


class TextRequest(ChatRequest):
    """A request whose prompt goes to the model as it is written. Its one message stands for all of it."""

    prompt: Written

    @property
    def written(self) -> Written:
        return self.prompt


SAMPLING_FIELDS = tuple(name for name in Sampling.__dataclass_fields__ if name in ChatRequest.model_fields)

# Fields of the API that cannot be honoured, each with the values that ask for nothing. Any other
# value is refused by name: an ignored wish would be answered wrongly.
UNHONOURED: Mapping[str, tuple[object, ...]] = {
    "audio": (None,),
    "best_of": (None, 1),
    "chat_template": (None,),
    "echo": (None, False),
    "function_call": (None, "none"),
    "functions": (None, []),
    "guided_choice": (None,),
    "guided_grammar": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "modalities": (None, ["text"]),
    "prediction": (None,),
    "prompt_logprobs": (None,),
    "service_tier": (None, "auto", "default"),
    "store": (None, False),
    "use_beam_search": (None, False),
    "verbosity": (None, "medium"),
    "web_search_options": (None,),
}
