"""The interactive parts of pages. A comment in a page, which nobody sees in the repository, says where one stands:
    <!-- site: schedules -->      <!-- site: speed -->"""
import csv
import json
import os
import re

PLACE = re.compile(r"^<!-- site: (\w+) -->$", re.M)
PARTS = ("schedules", "speed")


def rows(root):
    """The rows of bench/results/peers.csv that have both passes, numbers as numbers."""
    with open(os.path.join(root, "bench", "results", "peers.csv"), newline="", encoding="utf-8") as opened:
        for row in csv.DictReader(opened):
            if not row["backward_ms"]:
                continue
            for column in ("ranks", "batch", "tokens", "heads"):
                row[column] = int(row[column])
            for column in ("forward_ms", "backward_ms", "copy_gbs"):
                row[column] = float(row[column])
            yield {column: row[column] for column in ("run", "date", "commit", "device", "copy_gbs", "name", "ranks",
                                                      "shape", "batch", "tokens", "heads", "decay",
                                                      "forward_ms", "backward_ms")}


def put_in(root, markdown):
    """The page with a place for each interactive part, and the numbers that it draws."""
    def place(match):
        if match[1] not in PARTS:
            raise ValueError(f"<!-- site: {match[1]} -->: there are {', '.join(PARTS)}")
        return (f'<div class="lasp-part" data-lasp="{match[1]}" markdown="0">\n<script type="application/json">\n'
                f"{json.dumps(list(rows(root)))}\n</script>\n<noscript>It needs JavaScript.</noscript>\n</div>")
    return PLACE.sub(place, markdown)
