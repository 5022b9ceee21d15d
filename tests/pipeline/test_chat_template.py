from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from pipeline import chat_template
from pipeline.chat_template import ChatTemplate
from shards.errors import PackageError, RequestError

CHATML = """{% for message in messages %}
    {% if loop.first and message.role != 'system' %}
<|im_start|>system
You are helpful.<|im_end|>
    {% endif %}
<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

HEADERS = """{{- bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{%- if not date_string is defined %}{%- set date_string = 'today' %}{%- endif %}
{{- '<|start|>system<|end|>\\n\\nDate: ' ~ date_string ~ '\\n' + system + eos_token }}
{%- if tools is not none %}
    {%- for tool in tools %}
        {{- tool | tojson(indent=4) }}
        {{- '\\n\\n' }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if message.tool_calls %}
        {%- if message.tool_calls | length != 1 %}{{- raise_exception('one call at a time') }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start|>assistant<|end|>\\n\\n{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}{{- '}' + eos_token }}
    {%- elif message.role in ['tool', 'ipython'] %}
        {%- set result = message.content if message.content is string else message.content | tojson %}
        {{- '<|start|>ipython<|end|>\\n\\n' + result + eos_token }}
    {%- else %}
        {{- '<|start|>' + message.role + '<|end|>\\n\\n' + message.content | trim + eos_token }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant<|end|>\\n\\n' }}{%- endif %}"""

ALTERNATING = """{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must alternate: user, assistant, user, assistant, and so on') }}
{% endif %}
{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
{%- elif message['role'] == 'assistant' %}{{ ' ' + message['content'] | trim + eos_token }}
{%- else %}{{ raise_exception('Only user and assistant roles') }}{% endif %}
{% endfor %}"""

TOOLS = """{%- macro describe(tool, depth=0) -%}
{{ '#' * (depth + 1) }} {{ tool.function.name }}: {{ tool.function.description | default('?') }}
{%- for name, schema in tool.function.parameters.properties | dictsort %}
{{ '  ' * (depth + 1) }}- {{ name }} ({{ schema.type }}){{ ', needed' if name in tool.function.parameters.required }}
{%- endfor %}
{%- endmacro %}
{%- set ns = namespace(last_user=-1, count=0) %}
{%- for message in messages[::-1] %}
    {%- if message.role == 'user' and ns.last_user < 0 %}
        {%- set ns.last_user = messages | length - loop.index %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for tool in tools or [] %}{{ describe(tool, loop.index0) }}
{% endfor %}
{%- for document in documents or [] %}[{{ document.title }}] {{ document.text }}
{% endfor %}
{%- for message in messages %}
    {%- if message.content is not string %}{% continue %}{% endif %}
    {%- if message.role == 'assistant' %}
<a>{% generation %}{{ message.content.split('</think>')[-1].lstrip('\\n') }}{% endgeneration %}</a>
    {%- else %}
<{{ message.role }}{{ ' last' if loop.index0 == ns.last_user }}>{{ message.content }}</{{ message.role }}>
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
<a>{{ '<think>\\n\\n</think>' if enable_thinking is defined and enable_thinking is false }}
{%- endif %}"""

TALK = [
    {"role": "user", "content": "Hi, <b>you</b> & 'me' \"them\" ünï 日本\n"},
    {"role": "assistant", "content": "<think>hm</think>\n  Hello!  "},
    {"role": "user", "content": "{{ 7 * 7 }} {% raw %}"},
]
SYSTEM = [{"role": "system", "content": "  Be brief. "}, *TALK]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Wetter für <Ort> & Zeit",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}, "day": {"type": "integer"}},
            "required": ["place"],
        },
    },
}
CALLS = [
    *TALK,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"place": "Zürich <1>"}}}],
    },
    {"role": "tool", "content": {"degrees": [1, 2.5, None, True]}},
]
DOCUMENTS = [{"title": "One", "text": "first"}, {"title": "Two", "text": "second"}]

CASES: dict[str, tuple[str, list[dict[str, Any]], dict[str, Any]]] = {
    "chatml": (CHATML, TALK, {}),
    "chatml with system": (CHATML, SYSTEM, {}),
    "headers": (HEADERS, TALK, {}),
    "headers with system": (HEADERS, SYSTEM, {"date_string": "26 Jul 2024"}),
    "headers with tools": (HEADERS, CALLS, {"tools": [WEATHER, WEATHER]}),
    "alternating": (ALTERNATING, TALK, {}),
    "tools": (TOOLS, CALLS, {"tools": [WEATHER, WEATHER]}),
    "documents": (TOOLS, SYSTEM, {"documents": DOCUMENTS, "enable_thinking": False}),
}


@pytest.mark.parametrize("add_generation_prompt", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_renders_what_transformers_renders(case: str, add_generation_prompt: bool) -> None:
    source, messages, more = CASES[case]
    (expected,), _ = render_jinja_template(
        [messages],
        chat_template=source,
        add_generation_prompt=add_generation_prompt,
        bos_token="<s>",
        eos_token="</s>",
        **more,
    )
    rendered = ChatTemplate(source, "<s>", "</s>").render(messages, add_generation_prompt=add_generation_prompt, **more)
    assert rendered == expected
    assert rendered


def test_a_prompt_for_an_answer_is_the_default() -> None:
    assert ChatTemplate(CHATML).render(TALK).endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("{{ value | tojson }}", '{"ü": "<a & \'b\'>", "n": [1, null]}'),
        ("{{ value | tojson(ensure_ascii=true) }}", '{"\\u00fc": "<a & \'b\'>", "n": [1, null]}'),
        ("{{ value | tojson(separators=(',', ':'), sort_keys=true) }}", '{"n":[1,null],"ü":"<a & \'b\'>"}'),
        ("{{ missing }}", ""),
        ("{{ missing is defined }}", "False"),
        (
            "{{ none }}|{{ 1.0 }}|{{ 10 // 3 }}|{{ 2 ** 10 }}|{{ [0] * 3 }}|{{ 3 * 'ab' }}",
            "None|1.0|3|1024|[0, 0, 0]|ababab",
        ),
        ("{{ 'a' ~ 1 ~ none }}", "a1None"),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x + x }}", "a1a1"),
        ("{% for a in [1, [2, [3]]] recursive %}{{ loop(a) if a is iterable else a }}{% else %}-{% endfor %}", "123"),
        ("{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}{{ 5 }}{% endcall %}", "<5>"),
        ("{% for a in range(9) if a % 2 %}{% if a > 5 %}{% break %}{% endif %}{{ a }}{% endfor %}", "135"),
        ("{{ '%s-%02d' | format('a', 7) }}{{ '{:>3}'.format(7) }}", "a-07  7"),
    ],
)
def test_expressions_mean_what_they_mean_in_jinja(expression: str, expected: str) -> None:
    value = {"ü": "<a & 'b'>", "n": [1, None]}
    assert ChatTemplate(expression).render([], value=value) == expected


def test_the_clock_is_the_callers() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2024, 7, 26, tzinfo=UTC))
    assert template.render([]) == "26 Jul 2024"


def test_rendering_twice_gives_the_same() -> None:
    template = ChatTemplate(TOOLS)
    assert template.render(CALLS, tools=[WEATHER]) == template.render(CALLS, tools=[WEATHER])


def test_what_a_template_refuses_is_the_requests_error() -> None:
    with pytest.raises(RequestError, match="Roles must alternate: user, assistant") as caught:
        ChatTemplate(ALTERNATING).render([*TALK, TALK[0]])
    assert caught.value.where == "messages"


def test_a_model_without_a_template_says_what_works_instead() -> None:
    with pytest.raises(RequestError, match=r"no chat template.*completions") as caught:
        ChatTemplate(None).render(TALK)
    assert caught.value.where == "messages"


@pytest.mark.parametrize(
    "source", ["{% for x in y %}", "{{ 1 +", "{% nonsense %}", "{% generation %}", "(" * 3 + "{{" + "(" * 5000]
)
def test_a_template_that_is_not_jinja_is_the_packages_error(source: str) -> None:
    with pytest.raises(PackageError, match="chat_template: the model's chat template is not valid"):
        ChatTemplate(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ raise_exception.__globals__.keys() }}",
        "{{ strftime_now.__closure__[0] }}",
        "{{ edge_agent_meter.__init__.__globals__ }}",
        "{{ missing.attribute }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content + 1 }}",
        "{% include 'other' %}",
        "{{ strftime_now(5) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_whatever_goes_wrong_in_a_template_names_the_messages(source: str) -> None:
    messages = [dict(message) for message in TALK]
    with pytest.raises(RequestError, match="the model's chat template refuses these messages") as caught:
        ChatTemplate(source).render(messages)
    assert caught.value.where == "messages"
    assert messages == TALK


ENDLESS = [
    "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
    "{% for a in range(90000) %}{% for b in range(90000) if b < 0 %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}"
    "{% set ns.x = x %}{% endfor %}",
    "{{ 'a' * 10 ** 12 }}",
    "{{ 10 ** 12 * [0] }}",
    "{{ 10 ** 10 ** 10 }}",
]


@pytest.mark.parametrize("source", ENDLESS)
def test_a_template_that_would_not_end_is_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MOST_STEPS", 5000)
    monkeypatch.setattr(chat_template, "MOST_CHARACTERS", 100_000)
    with pytest.raises(RequestError, match="refuses these messages \\(it "):
        ChatTemplate(source).render(TALK)


def test_long_conversations_are_far_from_the_bounds() -> None:
    talk = [*SYSTEM[:1], *TALK[:2] * 1000]
    assert ChatTemplate(TOOLS).render(talk, tools=[WEATHER] * 100).count("<a>") == 1001
