// What travels when: the messages of an exchange, and when the state that enters a position is there, in microseconds
// from its begin. All positions begin at once; the last arrival is what the model predicts.
"use strict";

const LaspEvents = (() => {
  const model = typeof LaspModel === "undefined" ? require("./schedule_model.js") : LaspModel;

  // Messages {from, to, begin, end, part}; parts are pieces or senders, of which a picture may leave some out.
  // `crossing`: everybody sends to everybody.
  function exchange(schedule, ranks, payload, link) {
    const state = model.microseconds(payload.state, link), map = model.microseconds(payload.map, link);
    const make = {"ring": pipeline, "all-scan": pipeline, "all-gather": gather, "doubling": doubling,
                  "head-scatter": scatter}[schedule];
    const pieces = schedule === "all-scan" ? model.bestPieces(ranks, payload, link) : 1;
    return make({ranks, payload, latency: link.latency, state, map, pieces, costs: model.costs(ranks, payload, link)});
  }

  // A rank sends on what it has composed; a further piece makes it send and receive at once.
  function pipeline({ranks, latency, state, pieces, costs}) {
    const sent = latency + state / pieces, hop = sent + (ranks > 2 ? costs.state(1 / pieces) : 0);
    const messages = [], arrivals = [0];
    for (let at = 0; at + 1 < ranks; ++at) {
      let end = 0;
      for (let piece = 0; piece < pieces; ++piece) {
        const begin = (at + piece) * hop + piece * costs.round;
        messages.push({from: at, to: at + 1, begin, end: end = begin + sent, part: piece});
      }
      arrivals.push(end);
    }
    return {messages, arrivals, parts: pieces};
  }

  function gather({ranks, latency, map, costs}) {
    const messages = [], arrivals = [0], first = latency + costs.round;
    for (let to = 1; to < ranks; ++to) {
      for (let from = 0; from < to; ++from)
        messages.push({from, to, begin: from * map, end: first + (from + 1) * map, part: from});
      arrivals.push(first + to * map + costs.states(to - 1));
    }
    return {messages, arrivals, parts: ranks - 1, crossing: true};
  }

  function doubling({ranks, latency, map, costs}) {
    const sent = latency + map + costs.round, round = sent + costs.state(1) + costs.map;
    const messages = [], arrivals = [0];
    for (let at = 1; at < ranks; ++at) arrivals.push((31 - Math.clz32(at)) * round + sent);
    for (let distance = 1, number = 0; distance < ranks; distance *= 2, ++number)
      for (let from = 0; from + distance < ranks; ++from)
        messages.push({from, to: from + distance, begin: number * round, end: number * round + sent, part: from});
    return {messages, arrivals, parts: ranks - 1};
  }

  function scatter({ranks, payload, latency, state, map, costs}) {
    const owners = model.owners(ranks, payload), begin = latency + costs.round;
    const first = begin + (ranks - 1) * map / owners, folded = first + (ranks - 2) * costs.state(1 / owners);
    const all = folded + begin + (ranks - 1) * state / owners;
    const messages = [], arrivals = [0];
    for (let from = 0; from < ranks; ++from) {
      if (from > 0) arrivals.push(all);
      for (let to = 0; to < ranks; ++to) {
        const owns = (at) => {
          const [begin, end] = model.share(at, ranks, payload);
          return begin < end;
        };
        if (from === to) continue;
        if (from + 1 < ranks && owns(to)) messages.push({from, to, begin: 0, end: first, part: from});
        if (to > 0 && owns(from)) messages.push({from, to, begin: folded, end: all, part: from});
      }
    }
    return {messages, arrivals, parts: ranks, crossing: true};
  }

  // A pass on every rank: its own state, the wait for the state that enters, and the rest. `own` and `rest` in
  // microseconds; a backward exchange goes from the last rank to the first.
  function pass(schedule, ranks, payload, link, {own, rest, backward}) {
    const {messages, arrivals, parts, crossing} = exchange(schedule, ranks, payload, link);
    const rankOf = (position) => backward ? ranks - 1 - position : position;
    const lanes = arrivals.map((arrival, position) => {
      const enters = own + (position === 0 ? 0 : arrival);
      return {rank: rankOf(position), own, enters, ends: enters + rest};
    });
    lanes.sort((one, other) => one.rank - other.rank);
    return {
      lanes, parts, crossing,
      messages: messages.map((each) => ({...each, from: rankOf(each.from), to: rankOf(each.to),
                                         begin: own + each.begin, end: own + each.end})),
      ends: Math.max(...lanes.map((lane) => lane.ends)),
    };
  }

  return {exchange, pass};
})();

if (typeof module !== "undefined") module.exports = LaspEvents;
