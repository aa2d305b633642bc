"""Traces: what a rank did when, as a file."""

import json

import numpy as np
import pytest

import liblasp


@pytest.fixture
def context():
    with liblasp.Context(cpu_threads=1) as made:
        yield made


def forward(context):
    q, k, v, o = (np.zeros((1, 4, 1, 8), np.float32) for _ in range(4))
    with context.plan(tokens=4, head_dim_k=8, head_dim_v=8, backward=False) as plan:
        plan.forward(q, k, v, out=o)


def calls(path):
    return [event["name"] for event in json.loads(path.read_text())["traceEvents"] if event.get("cat") == "call"]


def test_what_happens_inside_is_recorded(context, tmp_path):
    path = tmp_path / "trace.json"
    forward(context)
    with context.trace(path):
        forward(context)
    forward(context)
    assert calls(path) == ["lasp_plan_create", "lasp_forward", "lasp_plan_destroy"]


def test_after_an_exception_the_file_is_there(context, tmp_path):
    path = tmp_path / "trace.json"
    with pytest.raises(ZeroDivisionError):
        with context.trace(str(path)):
            forward(context)
            1 / 0
    assert "lasp_forward" in calls(path)


def test_the_oldest_give_way(context, tmp_path):
    path = tmp_path / "trace.json"
    with context.trace(path, max_records=2):
        forward(context)
    assert calls(path) == ["lasp_forward", "lasp_plan_destroy"]
    assert json.loads(path.read_text())["otherData"]["dropped"] > 0


def test_wrong_uses(context, tmp_path):
    path = tmp_path / "trace.json"
    for wrong, words in ((3, "path = 3"), (b"trace", "path = "), ("a\0b", "zero byte")):
        with pytest.raises(liblasp.InvalidArgument, match=words):
            with context.trace(wrong):
                pass
    for records, words in ((-1, "max_records = -1"), (1.5, "max_records = 1.5"), (2**63, "does not fit")):
        with pytest.raises(liblasp.InvalidArgument, match=words):
            with context.trace(path, max_records=records):
                pass
    with pytest.raises(liblasp.InvalidArgument, match="No such file"):
        with context.trace(tmp_path / "none" / "trace.json"):
            pass
    with context.trace(path):
        with pytest.raises(liblasp.InvalidArgument, match="traced already"):
            with context.trace(path):
                pass
    with context.trace(path):
        context.close()  # ends the trace, and with it the file
    with pytest.raises(liblasp.InvalidHandle):
        with context.trace(path):
            pass
