// The chart of measured passes: liblasp and public code, in one run on one machine.
"use strict";

(() => {
  const PASSES = {both: "forward and backward", forward: "forward", backward: "backward"};
  const DECAYS = {head: "a decay per head", none: "no decay"};
  const ms = {both: (row) => row.forward_ms + row.backward_ms, forward: (row) => row.forward_ms,
              backward: (row) => row.backward_ms};
  const count = (number) => number.toLocaleString("en");
  const gpuOf = (row) => row.device.replace("NVIDIA ", "").replace(" 80GB HBM3", "");
  const shapeOf = (row) => row.shape && row.ranks === 1 ? `One ${gpuOf(row)}: ${row.shape}, ${count(row.tokens)} tokens` : `${
      row.ranks === 1 ? "One" : row.ranks} ${gpuOf(row)}: ${
      row.batch > 1 ? `${row.batch} rows of ` : ""}${count(row.tokens)} tokens${row.ranks > 1 ? " on each" : ""}, ${
      row.heads} heads, ${DECAYS[row.decay]}`;

  function draw(part, rows) {
    const {shape, pass} = Object.fromEntries(new FormData(part.querySelector("form")));
    const shown = rows.filter((row) => shapeOf(row) === shape).sort((one, other) => ms[pass](one) - ms[pass](other));
    const most = Math.max(...shown.map(ms[pass])), own = ms[pass](shown.find((row) => row.name === "liblasp"));
    part.querySelector(".lasp-bars").innerHTML = shown.map((row) => {
      const took = ms[pass](row), times = took / own;
      const source = `${row.device}, ${row.date}, commit ${row.commit}`;
      return `<div class="lasp-bar${row.name === "liblasp" ? " lasp-us" : ""}" tabindex="0" data-source="${source}">
        <span class="lasp-name">${row.name}</span><span class="lasp-track"><span style="width: ${
        Math.max(0.4, 100 * took / most).toFixed(2)}%"></span></span>
        <span class="lasp-ms">${took.toPrecision(3)} ms${times > 1 ? ` (${times.toPrecision(2)} times)` : ""}</span></div>`;
    }).join("");
    part.querySelectorAll(".lasp-bar").forEach((bar) => {
      const say = () => { part.querySelector(".lasp-hover").textContent = bar.dataset.source; };
      bar.addEventListener("pointerenter", say);
      bar.addEventListener("focus", say);
    });
    const dims = shown[0].shape ? "" : ", K = V = 128";
    part.querySelector(".lasp-hover").textContent = `bfloat16${dims}. Point at a bar for its device, date and commit.`;
  }

  function begin(part) {
    const rows = JSON.parse(part.querySelector("script").textContent);
    const shapes = [...new Set(rows.filter((row) => row.name !== "liblasp").map(shapeOf))];
    shapes.sort((one, other) => other.startsWith("One") - one.startsWith("One"));
    const options = (pairs) => pairs.map(([key, text]) => `<option value="${key}">${text}</option>`).join("");
    part.innerHTML = `<form class="lasp-controls" autocomplete="off">
        <label class="lasp-wide">Shape<select name="shape">${options(shapes.map((each) => [each, each]))}</select></label>
        <label>Pass<select name="pass">${options(Object.entries(PASSES))}</select></label></form>
      <div class="lasp-bars"></div><p class="lasp-hover"></p>`;
    part.querySelector("form").addEventListener("input", () => draw(part, rows));
    draw(part, rows);
  }

  document.querySelectorAll('[data-lasp="speed"]').forEach(begin);
})();
