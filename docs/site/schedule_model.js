// How long an exchange takes, by the model of docs/reference/schedules.md, and how much it sends. The
// library computes the same (src/exchange/cost_model.cpp, Plan::choose_schedule); tests/site compares the two.
"use strict";

const LaspModel = (() => {
  // In the library's order of preference where the model sees no difference.
  const SCHEDULES = ["ring", "all-scan", "doubling", "all-gather", "head-scatter"];
  const MOST_PIECES = 256, MOST_FOLDED = 16;

  // Bytes of a rank's states P and of what the decay adds to a whole map X; what the model counts as a map's bytes.
  function payloadOf({batch, heads, keys, values, decay}) {
    const all = batch * heads, state = 4 * all * keys * values;
    const added = {head: 0, token: 4 * all, channel: 4 * all * keys, delta: 4 * all * keys * keys}[decay];
    const dense = decay === "delta";
    return {state, added, map: dense ? state + added : state, heads: all, slices: dense ? all : all * keys,
            rows: dense ? keys : 0};
  }

  function toEven(x) {
    const below = Math.floor(x), half = x - below === 0.5;
    return half ? below + (below % 2) : Math.round(x);
  }

  const microseconds = (bytes, link) => bytes / (link.bandwidth * 1e3);  // 1 GB/s moves 1e3 bytes a microsecond

  // Composing one map onto another, and a round of both ways: what of `link` is left out takes no time.
  function costs(ranks, payload, link) {
    const {round = 0, fold = 0, foldRate = 0, dense = 0, denseRate = 0} = link;  // GB/s, TFLOP/s
    const launch = payload.rows ? dense : fold;
    const work = (bytes) => payload.rows ? (denseRate ? bytes / 4 * 2 * payload.rows / (denseRate * 1e6) : 0)
                                         : (foldRate ? bytes / (foldRate * 1e3) : 0);
    const state = (part) => launch + part * work(payload.state);
    return {
      round: ranks > 2 ? round : 0, launch, state,
      map: payload.rows ? state(1) + launch + work(payload.map - payload.state) : state(1),
      states: (maps) => maps > 0 ? (payload.rows ? maps : 1) * launch + maps * work(payload.state) : 0,
    };
  }

  function bestPieces(ranks, payload, link) {
    if (ranks <= 2) return 1;
    const most = Math.max(1, Math.min(MOST_PIECES, payload.slices)), {round, launch, state} = costs(ranks, payload, link);
    const shared = (ranks - 2) * microseconds(payload.state, link) + (ranks - 3) * (state(1) - launch);
    return Math.min(most, Math.max(1, toEven(Math.sqrt(shared / (link.latency + round + launch)))));
  }

  const rounds = (ranks) => 32 - Math.clz32(ranks - 1);
  const owners = (ranks, payload) => Math.min(ranks, payload.heads);

  function predict(schedule, ranks, payload, link) {
    if (ranks <= 1) return 0;
    const a = link.latency, state = microseconds(payload.state, link), map = microseconds(payload.map, link);
    const fold = costs(ranks, payload, link), {round} = fold;
    switch (schedule) {
      case "ring": return (ranks - 1) * (a + state) + (ranks - 2) * fold.state(1);
      case "all-gather": return a + (ranks - 1) * map + round + fold.states(ranks - 2);
      case "all-scan": {
        const pieces = bestPieces(ranks, payload, link);
        return (ranks - 2 + pieces) * (a + state / pieces) + (pieces - 1) * round +
            (ranks > 2 ? (ranks - 3 + pieces) * fold.state(1 / pieces) : 0);
      }
      case "doubling": return rounds(ranks) * (a + map + round) + (rounds(ranks) - 1) * (fold.state(1) + fold.map);
      case "head-scatter": {
        const all = owners(ranks, payload);
        return 2 * (a + round) + (ranks - 1) * (state + map) / all + (ranks - 2) * fold.state(1 / all);
      }
    }
    throw new Error(`no schedule ${schedule}`);
  }

  // What LASP_SCHEDULE_AUTO takes.
  function choose(ranks, payload, link, onGpu) {
    let best = "ring";
    for (const each of SCHEDULES) {
      if (each === "head-scatter" && (onGpu || ranks > MOST_FOLDED)) continue;
      if (predict(each, ranks, payload, link) < predict(best, ranks, payload, link)) best = each;
    }
    return best;
  }

  // The share of heads of a position, as head-scatter gives it out: [begin, end) of all.
  const share = (position, ranks, payload) =>
      [Math.floor(payload.heads * position / ranks), Math.floor(payload.heads * (position + 1) / ranks)];

  // Bytes sent by all ranks together.
  function bytesSent(schedule, ranks, payload) {
    const {state, added, heads} = payload, both = state + added;
    switch (schedule) {
      case "ring": case "all-scan": return (ranks - 1) * state;
      case "all-gather": return ranks * (ranks - 1) / 2 * both;
      case "doubling": {
        let maps = 0;
        for (let distance = 1; distance < ranks; distance *= 2) maps += ranks - distance;
        return maps * both;
      }
      case "head-scatter": {
        const part = (position) => {
          const [begin, end] = share(position, ranks, payload);
          return (end - begin) / heads;
        };
        const ends = part(0) + part(ranks - 1);
        return (2 * ranks - 4 + ends) * state + (ranks - 3 + ends) * added;
      }
    }
    throw new Error(`no schedule ${schedule}`);
  }

  return {SCHEDULES, payloadOf, bestPieces, predict, choose, bytesSent, share, owners, rounds, microseconds, costs};
})();

if (typeof module !== "undefined") module.exports = LaspModel;
