// Compares docs/site's model of the schedules with what the library says, the table of schedule_table.cpp, and the
// picture's events with the model.        node model.js SOURCE_DIR < table        (browser.py calls compareModel too)
"use strict";

function compareModel(table, model, events) {
  // A prediction is a dozen operations in double; the two write the same formulas in another order.
  const near = (one, other) => Math.abs(one - other) <= 16 * Number.EPSILON * Math.max(Math.abs(one), Math.abs(other));
  const wrong = [];
  let compared = 0;
  const same = (line, what, ours, theirs) => {
    ++compared;
    if (typeof ours === "string" ? ours !== theirs : !near(ours, theirs))
      wrong.push(`${what}: ${ours}, not ${theirs}: ${line}`);
  };
  for (const line of table.trim().split("\n")) {
    const [what, ranks, batch, heads, keys, values, decay, ...rest] = line.split(" ");
    const w = Number(ranks);
    const payload = model.payloadOf({batch: Number(batch), heads: Number(heads), keys: Number(keys),
                                     values: Number(values), decay});
    if (what === "sent") {
      same(line, "bytes", model.bytesSent(rest[0], w, payload), Number(rest[1]));
      continue;
    }
    const [latency, bandwidth, round, fold, foldRate, dense, denseRate] = rest.slice(0, 7).map(Number);
    const times = rest.slice(7), link = {latency, bandwidth, round, fold, foldRate, dense, denseRate};
    ["ring", "all-gather", "all-scan", "doubling", "head-scatter"].forEach((schedule, at) => {
      const predicted = model.predict(schedule, w, payload, link);
      same(line, schedule, predicted, Number(times[at]));
      const {messages, arrivals} = events.exchange(schedule, w, payload, link);
      same(line, `the picture's ${schedule}`, Math.max(...arrivals), predicted);
      const last = messages.reduce((most, each) => Math.max(most, each.end), 0);  // what it brings may yet be folded
      if (round + fold + foldRate + dense + denseRate === 0) same(line, `the last message of ${schedule}`, last, predicted);
      else if (last > predicted * (1 + 1e-12)) wrong.push(`the last message of ${schedule} comes too late: ${line}`);
      if (arrivals.length !== w || messages.some((each) => each.from === each.to || each.end <= each.begin))
        wrong.push(`the picture's ${schedule} is not one of ${w} ranks: ${line}`);
    });
    same(line, "chosen", model.choose(w, payload, link, false), times[5]);
  }
  if (compared < 1000) wrong.push(`only ${compared} numbers were compared`);
  return {compared, wrong};
}

if (typeof module !== "undefined") {
  const scripts = `${require("path").resolve(process.argv[2])}/docs/site/`;
  const {compared, wrong} = compareModel(require("fs").readFileSync(0, "utf8"), require(`${scripts}schedule_model.js`),
                                         require(`${scripts}schedule_events.js`));
  console.log(wrong.length ? wrong.slice(0, 20).join("\n") : `${compared} numbers of the picture are the library's`);
  process.exitCode = wrong.length ? 1 : 0;
}
