#!/usr/bin/env python3
"""bench/peers.py without a GPU and without PyTorch: lasp-bench's table, a process in place of the public code, the report, its
rows and its picture.     peers.py LASP_BENCH REPOSITORY"""
import csv
import importlib.util
import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import time
import types

LASP_BENCH, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
sys.path[:0] = [str(ROOT / "bench")]

import peer_jobs  # noqa: E402
import peers  # noqa: E402
import plot_peers  # noqa: E402
import rows  # noqa: E402

# lasp-bench on the CPU, with what a GPU's report has besides.
FAKE_BENCH = """#!{python} -ES
import json, subprocess, sys
words, kept = iter(sys.argv[1:]), []
for word in words:
    value = next(words) if word in ("--device", "--dtype", "--tokens", "--tokens-per-rank", "--repeats") else None
    if value is None:
        kept.append(word)
done = subprocess.run(["{bench}", *kept, "--tokens", "8", "--warmup", "1", "--repeats", "1"], stdout=subprocess.PIPE)
report = json.loads(done.stdout)
for result in report["results"]:
    result.update(gpu="a GPU", copy_gbs=1000.0)
    result["forward"]["floor_bytes"], result["backward"]["floor_bytes"] = 1e6, 2e6
print(json.dumps(report))
"""

# What a shape's name says, it does. The process that it starts must not outlive it.
FAKE_WORKER = """
import json, os, subprocess, sys, time
print(json.dumps({"gpu": "a GPU", "torch": "2", "triton": "3", "done": True}), flush=True)
print("it starts", file=open(os.environ["FAKE_LOG"], "a"))
for line in sys.stdin:
    task = json.loads(line)
    print(json.dumps(task), file=open(os.environ["FAKE_LOG"], "a"))
    say = lambda **row: print(json.dumps(row), flush=True)
    what, known = task["shape"]["shape"], {"copy_gbs": 2000.0, "forward_ms": 1.0, "forward_spread": 0.01}
    if "share" in task:
        say(done=True)
    elif "FAKE_FAST" in os.environ:
        say(**known, backward_ms=2.0, backward_spread=0.02, done=True)
    elif what.startswith("256 x 256, per head") and task["name"] == "fla simple GLA":
        child = subprocess.Popen(["sleep", "60"])
        print(json.dumps({"child": child.pid}), file=open(os.environ["FAKE_LOG"], "a"))
        say(**known)
        time.sleep(60)
    elif what.startswith("KDA"):
        time.sleep(60)
    elif what.startswith("Gated DeltaNet"):
        say(**known, backward_missing="RuntimeError: refuses", done=True)
    elif what.startswith("DeltaNet"):
        sys.exit(7)
    else:
        say(**known)
        say(**known, error=1e-3, backward_ms=4.0 if "GLA" in task["name"] else 2.0, backward_spread=0.02, done=True)
"""

failed = 0


def expect(holds, sentence):
    global failed
    failed += not holds
    print(f"{'pass' if holds else 'FAIL'}  {sentence}")


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def run(*words):
    sys.argv = ["peers.py", *map(str, words)]
    peers.main()


def log():
    with open(os.environ["FAKE_LOG"]) as stream:
        return [line.strip() for line in stream]


def of_the_table(folder, report_file):
    run("--shapes", "models", "--lasp-bench", folder / "lasp-bench", "--json", report_file, "--each-limit", 1, "--compilers", 0,
        "--commit", "1234abc")
    report = json.loads(report_file.read_text())
    by = {(row["name"], row["shape"]): row for row in report["results"]}
    shapes = {shape["shape"]: shape for shape in report["shapes"]}
    expect(len(shapes) == 26, f"{len(shapes)} shapes, each with a name of its own")
    served = {name: {peer for peer, serves in peer_jobs.SERVES.items() if serves(shape)} for name, shape in shapes.items()}
    expect(all(served.values()), "every shape has public code that serves it")
    mamba = "Mamba-2: 128 x 64, one q and k, per token"
    expect(served[mamba] == {"fla simple GLA", "mamba_ssm chunk scan"}, f"Mamba-2's: {served[mamba]}")
    expect({row[1] for row in by if row[0] == "liblasp"} == set(shapes), "liblasp has a row of each")
    expect({shape["d_decay"] for shape in shapes.values() if shape["decay"] == "head"} == {0}, "a decay per head is a constant")
    expect({shape["d_decay"] for shape in shapes.values() if shape["decay"] == "scalar"} == {1}, "one per token is learnt")

    missing = lambda name, shape: by[name, shape].get("missing")
    expect(missing("fla KDA", "KDA: 128 x 128, per channel") == "did not end within 1 s", "one is stopped at its limit")
    expect(missing("fla delta rule", "DeltaNet: 128 x 128") == "its process ended with 7", "one that dies is named")
    half = by["fla simple GLA", "256 x 256, per head"]
    expect(half["forward_ms"] == 1.0 and half["backward_missing"].startswith("did not end"), "what came before stays known")
    expect(by["fla gated delta rule", "Gated DeltaNet: 128 x 128, per token"]["backward_missing"] == "RuntimeError: refuses",
           "what the code itself says is kept")
    plain = by["fla simple GLA", "128 x 128, no decay"]
    expect(plain["forward_share"] == 1e6 / 2000.0 * 1e-6 / 1.0, "a share is of liblasp's bytes at the copy rate beside it")
    small = by["fla simple GLA", "128 x 128, per head, small cache"]
    tasks = [json.loads(line) for line in log() if line.startswith('{"name"')]
    asked = [(task["name"], task["shape"]["shape"]) for task in tasks]
    expect(small["backward_ms"] == 4.0 and not any(shape.endswith("small cache") for _, shape in asked),
           "a problem of two shapes is measured once and stands in both rows")
    children = [json.loads(line)["child"] for line in log() if line.startswith('{"child"')]
    expect(children and not any(map(alive, children)), "what a stopped process had started is stopped too")

    before = len(log())
    os.environ["FAKE_FAST"] = "1"
    run("--continue", report_file, "--json", report_file, "--compilers", 0)
    del os.environ["FAKE_FAST"]
    again = {(task["name"], task["shape"]["shape"]) for task in map(json.loads, log()[before + 1:])}
    stopped = {key for key, row in by.items() if row.get("stopped")}
    expect(again == stopped and len(again) == 3, f"going on asks again for the {len(stopped)} that were stopped, alone")
    after = {(row["name"], row["shape"]): row for row in json.loads(report_file.read_text())["results"]}
    expect(after.keys() == by.keys() and all(after[key] == by[key] for key in by.keys() - stopped)
           and not any(row.get("stopped") for row in after.values()), "and keeps the other rows")


def of_a_size(folder, report_file):
    run("--sizes", "1x2x64x32x16", "--decay", "scalar", "--peers", "mamba_ssm chunk scan", "--lasp-bench", folder / "lasp-bench",
        "--json", report_file, "--compilers", 0)
    found = [(row["name"], row["shape"], row["tokens"], row["heads"], row["head_dim_k"], row["head_dim_v"], row["d_decay"])
             for row in json.loads(report_file.read_text())["results"]]
    expect(found == [(name, "1x2x64x32x16, scalar", 64, 2, 32, 16, 1) for name in ("liblasp", "mamba_ssm chunk scan")],
           f"a size of one's own: {found}")


def of_limits():
    shapes = [{"shape": f"shape {i}", "write": "additive", "decay": "none", "heads": 1, "heads_qk": 1, "tokens": 8 + i,
               "floor_bytes": {}} for i in range(3)]
    found, worker = {}, peer_jobs.Worker()
    add = lambda name, shape, row: found.update({shape["shape"]: row})
    limits = types.SimpleNamespace(whole=60, each=0.1, peer=1.05)
    slow = [{**shape, "shape": f"KDA {shape['shape']}"} for shape in shapes]
    run_slow = lambda begun: peer_jobs.run_jobs(peer_jobs.jobs_of(slow, ["fla simple GLA"]), limits, begun, worker, 1, add)
    run_slow(time.monotonic())
    expect([row["missing"] for row in found.values()] == ["did not end within 0.1 s"] + 2 * ["was not begun: this code had its 1.05 s"],
           "a peer that has had its time begins no more")
    run_slow(time.monotonic() - 59.5)
    expect({row["missing"] for row in found.values()} == {"was not begun within the run's 60 s"}, "nothing begins after the limit")
    before = len(log())
    done, total = peer_jobs.compile_ahead(peer_jobs.jobs_of(shapes, ["fla simple GLA"]), 2, 10)
    parts = {(task["shape"]["shape"], task["share"]) for task in map(json.loads, filter(lambda line: "share" in line, log()[before:]))}
    expect(done == total == len(parts) == 3 * peer_jobs.SHARES, f"{done} of {total} parts are compiled ahead, each once")

    working, peer_jobs.WORKER = peer_jobs.WORKER, (sys.executable, "-ES", "-c", "print('{\"missing\": \"no torch\", \"done\": true}')")
    worker, begin = peer_jobs.Worker(), time.monotonic()
    limits.peer, found = 60, {}
    peer_jobs.run_jobs(peer_jobs.jobs_of(shapes, ["fla simple GLA"]), limits, begin, worker, 1, add)
    expect({row["missing"] for row in found.values()} == {"no torch"} and len(found) == 3, "why nothing starts is said of each")
    peer_jobs.WORKER = working


def of_rows_and_picture(folder, report_file):
    table, quoted, picture = (folder / name for name in ("peers.csv", "quoted.csv", "peers.svg"))
    kept_rows = (ROOT / "bench/results/peers.csv").read_text().splitlines(keepends=True)
    table.write_text("".join(line for line in kept_rows if not line.startswith(plot_peers.ONE_GPU + ",")))
    quoted.write_bytes((ROOT / "bench/results/quoted.csv").read_bytes())
    kept = len(table.read_text().splitlines())
    rows.add(table, plot_peers.ONE_GPU, [*rows.rows_of(json.loads(report_file.read_text()))])
    with table.open(newline="") as stream:
        made = list(csv.DictReader(stream))
    measured = [row for row in json.loads(report_file.read_text())["results"] if "forward_ms" in row]
    expect(len(made) == kept - 1 + len(measured), "each measured row is a row of peers.csv, after those that it had")
    made = [row for row in made if row["name"] != "fla delta rule"]
    lines = {label: others for label, _, others in plot_peers.lines_of(made)}
    fast = lines["Mamba-2: 128 x 64, one q and k, per token, 8 tokens"][1]["name"]
    expect(fast == "mamba_ssm chunk scan", f"the fastest backward of Mamba-2's shape is {fast}")
    expect(lines["DeltaNet: 128 x 128, 8 tokens"] == (None, None), "a shape without public code stands there all the same")
    half, slow = ({"forward_ms": ms, "backward_ms": more} for ms, more in (("1", ""), ("2", "3")))
    expect(plot_peers.fastest([half, slow]) == (half, slow), "each pass has its fastest code")
    expect(lines["Gated DeltaNet: 128 x 128, per token, 8 tokens"][1] is None, "one has a forward pass alone")
    expect(lines["4 H200, 16,384 tokens on each: no decay"][0]["name"] == "LASP-2", "and four GPUs")
    if importlib.util.find_spec("matplotlib") is None:
        print("the picture is not drawn: matplotlib was not found")
        return
    entries = plot_peers.draw(list(plot_peers.lines_of(made)), picture)
    plot_peers.quote(entries, quoted)
    text = picture.read_text()
    expect(all(label in text for label in lines), "every shape's name stands in the picture")
    spec = importlib.util.spec_from_file_location("quoted_numbers", ROOT / "bench/tests/quoted_numbers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with quoted.open(newline="") as stream:
        mine = [module.Entry(**line) for line in csv.DictReader(stream) if line["page"] == "bench/results/peers.svg"]
    wrong = [said for entry in mine if (said := module.complaint(entry, text, made, 1))]
    expect(len(mine) == len(entries) > 48 and not wrong, f"its {len(mine)} numbers stand in quoted.csv: {wrong[:2]}")


with tempfile.TemporaryDirectory() as name:
    place = pathlib.Path(name)
    os.environ["FAKE_LOG"] = str(place / "log")
    (place / "log").touch()
    (place / "lasp-bench").write_text(FAKE_BENCH.format(python=sys.executable, bench=os.path.abspath(LASP_BENCH)))
    (place / "lasp-bench").chmod(stat.S_IRWXU)
    peer_jobs.WORKER = (sys.executable, "-ES", "-c", FAKE_WORKER)
    of_the_table(place, place / "report.json")
    of_a_size(place, place / "size.json")
    of_limits()
    of_rows_and_picture(place, place / "report.json")
sys.exit(failed > 0)
