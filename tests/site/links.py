#!/usr/bin/env python3
"""Every link of the built site leads somewhere, headings too, and nothing that a browser loads is elsewhere.
    links.py SITE_DIR"""
import html.parser
import os
import sys
import urllib.parse

LOADED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src")}
IN_A_PAGE = {"canonical", "next", "prev"}  # of link: not loaded
OWN = "rust" + os.sep  # rustdoc's pages: it checks their links itself; links to them are checked here


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.names, self.links, self.loaded = set(), [], []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.names |= {values.get("id"), values.get("name")}
        for key in ("href", "src"):
            if values.get(key) and not (tag == "link" and values.get("rel") in IN_A_PAGE):
                (self.loaded if (tag, key) in LOADED else self.links).append(values[key])


def pages_of(site):
    found = {}
    for folder, _, names in os.walk(site):
        for name in names:
            here = os.path.relpath(os.path.join(folder, name), site)
            if name.endswith(".html") and not here.startswith(OWN):
                found[here] = Page()
                with open(os.path.join(folder, name), encoding="utf-8") as opened:
                    found[here].feed(opened.read())
    return found


def problem_of(site, pages, here, link):
    address = urllib.parse.urlsplit(link)
    if address.scheme or address.netloc:
        return None
    path = urllib.parse.unquote(address.path)
    goal = os.path.normpath(os.path.join(os.path.dirname(here), path)) if path else here
    if not os.path.isfile(os.path.join(site, goal)):
        return "is not there"
    if address.fragment and goal in pages and urllib.parse.unquote(address.fragment) not in pages[goal].names:
        return "the page has no such heading"
    return None


def main():
    site = os.path.realpath(sys.argv[1])
    pages, wrong, links = pages_of(site), [], 0
    for here, page in sorted(pages.items()):
        if here == "404.html":  # it is shown in place of any address, so its own are of the server's root
            continue
        for link in page.loaded:
            if "//" in link.split("?")[0]:
                wrong.append(f"{here}: loads {link} from elsewhere")
        for link in page.links + page.loaded:
            links += 1
            if problem := problem_of(site, pages, here, link):
                wrong.append(f"{here}: {link}: {problem}")
    if len(pages) < 40 or links < 1000:
        wrong.append(f"{len(pages)} pages and {links} links: this test looks in the wrong place")
    print("\n".join(wrong) if wrong else f"{links} links of {len(pages)} pages lead somewhere")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
