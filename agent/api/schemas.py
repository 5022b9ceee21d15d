"""What clients may ask for. Fields mean what they mean to OpenAI; what this server can't do is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, model_validator

from pipeline.messages import Service
from pipeline.wire import MAX_TOP

MAX_STOPS = 16
MAX_CHOICES = 16
_LARGEST_SEED = 2**63 - 1


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _not_empty(stops: list[str]) -> list[str]:
    if not all(stops):
        raise ValueError("a stop text must not be empty")
    return stops


Stops = Annotated[list[str], BeforeValidator(_as_list), AfterValidator(_not_empty), Field(max_length=MAX_STOPS)]
Count = Annotated[int, Field(gt=0)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


class StreamOptions(BaseModel):
    """`stream_options`."""

    model_config = ConfigDict(extra="forbid")

    include_usage: bool = False
    include_obfuscation: bool = False


class SharedFields(BaseModel):
    """What chats and completions have in common. A field that nobody knows is refused: it may have meant something."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = 1
    max_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] | None = 1.0
    top_k: Annotated[int, Field(ge=-1)] | None = 0
    min_p: Annotated[float, Field(ge=0, le=1)] | None = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = 1.0
    presence_penalty: Penalty | None = 0.0
    frequency_penalty: Penalty | None = 0.0
    logit_bias: dict[int, Annotated[float, Field(ge=-100, le=100)]] | None = None
    seed: Annotated[int, Field(ge=-_LARGEST_SEED, le=_LARGEST_SEED)] | None = None
    stop: Stops | None = None
    user: str | None = None
    safety_identifier: str | None = None
    service_tier: Literal["auto", "default", "priority", "flex"] | None = None

    @property
    def client_user(self) -> str | None:
        """The user of the client's own that the request is for; `safety_identifier` is the newer name."""
        return self.safety_identifier or self.user

    @property
    def service(self) -> Service:
        """How urgent it is. Flex is what is cheaper and slower; nothing is more urgent than the default."""
        return "batch" if self.service_tier == "flex" else "interactive"

    @property
    def served_tier(self) -> str | None:
        """The tier that the answer names: the one it was served by, if the request says anything of it."""
        if self.service_tier is None:
            return None
        return "flex" if self.service == "batch" else "default"

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("'stream_options' is only allowed together with \"stream\": true")
        return self


def _text_of(content: Any) -> Any:
    """Join a list of text parts."""
    if not isinstance(content, list):
        return content
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise ValueError(f"only parts of type 'text' are understood, not {kind!r}")
    return "".join(part["text"] for part in content)


class Message(BaseModel):
    """A message of a conversation; its content comes as a text or as a list of text parts."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_text_of)]
    name: str | None = None
    refusal: None = None


def _no_tools(tools: list[Any]) -> list[Any]:
    if tools:
        raise ValueError("tool calls are not supported yet")
    return tools


class ChatRequest(SharedFields):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None

    # understood, without effect here
    store: bool | None = None
    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = None
    parallel_tool_calls: bool | None = None

    # only their neutral values
    tools: Annotated[list[Any], AfterValidator(_no_tools)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    response_format: TextFormat | None = None
    modalities: list[Literal["text"]] | None = None

    @model_validator(mode="after")
    def _top_logprobs_need_logprobs(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("'top_logprobs' is only allowed together with \"logprobs\": true")
        return self

    @property
    def limit(self) -> int | None:
        """The most tokens wanted; None: as many as the context holds."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def wanted_logprobs(self) -> int | None:
        """None: none; n: the chosen token's and the n likeliest."""
        return (self.top_logprobs or 0) if self.logprobs else None


class TextFormat(BaseModel):
    """`response_format`: plain text."""

    type: Literal["text"]


class TokenizeRequest(BaseModel):
    """Body of POST /tokenize: a conversation or a text."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    prompt: str | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.messages is None) == (self.prompt is None):
            raise ValueError("wanted is one of 'messages' and 'prompt'")
        return self


def _prompts(prompt: Any) -> list[str] | list[list[int]]:
    """One or more prompts, each a text or token ids."""
    if isinstance(prompt, str) or _is_ids(prompt):
        prompt = [prompt]
    if not isinstance(prompt, list) or not (all(isinstance(p, str) for p in prompt) or all(map(_is_ids, prompt))):
        raise ValueError("wanted is a text, a list of texts, a list of token ids, or a list of such lists")
    if not 1 <= len(prompt) <= MAX_CHOICES:
        raise ValueError(f"wanted are 1 to {MAX_CHOICES} prompts, there are {len(prompt)}")
    return prompt


def _is_ids(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and all(type(token) is int for token in prompt)


class CompletionRequest(SharedFields):
    """Body of POST /v1/completions. `prompt` comes in four shapes and is held as a list of prompts."""

    prompt: Annotated[list[str] | list[list[int]], PlainValidator(_prompts)]
    max_tokens: Count | None = 16
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None

    # only their neutral values
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None
    suffix: Literal[""] | None = None

    @property
    def limit(self) -> int | None:
        """The most tokens wanted; None: as many as the context holds."""
        return self.max_tokens

    @property
    def wanted_logprobs(self) -> int | None:
        """None: none; n: the chosen token's and the n likeliest."""
        return self.logprobs
