#!/usr/bin/env python3
"""Opens the built site in a browser, from its files, as a reader does: at two widths, light and dark.
    browser.py SITE_DIR [--table FILE] [--pictures DIR]

Playwright drives Debian's chromium, or the browser that it has installed itself. `--table`: what schedule_table
printed, to compare with the picture's model; `--pictures`: where to put pictures of the pages."""
import argparse
import itertools
import os
import pathlib
import re
import shutil
import sys

try:
    from playwright.sync_api import Error, sync_playwright
except ImportError as reason:
    print(f"SKIPPED: {reason}; docs/site/setup --check installs it")
    sys.exit(77)

WIDTHS, SCHEMES = (390, 1280), ("light", "dark")
PAGES = ("index.html", "contents.html", "guide/nccl.html", "guide/own-transport.html", "reference/lasp_h.html",
         "reference/liblasp.html", "reference/liblasp_torch.html", "reference/liblasp_jax.html",
         "reference/schedules.html",
         "reference/performance.html", "internals/kernel-table.html", "history/gpu-speed.html",
         "project/examples/c/attention.c.html")
# What the browser says that is no mistake of a page.
HARMLESS = re.compile(r"Autofocus processing was blocked")
SIDEWAYS = """() => {
  const out = [...document.querySelectorAll("article *")].filter((each) => each.getBoundingClientRect().right > innerWidth + 1 &&
      !each.closest("pre, .md-typeset__scrollwrap, .md-typeset__table, table, .highlight"));
  return [document.documentElement.scrollWidth > innerWidth, out.slice(0, 3).map((each) => each.outerHTML.slice(0, 120))];
}"""

wrong = []


def expect(truth, what):
    if not truth:
        wrong.append(what)


class Reader:
    """A browser window whose troubles are written down."""

    def __init__(self, browser, site, width, scheme):
        self.site, self.about = site, f"{width} px, {scheme}"
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page.on("console", lambda said: HARMLESS.search(said.text) or
                     wrong.append(f"{self.where()}: the console says: {said.text}"))
        self.page.on("pageerror", lambda error: wrong.append(f"{self.where()}: {error}"))
        self.page.on("request", self.asked)

    def where(self):
        return f"{os.path.relpath(self.page.url.removeprefix('file://').split('#')[0], self.site)} ({self.about})"

    def asked(self, request):
        if not request.url.startswith(("file:", "data:", "blob:", "about:")):
            wrong.append(f"{self.where()}: asks for {request.url}")

    def open(self, name):
        self.page.goto((pathlib.Path(self.site) / name).as_uri())
        self.page.wait_for_timeout(150)
        return self.page


def look_at_pages(reader, width, scheme, pictures):
    for name in PAGES:
        page = reader.open(name)
        sideways, which = page.evaluate(SIDEWAYS)
        expect(not sideways and not which, f"{reader.where()}: wider than the window: {which}")
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3)"
                             ".every((each) => each < 90)")
        expect(dark == (scheme == "dark"), f"{reader.where()}: is {'dark' if dark else 'light'}")
        if pictures:
            page.screenshot(path=os.path.join(pictures, f"{name.replace('/', '-')}-{width}-{scheme}.png"), full_page=False)


def search(reader):
    page = reader.open("index.html")
    page.keyboard.press("Control+k")
    page.wait_for_timeout(200)
    page.keyboard.type("lasp_forward")
    try:
        page.wait_for_function("""() => [...document.querySelectorAll("*")].some((each) => each.shadowRoot &&
            [...each.shadowRoot.querySelectorAll("a")].some((a) => a.href.includes("reference/lasp_h.html") && a.hash === "#lasp_forward"))""",
                               timeout=8000)
    except Error:
        wrong.append(f"{reader.where()}: the search does not find lasp_forward")


def times(page):
    return page.evaluate("""() => Object.fromEntries([...document.querySelectorAll("[data-schedule]")].map((each) =>
        [each.dataset.schedule, each.querySelector(".lasp-us").textContent]))""")


def set_value(page, name, value):
    page.evaluate("""([name, value]) => {
      const field = document.querySelector(".lasp-part form").elements[name];
      field.value = value;
      field.dispatchEvent(new Event("input", {bubbles: true}));
    }""", [name, str(value)])


def rows_of(page):
    return page.evaluate('document.querySelectorAll("[data-schedule=ring] rect.lasp-own").length')


def schedules(reader, pictures, name):
    """The picture follows what is chosen, and says what a plan on H200 does: 7 (3.25 us + 2 MiB / 382 GB/s) + 6 folds of 2.2 us."""
    page = reader.open("reference/schedules.html")
    before = times(page)
    expect(before == {"ring": "74.4 µs", "all-scan": "74.4 µs", "doubling": "129 µs", "all-gather": "79.1 µs",
                      "head-scatter": "87.5 µs"}, f"{reader.where()}: the picture begins with {before}")
    expect(rows_of(page) == 8, f"{reader.where()}: {rows_of(page)} rows of 8 ranks")
    for ranks in (2, 3, 64, 16):
        set_value(page, "ranks", ranks)
        expect(rows_of(page) == ranks, f"{reader.where()}: {rows_of(page)} rows of {ranks} ranks")
    after = times(page)
    expect(all(after[each] != before[each] for each in before), f"{reader.where()}: 16 ranks take as long as 8: {after}")
    for field, value in (("keys", 256), ("decay", "delta"), ("link", "infiniband"), ("latency", 3), ("bandwidth", 100)):
        before = times(page)
        set_value(page, field, value)
        expect(times(page) != before, f"{reader.where()}: {field} = {value} changes nothing")
    expect(page.evaluate('document.querySelector(".lasp-part form").elements.link.value') == "own",
           f"{reader.where()}: a latency of one's own is said to be another link's")
    drawn = page.evaluate('document.querySelector(".lasp-panels").innerHTML')
    for field, value in (("pass", "backward"), ("show", "exchange"), ("tokens", 65536)):
        set_value(page, field, value)
        now = page.evaluate('document.querySelector(".lasp-panels").innerHTML')
        expect(now != drawn, f"{reader.where()}: {field} = {value} changes nothing")
        drawn = now
    expect("NaN" not in drawn and "undefined" not in drawn, f"{reader.where()}: the picture has numbers that are none")
    set_value(page, "latency", 0)
    expect(page.evaluate('document.querySelector(".lasp-panels").innerHTML') == drawn,
           f"{reader.where()}: a latency of 0 is drawn")
    if pictures:
        page = reader.open("reference/schedules.html")
        for ranks in (8, 64):
            set_value(page, "ranks", ranks)
            page.locator(".lasp-part").screenshot(path=os.path.join(pictures, f"picture-{ranks}-{name}.png"))


def speed(reader, pictures, name):
    page = reader.open("reference/performance.html")
    bars = page.locator(".lasp-bar")
    expect(bars.count() >= 2 and "liblasp" in bars.nth(0).inner_text(), f"{reader.where()}: the chart has no bars")
    bars.nth(0).hover()
    said = page.locator(".lasp-hover").inner_text()
    expect(re.search(r"NVIDIA H\d00.*\d{4}-\d\d-\d\d.*commit [0-9a-f]{7}", said), f"{reader.where()}: a bar says: {said}")
    before = page.locator(".lasp-bars").inner_text()
    set_value(page, "pass", "forward")
    expect(page.locator(".lasp-bars").inner_text() != before, f"{reader.where()}: another pass changes nothing")
    if pictures:
        page.locator(".lasp-part").screenshot(path=os.path.join(pictures, f"speed-{name}.png"))


def compare_model(reader, table):
    page = reader.open("reference/schedules.html")
    script = (pathlib.Path(__file__).parent / "model.js").read_text(encoding="utf-8")
    found = page.evaluate(f"(table) => {{ {script}; return compareModel(table, LaspModel, LaspEvents); }}", table)
    wrong.extend(found["wrong"][:20])
    return found["compared"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site")
    parser.add_argument("--table")
    parser.add_argument("--pictures")
    args = parser.parse_args()
    site, compared = os.path.realpath(args.site), 0
    if args.pictures:
        os.makedirs(args.pictures, exist_ok=True)
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        try:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        except Error as reason:
            print(f"SKIPPED: no browser (apt: chromium): {str(reason).splitlines()[0]}")
            return 77
        for width, scheme in itertools.product(WIDTHS, SCHEMES):
            reader = Reader(browser, site, width, scheme)
            look_at_pages(reader, width, scheme, args.pictures)
            schedules(reader, args.pictures, f"{width}-{scheme}")
            speed(reader, args.pictures, f"{width}-{scheme}")
        search(reader)
        if args.table:
            with open(args.table, encoding="utf-8") as opened:
                compared = compare_model(reader, opened.read())
        browser.close()
    print("\n".join(wrong) if wrong else f"{len(PAGES)} pages at {len(WIDTHS)} widths, light and dark" +
          (f"; {compared} numbers are the library's" if args.table else ""))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
