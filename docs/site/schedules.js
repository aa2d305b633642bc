// The picture of the five schedules on docs/reference/schedules.md: what a reader chooses, and what is drawn of it.
"use strict";

(() => {
  const LINKS = {
    nvlink: ["NVLink, H100 and H200 (what liblasp assumes)", 3.25, 382],
    infiniband: ["InfiniBand (a guess)", 25, 45],
    own: ["your own", null, null],
  };
  // Of an exchange by NCCL on an H200, beside its messages (kNvlink in src/engine/device.h).
  const COSTS = {round: 31.2, fold: 1.4, foldRate: 2585, dense: 3.5, denseRate: 7.6};
  const MOST_DRAWN = 12;  // of the parts of an exchange

  const choice = (name, label, options, value) =>
      `<label>${label}<select name="${name}">${options.map(([key, text]) =>
          `<option value="${key}"${key === value ? " selected" : ""}>${text}</option>`).join("")}</select></label>`;
  const number = (name, label, value, least, most) =>
      `<label>${label}<input type="number" name="${name}" value="${value}" min="${least}" max="${most}" step="any"></label>`;
  const powers = (from, to) => {
    const found = [];
    for (let each = from; each <= to; each *= 2) found.push([String(each), each.toLocaleString("en")]);
    return found;
  };
  const CONTROLS = `
    <form class="lasp-controls" autocomplete="off">
      <label class="lasp-wide">Ranks: <output name="shown">8</output>
        <input type="range" name="ranks" min="2" max="64" value="8"></label>
      ${choice("pass", "Pass", [["forward", "forward"], ["backward", "backward"]], "forward")}
      ${choice("tokens", "Tokens of a rank", powers(1024, 1048576), "16384")}
      ${choice("batch", "Batch rows", powers(1, 16), "1")}
      ${choice("heads", "Heads", powers(4, 128), "32")}
      ${choice("keys", "K", powers(16, 512), "128")}
      ${choice("values", "V", powers(16, 512), "128")}
      ${choice("decay", "Decay", [["head", "none, or per head"], ["token", "per token and head"],
                                  ["channel", "per token and channel"], ["delta", "delta rule"]], "head")}
      ${choice("link", "Link", Object.entries(LINKS).map(([key, [text]]) => [key, text]), "nvlink")}
      ${number("latency", "Latency, µs", 3.25, 0.01, 100000)}
      ${number("bandwidth", "Bandwidth, GB/s", 382, 0.01, 100000)}
      ${choice("show", "Show", [["pass", "the whole pass"], ["exchange", "the exchange alone"]], "pass")}
    </form>`;

  const time = (us) => us < 1000 ? `${us.toPrecision(3)} µs` : `${Number((us / 1000).toPrecision(3))} ms`;
  const size = (bytes) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let at = 0;
    while (bytes >= 1024 && at + 1 < units.length) { bytes /= 1024; ++at; }
    return `${Number(bytes.toPrecision(3))} ${units[at]}`;
  };

  // A pass without an exchange takes as long as a token of liblasp's measured pass took, for each token and each
  // element of its keys and values.
  function passTime(rows, v) {
    const row = rows.find((each) => each.name === "liblasp" && each.ranks === 1 && each.tokens === 16384);
    const measured = 1e3 * (v.pass === "forward" ? row.forward_ms : row.backward_ms);
    return measured * v.batch * v.tokens * v.heads * (v.keys + v.values) / (row.tokens * row.heads * 256);
  }

  function read(form) {
    const v = Object.fromEntries(new FormData(form));
    for (const name of ["ranks", "tokens", "batch", "heads", "keys", "values", "latency", "bandwidth"])
      v[name] = Number(v[name]);
    return v;
  }

  function ticks(most) {
    const raw = most / 6, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= raw);
    const found = [];
    for (let at = 0; at <= most * 1.0001; at += step) found.push(at);
    return found;
  }

  // Of many messages some, evenly: a picture of all would be a grey wall.
  function some({messages, parts, crossing}) {
    const step = crossing ? Math.floor(messages.length / MOST_DRAWN ** 2) | 1 : Math.ceil(parts / MOST_DRAWN);
    return messages.filter((each, at) => (crossing ? at : each.part) % step === 0);
  }

  function drawing(made, v, width, scale) {
    const left = 52, right = 24, top = 4, foot = 22, lane = Math.max(3.2, Math.min(18, 200 / v.ranks));
    const height = top + lane * v.ranks + foot;
    const alone = v.show === "exchange", offset = alone ? made.lanes[0].own : 0;
    const x = (us) => left + (us - offset) / scale * (width - left - right);
    const y = (rank) => top + lane * (rank + 0.5);
    const thick = lane > 8 ? lane * 0.62 : lane + 0.2;
    const bar = (lanes, from, to, kind) => to - from <= 0 ? "" :
        `<rect class="lasp-${kind}" x="${x(from).toFixed(1)}" y="${(y(lanes.rank) - thick / 2).toFixed(1)}" width="${
            Math.max(0.5, x(to) - x(from)).toFixed(1)}" height="${thick.toFixed(1)}" rx="${lane > 8 ? 2 : 0}"/>`;
    const parts = [];
    for (const at of ticks(scale))
      parts.push(`<line class="lasp-grid" x1="${x(at + offset).toFixed(1)}" x2="${x(at + offset).toFixed(1)}" y1="${top}" y2="${
          height - foot}"/><text class="lasp-tick" x="${x(at + offset).toFixed(1)}" y="${height - 6}">${
          at === 0 ? "0" : time(at)}</text>`);
    for (const each of made.lanes) {
      if (!alone) parts.push(bar(each, 0, each.own, "own"));
      parts.push(bar(each, each.own, each.enters, "wait"));
      if (!alone) parts.push(bar(each, each.enters, each.ends, "rest"));
    }
    for (const each of some(made))
      parts.push(`<line class="lasp-message" x1="${x(each.begin).toFixed(1)}" x2="${x(each.end).toFixed(1)}" y1="${
          y(each.from).toFixed(1)}" y2="${y(each.to).toFixed(1)}"/>`);
    for (const rank of lane > 11 ? made.lanes.map((each) => each.rank) : [0, v.ranks - 1])
      parts.push(`<text class="lasp-rank" x="${left - 6}" y="${(y(rank) + 4).toFixed(1)}">rank ${rank}</text>`);
    return `<svg viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img" data-top="${top}" data-lane="${
        lane}" style="--message: ${lane > 8 ? 1.4 : 0.8}px">${parts.join("")}</svg>`;
  }

  function draw(part, rows) {
    const form = part.querySelector("form"), v = read(form);
    form.elements.shown.value = v.ranks;
    if (!(v.latency > 0 && v.bandwidth > 0)) return;
    const link = {latency: v.latency, bandwidth: v.bandwidth, ...COSTS}, payload = LaspModel.payloadOf(v);
    const alone = passTime(rows, v), chosen = LaspModel.choose(v.ranks, payload, link, true);
    const made = LaspModel.SCHEDULES.map((schedule) => ({
      schedule, us: LaspModel.predict(schedule, v.ranks, payload, link),
      ...LaspEvents.pass(schedule, v.ranks, payload, link,
                         {own: alone / 3, rest: alone * 2 / 3, backward: v.pass === "backward"}),
    }));
    const width = Math.max(280, Math.floor(part.clientWidth));
    const scale = v.show === "pass" ? Math.max(...made.map((each) => each.ends)) : Math.max(...made.map((each) => each.us));
    part.querySelector(".lasp-said").innerHTML = `Each rank's state is <b>${size(payload.state)}</b>${
        payload.added ? `, what the decay adds to it ${size(payload.added)}` : ""}. A rank alone would take <b>${
        time(alone)}</b> for its tokens. Left to itself, liblasp takes <b>${chosen}</b> on GPUs${
        chosen === fastest(made) ? "" : `; ${fastest(made)} is there for who asks`}.`;
    part.querySelector(".lasp-panels").innerHTML = made.map((each) => `
      <figure data-schedule="${each.schedule}" class="${each.schedule === chosen ? "lasp-chosen" : ""}">
        <figcaption><b>${each.schedule}</b><span>exchange <i class="lasp-us">${time(each.us)}</i></span>
          <span>pass ${time(each.ends)}</span>
          <span>${size(LaspModel.bytesSent(each.schedule, v.ranks, payload))} sent in all</span>${
          each.schedule === "all-scan" ? `<span>${LaspModel.bestPieces(v.ranks, payload, link)} pieces</span>` : ""}${
          each.schedule === chosen ? '<span class="lasp-badge">chosen</span>' : ""}</figcaption>
        ${drawing(each, v, width, scale)}<p class="lasp-hover" aria-hidden="true">&nbsp;</p>
      </figure>`).join("");
    part.querySelectorAll("figure").forEach((figure, at) => follow(figure, made[at]));
  }

  const fastest = (made) => made.reduce((best, each) => each.us < best.us ? each : best).schedule;

  // Says below a panel what the row under the pointer does.
  function follow(figure, made) {
    const svg = figure.querySelector("svg"), line = figure.querySelector(".lasp-hover");
    svg.addEventListener("pointermove", (event) => {
      const row = Math.floor((event.offsetY - Number(svg.dataset.top)) / Number(svg.dataset.lane));
      const lane = made.lanes[row];
      line.textContent = lane === undefined ? "\u00a0" : `rank ${lane.rank}: own state after ${time(lane.own)}, ${
          lane.enters > lane.own ? `waits ${time(lane.enters - lane.own)} for the state that enters` : "no state enters"
          }, ends after ${time(lane.ends)}`;
    });
    svg.addEventListener("pointerleave", () => { line.textContent = "\u00a0"; });
  }

  function begin(part) {
    const rows = JSON.parse(part.querySelector("script").textContent);
    part.innerHTML = `${CONTROLS}<p class="lasp-said"></p>
      <p class="lasp-legend"><span class="lasp-own">own state</span><span class="lasp-wait">waits</span>
        <span class="lasp-rest">outputs</span><span class="lasp-message">a message</span></p>
      <div class="lasp-panels"></div>`;
    const form = part.querySelector("form");
    form.addEventListener("input", (event) => {
      const [, latency, bandwidth] = LINKS[form.elements.link.value];
      if (event.target.name === "link" && latency !== null) {
        form.elements.latency.value = latency;
        form.elements.bandwidth.value = bandwidth;
      } else if (event.target.name === "latency" || event.target.name === "bandwidth") {
        form.elements.link.value = "own";
      }
      draw(part, rows);
    });
    form.addEventListener("submit", (event) => event.preventDefault());
    let width = 0;
    new ResizeObserver(() => {
      if (part.clientWidth === width) return;
      width = part.clientWidth;
      draw(part, rows);
    }).observe(part);
  }

  document.querySelectorAll('[data-lasp="schedules"]').forEach(begin);
})();
