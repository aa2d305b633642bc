#!/usr/bin/env python3
"""Every number that bench/results/quoted.csv lists stands on its page, and its row gives it.     quoted_numbers.py REPOSITORY

A line of quoted.csv has a page, a number as the page writes it, a file of bench/results, a row of that file (`column=value`,
as many as it takes to name one row) and the column, or a sum of columns. Two rows with ` / ` between them give their
quotient. A page must hold a number as often as it is listed. Then every line is spoiled, on the page and in its row: both
must be found. And every file of bench/results that any page names is there."""
import collections
import contextlib
import csv
import json
import pathlib
import re
import shlex
import sys

Entry = collections.namedtuple("Entry", "page number file row column")


def rows_of(path):
    if path.suffix == ".json":
        return json.loads(path.read_text())["rows"]
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


class Rows(list):
    """Rows that find those with a value in a column at once."""

    def __init__(self, rows):
        super().__init__(rows)
        self.columns = {}

    def with_value(self, column, value):
        if column not in self.columns:
            places = self.columns[column] = collections.defaultdict(set)
            for place, row in enumerate(self):
                places[str(row.get(column))].add(place)
        return self.columns[column].get(value, set())


def the_row(rows, words):
    wanted = [word.split("=", 1) for word in shlex.split(words)]
    found = set(range(len(rows))).intersection(*(rows.with_value(column, value) for column, value in wanted))
    if len(found) != 1:
        raise ValueError(f"{len(found)} rows are {words}")
    return rows[found.pop()]


def value_of(rows, entry):
    parts = [sum(float(row[column.strip()]) for column in entry.column.split("+"))
             for row in (the_row(rows, words) for words in entry.row.split(" / "))]
    value = parts[0] if len(parts) == 1 else parts[0] / parts[1]
    return 100 * value if entry.number.endswith("%") else value


def rounds_to(value, number):
    """Half a unit of the last place written; zeros at the end of a number such as 69,600 are not counted as written."""
    digits = number.rstrip("%").replace(",", "")
    mantissa, _, exponent = digits.partition("e")
    places = len(mantissa.partition(".")[2]) - int(exponent or 0)
    zeros = len(digits) - len(digits.rstrip("0")) if "," in number else 0
    unit = 10.0 ** (zeros - places)
    return abs(value - float(digits)) <= unit * 0.5000001  # a tie may go either way


def pattern(number):
    return re.compile(r"(?<![\d.,])" + re.escape(number) + r"(?![\d%]|[.,]\d|e-?\d)")


def complaint(entry, page, rows, times):
    """What is wrong with an entry, or None."""
    if len(pattern(entry.number).findall(page)) < times:
        return "the page does not say it" + (f" {times} times" if times > 1 else "")
    try:
        value = value_of(rows, entry)
    except (KeyError, ValueError, ZeroDivisionError) as error:
        return f"{entry.file}: {error}"
    return None if rounds_to(value, entry.number) else f"{entry.file}, {entry.row}: {entry.column} gives {value:.6g}"


def missing_files(repository):
    """Names of results, such as bench/results/peers.csv, that a page of the repository gives and nobody has."""
    name = re.compile(r"bench/results/([\w.-]*\w)|\b([cg]pu-\d{4}-[\w.-]+\.(?:csv|json|svg|txt))")
    for page in [*repository.glob("*.md"), *repository.glob("docs/**/*.md"), *repository.glob("bench/**/*.md")]:
        for inside, alone in name.findall(page.read_text()):
            if not (repository / "bench" / "results" / (inside or alone)).exists():
                yield f"{page.relative_to(repository)}: names {inside or alone}, which is not in bench/results"


def without(number, page, times):
    """The page with the number once too seldom."""
    found = pattern(number)
    return found.sub("0", page, count=len(found.findall(page)) - times + 1)


@contextlib.contextmanager
def another_measurement(rows, entry):
    """While it lasts, the entry's (first) row has twice its measurement."""
    row = the_row(rows, entry.row.split(" / ")[0])
    measured = {column.strip(): row[column.strip()] for column in entry.column.split("+")}
    row.update({column: 2 * float(value) + 1e-9 for column, value in measured.items()})
    yield
    row.update(measured)


def main():
    repository = pathlib.Path(sys.argv[1])
    results = repository / "bench" / "results"
    files = {path.name: Rows(rows_of(path)) for path in results.iterdir() if path.suffix in (".csv", ".json")}
    entries = [Entry(**line) for line in files.pop("quoted.csv")]
    times = collections.Counter((entry.page, entry.number) for entry in entries)
    pages = {entry.page: repository / entry.page for entry in entries}
    pages = {name: path.read_text() if path.exists() else "" for name, path in pages.items()}
    wrong = [f"{name}: no page quotes it" for name in sorted(set(files) - {entry.file for entry in entries})]
    wrong += missing_files(repository)
    for entry in entries:
        page, rows, count = pages[entry.page], files.get(entry.file, Rows([])), times[entry.page, entry.number]
        said = complaint(entry, page, rows, count)
        if not said and not complaint(entry, without(entry.number, page, count), rows, count):
            said = "is not missed when the page has another number"
        if not said:
            with another_measurement(rows, entry):
                if not complaint(entry, page, rows, count):
                    said = "is not missed when the row has another value"
        if said:
            wrong.append(f"{entry.page}: {entry.number}: {said}")
    print(*wrong, f"{len(entries)} numbers on {len(pages)} pages, {len(wrong)} wrong", sep="\n")
    return 1 if wrong or not entries else 0


if __name__ == "__main__":
    sys.exit(main())
