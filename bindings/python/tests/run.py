"""Runs one file of tests for CTest: run.py FILE [pytest arguments]. Every skipped test is printed as
"SKIPPED: reason"; the exit status is 77 when nothing was left to run."""

import os
import sys

os.environ.setdefault("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # what else is installed has no say here

import pytest


class Skips:
    """Collects the reasons, and counts what ran."""

    def __init__(self):
        self.reasons, self.ran = [], 0

    def pytest_runtest_logreport(self, report):
        if report.skipped:
            self.reasons.append(report.longrepr[2].replace("Skipped: ", "", 1))
        elif report.when == "call":
            self.ran += 1

    def pytest_collectreport(self, report):
        if report.skipped:
            self.reasons.append(report.longrepr[2].replace("Skipped: ", "", 1))


skips = Skips()
here = os.path.dirname(os.path.abspath(__file__))
arguments = ["-q", "-p", "no:cacheprovider", "--rootdir", here, os.path.join(here, sys.argv[1]), *sys.argv[2:]]
status = pytest.main(arguments, plugins=[skips])
for reason in dict.fromkeys(skips.reasons):
    print("SKIPPED: " + reason)
if skips.reasons and not skips.ran and status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
    status = 77
sys.exit(int(status))
