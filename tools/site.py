#!/usr/bin/env python3
"""Makes the site: README.md, docs/ and the files that they link to as HTML, with the page "Does it fit
on my GPU?" where `make page` has made it. `make site` calls it.

    tools/site.py PAGE OUT      PAGE: build/page; OUT: a folder for any web server, or for files

cmark-gfm converts Markdown. Paths stay those of the tree: docs/guides/python.md becomes
docs/guides/python.html, a README.md the index.html of its folder, a linked source file its text.
Needs no network, and no page loads anything from one.
"""

import html
import os
import posixpath
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LINK = re.compile(r' (href|src)="([^":#]*)(#[^"]*)?"')


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def write(out, path, text):
    os.makedirs(os.path.dirname(os.path.join(out, path)), exist_ok=True)
    with open(os.path.join(out, path), "w", encoding="utf-8") as f:
        f.write(text)


def target(path):
    """Returns the path in the site of a file of the tree."""
    if path.endswith("README.md"):
        return path[:-len("README.md")] + "index.html"
    if path.endswith(".md"):
        return path[:-len("md")] + "html"
    return path if path.endswith((".png", ".svg")) else path + ".txt"


def relative(path, page):
    """Returns a path of the site as a page of the site links to it."""
    return posixpath.relpath(path, posixpath.dirname(page) or ".")


def anchor(heading):
    """Returns the anchor of a heading, by the rule of tools/docs.sh."""
    text = html.unescape(re.sub("<[^>]*>", "", heading)).lower().replace(" ", "-")
    return re.sub("[^a-z0-9_-]", "", text)


def convert(path):
    """Returns the HTML of a page of the tree, and the files of the tree that it links to."""
    body = subprocess.run(["cmark-gfm", "-e", "table", os.path.join(ROOT, path)], check=True, capture_output=True,
                          text=True).stdout
    linked = []

    def link(m):
        kind, to, fragment = m.group(1), m.group(2), m.group(3) or ""
        if not to:
            return m.group(0)
        file = posixpath.normpath(posixpath.join(posixpath.dirname(path), to))
        if not os.path.isfile(os.path.join(ROOT, file)):
            sys.exit(f"{path}: {to} leads to no file")
        linked.append(file)
        return f' {kind}="{relative(target(file), target(path))}{fragment}"'

    body = LINK.sub(link, body)
    body = re.sub("<h([1-6])>(.*?)</h[1-6]>",
                  lambda m: f'<h{m[1]} id="{anchor(m[2])}">{m[2]}</h{m[1]}>', body, flags=re.S)
    body = body.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>")
    return body, linked


def contents(body):
    """Returns the list of a long page's sections."""
    found = re.findall(r'<h2 id="([^"]*)">(.*?)</h2>', body, flags=re.S)
    if len(found) < 4:
        return ""
    rows = "".join(f'<li><a href="#{a}">{re.sub("<[^>]*>", "", t)}</a></li>' for a, t in found)
    return f'<details class="contents"><summary>On this page</summary><ul>{rows}</ul></details>'


def navigation(index, page, fits):
    """Returns the links to all pages, as docs/README.md lists them by its sections."""
    rows = []
    for title, part in re.findall(r'<h2 id="[^"]*">(.*?)</h2>(.*?)(?=<h2|\Z)', index, flags=re.S):
        links = re.findall(r'<a href="([^"]*)">(.*?)</a>', "".join(re.findall("<ul>(.*?)</ul>", part, flags=re.S)),
                           flags=re.S)
        if not links:
            continue
        rows.append(f"<h2>{title.split(':')[0]}</h2><ul>")
        for to, text in links:
            to = posixpath.normpath(posixpath.join("docs", to))
            here = ' aria-current="page"' if to == page else ""
            rows.append(f'<li><a href="{relative(to, page)}"{here}>{text}</a></li>')
        rows.append("</ul>")
    top = [("index.html", "Plimsoll"), *([("fits/index.html", "Does it fit on my GPU?")] if fits else []),
           ("docs/index.html", "Find a page"), ("CHANGELOG.html", "Changes")]
    first = "".join(f'<li><a href="{relative(to, page)}">{text}</a></li>' for to, text in top)
    return f'<nav id="pages" aria-label="Pages"><ul>{first}</ul>{"".join(rows)}</nav>'


def whole(page, body, index, fits):
    title = re.search("<h1[^>]*>(.*?)</h1>", body, flags=re.S)
    title = html.unescape(re.sub("<[^>]*>", "", title[1])) if title else page
    name = title if title == "Plimsoll" else f"{title} | Plimsoll"
    body = body.replace("</h1>", "</h1>\n" + contents(body), 1)
    head = f'<a href="{relative("index.html", page)}"><b>Plimsoll</b></a>'
    if fits:
        head += f' <a href="{relative("fits/index.html", page)}">Does it fit on my GPU?</a>'
    head += ' <a class="narrow" href="#pages">Pages</a>'
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{html.escape(name)}</title>
<link rel="stylesheet" href="{relative("site.css", page)}">
<link rel="icon" href="data:,">
</head>
<body>
<a class="skip" href="#text">To the text</a>
<header>{head}</header>
<div class="columns">
<main id="text">
{body}</main>
{navigation(index, page, fits)}
</div>
</body>
</html>
"""


def put_planner(page, out):
    """Copies the page with the planner, with a way back; returns False where it is not made."""
    if not os.path.exists(os.path.join(page, "planner.js")):
        return False
    os.makedirs(os.path.join(out, "fits"))
    for name in sorted(os.listdir(page)):
        if name.endswith((".html", ".css", ".js")):
            shutil.copy(os.path.join(page, name), os.path.join(out, "fits", name))
    with open(os.path.join(out, "fits", "index.html"), encoding="utf-8") as f:
        text = f.read()
    back = '<header>\n  <a href="../index.html">Plimsoll</a>'
    write(out, "fits/index.html", text.replace("<header>", back, 1))
    return True


def main():
    page, out = sys.argv[1], sys.argv[2]
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    fits = put_planner(page, out)
    shutil.copy(os.path.join(ROOT, "tools", "site.css"), out)
    waiting = ["README.md", "CHANGELOG.md"]
    for folder, _, names in os.walk(os.path.join(ROOT, "docs")):
        waiting += [posixpath.join(os.path.relpath(folder, ROOT), n) for n in sorted(names) if n.endswith(".md")]
    index, _ = convert("docs/README.md")
    done, pages = set(), 0
    while waiting:
        path = waiting.pop()
        if path in done:
            continue
        done.add(path)
        if path.endswith(".md"):
            body, linked = convert(path)
            write(out, target(path), whole(target(path), body, index, fits))
            waiting += linked
            pages += 1
        else:
            os.makedirs(os.path.dirname(os.path.join(out, path)), exist_ok=True)
            shutil.copyfile(os.path.join(ROOT, path), os.path.join(out, target(path)))
    size = sum(os.path.getsize(os.path.join(f, n)) for f, _, names in os.walk(out) for n in names)
    print(f"{out}/index.html: {pages} pages, {size / 2**20:.1f} MiB" +
          ("" if fits else '; without "Does it fit on my GPU?", which needs emscripten (make page)'))


main()
