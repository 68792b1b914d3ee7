"""A template runs as under transformers, but not for ever, and not out of its box."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.errors import InvalidTemplate
from service.prompt import RenderOptions, TemplateUnavailable
from service.prompt.sandbox import RenderTooLong
from service.prompt.template import ChatTemplate
from tests.prompt.small import byte_level, transformers_of
from tests.prompt.talks import texts


def filled(template: str, content: str = "Hello", limit_s: float = 5, **arguments: Any) -> str:
    message = {"role": "user", "content": content}
    options = RenderOptions(template_kwargs=arguments)
    return str.__str__(ChatTemplate({"default": template}, {}).render([message], options, limit_s))


NESTED = "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}"
FOR_EVER = {
    "nested loops": NESTED,
    "loops without output": NESTED.replace("range(9999) %}x", "range(9999) if b < 0 %}x"),
    "a macro that calls itself twice": (
        "{% macro twice(n) %}{% if n %}{{ twice(n - 1) }}{{ twice(n - 1) }}{% endif %}{% endmacro %}"
        "{{ twice(20) }}"
    ),
    "a recursive loop": (
        "{% for n in [20] recursive %}{% if n %}{{ loop([n - 1, n - 1]) }}{% endif %}{% endfor %}"
    ),
    "a call block": (
        "{% macro again(n) %}{% if n %}{{ caller() }}{{ caller() }}{% endif %}{% endmacro %}"
        "{% macro deep(n) %}{% call again(n) %}{{ deep(n - 1) if n }}{% endcall %}{% endmacro %}"
        "{{ deep(20) }}"
    ),
    "loops in a block": "{% block b %}" + NESTED + "{% endblock %}",
    "loops in a scoped block": "{% for n in [1] %}{% block b scoped %}"
    + NESTED
    + "{% endblock %}{% endfor %}",
}


@pytest.mark.parametrize("template", FOR_EVER.values(), ids=FOR_EVER)
def test_a_template_that_would_run_for_ever_is_stopped(template: str) -> None:
    with pytest.raises(RenderTooLong):
        filled(template, limit_s=0.05)


GREEDY = {
    "a huge repetition": "{{ 'x' * 99999999999 }}",
    "a huge list": "{{ [1] * 99999999999 }}",
    "a huge power": "{{ 9 ** 99999999 }}",
    "a huge range": "{% for a in range(99999999999) %}x{% endfor %}",
    "endless recursion": "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    "the way out": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "a changed message": "{{ messages.append(1) }}",
}


@pytest.mark.parametrize("template", GREEDY.values(), ids=GREEDY)
def test_a_template_that_would_take_everything_is_refused(template: str) -> None:
    with pytest.raises(InvalidTemplate):
        filled(template)


def test_a_template_that_is_no_jinja_is_told_at_the_start() -> None:
    with pytest.raises(TemplateUnavailable, match="line 2"):
        ChatTemplate({"default": "fine\n{% for %}"}, {})


def test_generation_tags_change_nothing() -> None:
    template = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}!{% endfor %}"
    assert filled(template) == "Hello!"


def test_loops_can_be_left() -> None:
    assert filled("{% for n in range(9) %}{% if n == 2 %}{% break %}{% endif %}{{ n }}{% endfor %}") == "01"


def test_a_date_can_be_written() -> None:
    assert filled("{{ strftime_now('%%') }}") == "%"


IDIOMS = [
    "{{ m.content | trim }}",
    "{{ m['content'].split('b')[-1].lstrip('\n') }}",
    "{{ (m.content ~ 1 ~ none ~ true) | upper }}",
    "{{ '%s: %d' % (m.content, 3) }}{{ 7 % 4 }}{{ 'ab' * 2 }}{{ 2 ** 3 }}",
    "{{ m | tojson }}{{ m.content | tojson(indent=2) }}{{ [1, 2.5, true, none] | tojson }}",
    "{{ [m.content, 'x'] | join(', ') }}{{ ', '.join(['y', m.content]) }}{{ [m, m] | join('-', 'role') }}",
    "{{ m.content | replace('a', 'zz') | indent(3) }}{{ m.content.replace('b', '<|end|>') }}",
    "{{ m.content[1:3] }}{{ m.content[0:1] }}{{ m.content | first | default('none') }}{{ m.content | last }}",
    "{{ m.content | length }}{{ m.content | list | length }}{{ m.content is string }}",
    "{{ [m.content] }}{{ {'a': m.content} }}{{ m.name }}{{ m.name is defined }}{{ m.get('content', 'x') }}",
    "{{ m.content | e }}{{ m.content | safe }}{{ m.content | string }}{{ 'a<b' | e }}",
    "{% set n = namespace(t='') %}{% for c in m.content %}{% set n.t = c ~ n.t %}{% endfor %}{{ n.t }}",
    "{% macro f(x, y='d') %}[{{ x }}{{ y }}]{% endmacro %}{{ f(m.content) }}{{ f('a', y=m.content) }}",
    "{% macro f() %}[{{ caller() }}]{% endmacro %}{% call f() %}{{ m.content }}{% endcall %}",
    "{% set t %}{{ m.content }}!{% endset %}{{ t | trim }}{% filter upper %}x{{ t }}{% endfilter %}",
    "{% for k, v in m.items() %}{{ k }}={{ v }}{{ loop.index }}{{ ', ' if not loop.last }}{% endfor %}",
    "{% for w in m.content.split() recursive %}{{ w }}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% if m.content.startswith('a') or m.content == '' %}yes{% elif 'b' in m.content %}no{% endif %}",
    "{{ messages | map(attribute='content') | map('trim') | select | list | length }}",
    "{{ '{}/{a}'.format(m.content, a=1) }}{{ m.content | title | center(20) }}{{ m.content | wordcount }}",
    "{% with x = m.content %}{{ x }}{% endwith %}{{ m.content if false else 'other' }}{{ missing }}",
]


@pytest.mark.parametrize("idiom", IDIOMS)
@settings(max_examples=40)
@given(content=texts)
def test_templates_write_what_they_write_under_transformers(idiom: str, content: str) -> None:
    template = "{% for m in messages %}" + idiom + "{% endfor %}"
    message = {"role": "user", "content": content}
    reference = REFERENCE.apply_chat_template([message], chat_template=template, tokenize=False)
    assert filled(template, content) == reference


REFERENCE = transformers_of(byte_level())


@given(content=st.sampled_from(["{{ 7 * 7 }}", "{% raw %}", "{# #}", "{{ messages }}"]))
def test_what_a_caller_writes_is_no_template(content: str) -> None:
    assert filled("{{ messages[0].content }}", content) == content
