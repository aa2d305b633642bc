"""What bench/peers.py does without PyTorch: which public code serves which shape, and the processes in which it runs, each
with a time limit. They can be stopped, since Triton's tuning of one size can take longer than a whole run may."""
import concurrent.futures
import json
import os
import queue
import select
import signal
import subprocess
import sys
import time

WORKER = (sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peer_worker.py"))
START_SECONDS = 90  # importing PyTorch included
SHARES = 4  # parts of the variants of one implementation at one shape, compiled by as many processes


def additive(*decays):
    return lambda shape: shape["write"] == "additive" and shape["decay"] in decays


def own_heads(serves):
    return lambda shape: serves(shape) and shape["heads_qk"] == shape["heads"]


def delta(decay):
    return lambda shape: shape["write"] == "delta" and shape["decay"] == decay


# In the order in which they run: what takes longest to tune comes late. peer_functions.ONE_GPU has the functions.
SERVES = {"fla simple GLA": additive("none", "head", "scalar"), "fla KDA": delta("channel"), "fla delta rule": delta("none"),
          "fla gated delta rule": delta("scalar"), "mamba_ssm chunk scan": additive("scalar"),
          "Lightning Attention-2": own_heads(additive("head")), "fla GLA": own_heads(additive("channel")),
          "fla retention": own_heads(additive("head"))}


def shape_of(result):
    """What a peer has to know of one of lasp-bench's results."""
    config = result["config"]
    shape = {"shape": config["name"], "heads": max(config["heads_q"], config["heads_v"]), "heads_qk": config["heads_q"]}
    names = ("batch", "tokens", "head_dim_k", "head_dim_v", "decay", "decay_dtype", "write", "ranks")
    shape |= {name: config[name] for name in names}
    shape["d_decay"] = int(config["decay"] != "none" and config["decay_gradient"])
    shape["floor_bytes"] = {name: result[name]["floor_bytes"] for name in ("forward", "backward")
                            if "floor_bytes" in result.get(name, {})}
    return shape


def problem_of(shape):
    """The same for shapes that a peer does not tell apart: liblasp has settings that public code has not."""
    return tuple(sorted((name, value) for name, value in shape.items() if name not in ("shape", "floor_bytes")))


def row_of(shape, name, measured):
    row = {"name": name, **{key: value for key, value in shape.items() if key != "floor_bytes"}, **measured}
    for step in ("forward", "backward"):
        if f"{step}_ms" in row and step in shape["floor_bytes"] and row.get("copy_gbs"):
            row[f"{step}_share"] = shape["floor_bytes"][step] / row["copy_gbs"] * 1e-6 / row[f"{step}_ms"]
    return row


def row_of_liblasp(result):
    row = {"kernels": result.get("kernels"), "copy_gbs": result.get("copy_gbs")}
    if "forward" not in result:
        row["missing"] = "; ".join(result["problems"])
    for step in ("forward", "backward"):
        if step in result:
            row |= {f"{step}_ms": 1e3 * result[step]["median_s"], f"{step}_spread": result[step]["spread"]}
    if "relative_error" in result:
        row["error"] = max(result["relative_error"].values())
    return row_of(shape_of(result), "liblasp", row)


class Ended(Exception):
    """A process that was stopped, or ended by itself, and why."""


class Worker:
    """A process that runs public code. It starts with its first task, and again after it was stopped."""

    def __init__(self, environment=None):
        self.environment = environment
        self.process, self.about, self.broken = None, {}, None

    def start(self, seconds):
        self.process = subprocess.Popen(WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
                                        env={**os.environ, **(self.environment or {})})
        self.rest = b""
        self.about = self.await_answer(seconds, "did not start")
        if "missing" in self.about:
            self.stop()
            self.broken = self.about["missing"]
            raise Ended(self.broken)

    def stop(self):
        """With all processes that it started, such as an assembler."""
        if self.process is not None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait()
            self.process.stdin.close()
            self.process.stdout.close()
            self.process = None

    def await_answer(self, seconds, what, tell=lambda row: None):
        end, pipe = time.monotonic() + seconds, self.process.stdout.fileno()
        while True:
            line, found, rest = self.rest.partition(b"\n")
            if found:
                self.rest, row = rest, json.loads(line)
                if row.pop("done", False):
                    return row
                tell(row)
                continue
            left = end - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                self.stop()
                raise Ended(f"{what} within {seconds:.3g} s")
            read = os.read(pipe, 1 << 16)
            if not read:
                status = self.process.wait()
                self.stop()
                raise Ended(f"its process ended with {status}")
            self.rest += read

    def ask(self, task, seconds, tell=lambda row: None, start_seconds=START_SECONDS):
        if self.broken:
            raise Ended(self.broken)
        if self.process is not None and self.process.poll() is not None:
            self.stop()
        if self.process is None:
            self.start(start_seconds)
        try:
            self.process.stdin.write(json.dumps(task).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self.stop()
            raise Ended("its process ended") from None
        return self.await_answer(seconds, "did not end", tell)


def jobs_of(shapes, names):
    """(peer, shape) in the order in which they run, each problem once."""
    jobs = {}
    for name in names:
        for shape in shapes:
            if SERVES[name](shape):
                jobs.setdefault((name, problem_of(shape)), (name, shape))
    return list(jobs.values())


def compile_ahead(jobs, processes, seconds):
    """Compiles what the tuning of these jobs will try, in many processes, into Triton's cache: one process compiles one
    variant at a time. No time depends on it, and what fails here is told when it is measured."""
    end, tasks = time.monotonic() + seconds, queue.Queue()
    for name, shape in jobs:
        few = {**shape, "tokens": min(shape["tokens"], 4096)}  # the kernels are the same
        for share in range(SHARES):
            tasks.put({"name": name, "shape": few, "share": share, "shares": SHARES})

    def work(_):
        done, worker = 0, Worker({"FLA_CACHE_RESULTS": "0", "OMP_NUM_THREADS": "1"})
        while time.monotonic() < end:
            try:
                task = tasks.get_nowait()
                left = end - time.monotonic()
                done += "missing" not in worker.ask(task, left, start_seconds=left)
            except queue.Empty:
                break
            except Ended as error:
                if worker.broken:
                    print(f"peers.py: compiling ahead: {error}", file=sys.stderr)
                    break
        worker.stop()
        return done

    total = tasks.qsize()
    with concurrent.futures.ThreadPoolExecutor(processes) as threads:
        done = sum(threads.map(work, range(processes)))
    return done, total


def run_jobs(jobs, limits, begun, worker, repeats, add):
    """Runs them one after another. add(name, shape, row) takes what was measured, also while a backward pass still runs."""
    spent = {}
    for name, shape in jobs:
        left, of_peer = limits.whole - (time.monotonic() - begun), limits.peer - spent.get(name, 0)
        if left < 1:
            add(name, shape, {"missing": f"was not begun within the run's {limits.whole:g} s", "stopped": True})
            continue
        if of_peer < 1:
            add(name, shape, {"missing": f"was not begun: this code had its {limits.peer:g} s", "stopped": True})
            continue
        begin, known = time.monotonic(), {}

        def tell(row):
            known.update(row)
            add(name, shape, {**row, "backward_missing": "was not ended", "stopped": True})

        task = {"name": name, "shape": shape, "repeats": repeats}
        try:
            row = worker.ask(task, min(limits.each, of_peer, left), tell, start_seconds=min(START_SECONDS, left))
        except Ended as error:
            row = {**known, "backward_missing" if known else "missing": str(error), "stopped": True}
        spent[name] = spent.get(name, 0) + time.monotonic() - begin
        add(name, shape, row)
        print(f"measured {name}, {shape['shape']}: {time.monotonic() - begin:.0f} s"
              + "".join(f", {row[key]}" for key in ("missing", "backward_missing") if key in row), file=sys.stderr)
