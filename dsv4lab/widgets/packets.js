// The front end of dsv4lab.widgets.packets. Everything it shows follows from the trait `run` and a moment in time.

const NAME = 0, STREAM = 1, QUEUE = 2, READY = 3, HEAD = 4, WAKE = 5, START = 6, END = 7, WAITS = 8, BIT = 9;
const SPEEDS = [["0.25", "slow"], ["1", "normal"], ["4", "fast"]];

// The moments at which something happens, in order.
function moments(run) {
  const found = new Set([0]);
  for (const p of run.packets) for (const at of [HEAD, WAKE, START, END]) found.add(p[at]);
  return [...found].sort((a, b) => a - b);
}

function rings(run) {
  const out = run.queues.map(() => []);
  run.packets.forEach((p, i) => out[p[QUEUE]].push(i));
  return out;
}

// done, running, starting (the command processor launches it), blocked (on a signal), behind (not at the head), unwritten.
function stateOf(p, t) {
  if (p[END] <= t) return "done";
  if (p[START] <= t) return "running";
  if (p[HEAD] <= t) return p[WAKE] > t ? "blocked" : "starting";
  return p[READY] <= t ? "behind" : "unwritten";
}

// One sentence on what a queue does at a moment, and why.
function reason(run, ring, t) {
  const at = ring.findIndex((i) => !["done", "running"].includes(stateOf(run.packets[i], t)));
  const running = ring.filter((i) => stateOf(run.packets[i], t) === "running").map((i) => run.packets[i][NAME]);
  const runs = running.length ? `runs ${running.join(", ")}` : "";
  if (at < 0) return runs || "has nothing left";
  const p = run.packets[ring[at]];
  const stream = run.streams[p[STREAM]][0];
  const state = stateOf(p, t);
  if (state === "blocked") {
    const pending = p[WAITS].map((w) => run.packets[w]).filter((w) => w[END] > t);
    if (pending.length) return `${runs ? `${runs}; ` : ""}blocked: ${p[NAME]} (${stream}) waits for ${pending.map((w) => `${w[NAME]} on ${run.queues[w[QUEUE]]}`).join(" and ")}`;
    return `blocked: the signal for ${p[NAME]} takes ${ns(run.signal_ns)} to be seen in ${run.device_signals ? "device" : "host"} memory`;
  }
  if (state === "starting") {
    const taxed = p[START] - Math.max(p[HEAD], p[WAKE]) > run.gap_ns + run.tax_ns / 2 && run.tax_ns > 0;
    return `launches ${p[NAME]} (${stream})` + (taxed ? `, slower by ${ns(run.tax_ns)} while another queue polls host memory` : "");
  }
  if (state === "unwritten") return `${runs ? `${runs}; ` : ""}the host has not written ${p[NAME]} yet`;
  const before = run.packets[ring[at - 1]];
  if (!before) return `${p[NAME]} is next`;
  if (before[STREAM] !== p[STREAM]) return `${runs}; ${p[NAME]} (${stream}) waits behind ${before[NAME]} (${run.streams[before[STREAM]][0]}), only because they share ${run.queues[p[QUEUE]]}`;
  return `${runs}; ${p[NAME]} is next in its stream`;
}

class Player {
  constructor(model, root) {
    this.model = model;
    this.root = root;
    this.t = 0;
    this.playing = 0;
    this.speed = 1;
    this.tip = tips(root);
    this.title = h("span", { class: "title" });
    this.clock = h("span", { class: "pk-clock", role: "timer", help: "Simulated time since the host's first call, and the step of all steps." });
    this.play = button("Play", "Play or pause (space).", () => this.toggle(), { class: "pk-play" });
    const tools = [
      button("|\u2190", "To the start (Home).", () => this.go(0)), button("\u2190 Back", "The event before (left arrow; with shift ten).", () => this.step(-1)),
      this.play, button("Step \u2192", "The next event (right arrow; with shift ten).", () => this.step(1)), button("\u2192|", "To the end (End).", () => this.go(this.times.length - 1)),
      choice("speed", "How fast it plays.", SPEEDS, "1", (v) => { this.speed = Number(v); }).el,
    ];
    this.slider = h("input", { type: "range", min: 0, max: 1, step: 1, value: 0, class: "pk-slider", "aria-label": "simulated time", on: { input: () => this.moveTo(Number(this.slider.value)) } });
    this.lanes = h("div", { class: "pk-queues", role: "list", "aria-label": "hardware queues" });
    this.chart = h("canvas", { class: "pk-chart", "aria-label": "what runs on each queue over time; click to go there", on: { pointerdown: (e) => this.seek(e), pointermove: (e) => e.buttons && this.seek(e) } });
    this.legend = h("div", { class: "legend" });
    this.why = h("div", { class: "pk-why", "aria-live": "polite" });
    this.stage = h("div", { class: "pk-stage", tabindex: 0, "aria-label": "packets in queues; space plays, left and right step" }, this.lanes, this.slider, this.chart);
    ownKeys(this.stage, (event) => this.key(event));
    root.append(h("div", { class: "bar" }, this.title, h("span", { class: "gap" }), this.clock, tools), this.legend, this.why, this.stage);
    this.seen = new ResizeObserver(() => this.draw());
    this.seen.observe(this.chart);
  }

  show(run) {
    if (!run.packets) return;
    const same = this.run && this.run.title === run.title;
    this.run = run;
    this.times = moments(run);
    this.rings = rings(run);
    this.at = same ? Math.min(this.at, this.times.length - 1) : 0;
    this.slider.max = this.times.at(-1);
    this.slider.step = Math.max(1, Math.round(this.times.at(-1) / 400));
    this.title.textContent = run.title;
    const key = ([name, color]) => h("span", null, h("span", { class: "key", style: { background: color } }), name);
    fill(this.legend, run.streams.map(key), h("span", null, h("span", { class: "key pk-barrier" }), "barrier: waits for a signal"),
      run.left_out ? h("span", null, `the first ${run.packets.length} packets; ${run.left_out} more follow`) : null, run.notes.map((text) => h("span", { class: "pk-note" }, text)));
    this.rows = this.rings.map((ring, q) => {
      const done = h("span", { class: "pk-done" });
      const track = h("div", { class: "pk-track" });
      const why = h("div", { class: "pk-reason" });
      return { ring, done, track, why, el: h("div", { class: "pk-queue", role: "listitem" }, h("div", { class: "pk-name" }, run.queues[q], done), h("div", { class: "pk-body" }, track, why)) };
    });
    fill(this.lanes, this.rows.map((row) => row.el));
    this.go(this.at);
  }

  key(event) {
    const step = event.shiftKey ? 10 : 1;
    const acts = { " ": () => this.toggle(), ArrowLeft: () => this.step(-step), ArrowRight: () => this.step(step), Home: () => this.go(0), End: () => this.go(this.times.length - 1) };
    if (event.target !== this.stage || !acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  }

  toggle() {
    if (this.playing) { this.pause(); return; }
    if (this.at >= this.times.length - 1) this.go(0);
    this.play.textContent = "Pause";
    let last = performance.now();
    const pace = this.times.at(-1) / Math.max(6000, Math.min(60000, 120 * this.times.length));
    const turn = (now) => {
      this.t = Math.min(this.times.at(-1), this.t + (now - last) * pace * this.speed);
      last = now;
      let at = this.at;
      while (at + 1 < this.times.length && this.times[at + 1] <= this.t) at += 1;
      this.at = at;
      this.paint();
      if (at >= this.times.length - 1) this.pause(); else this.playing = requestAnimationFrame(turn);
    };
    this.playing = requestAnimationFrame(turn);
  }

  pause() {
    cancelAnimationFrame(this.playing);
    this.playing = 0;
    this.play.textContent = "Play";
  }

  step(by) { this.pause(); this.go(this.at + by); }

  go(at) {
    this.at = Math.max(0, Math.min(this.times.length - 1, at));
    this.t = this.times[this.at];
    this.paint();
  }

  seek(event) {
    const box = this.chart.getBoundingClientRect();
    this.moveTo(Math.max(0, Math.min(1, (event.clientX - box.left) / box.width)) * this.times.at(-1));
  }

  moveTo(t) {
    this.pause();
    this.t = t;
    let at = 0;
    while (at + 1 < this.times.length && this.times[at + 1] <= this.t) at += 1;
    this.at = at;
    this.paint();
  }

  paint() {
    this.slider.value = this.t;
    this.clock.textContent = `${ns(this.t, 2)} of ${ns(this.times.at(-1), 2)} \u00b7 event ${this.at + 1} of ${this.times.length}`;
    for (const row of this.rows) this.fillRow(row);
    this.draw();
  }

  fillRow(row) {
    const { run, t } = this;
    const states = row.ring.map((i) => stateOf(run.packets[i], t));
    const done = states.filter((s) => s === "done").length;
    row.done.textContent = `${done} of ${row.ring.length} done`;
    row.why.textContent = reason(run, row.ring, t);
    row.why.classList.toggle("pk-stuck", /^blocked|share/.test(row.why.textContent) || /; .*share/.test(row.why.textContent));
    const first = Math.max(0, states.findIndex((s) => s !== "done") - 1);
    const shown = (first < 0 ? [] : row.ring.slice(first, first + 12));
    fill(row.track, shown.map((i) => this.packet(i)), row.ring.length - first - shown.length > 0 ? h("span", { class: "quiet" }, `+${row.ring.length - first - shown.length}`) : null);
  }

  packet(i) {
    const { run, t } = this;
    const p = run.packets[i];
    const state = stateOf(p, t);
    const waits = p[WAITS].map((w) => `${run.packets[w][NAME]} on ${run.queues[run.packets[w][QUEUE]]}`);
    const help = [`${p[NAME]} (${run.streams[p[STREAM]][0]}), ${state}`, `runs ${ns(p[END] - p[START])} from ${ns(p[START], 2)}`,
      waits.length ? `waits for ${waits.join(", ")}` : "", p[BIT] ? "" : "need not wait for packets before it in its ring"].filter(Boolean).join("\n");
    const share = state === "running" ? (t - p[START]) / Math.max(1, p[END] - p[START]) : 0;
    return h("span", { class: `pk-packet pk-${state}${p[WAITS].length ? " pk-waits" : ""}`, help, tabindex: -1, style: { "--stream": run.streams[p[STREAM]][1], "--share": `${(100 * share).toFixed(1)}%` } }, p[NAME]);
  }

  draw() {
    if (!this.run) return;
    const box = this.chart.getBoundingClientRect();
    if (!box.width) return;
    const scale = window.devicePixelRatio || 1;
    const row = 14;
    const height = row * this.rings.length + 16;
    this.chart.style.height = `${height}px`;
    this.chart.width = box.width * scale;
    this.chart.height = height * scale;
    const pen = this.chart.getContext("2d");
    pen.scale(scale, scale);
    const paint = getComputedStyle(this.root);
    const color = (name) => paint.getPropertyValue(`--dsv4-${name}`);
    const x = (time) => time / this.times.at(-1) * box.width;
    pen.clearRect(0, 0, box.width, height);
    this.rings.forEach((ring, q) => {
      pen.fillStyle = color("faint");
      pen.fillRect(0, q * row + 2, box.width, row - 4);
      for (const i of ring) {
        const p = this.run.packets[i];
        if (p[WAKE] > p[HEAD]) {
          pen.fillStyle = color("mark");
          pen.globalAlpha = 0.35;
          pen.fillRect(x(p[HEAD]), q * row + row / 2 - 1, Math.max(0.5, x(p[WAKE]) - x(p[HEAD])), 2);
          pen.globalAlpha = 1;
        }
        pen.fillStyle = this.run.streams[p[STREAM]][1];
        pen.fillRect(x(p[START]), q * row + 2, Math.max(0.6, x(p[END]) - x(p[START]) - 0.3), row - 4);
      }
    });
    pen.fillStyle = color("ink");
    pen.fillRect(Math.min(box.width - 1, x(this.t)), 0, 1, row * this.rings.length);
    pen.font = "10px sans-serif";
    pen.fillStyle = color("muted");
    pen.fillText("0", 0, height - 4);
    pen.textAlign = "right";
    pen.fillText(ns(this.times.at(-1), 1), box.width, height - 4);
  }
}

function render({ model, el }) {
  const root = el.appendChild(h("div", { class: "dsv4 pk" }));
  const player = new Player(model, root);
  const endTheme = followTheme(root, model, () => player.draw());
  const show = () => player.show(model.get("run"));
  model.on("change:run", show);
  show();
  return () => { player.pause(); player.seen.disconnect(); player.tip.end(); endTheme(); model.off("change:run", show); };
}

export default { render };
