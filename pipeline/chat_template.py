"""Chat messages to one prompt, by the model's own template, with Hugging Face's semantics.

A template is code from whoever made the model, so it runs in jinja2's immutable sandbox, and a meter built into it
bounds how long it runs and how much text it makes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from shards.errors import PackageError, RequestError

MOST_STEPS = 200_000
"""Rounds of loops, calls of macros and outputs in one rendering: about a second."""
MOST_CHARACTERS = 32 * 2**20
"""Characters that one rendering may put out or join, all in all."""

_METER = "edge_agent_meter"


class ChatTemplate:
    """A model's chat template, compiled.

    Args:
        source: The jinja2 text; None for a model without one.
        bos_text: What `bos_token` is in the template.
        eos_text: What `eos_token` is in the template.
        now: The clock behind `strftime_now`.

    Raises:
        PackageError: the template is not valid jinja2.
    """

    def __init__(
        self, source: str | None, bos_text: str = "", eos_text: str = "", now: Callable[[], datetime] = datetime.now
    ) -> None:
        self._tokens = {"bos_token": bos_text, "eos_token": eos_text}
        self._template = None
        if source is None:
            return
        environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
        try:
            code = environment.compile(_Metered().visit(environment.parse(source)), filename="<chat template>")
        except (TemplateError, RecursionError) as error:
            raise PackageError(
                f"the model's chat template is not valid ({error})",
                where="chat_template",
                hint="Correct it in the model's folder and export again.",
            ) from None
        self._template = environment.template_class.from_code(environment, code, environment.make_globals(None))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt for these messages. Encode it with `special=False`: what the model wants around it is in it.

        Args:
            messages: Each with `role` and `content`, and whatever else the template knows.
            tools: JSON schemas of functions the model may call.
            documents: Texts to answer from, each with `title` and `text`.
            add_generation_prompt: End with the beginning of the assistant's answer.
            **variables: Further names the template knows, such as `enable_thinking`.

        Raises:
            RequestError: the model has no template, or the template refuses the messages or does not end.
        """
        if self._template is None:
            raise RequestError(
                "this model has no chat template",
                where="messages",
                hint="Ask /v1/completions with a prompt instead, or use an instruction-tuned model.",
            )
        values = {
            **self._tokens,
            **variables,
            "messages": messages,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
            _METER: _Meter(),
        }
        try:
            return self._template.render(values)
        except Exception as error:  # a template is foreign code: it can fail in any way
            raise RequestError(
                f"the model's chat template refuses these messages ({str(error) or type(error).__name__})",
                where="messages",
                hint="Check roles, their order and contents against what the model was trained on.",
            ) from None


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with a bound on what arithmetic makes."""

    intercepted_binops = frozenset(("*", "**", "+"))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and not (abs(left) <= 1e6 and abs(right) <= 64):
            raise TemplateError(f"it computes {left} to the power of {right}")
        if operator == "*":
            for items, times in ((left, right), (right, left)):
                if isinstance(items, Sequence) and len(items) * times > MOST_CHARACTERS:
                    raise TemplateError(f"it repeats something {times} times")
        value = super().call_binop(context, operator, left, right)
        if isinstance(value, Sequence) and len(value) > MOST_CHARACTERS:
            raise TemplateError(f"it makes something of {len(value)} items")
        return value


class _Metered(NodeTransformer):
    """Puts the meter into every loop, macro, output and `~`."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        if node.test is not None:  # rounds that a condition leaves out
            node.test = _metered(node.test)
        node.body.insert(0, nodes.ExprStmt(_metered()))
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_metered()))
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Output:
        self.generic_visit(node)
        node.nodes = [part if isinstance(part, nodes.TemplateData) else _metered(part) for part in node.nodes]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        self.generic_visit(node)
        return _metered(node)


def _metered(*value: nodes.Node) -> nodes.Call:
    return nodes.Call(nodes.Name(_METER, "load"), [*value], [], None, None)


class _Meter:
    """Hands values through and counts them."""

    def __init__(self) -> None:
        self._steps, self._characters = 0, 0

    def __call__(self, value: Any = None) -> Any:
        self._steps += 1
        if isinstance(value, str):
            self._characters += len(value)
        if self._steps > MOST_STEPS:
            raise TemplateError(f"it takes more than {MOST_STEPS} steps")
        if self._characters > MOST_CHARACTERS:
            raise TemplateError(f"it makes more than {MOST_CHARACTERS} characters")
        return value


class _Generation(Extension):
    """`{% generation %}` marks what training learns; here its body is just text."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Answer the statements up to `{% endgeneration %}`."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face's templates expect it: nothing is escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)
