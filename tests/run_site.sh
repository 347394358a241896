#!/bin/bash
# run_site.sh: the site that `make site` makes: every page of docs/ is in it, every link inside it
# resolves, every page is reached from the first one, and a browser shows them at phone width.
#
#   bash tests/run_site.sh     from the repository's root; see run_lib.sh
#   SCREENSHOTS=DIR            keeps the screenshots there
# shellcheck source=tests/run_lib.sh disable=SC2154
. tests/run_lib.sh

site=$tmp/site
made() {
    command -v python3 cmark-gfm >/dev/null || { echo 'there is no python3 or no cmark-gfm (make deps)'; return 77; }
    python3 tools/site.py "$BUILD/page" "$site"
}
check 'make site' made
if [ ! -f "$site/index.html" ]; then
    skipped=$((skipped + 2))
    summary
    [ "$failed" -eq 0 ]
    exit
fi

links() {
    python3 - "$site" <<'END'
import html.parser, os, sys, urllib.parse
site = sys.argv[1]

class Page(html.parser.HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.anchors, self.links = set(), []
        with open(path, encoding="utf-8") as f:
            self.feed(f.read())

    def handle_starttag(self, tag, attributes):
        of = dict(attributes)
        self.anchors.add(of.get("id"))
        self.links += [of[k] for k in ("href", "src") if k in of]

pages = {}
for folder, _, names in os.walk(site):
    for name in names:
        if name.endswith(".html"):
            path = os.path.join(folder, name)
            pages[path] = Page(path)
wrong, count, reached, waiting = [], 0, set(), [os.path.join(site, "index.html")]
while waiting:
    path = waiting.pop()
    if path in reached:
        continue
    reached.add(path)
    for link in pages[path].links:
        to = urllib.parse.urlsplit(link)
        if to.scheme or to.netloc:
            continue
        count += 1
        file = os.path.normpath(os.path.join(os.path.dirname(path), to.path)) if to.path else path
        if not os.path.isfile(file):
            wrong.append(f"{path}: {link} leads to no file")
        elif file in pages:
            waiting.append(file)
            if to.fragment and to.fragment not in pages[file].anchors:
                wrong.append(f"{path}: {link} leads to no heading")
wrong += [f"{p}: no link leads there" for p in pages if p not in reached]
for folder, _, names in os.walk("docs"):
    for name in names:
        page = os.path.join(folder, "index.html" if name == "README.md" else name[:-2] + "html")
        if name.endswith(".md") and os.path.join(site, page) not in pages:
            wrong.append(f"{page} is not in the site")
print(*wrong, f"{count} links, {len(pages)} pages", sep="\n")
sys.exit(bool(wrong))
END
}
check 'all links resolve, and all pages are reached' links

# The navigation has what the lists of docs/README.md have.
listed() {
    local page n=0 missing=
    sed -n '/^## Guides/,$p' docs/README.md >"$tmp/lists"
    for page in $(cd docs && find . -name '*.md' ! -path ./README.md | sort); do
        n=$((n + 1))
        grep -qF "](${page#./})" "$tmp/lists" || missing="$missing $page"
    done
    [ -z "$missing" ] || { echo "not in the lists of docs/README.md:$missing"; return 1; }
    echo "$n pages"
}
check 'the navigation has every page' listed

in_chromium() {
    command -v node >/dev/null && command -v chromium >/dev/null || { echo 'there is no chromium or no node'; return 77; }
    mkdir -p "$tmp/chromium"
    timeout 600 node tests/site_chromium.js "$site" "$tmp/chromium" || return 1
    [ -z "${SCREENSHOTS:-}" ] || cp "$tmp"/chromium/*.png "$SCREENSHOTS"
}
check 'the site in Chromium' in_chromium
summary
