#!/usr/bin/env python3
"""Counts what published chat templates use of Jinja: statements, filters, tests, functions, methods, operators.

    python3 tools/template_usage.py FOLDER...        prints the table of docs/notes/chat-templates.md

Reads every chat template below the folders, each of which is one repository: files *.jinja and *.j2, "chat_template" in
*.json, instruction_template in *.yaml, and strings in *.py, *.js and *.rs. A chat template is a text with a tag that
names `messages`. Equal texts count once. Needs jinja2 and PyYAML.
"""
import ast
import collections
import json
import os
import re
import sys
import textwrap
import warnings

import yaml
from jinja2 import TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    """{% generation %} of transformers, as a block of its own."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


ENVIRONMENT = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
STATEMENTS = {
    nodes.For: "for", nodes.If: "if", nodes.Assign: "set", nodes.AssignBlock: "set ... endset", nodes.Macro: "macro",
    nodes.FilterBlock: "filter", nodes.With: "with", nodes.CallBlock: "call", nodes.Break: "break",
    nodes.Continue: "continue", nodes.Scope: "generation", nodes.Include: "include", nodes.Import: "import",
    nodes.FromImport: "from ... import", nodes.Extends: "extends", nodes.Block: "block",
}
OPERATORS = {nodes.Add: "+", nodes.Sub: "-", nodes.Mul: "*", nodes.Div: "/", nodes.FloorDiv: "//", nodes.Mod: "%",
             nodes.Pow: "**", nodes.Concat: "~", nodes.Neg: "-x", nodes.Pos: "+x", nodes.Slice: "x[a:b]",
             nodes.CondExpr: "x if c else y", nodes.Tuple: "tuple", nodes.Dict: "dict", nodes.List: "list"}


def strings_of_python(text):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(text)
    return [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def strings_in_quotes(text):
    for quoted in re.findall(r'"(?:[^"\\\n]|\\.)*"', text):
        try:
            yield json.loads(quoted)
        except ValueError:
            pass


def members(value, key):
    """The strings under a key anywhere in a JSON or YAML value; of a list of named templates, each."""
    if isinstance(value, dict):
        for name, x in value.items():
            if name == key:
                yield from [x] if isinstance(x, str) else [t.get("template") for t in x if isinstance(t, dict)] if isinstance(x, list) else []
            yield from members(x, key)
    elif isinstance(value, list):
        for x in value:
            yield from members(x, key)


def texts(path):
    with open(path, encoding="utf-8", errors="replace", newline="") as f:
        text = f.read()
    ending = os.path.splitext(path)[1]
    if ending in (".jinja", ".jinja2", ".j2"):
        return [text]
    try:
        if ending == ".json":
            return members(json.loads(text), "chat_template")
        if ending in (".yaml", ".yml"):
            return members(yaml.safe_load(text), "instruction_template")
        if ending == ".py":
            return strings_of_python(text)
    except (ValueError, SyntaxError, yaml.YAMLError):
        return []
    return strings_in_quotes(text) if ending in (".js", ".rs", ".ts") else []


def uses(tree):
    """(class, name) of everything that a template uses."""
    macros = {m.name for m in tree.find_all(nodes.Macro)}
    for n in tree.find_all(nodes.Node):
        if type(n) in STATEMENTS:
            yield "statement", STATEMENTS[type(n)]
            if isinstance(n, nodes.For):
                yield from [("statement", "for ... " + x) for x, there in (("if", n.test), ("else", n.else_), ("recursive", n.recursive)) if there]
        elif isinstance(n, nodes.Filter):
            yield "filter", n.name
            given = [k.key for k in n.kwargs] + ["%d positional" % len(n.args)] * bool(n.args)
            for x in given:
                yield "filter's argument", f"{n.name}: {x}"
            if n.name in ("map", "select", "reject", "selectattr", "rejectattr"):
                at = n.name.endswith("attr")
                if len(n.args) > at and isinstance(n.args[at], nodes.Const):
                    yield "filter" if n.name == "map" else "test", n.args[at].value
        elif isinstance(n, nodes.Test):
            yield "test", n.name
        elif isinstance(n, nodes.Call):
            if isinstance(n.node, nodes.Name):
                yield "function", "a macro" if n.node.name in macros else n.node.name
            elif isinstance(n.node, nodes.Getattr):
                yield "method", n.node.attr
        elif type(n) in OPERATORS:
            name = OPERATORS[type(n)]
            if isinstance(n, nodes.Mod) and isinstance(n.left, nodes.Const) and isinstance(n.left.value, str):
                name = "'...' % values"
            if isinstance(n, nodes.Slice) and n.step:
                name = "x[a:b:c]"
            yield "operator", name
        elif isinstance(n, nodes.Getattr) and isinstance(n.node, nodes.Name) and n.node.name == "loop":
            yield "member of loop", n.attr
        elif isinstance(n, nodes.Const) and isinstance(n.value, (int, float)) and not isinstance(n.value, bool) and (isinstance(n.value, float) or abs(n.value) >= 1 << 63):
            yield "operator", "a float" if isinstance(n.value, float) else "an integer beyond 64 bits"


def main():
    seen, broken = set(), 0
    count, kinds = collections.Counter(), collections.Counter()
    for folder in sys.argv[1:]:
        for root, _, files in os.walk(folder):
            for name in sorted(files):
                for text in texts(os.path.join(root, name)):
                    if not isinstance(text, str) or text in seen or not re.search(r"\{[%{][^}]*\bmessages\b", text):
                        continue
                    seen.add(text)
                    try:
                        found = set(uses(ENVIRONMENT.parse(text)))
                    except TemplateSyntaxError:
                        broken += 1
                        continue
                    count.update(found)
                    kinds[os.path.basename(os.path.normpath(folder))] += 1
    print(f"{sum(kinds.values())} templates of {len(kinds)} repositories ({broken} more do not parse), new ones in each:")
    print("\n".join(textwrap.wrap(", ".join(f"{name} {n}" for name, n in kinds.items()), 100, break_on_hyphens=False)) + ".\n")
    for kind in ("statement", "filter", "filter's argument", "test", "function", "method", "member of loop", "operator"):
        rows = sorted(((-n, name) for (k, name), n in count.items() if k == kind))
        print(f"| {kind} | templates |\n|---|---|")
        print("".join(f"| `{name}` | {-n} |\n" for n, name in rows))


if __name__ == "__main__":
    sys.exit(main())
