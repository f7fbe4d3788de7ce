// What stands around the picture: controls, legend, details of a slice, and tables that follow the window.

const HELP = {
  busy: "Busy: length of the union of the track's slices inside the window.",
  share: "Busy time as a share of the window.",
  hidden: "Hidden: busy time of a side track that lies under busy time of its rank's main track.",
  events: "Slices that begin in the window.",
  concurrency: "Sum of the tracks' busy times over their union: 1.00 means that nothing ran beside anything else.",
  union: "Time in which at least one device track was busy.",
  delta: "B less A, both inside the same window.",
  time: "Sum of the durations inside the window.",
  cause: "Why no track was busy: see the definitions behind each cause.",
};

class TracePanels {
  constructor(view, root) {
    this.view = view;
    this.root = root;
    this.title = h("span", { class: "title" });
    this.note = h("div", { class: "note", role: "status" });
    this.bar = h("div", { class: "bar" });
    this.legend = h("div", { class: "legend" });
    this.facts = h("section", { class: "part-facts", "aria-live": "polite" });
    this.busy = h("section", { class: "part-busy" });
    this.names = h("section", { class: "part-names" });
    this.idle = h("section", { class: "part-idle" });
    this.below = h("div", { class: "below" }, this.facts, this.busy, this.names, this.idle);
    this.stepAt = 0;
    this.searchBox = null;
    this.showFacts(null);
  }

  begin(setup) {
    const { view } = this;
    const { options } = view;
    const again = (key, value) => { options[key] = value; view.resize(); view.refresh(); };
    const rows = setup.sides.map((side) => `${side.label} · ${whole(side.rows)} rows`).join("   ");
    fill(this.title, rows || "empty trace");
    const two = setup.sides.length > 1;
    this.searchBox = h("input", { type: "text", size: "16", placeholder: "search names (/)", "aria-label": "search names by regular expression", help: "Regular expression over names and operators, case aside. Enter searches, N and Shift+N go through.", on: { keydown: (e) => this.searchKey(e) } });
    this.count = h("span", { class: "quiet", "aria-live": "polite" });
    const tracks = choice("tracks", "What a track is: a stream, a hardware queue, or a rank with its streams under each other.", setup.groupings.map((g) => [g, g]), setup.by, (by) => view.model.send({ kind: "tracks", by }));
    const color = choice("colour", "By kind of work, by kernel name, or by layer.", setup.colorings.map((c) => [c, c]), options.color, (c) => { again("color", c); this.paintLegend(); });
    const layout = two && choice("A/B", "Stacked: A above B. Overlaid: each track of B right under its partner of A.", [["stacked", "stacked"], ["overlaid", "overlaid"]], options.layout, (l) => again("layout", l));
    this.layers = choice("layer", "Go to the next rows of a layer.", [["", "–"]], "", (n) => { if (n !== "") view.find(1, "layer", { layer: Number(n) }); });
    const again1 = (d) => () => { const n = this.layers.select.value; if (n !== "") view.find(d, "layer", { layer: Number(n) }); };
    const exports = choice("export", "PNG or SVG of the picture, CSV of the rows in the window, HTML of everything.", [["", "…"], ["png", "PNG"], ["svg", "SVG"], ["csv", "CSV"], ["html", "HTML"]], "", (what) => { exports.select.value = ""; if (what) this.save(what); });
    fill(this.bar,
      tracks.el, color.el, layout && layout.el,
      toggle("host", "Show calls and ranges of the host.", () => options.host, (on) => again("host", on)),
      toggle("waits", "Arrows from the row that released another stream to the one that waited; launches show when a slice is selected.", () => options.flows, (on) => { options.flows = on; view.request(); }),
      toggle("critical path", "Underline the chain of rows that makes up the wall.", () => options.path, (on) => this.path(on)),
      h("span", { class: "group" }, this.searchBox, button("‹", "found before (Shift+N)", () => view.find(-1)), button("›", "found next (N)", () => view.find(1)), this.count),
      h("span", { class: "group" }, h("label", null, "step"), button("‹", "step before ([)", () => this.step(-1)), button("›", "step after (])", () => this.step(1))),
      h("span", { class: "group" }, this.layers.el, button("‹", "rows of this layer before", again1(-1)), button("›", "rows of this layer after", again1(1))),
      h("span", { class: "group" }, button("−", "zoom out (S)", () => view.zoom(2)), button("+", "zoom in (W)", () => view.zoom(0.5)), button("all", "show everything (0)", () => view.show(view.whole.start, view.whole.end))),
      exports.el, button("?", "keys", () => this.help()),
    );
    fill(this.note, setup.sides.flatMap((side) => side.notes.map((text) => `${two ? `${side.label}: ` : ""}${text}`)).join(" · "));
    this.paintLegend();
    this.stepsAsked = false;
    if (two) this.askSteps();
  }

  // Two traces have to be moved before anything else; the steps of one can wait for its first picture.
  askSteps() {
    if (this.stepsAsked) return;
    this.stepsAsked = true;
    this.view.ask("steps", this.view.setup.sides.length > 1 && !this.aligned ? { pair: 0 } : {}, (answer) => { this.aligned = true; this.takeSteps(answer); });
  }

  takeSteps(answer) {
    const { view } = this;
    view.steps = answer.steps;
    view.pairs = answer.pairs;
    const moved = view.setup.shift !== answer.shift;
    view.setup.shift = answer.shift;
    this.layers.offer([["", "–"], ...answer.layers.map((n) => [String(n), String(n)])], "");
    if (moved) view.refresh();
    view.draw();
    this.root.dataset.steps = answer.steps.map((s) => s.length).join(",");
  }

  paintLegend() {
    const { view } = this;
    const { tones } = view.setup;
    const shown = (view.options.color === "category" ? view.setup.present : view.setup.present.filter((t) => t >= 12)).map((t) => tones[t]);
    const how = { category: null, kernel: "colours by kernel name, the same in every trace", layer: "colours by layer, repeating every eight" }[view.options.color];
    fill(this.legend, how && h("span", null, how), shown.filter((t) => t.label).map((t) => h("span", null, h("span", { class: "key", style: { background: t.color } }), t.label)),
      view.setup.causes.map((c) => h("span", { help: `idle: ${c.help}` }, h("span", { class: "key", style: { background: c.color } }), `idle: ${c.label}`)));
  }

  searchKey(event) {
    if (event.key === "Enter") { this.search(this.searchBox.value); event.preventDefault(); }
    if (event.key === "Escape") { this.searchBox.value = ""; this.search(""); this.view.canvas.focus({ preventScroll: true }); }
    event.stopPropagation();
  }

  search(text) {
    const { view } = this;
    view.ask("search", { text }, ({ counts }) => {
      view.options.searching = text !== "";
      fill(this.count, text ? `${counts.map(whole).join(" + ")} found` : "");
      view.refresh();
      if (text && counts.some((n) => n)) view.canvas.focus({ preventScroll: true });
    });
  }

  focusSearch() { this.searchBox.focus(); this.searchBox.select(); }

  path(on) {
    const { view } = this;
    view.options.path = on;
    view.ask("path", { on, ...view.window }, ({ parts }) => {
      const text = (p) => (p === null ? "more than 200,000 rows in the window: zoom in and switch it on again" : Object.entries(p).slice(0, 6).map(([what, t]) => `${what} ${ns(t)}`).join(", "));
      fill(this.note, on ? `critical path: ${parts.map(text).join(" | B: ")}` : "");
      view.refresh();
    });
  }

  // The next or the previous step; with two traces, both are moved so that the pair begins together.
  step(direction) {
    const { view } = this;
    if (view.pairs.length) {
      const at = Math.min(Math.max((this.pairAt ?? -1) + direction, 0), view.pairs.length - 1);
      this.pairAt = at;
      view.ask("steps", { pair: at }, (answer) => {
        this.takeSteps(answer);
        const [a, b] = view.pairs[at];
        const [first, second] = [view.steps[0][a], view.steps[1][b]];
        if (first && second) fit(view, Math.min(first[3], second[3]), Math.max(first[4], second[4]));
        fill(this.note, `step ${at + 1} of ${view.pairs.length} pairs: ${first?.[0]} against ${second?.[0]}, aligned at their first rows`);
      });
      return;
    }
    const marks = view.steps[0] ?? [];
    if (!marks.length) { fill(this.note, "this trace names no steps"); return; }
    const middle = (view.window.start + view.window.end) / 2;
    let at = marks.findIndex(([, , , start, end]) => start <= middle && middle < end);
    if (at < 0) at = direction > 0 ? marks.findIndex((m) => m[3] > middle) : marks.findLastIndex((m) => m[4] <= middle);
    else if (view.window.end - view.window.start < (marks[at][4] - marks[at][3]) * 1.6) at += direction;
    const step = marks[Math.min(Math.max(at, 0), marks.length - 1)];
    fit(view, step[3], step[4]);
  }

  clear() {
    const { view } = this;
    view.selected = view.measure = null;
    if (view.options.searching) { this.searchBox.value = ""; this.search(""); }
    fill(this.note);
    this.showFacts(null);
    view.settle();
    view.draw();
  }

  help() {
    fill(this.facts, h("h4", null, "Keys, once the picture has the focus"), h("dl", null, KEYS.flatMap(([key, text]) => [h("dt", null, key), h("dd", null, text)])));
  }

  showFacts(answer) {
    if (!answer) { fill(this.facts, h("h4", null, "Details"), h("p", { class: "quiet" }, "Click a slice for its details. ? lists the keys.")); return; }
    fill(this.facts, h("h4", null, "Details"), h("dl", null, answer.facts.flatMap(([label, text]) => [h("dt", null, label), h("dd", { title: text, class: label === "name" && "named" }, text)])));
  }

  showTable(answer, measured) {
    this.askSteps();
    const length = answer.end - answer.start;
    const [a, b] = answer.sides;
    const head = (text, help) => h("th", { help }, text);
    const line = (side) => h("span", null, h("span", { help: HELP.union }, `union ${ns(side.union_ns)} (${percent(side.union_ns / length)})`), " · ", h("span", { help: HELP.concurrency }, `concurrency ${side.concurrency.toFixed(2)}`));
    const where = `${measured ? "measured range" : "window"} of ${ns(length)}`;
    const rows = b ? joinedRows(a.tracks, b.tracks) : a.tracks.map((t) => [t, null]);
    const cells = b
      ? ([x, y]) => [ns(x?.busy_ns ?? 0), ns(y?.busy_ns ?? 0), signed((y?.busy_ns ?? 0) - (x?.busy_ns ?? 0)), whole(x?.events ?? 0), whole(y?.events ?? 0)]
      : ([x]) => [ns(x.busy_ns), percent(x.busy_ns / length), x.role === "side" ? ns(x.hidden_ns) : "", whole(x.events)];
    const titles = b ? [head("A busy", HELP.busy), head("B busy", HELP.busy), head("B − A", HELP.delta), head("A events", HELP.events), head("B events", HELP.events)] : [head("busy", HELP.busy), head("share", HELP.share), head("hidden", HELP.hidden), head("events", HELP.events)];
    fill(this.busy, h("h4", null, `Busy in the ${where}`), h("div", { class: "quiet" }, b ? ["A ", line(a), h("br"), "B ", line(b)] : line(a)),
      h("div", { class: "scroll" }, h("table", null, h("tr", null, h("th", null, "track"), titles), rows.slice(0, 100).map((pair) => h("tr", null, h("td", null, (pair[0] ?? pair[1]).label), cells(pair).map((c) => h("td", null, c)))))));
    this.showNames(a.names, b?.names);
    this.showGaps(answer.sides);
  }

  showNames(a, b) {
    const color = new Map(this.view.setup.tones.map((t) => [t.label, t.color]));
    const key = (n) => h("td", { title: n.name }, h("span", { class: "key", style: { background: color.get(n.category) } }), n.name);
    const other = new Map((b ?? []).map((n) => [n.name, n]));
    const head = (text, help) => h("th", { help }, text);
    const rows = b
      ? [...a.map((n) => [n, other.get(n.name)]), ...b.filter((n) => !a.some((m) => m.name === n.name)).map((n) => [null, n])].map(([x, y]) => h("tr", null, key(x ?? y), [ns(x?.ns ?? 0), ns(y?.ns ?? 0), signed((y?.ns ?? 0) - (x?.ns ?? 0))].map((c) => h("td", null, c))))
      : a.map((n) => h("tr", null, key(n), [ns(n.ns), whole(n.rows), ns(n.ns / Math.max(n.rows, 1))].map((c) => h("td", null, c))));
    const titles = b ? [head("A", HELP.time), head("B", HELP.time), head("B − A", HELP.delta)] : [head("time", HELP.time), head("rows", HELP.events), head("mean", "time over rows")];
    fill(this.names, h("h4", null, "Most time, by name"), h("div", { class: "scroll" }, h("table", null, h("tr", null, h("th", null, "name"), titles), rows)));
  }

  showGaps(sides) {
    const { view } = this;
    const help = new Map(view.setup.causes.map((c) => [c.label, c]));
    const lines = sides.flatMap((side, i) => side.gaps.slice(0, 40).map((g) => [i, ...g]));
    fill(this.idle, h("h4", null, "Idle, by cause"), sides.map((side, i) => h("div", { class: "quiet" }, sides.length > 1 ? `${"AB"[i]} ` : "", Object.entries(side.idle).map(([cause, t]) => `${cause} ${ns(t)}`).join(" · ") || "never idle")), h("div", { class: "scroll" }, h("table", null, h("tr", null, h("th", { help: HELP.cause }, "cause"), h("th", null, "idle"), h("th", null, "at"), h("th", null, "before")),
      lines.map(([side, start, dur, cause, after, before]) => h("tr", null, h("td", { help: help.get(cause)?.help }, h("span", { class: "key", style: { background: help.get(cause)?.color } }), sides.length > 1 ? `${"AB"[side]} ${cause}` : cause), h("td", null, ns(dur)), h("td", null, button(ns(start), `show this gap: after ${after}`, () => fit(view, start - dur, start + 2 * dur))), h("td", { title: before, class: "long" }, before))))));
  }

  save(what) {
    const { view } = this;
    if (what === "png") view.canvas.toBlob((blob) => save("trace.png", blob));
    else if (what === "svg") { const pen = new SvgPen(view.width, view.height); view.paint(pen); save("trace.svg", pen.blob()); }
    else view.model.send({ kind: what, ...(view.measure ?? view.window) });
  }
}

const signed = (value) => `${value > 0 ? "+" : value < 0 ? "−" : ""}${ns(Math.abs(value))}`;

function joinedRows(a, b) {
  const key = (t) => (t.role === "main" ? "main" : t.label.split("/").pop());
  const other = new Map(b.map((t) => [key(t), t]));
  const rows = a.map((t) => { const pair = [t, other.get(key(t)) ?? null]; other.delete(key(t)); return pair; });
  return [...rows, ...[...other.values()].map((t) => [null, t])];
}
