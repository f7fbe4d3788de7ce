// The front end of dsv4lab.widgets.plan_editor. All it shows is in the trait `state`; what the user does goes to Python
// as {kind: "move", op, stream}, {kind: "set", name, value}, {kind: "undo" | "apply" | "reference"}.

const SVG = "http://www.w3.org/2000/svg";

function svg(tag, attributes) {
  const el = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) el.setAttribute(key, value);
  return el;
}

function describe(state, i) {
  const row = state.rows[i];
  const lines = [`${row.name} on ${row.stream}` + (row.base === row.stream ? "" : `, ${state.reference} has it on ${row.base}`)];
  if (row.fused) lines.push(row.joined ? `runs fused with its neighbours as ${row.fused}` : `a part of ${row.fused}, which this plan splits`);
  for (const [producer, at] of row.waits) lines.push(`waits for ${producer}` + (at < 0 ? " of an earlier layer" : ` on ${state.rows[at].stream}`));
  if (row.stream !== "main") {
    const ops = row.beside === 1 ? "op" : "ops";
    lines.push(row.beside ? `may run beside ${row.beside} ${ops} of main in this layer` : "nothing on main can run beside it in this layer");
  }
  return lines.join("\n");
}

class Lanes {
  constructor(model, say) {
    this.model = model;
    this.say = say;
    this.chips = [];
    this.focus = null;
    this.head = h("div", { class: "plan-head" });
    this.body = h("div", { class: "plan-rows", role: "list" });
    this.arrows = svg("svg", { class: "plan-arrows", "aria-hidden": "true" });
    this.el = h("div", { class: "plan-lanes" }, this.head, h("div", { class: "plan-field" }, this.body));
    this.body.parentElement.append(this.arrows);
    this.size = new ResizeObserver(() => this.draw());
    this.size.observe(this.body);
  }

  show(state) {
    this.state = state;
    const focused = this.chips.findIndex((chip) => chip === document.activeElement);
    this.el.style.setProperty("--lanes", state.lanes.length);
    fill(this.head, state.lanes.map((lane) => h("div", { class: "plan-lane" }, h("span", { class: "key", style: { background: state.colors[lane] } }), lane)));
    this.chips = state.rows.map((row, i) => this.chip(row, i));
    fill(this.body, state.rows.map((row, i) => this.row(row, i)));
    const at = focused >= 0 ? focused : this.focus ?? 0;
    this.chips.forEach((chip, i) => { chip.tabIndex = i === Math.min(at, this.chips.length - 1) ? 0 : -1; });
    if (focused >= 0 && this.chips[focused]) this.chips[focused].focus();
    this.draw();
  }

  row(row, i) {
    const above = this.state.rows[i - 1];
    const joined = row.joined && above?.joined && above.fused === row.fused;
    return h("div", { class: `plan-row${joined ? " plan-joined" : ""}`, role: "listitem" },
      this.state.lanes.map((lane) => h("div", { class: "plan-cell" }, lane === row.stream ? this.chips[i] : null)));
  }

  chip(row, i) {
    const changed = row.base !== row.stream ? " plan-changed" : "";
    const chip = h("button", {
      type: "button", class: `plan-chip${changed}`, help: describe(this.state, i), "data-op": row.name, "data-stream": row.stream,
      "aria-label": `${describe(this.state, i).replaceAll("\n", "; ")}. Left and right move it.`,
      style: { "--stream": this.state.colors[row.stream] },
      on: {
        focus: () => { this.focus = i; this.light(i); },
        blur: () => this.light(-1),
        pointerenter: () => this.light(i),
        pointerleave: () => this.light(-1),
        pointerdown: (event) => this.drag(event, chip, row),
      },
    }, row.name);
    ownKeys(chip, (event) => this.key(event, i));
    return chip;
  }

  key(event, i) {
    const row = this.state.rows[i];
    const lane = this.state.lanes.indexOf(row.stream);
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const go = { ArrowUp: i - 1, ArrowDown: i + 1, PageUp: 0, PageDown: this.chips.length - 1 }[event.key];
    if (step && this.state.lanes[lane + step]) this.move(row, this.state.lanes[lane + step]);
    else if (go !== undefined && this.chips[go]) { this.chips.forEach((c) => { c.tabIndex = -1; }); this.chips[go].tabIndex = 0; this.chips[go].focus(); }
    else if (event.key === "Home") this.move(row, row.base);
    else if (step === undefined && go === undefined) return;
    event.preventDefault();
  }

  move(row, stream) {
    if (stream === row.stream || !this.model.send) return;
    this.say(`${row.name} to ${stream}`);
    this.model.send({ kind: "move", op: row.name, stream });
  }

  drag(event, chip, row) {
    if (event.button !== 0 || !this.model.send) return;
    const from = event.clientX;
    const field = this.body.getBoundingClientRect();
    const width = field.width / this.state.lanes.length;
    const lane = (x) => this.state.lanes[Math.max(0, Math.min(this.state.lanes.length - 1, Math.floor((x - field.left) / width)))];
    const follow = (e) => {
      chip.classList.add("plan-dragged");
      chip.style.transform = `translateX(${e.clientX - from}px)`;
      for (const [k, el] of [...this.head.children].entries()) el.classList.toggle("plan-over", this.state.lanes[k] === lane(e.clientX));
    };
    const drop = (e) => {
      chip.releasePointerCapture(e.pointerId);
      for (const [name, call] of [["pointermove", follow], ["pointerup", drop], ["pointercancel", drop]]) chip.removeEventListener(name, call);
      for (const el of this.head.children) el.classList.remove("plan-over");
      chip.classList.remove("plan-dragged");
      chip.style.transform = "";
      if (e.type === "pointerup" && Math.abs(e.clientX - from) > 6) this.move(row, lane(e.clientX));
    };
    chip.setPointerCapture(event.pointerId);
    for (const [name, call] of [["pointermove", follow], ["pointerup", drop], ["pointercancel", drop]]) chip.addEventListener(name, call);
  }

  light(i) {
    const row = this.state.rows[i];
    this.chips.forEach((chip, k) => {
      chip.classList.toggle("plan-need", Boolean(row) && row.needs.includes(k));
      chip.classList.toggle("plan-user", Boolean(row) && this.state.rows[k].needs.includes(i));
    });
    for (const path of this.arrows.querySelectorAll("path[data-to]")) {
      path.classList.toggle("plan-lit", Boolean(row) && (path.dataset.to === String(i) || path.dataset.from === String(i)));
    }
  }

  draw() {
    const field = this.body.getBoundingClientRect();
    if (!field.width || !this.state) return;
    const head = svg("path", { d: "M0,0 L6,3 L0,6 z", fill: "var(--dsv4-mark)" });
    const marker = svg("marker", { id: "plan-tip", viewBox: "0 0 6 6", refX: 5, refY: 3, markerWidth: 6, markerHeight: 6, orient: "auto" });
    marker.append(head);
    const defs = svg("defs", {});
    defs.append(marker);
    const paths = [];
    this.state.rows.forEach((row, to) => row.waits.forEach(([, from]) => {
      const b = this.chips[to].getBoundingClientRect();
      const y2 = b.top - field.top + b.height / 2;
      const a = from >= 0 ? this.chips[from].getBoundingClientRect() : null;
      const right = a !== null && a.left < b.left;
      const x2 = (right ? b.left : b.right) - field.left + (right ? -1 : 1);
      const x1 = a === null ? x2 + 26 : (right ? a.right : a.left) - field.left;
      const y1 = a === null ? 0 : a.top - field.top + a.height / 2;
      const bend = right ? 22 : -22;
      const d = a === null ? `M${x1},${y1} C${x1},${y2 - 8} ${x2 + 20},${y2} ${x2},${y2}` : `M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`;
      paths.push(svg("path", { d, "data-from": from, "data-to": to, "marker-end": "url(#plan-tip)" }));
    }));
    this.arrows.replaceChildren(defs, ...paths);
  }
}

function render({ model, el }) {
  const root = el.appendChild(h("div", { class: "dsv4 plan" }));
  const live = h("div", { class: "plan-live", role: "status", "aria-live": "polite" });
  const lanes = new Lanes(model, (text) => { live.textContent = text; });
  const set = (name, value) => model.send({ kind: "set", name, value });
  const title = h("span", { class: "title" });
  const kind = choice("layers", "The layer kind that is shown; its second layer stands for all of them.", [], "", (v) => set("layer_kind", v));
  const everywhere = toggle("all kinds", "Moves count for every layer kind that has the op; otherwise only for the kind shown.",
    () => model.get("state").everywhere, (v) => set("everywhere", v));
  const atOnce = toggle("apply at once", "Every move takes effect from the next forward on; otherwise moves wait for Apply.",
    () => model.get("state").at_once, (v) => set("at_once", v));
  const apply = button("Apply", "Use the plan that is shown from the next forward on.", () => model.send({ kind: "apply" }));
  const undo = button("Undo", "Take the last move back.", () => model.send({ kind: "undo" }));
  const reference = choice("against", "The preset that changes are shown against: its ops have a plain border.", [], "", (v) => set("reference", v));
  const back = button("Reset", "Use that preset.", () => model.send({ kind: "reference" }));
  const copy = button("Copy as Python", "The plan as the Python that makes it.", async () => {
    await navigator.clipboard?.writeText(model.get("state").python);
    live.textContent = "copied";
  });
  const error = h("div", { class: "note", role: "alert" });
  const changes = h("ul", { class: "plan-list" });
  const notes = h("ul", { class: "plan-list" });
  const code = h("pre", { class: "plan-code" });
  const aside = h("div", { class: "plan-aside" },
    h("h4", null, "Changes"), changes, h("h4", null, "What it means"), notes,
    h("h4", null, "Python"), code,
    h("p", { class: "quiet" }, "Drag a chip to another lane, or use \u2190 \u2192; \u2191 \u2193 go from op to op, Home takes one back. Arrows are the waits that reads and writes need."));
  const tools = [kind.el, everywhere, h("span", { class: "gap" }), reference.el, back, undo, atOnce, apply, copy];
  root.append(h("div", { class: "bar" }, title, model.send ? tools : null),
    error, h("div", { class: "plan-body" }, lanes.el, aside), live);
  const show = () => {
    const state = model.get("state");
    if (!state.rows) return;
    title.textContent = `Plan ${state.plan}${state.waits ? ", not applied yet" : ""}`;
    kind.offer(state.kinds, state.kind);
    reference.offer(state.references.map((name) => [name, name]), state.reference);
    everywhere.sync();
    atOnce.sync();
    apply.disabled = !state.waits;
    undo.disabled = !state.undo;
    back.disabled = !state.difference.length;
    error.textContent = state.error;
    fill(changes, state.difference.length ? state.difference.map((text) => h("li", null, text)) : h("li", { class: "quiet" }, `none: as ${state.reference}`));
    fill(notes, state.notes.map((text) => h("li", null, text)));
    code.textContent = state.python;
    lanes.show(state);
  };
  const endTheme = followTheme(root, model, () => lanes.draw());
  const tip = tips(root);
  model.on("change:state", show);
  show();
  return () => { model.off("change:state", show); endTheme(); tip.end(); lanes.size.disconnect(); };
}

export default { render };
