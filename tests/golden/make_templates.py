#!/usr/bin/env python3
"""Writes what Jinja2 in the environment of transformers makes of small templates, for tests/test_template.c.

    python3 tests/golden/make_templates.py            writes tests/golden/templates/lines.json and NAME.json beside each NAME.jinja

lines.json: one-line templates, each with its text, or without one where Jinja2 fails. Many use more of Jinja than
published chat templates do: Plimsoll refuses those, and never prints another text. NAME.json: for each of the cases
below the text and the byte ranges inside {% generation %}.
"""
import glob
import json
import os
import re

import check_templates as check

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates")

VARIABLES = {
    "s": "Hello World", "empty": "", "n": 7, "x": 2.5, "big": 123456789012345678901234567890, "t": True, "f": False, "none": None,
    "u": "\u00c4\u00df\u0130 \u039f\u0394\u039f\u03a3. \U0001f600\u2028", "q": "it's \"q\"\n\\ \t\x7f\u00e9\u200b", "l": [3, 1, 2], "words": ["b", "A", "c", "a"],
    "d": {"b": 1, "a": {"c": [1, "two", None, True, 1.0]}, "items": 5, "Z": "z"}, "nested": [{"k": 1, "v": {"w": "x"}}, {"k": 2, "v": {"w": "X"}}, {"k": 0}],
    "m": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user"}],
    "lines": "one\ntwo\n\n  three\r\nfour", "pad": "  \u00a0x\u3000\n", "html": "<a href='x'>&\"</a>", "floats": [0.1, 1e16, 1e-5, 123456.789, 1e22, -0.0, 100.0, 5e-324, 1.5e300],
    "bos_token": "<s>", "mixed": [1, "a", None],
}

LINES = r"""
{{ s }}|{{ empty }}|{{ n }}|{{ x }}|{{ big }}|{{ t }}|{{ f }}|{{ none }}|{{ missing }}|{{ l }}|{{ d }}
{{ q }}|{{ [q] }}|{{ {q: u} }}|{{ (1,) }}|{{ (1, 'a') }}|{{ () }}|{{ [] }}|{{ {} }}|{{ [missing] }}
{{ floats }}|{{ floats[0] + floats[0] }}|{{ floats|tojson }}
{{ d|tojson }}|{{ d|tojson(indent=2) }}|{{ q|tojson }}|{{ q|tojson(ensure_ascii=True) }}|{{ u|tojson(ensure_ascii=true) }}
{{ d|tojson(sort_keys=True) }}|{{ d|tojson(separators=(',', ':')) }}|{{ [[], {}]|tojson(indent=1) }}|{{ l|tojson(indent=0) }}|{{ l|tojson(indent='--') }}
{{ {1: 2, none: 3, true: 4, 2.5: 5}|tojson }}|{{ (1, 2)|tojson }}|{{ big|tojson }}
{{ missing|tojson }}
{{ l.items|tojson }}
{{ {(1, 2): 3}|tojson }}
{{ {1: 2, 'a': 3}|tojson(sort_keys=true) }}
{{ 1 + 2 }}|{{ 1 - 2 }}|{{ 3 * 4 }}|{{ 7 / 2 }}|{{ 7 // 2 }}|{{ -7 // 2 }}|{{ -7 % 3 }}|{{ 7 % -3 }}|{{ 2 ** 10 }}|{{ 2 ** -1 }}|{{ 6 / 3 }}
{{ 7.5 // 2 }}|{{ -7.5 // 2 }}|{{ -7.5 % 2 }}|{{ 1.5 + 1 }}|{{ 2 * 1.5 }}|{{ t + 1 }}|{{ 2.0 ** 3 }}|{{ 10 // 3.0 }}|{{ 0 ** 0 }}|{{ (-1) ** 3 }}
{{ -n }}|{{ +n }}|{{ -x }}|{{ - -n }}|{{ -t }}|{{ +t }}|{{ -2 ** 2 }}|{{ 2 ** 3 ** 2 }}|{{ -1|abs }}|{{ (-1)|abs }}
{{ 1 / 0 }}
{{ 1 % 0 }}
{{ 1 + 'a' }}
{{ 'a' + 1 }}
{{ none + 'a' }}
{{ missing + 'a' }}
{{ 'a' + missing }}
{{ -'a' }}
{{ [1] + (2,) }}
{{ 'a' 'b' "c" }}|{{ 'a' + 'b' }}|{{ 'ab' * 3 }}|{{ 3 * 'ab' }}|{{ 'ab' * 0 }}|{{ 'ab' * -1 }}|{{ [1, 2] * 2 }}|{{ [1] + [2] }}|{{ (1,) + (2,) }}
{{ 'a' ~ 1 ~ none ~ missing ~ 1.0 ~ [1] }}|{{ 1 ~ 2 }}|{{ 'x' ~ -1 }}
{{ 1 + 2 ~ 3 + 4 }}
{{ 'a' ~ 1 + 2 }}
{{ 1 == 1.0 }}|{{ 1 == true }}|{{ 'a' == 'a' }}|{{ [1] == [1.0] }}|{{ {'a': 1} == {'a': 1} }}|{{ none == none }}|{{ missing == missing }}|{{ missing == none }}|{{ missing == '' }}|{{ (1,) == [1] }}
{{ 1 < 2 < 3 }}|{{ 1 < 3 < 2 }}|{{ 3 > 2 >= 2 }}|{{ 'a' < 'b' }}|{{ 'Z' < 'a' }}|{{ [1, 2] < [1, 3] }}|{{ 1 != 2 }}|{{ 1 <= 1 }}|{{ 'é' > 'z' }}|{{ true < 2 }}
{{ 1 < 'a' }}
{{ none < 1 }}
{{ missing < 1 }}
{{ {} < {} }}
{{ 1 in [1, 2] }}|{{ 'a' in 'abc' }}|{{ '' in 'abc' }}|{{ 'b' in d }}|{{ 1 not in [2] }}|{{ 'x' in missing }}|{{ 1 in (1,) }}|{{ 'k' in {'k': 1} }}|{{ 1.0 in [1] }}|{{ not 1 in [1] }}
{{ 1 in 'abc' }}
{{ 'a' in none }}
{{ [1] in {} }}
{{ 'a' in 5 }}
{{ true and 'x' }}|{{ false or 'y' }}|{{ '' or none }}|{{ not '' }}|{{ not missing }}|{{ 0 and 1 }}|{{ [] or {} or 'z' }}|{{ not not 1 }}|{{ 1 and 2 or 3 }}
{{ 'a' if t else 'b' }}|{{ 'a' if f else 'b' }}|{{ 'a' if f }}|{{ 1 if f else 2 if f else 3 }}|{{ ('a' if f) is defined }}|{{ 'x' if 1 if 0 else 2 }}
{{ s[0] }}|{{ s[-1] }}|{{ s[20] }}|{{ s[1:3] }}|{{ s[:-1] }}|{{ s[::-1] }}|{{ s[::2] }}|{{ s[-3:] }}|{{ s[5:1] }}|{{ s[10:0:-3] }}|{{ s[none:2] }}|{{ u[1:4] }}|{{ u[::-1] }}
{{ l[0] }}|{{ l[-1] }}|{{ l[9] }}|{{ l[1:] }}|{{ l[::-1] }}|{{ l[:-1] }}|{{ l[5:] }}|{{ (1,2,3)[1:] }}|{{ l.0 }}|{{ l[true] }}|{{ l[-9:2] }}|{{ l[::-2] }}|{{ l[:100:2] }}
{{ l[::0] }}
{{ d.a.c[2][1:] }}
{{ d[1:] }}
{{ missing[1:] }}
{{ l['a'] }}|{{ n.foo }}|{{ none.foo }}|{{ s.foo }}|{{ d.nope }}|{{ d['nope'] }}|{{ d.a.c[1] }}|{{ d['a']['c'][-1] }}|{{ d.Z }}|{{ l[1.5] }}|{{ d[[1]] }}
{{ missing.foo }}
{{ missing['foo'] }}
{{ d.nope.deeper }}
{{ d.a.nope['x'] }}
{{ d.items is callable }}|{{ d['items'] }}|{{ d.items is defined }}|{{ {}['items'] is callable }}|{{ {}['nope'] is defined }}|{{ s['upper'] is callable }}|{{ d.items.x is defined }}
{{ d.items() }}|{{ d.keys() }}|{{ d.values() }}|{{ d.items()|list|length }}|{{ d.get('b') }}|{{ d.get('nope') }}|{{ d.get('nope', 3) }}|{{ d.items()|length }}|{{ d.keys()|list }}|{{ d.copy() == d }}
{{ d.get() }}
{{ s.upper(1) }}
{{ s.get('a') }}
{{ l.append(4) }}
{{ l.pop() }}
{{ d.pop('b') }}
{{ d.update({}) }}
{{ l.append is defined }}|{{ d.pop is defined }}|{{ l.count(1) }}|{{ l.index(2) }}|{{ (1, 2, 1).count(1) }}
{{ l.index(9) }}
{{ n() }}
{{ none() }}
{{ pad.strip() }}|{{ pad.lstrip() }}|{{ pad.rstrip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'abcab'.lstrip('ba') }}|{{ 'abcab'.rstrip('ba') }}|{{ '  a '.strip(none) }}|{{ 'a'.strip('') }}
{{ 'a,b,,c'.split(',') }}|{{ ' a  b '.split() }}|{{ 'a b c'.split(' ', 1) }}|{{ ' a b  c '.split(none, 1) }}|{{ ''.split() }}|{{ ''.split(',') }}|{{ 'a--b'.split('--')[-1] }}|{{ 'a,b,c'.rsplit(',', 1) }}|{{ 'a,b,c'.split(sep=',', maxsplit=1) }}|{{ 'a,b,c'.split(',', maxsplit=0) }}
{{ 'a'.split('') }}
{{ 'a'.split(1) }}
{{ lines.splitlines() }}|{{ lines.splitlines(true) }}|{{ 'a\n'.splitlines() }}|{{ ''.splitlines() }}|{{ 'a=b=c'.partition('=') }}|{{ 'a=b=c'.rpartition('=') }}|{{ 'a'.partition('x') }}|{{ 'a'.rpartition('x') }}
{{ s.startswith('He') }}|{{ s.endswith('ld') }}|{{ s.startswith(('x', 'H')) }}|{{ s.endswith('') }}|{{ s.startswith('W', 6) }}|{{ s.endswith('lo', 0, 5) }}|{{ s.removeprefix('He') }}|{{ s.removesuffix('ld') }}|{{ s.removesuffix('x') }}
{{ s.startswith(1) }}
{{ s.find('o') }}|{{ s.rfind('o') }}|{{ s.find('z') }}|{{ s.index('W') }}|{{ s.count('o') }}|{{ s.count('') }}|{{ u.find('😀') }}|{{ s.find('o', 5) }}|{{ 'aaa'.count('aa') }}|{{ s.find('') }}
{{ s.index('z') }}
{{ s.upper() }}|{{ s.lower() }}|{{ u.upper() }}|{{ u.lower() }}|{{ 'ab cD-ef'.title() }}|{{ 'hELLO'.capitalize() }}|{{ 'ßa'.capitalize() }}|{{ 'ΑΣ ΣΑΣ Σ'.lower() }}|{{ "they're".title() }}
{{ s.replace('l', 'L') }}|{{ s.replace('l', 'L', 1) }}|{{ s.replace('', '-') }}|{{ 'abc'.replace('', '-', 2) }}|{{ s.replace('o W', '') }}|{{ s.replace('l', 'l') }}
{{ s.replace('l') }}
{{ ','.join(words) }}|{{ ''.join([]) }}|{{ '-'.join('abc') }}|{{ ', '.join(d) }}
{{ ','.join(l) }}
{{ 'a'.ljust(3) }}|{{ 'a'.rjust(3, '*') }}|{{ 'a'.center(4) }}|{{ 'ab'.center(5, '.') }}|{{ '-5'.zfill(4) }}|{{ '42'.zfill(1) }}|{{ ' '.isspace() }}|{{ ''.isspace() }}
{{ '{} and {}'.format(1, 'a') }}|{{ '{1}{0}{1}'.format('a', 'b') }}|{{ '{x}{{}}'.format(x=none) }}|{{ 'é{}'.format(s) }}
{{ '{} {}'.format(1) }}
{{ '{x}'.format(1) }}
{{ '%s and %d' % ('a', 3) }}|{{ '%s' % s }}|{{ '%5.2f|%-5s|%05d|%x|%r|%%' % (x, 'ab', 42, 255, 'q') }}|{{ '%(b)s' % d }}|{{ '%s' % none }}|{{ '%s-%s'|format(1, 2) }}|{{ '%.2s' % s }}|{{ '%e' % 12345.678 }}|{{ '%g' % 0.0001 }}
{{ '%d' % 'a' }}
{{ '%s %s' % 'a' }}
{{ '%s' % (1, 2) }}
{{ 'a\tb\n\x41\u00e9\U0001F600\'\"\\\a\101\q' }}|{{ "a'b" }}|{{ 'a"b' }}|{{ 'line\
continued' }}
{{ 0x1F }}|{{ 0b101 }}|{{ 0o17 }}|{{ 1_000 }}|{{ 1.5e3 }}|{{ 1e2 }}|{{ 1_0.0_1 }}|{{ 00 }}
{{ s|upper }}|{{ s|lower }}|{{ 'aB c'|capitalize }}|{{ 'ab cD-eF (gh'|title }}|{{ pad|trim }}|{{ 'xax'|trim('x') }}|{{ n|string + '!' }}|{{ none|string }}|{{ missing|upper }}|{{ l|trim }}
{{ s|length }}|{{ u|length }}|{{ l|length }}|{{ d|length }}|{{ missing|length }}|{{ s|count }}|{{ ''|length }}
{{ 5|length }}
{{ none|length }}
{{ missing|default('x') }}|{{ ''|default('x') }}|{{ ''|default('x', true) }}|{{ none|default('x') }}|{{ none|d('x', boolean=true) }}|{{ d.nope|default }}|{{ f|default(1, true) }}
{{ l|join }}|{{ l|join(', ') }}|{{ mixed|join('-') }}|{{ nested|join(',', attribute='k') }}|{{ s|join('.') }}|{{ d|join(' ') }}|{{ missing|join }}|{{ l|join(1) }}
{{ none|join }}
{{ s|list }}|{{ d|list }}|{{ missing|list }}|{{ (1, 2)|list }}|{{ range(3)|list }}|{{ d.items()|list }}
{{ none|list }}
{{ l|first }}|{{ l|last }}|{{ []|first }}|{{ s|first }}|{{ s|last }}|{{ d|first }}|{{ d|last }}|{{ (l|map('string'))|first }}
{{ l|map('string')|last }}
{{ l|sort }}|{{ l|sort(reverse=true) }}|{{ words|sort }}|{{ words|sort(case_sensitive=true) }}|{{ nested|sort(attribute='k')|map(attribute='k')|list }}|{{ s|sort|join }}|{{ words|sort(true, true) }}|{{ []|sort }}
{{ mixed|sort }}
{{ d|dictsort }}
{{ {'b': 1, 'A': 2, 'c': 0}|dictsort }}|{{ {'b': 1, 'A': 2, 'c': 0}|dictsort(true) }}|{{ {'b': 1, 'A': 2, 'c': 0}|dictsort(by='value') }}|{{ {'b': 1, 'A': 2}|dictsort(false, 'key', true) }}
{{ l|dictsort }}
{{ d|items|list }}|{{ missing|items|list }}|{% for k, v in d|items %}{{ k }}={{ v }};{% endfor %}
{{ l|items|list }}
{{ l|min }}|{{ l|max }}|{{ words|min }}|{{ words|max(case_sensitive=true) }}|{{ []|min }}|{{ nested|max(attribute='k') }}|{{ s|max }}
{{ l|sum }}|{{ nested|sum(attribute='k') }}|{{ [1.5, 2]|sum }}|{{ []|sum }}|{{ l|sum(start=10) }}|{{ [[1], [2]]|sum(start=[]) }}
{{ words|unique|list }}|{{ ['a', 'A', 'b']|unique|list }}|{{ ['a', 'A', 'b']|unique(true)|list }}|{{ [1, 1.0, 2]|unique|list }}
{{ l|reverse|list }}|{{ s|reverse }}|{{ d|reverse|list }}|{{ (1, 2)|reverse|list }}
{{ m|selectattr('role', 'equalto', 'user')|list|length }}|{{ m|selectattr('content')|map(attribute='content')|join }}|{{ m|rejectattr('role', '==', 'user')|list }}|{{ m|selectattr('content', 'defined')|list|length }}|{{ nested[:2]|selectattr('v.w', 'eq', 'x')|map(attribute='k')|list }}
{{ nested|selectattr('v.w', 'defined')|list }}
{{ l|select('odd')|list }}|{{ l|reject('equalto', 3)|list }}|{{ mixed|select|list }}|{{ mixed|select('string')|list }}|{{ l|select('gt', 1)|list }}|{{ none|select|list }}|{{ l|select('in', [1, 9])|list }}|{{ mixed|reject('none')|list }}
{{ words|map('upper')|join }}|{{ nested|map(attribute='k')|list }}|{{ nested|map(attribute='nope', default='-')|list }}|{{ words|map('replace', 'a', 'x')|join(',') }}|{{ nested|map(attribute='v')|map(attribute='w', default=0)|first }}
{{ l|map('string')|length }}
{{ ('a' if l|map('string')) }}|{{ l|map('string') is iterable }}|{{ l|map('string') is sequence }}|{{ l|map('tojson')|join(' ') }}
{{ s|replace('l', 'L') }}|{{ s|replace('l', 'L', 1) }}|{{ 5|replace(5, 6) }}|{{ s|replace('l', '', count=2) }}
{{ lines|indent }}|{{ lines|indent(2, true) }}|{{ lines|indent(width=2, blank=true) }}|{{ 'a'|indent('>', first=true) }}|{{ ''|indent(2, true) }}
{{ 5|indent }}
{{ '42'|int }}|{{ ' 4_2 '|int }}|{{ '4.9'|int }}|{{ 'x'|int }}|{{ 'x'|int(7) }}|{{ 4.9|int }}|{{ -4.9|int }}|{{ none|int }}|{{ t|int }}|{{ '-5'|int }}|{{ []|int(-1) }}|{{ '1e3'|int }}
{{ missing|int }}
{{ '4.5'|float }}|{{ 'x'|float }}|{{ 3|float }}|{{ 'x'|float(1) }}|{{ 2.567|round(2) }}|{{ 2.5|round }}|{{ 3.5|round }}|{{ 7|round }}|{{ 2.1|round(0, 'ceil') }}|{{ 2.19|round(1, 'floor') }}
{{ html|safe }}|{{ html|e }}|{{ html|escape|safe }}|{{ ('<b>'|safe) + '<i>' }}|{{ '<i>' + ('<b>'|safe) }}|{{ ('<b>'|safe) ~ '<i>' }}|{{ ['<'|safe] }}|{{ ('<'|safe) * 2 + '>' }}|{{ ('<a>'|safe).replace('a', '<') }}|{{ ('<'|safe)|trim + '>' }}
{{ 1 is defined }}|{{ missing is defined }}|{{ missing is undefined }}|{{ none is none }}|{{ 0 is none }}|{{ s is string }}|{{ n is string }}|{{ d is mapping }}|{{ l is mapping }}|{{ l is iterable }}|{{ n is iterable }}|{{ missing is iterable }}|{{ missing is sequence }}
{{ s is sequence }}|{{ d is sequence }}|{{ d.items() is sequence }}|{{ range(3) is sequence }}|{{ t is boolean }}|{{ 1 is boolean }}|{{ t is true }}|{{ 1 is true }}|{{ f is false }}|{{ 0 is false }}|{{ n is number }}|{{ t is number }}|{{ x is float }}|{{ n is integer }}|{{ t is integer }}|{{ big is integer }}
{{ 3 is odd }}|{{ 4 is even }}|{{ 9 is divisibleby 3 }}|{{ 1 is eq 1 }}|{{ 1 is ne 1 }}|{{ 2 is gt 1 }}|{{ 2 is ge 2 }}|{{ 1 is lt(2) }}|{{ 1 is le 1 }}|{{ 1 is in [1] }}|{{ 1 is not in [1] }}|{{ 1 is not none and 2 is not none }}|{{ none is not none or 1 }}|{{ n is not string }}
{{ not missing is defined }}|{{ s is string and n is number }}|{{ 'a' if s is string else 'b' }}|{{ s|length is eq 11 }}|{{ -1 is number }}|{{ s is equalto 'Hello World' }}|{{ missing is not defined }}
{{ range(5)|list }}|{{ range(2, 5)|list }}|{{ range(5, 0, -2)|list }}|{{ range(3) }}|{{ range(0, 10, 3) }}|{{ range(3)[1] }}|{{ range(10)[2:8:2]|list }}|{{ range(0)|length }}|{{ 2 in range(3) }}|{{ range(3)[-1] }}|{{ range(5)[::-1]|list }}
{{ range(0, 9223372036854775807, 4611686018427387904)[::1]|list }}|{{ range(-9223372036854775807, 9223372036854775807, 4611686018427387904)[::2]|list }}|{{ range(9223372036854775807, 0, -4611686018427387904)[::-1]|list }}
{{ range(100001) }}
{{ range(1.5) }}
{{ range(1, 2, 0) }}
{{ dict(a=1, b=2) }}|{{ dict({'a': 1}, b=2) }}|{{ dict([('x', 1)]) }}|{{ {'a': 1, 'a': 2} }}|{{ {1: 'a', 1.0: 'b', true: 'c'} }}|{{ {'a': 1}['a'] }}
{{ {[]: 1} }}
{% set ns = namespace(a=1, b=[]) %}{{ ns.a }}{% set ns.a = ns.a + 1 %}{{ ns.a }}{{ ns.c is defined }}{% for i in l %}{% set ns.b = ns.b + [i] %}{% endfor %}{{ ns.b }}{{ ns['a'] }}{{ ns }}
{% set ns = namespace({'z': 1}, y=2) %}{{ ns.z }}{{ ns.y }}{{ ns is mapping }}
{% set d2 = {} %}{% set d2.x = 1 %}
{% set nope.x = 1 %}
{% set a = 1 %}{% for i in l %}{% set a = i %}{{ a }}{% endfor %}{{ a }}{% if t %}{% set a = 5 %}{% endif %}{{ a }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set a, b = b, a %}{{ a }}{{ b }}{% set (c) = 3 %}{{ c }}{% set t2 = 1, 2 %}{{ t2 }}
{% set a, = [9] %}{{ a }}
{% set ns = namespace() %}{% set a, ns.b = 1, 2 %}{{ a }}{{ ns.b }}
{% set a, b = [1] %}
{% set a, b = 'xy' %}{{ b }}{{ a }}
{% set a = b = 1 %}
{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.depth }},{% endfor %}
{% for i in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(i > 1) }}{% endfor %}|{% for i in missing %}x{% else %}none{% endfor %}|{% for i in [] %}x{% else %}none{% endfor %}|{% for i in l %}x{% else %}none{% endfor %}
{% for i in l if i > 1 %}{{ i }}{{ loop.index }}{{ loop.last }}{{ loop.length }}{% endfor %}|{% for i in l if i > 9 %}{% else %}none{% endfor %}|{% for i in range(10) if i is odd %}{{ loop.nextitem }};{{ loop.previtem }},{% endfor %}
{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}|{% for i in l %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% else %}e{% endfor %}|{% for i in l %}{% break %}{% else %}e{% endfor %}|{% for i in l %}{% continue %}{% else %}e{% endfor %}
{% for k, v in d.items() %}{{ k }}:{{ v }};{% endfor %}|{% for k in d %}{{ k }}{% endfor %}|{% for c in u %}{{ c }}.{% endfor %}|{% for a, b in [(1, 2), [3, 4], 'xy'] %}{{ a }}{{ b }}{% endfor %}
{% for i in l %}{% for j in 'ab' %}{{ loop.index }}{{ j }}{% endfor %}{{ loop.index }};{% endfor %}
{% for a, b in [(1, 2, 3)] %}{% endfor %}
{% for i in none %}{% endfor %}
{% for i in 5 %}{% endfor %}
{% for i in l, words %}{{ i }}{% endfor %}|{% for i in 1, 2 %}{{ i }}{% endfor %}
{% set gen = l|map('string') %}{{ gen|join }}|{{ gen|join }}|{{ gen|list }}
{% set ns = namespace(stop=false) %}{% for i in l if not ns.stop %}{{ i }}{% set ns.stop = true %}{% endfor %}
{% set ns = namespace(stop=false) %}{% for i in l if not ns.stop %}{{ i }}{{ loop.last }}{% set ns.stop = true %}{% endfor %}
{% macro f(a, b=2, c=a) %}[{{ a }},{{ b }},{{ c }}]{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(b=5, a=4) }}{{ f() }}{{ f(1, c=9) }}{{ f(1)|upper }}{{ f is callable }}
{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}
{% macro f(a) %}{% endmacro %}{{ f(b=2) }}
{% macro f(a) %}{% endmacro %}{{ f(1, a=2) }}
{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}
{% set v = 1 %}{% macro f() %}{{ v }}{{ loop is defined }}{% set v = 2 %}{{ v }}{% endmacro %}{% for i in l %}{{ f() }}{% endfor %}{{ v }}{% set v = 3 %}{{ f() }}
{% macro outer(x) %}{% macro inner(y) %}{{ x }}{{ y }}{% endmacro %}{{ inner(1) }}{{ inner(2) }}{% endmacro %}{{ outer('a') }}{{ outer('b') }}
{% for i in l %}{% macro f() %}{{ i }}{% endmacro %}{{ f() }}{% endfor %}{{ f is defined }}
{{ f() }}{% macro f() %}x{% endmacro %}
{% set a %}x{{ s }}{% set inner = 1 %}{% endset %}{{ a }}{{ inner is defined }}{% set b | upper | trim %} hi {{ s }} {% endset %}[{{ b }}]{{ a is string }}
{% filter upper %}a{{ s }}{% endfilter %}|{% filter replace('a', 'b')|trim %}  aaa  {% endfilter %}|{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}
{% if n > 5 %}a{% elif n > 3 %}b{% else %}c{% endif %}{% if f %}x{% elif t %}y{% endif %}{% if f %}{% else %}{% endif %}{% if 0, %}tuple{% endif %}
{{ raise_exception('no: ' ~ s) }}
{{ raise_exception() }}
{% raw %}{{ x }} {% if %}{% endraw %}|{# comment {{ x }} #}|{#- c -#} z
{{ "a" if false }}|{{ [1, 2,] }}|{{ {'a': 1,} }}|{{ ( 1 ) }}|{{ (1, 2)[0] }}|{{ 'x'.upper().lower() }}|{{ {'a': [1]}.a[0] }}|{{ [[1]][0][0] }}
{{ 1 if }}
{{ }}
{{ 1 + }}
{{ a b }}
{% if %}{% endif %}
{% for in x %}{% endfor %}
{% unknown %}
{% if t %}
{% endif %}
{% break %}
{{ s | nope }}
{{ s is nope }}
{% for i in l %}{% macro f() %}{% break %}{% endmacro %}{% endfor %}
{% generation %}{{ s }}{% endgeneration %}|{% for i in l %}{% generation %}{{ i }}{% set ns = 1 %}{% endgeneration %}{% endfor %}{{ ns is defined }}
{% for i in l %}{% generation %}{% break %}{% endgeneration %}{% endfor %}
{{ strftime_now('%Y-%m-%d %B %d %j %A %H:%M %%') }}
{{ s.__class__.x }}
{{ {'a': none}.a is none }}|{{ d.a.c[2] is none }}|{{ [none, true, 1.0]|tojson }}|{{ [none]|string }}|{{ t|string|lower }}|{{ t|lower }}|{{ none|lower }}
{{ x|string }}|{{ 1e15 }}|{{ 1e16 }}|{{ 0.1 + 0.2 }}|{{ 100 / 3 }}|{{ 1 / 3 }}|{{ 1e-4 }}|{{ 1e-5 }}|{{ 2 ** 0.5 }}|{{ 5 // 0.3 }}
{{ big == big }}|{{ big|string|length }}|{{ [big] }}
""".strip("\n").replace("\\\ncontinued", "\\\x00continued").split("\n")
# Expressions with a bar between them are templates of their own, so that a refused one hides no
# other.
LINES = [piece.replace("\x00", "\n") for line in LINES for piece in re.split(r"(?<=\}\})\|(?=\{\{)", line)]


def write(name, value):
    with open(os.path.join(FOLDER, name), "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False, indent=1)
        f.write("\n")


def answer(source, variables):
    result = check.jinja(source, variables)
    if isinstance(result, Exception):
        return {"fails": str(result)[:200]}
    return {"text": result[0], "answers": check.spans_of_bytes(*result)}


def with_defaults(variables):
    return {"messages": [], "tools": None, "documents": None, "add_generation_prompt": False, **variables}


def main():
    check.hf.datetime = check.Clock
    lines = []
    for source in LINES:
        result = answer(source, with_defaults(VARIABLES))
        lines.append({"template": source, **result})
    write("lines.json", {"variables": {**with_defaults(VARIABLES), "strftime_now": check.DATE}, "lines": lines})
    wanted = ("several turns", "tool calls", "parts", "thinking, prompt", "unicode, prompt", "empty", "control tokens in the text", "documents and options, prompt")
    cases = [{**variables, "strftime_now": check.DATE} for name, variables in check.cases() if name in wanted]
    for path in sorted(glob.glob(os.path.join(FOLDER, "*.jinja"))):
        with open(path, encoding="utf-8", newline="") as f:
            source = f.read()
        results = [answer(source, {k: v for k, v in variables.items() if k != "strftime_now"}) for variables in cases]
        write(os.path.basename(path)[:-6] + ".json", results)
    write("cases.json", cases)
    print(len(lines), "lines,", sum("fails" in x for x in lines), "of them fail")


if __name__ == "__main__":
    main()
