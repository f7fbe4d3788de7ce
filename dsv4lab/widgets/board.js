// The front end of dsv4lab.widgets.board: a grid of plotly pictures that take patches from Python.
// Messages in: {kind: "full", cells: {name: {data, layout}}, templates}, {kind: "patch", cells: {name: {traces, layout}}},
// {kind: "plotly"} with the library in the first buffer, {kind: "save", name, type} with a file in the first buffer,
// {kind: "images", format, name}. Messages out: {kind: "hello"}, {kind: "need-plotly"}, {kind: "drawn"} when everything
// that came was drawn, {kind: "click", cell, point} with the customdata of a point that was clicked.

const PLOTLY = Symbol.for("dsv4lab.plotly");
const RETRY_MS = 150;
const CONFIG = { displaylogo: false, responsive: false, displayModeBar: "hover", showSendToCloud: false };

function decoded(value, buffers) {
  if (Array.isArray(value)) return value.map((item) => decoded(item, buffers));
  if (value === null || typeof value !== "object") return value;
  if ("$buffer" in value) {
    const view = buffers[value.$buffer];
    const bytes = view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength);
    return shaped(new ARRAYS[value.dtype](bytes), value.shape);
  }
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, decoded(item, buffers)]));
}

function shaped(flat, shape) {
  if (shape.length < 2) return flat;
  const [rows, ...rest] = shape;
  const size = rest.reduce((a, b) => a * b, 1);
  return Array.from({ length: rows }, (_, i) => shaped(flat.subarray(i * size, (i + 1) * size), rest));
}

async function plotly(model) {
  if (globalThis[PLOTLY]) return globalThis[PLOTLY];
  const pending = new Promise((resolve, reject) => {
    const take = (message, buffers) => {
      if (message.kind !== "plotly") return;
      model.off("msg:custom", take);
      const text = new TextDecoder().decode(buffers[0]);
      // A module of its own, so that an AMD loader on the page stays out of it.
      const source = `let define, module, exports; const self = globalThis;\n${text}\nexport const library = globalThis.Plotly;`;
      const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
      import(/* webpackIgnore: true */ url).then((m) => resolve(m.library), reject).finally(() => URL.revokeObjectURL(url));
    };
    model.on("msg:custom", take);
    model.send({ kind: "need-plotly" });
  });
  globalThis[PLOTLY] = pending;
  return pending;
}

function take(state, message, buffers) {
  if (message.kind === "full") {
    state.templates = message.templates;
    for (const [name, cell] of Object.entries(decoded(message.cells, buffers))) {
      state.cells[name] = { ...cell, revision: (state.cells[name]?.revision ?? 0) + 1 };
    }
    return Object.keys(message.cells);
  }
  if (message.kind !== "patch") return [];
  for (const [name, patch] of Object.entries(decoded(message.cells, buffers))) {
    const cell = state.cells[name];
    if (!cell) continue;
    patch.traces.forEach((changes, i) => { cell.data[i] = { ...cell.data[i], ...changes }; });
    cell.layout = { ...cell.layout, ...patch.layout };
  }
  return Object.keys(message.cells);
}

class Picture {
  constructor(name, wide, held) {
    this.el = document.createElement("div");
    this.el.className = wide ? "dsv4-cell dsv4-wide" : "dsv4-cell";
    this.el.dataset.cell = name;
    this.plot = this.el.appendChild(document.createElement("div"));
    this.plot.className = "dsv4-plot";
    this.badge = this.el.appendChild(document.createElement("span"));
    this.badge.className = "dsv4-held";
    this.badge.textContent = "held while you point at it";
    this.name = name;
    this.dirty = this.held = this.drawn = this.repaint = false;
    this.visible = true;
    // A pointer that moves points at something; one that a scrolling page slides under does not.
    this.el.addEventListener("pointermove", (event) => { if (event.movementX || event.movementY) this.held = this.drawn; });
    this.el.addEventListener("pointerleave", () => { this.held = false; this.el.classList.remove("dsv4-holding"); held(); });
  }

  // A picture that is pointed at keeps its content, but not the colours of a theme that is gone.
  get kept() { return this.held && !this.repaint; }

  async draw(library, cell, template) {
    if (this.kept) { this.el.classList.add("dsv4-holding"); return; }
    if (!this.visible || !this.plot.clientWidth) return;
    this.dirty = this.repaint = false;
    this.el.classList.remove("dsv4-holding");
    this.plot.style.minHeight = `${cell.layout.height}px`;
    const layout = { ...structuredClone(cell.layout), template, width: this.plot.clientWidth, uirevision: cell.revision };
    await library.react(this.plot, cell.data.map((trace) => ({ ...trace })), layout, CONFIG);
    if (!this.drawn) {
      this.plot.on("plotly_click", ({ points }) => {
        const [point] = points;
        if (typeof point.data.meta === "string") this.clicked({ cell: this.name, point: point.pointNumber, trace: point.data.meta });
      });
    }
    this.drawn = true;
  }

  // The picture as a file, in the colours that it has on the page.
  async image(library, format, name) {
    const { width, height } = this.plot._fullLayout;
    const url = await library.toImage(this.plot, { format, width, height, scale: format === "png" ? 2 : 1 });
    save(`${name}-${this.name}.${format}`, await (await fetch(url)).blob());
  }
}

function initialize(state, model) {
  model.on("msg:custom", (message, buffers) => {
    if (message.kind === "save") save(message.name, new Blob([buffers[0]], { type: message.type }));
    if (message.kind === "images") for (const images of [...state.images].slice(0, 1)) images(message);
    const names = take(state, message, buffers);
    for (const view of state.views) view(names);
  });
}

function render(state, model, el) {
  const grid = el.appendChild(document.createElement("div"));
  grid.className = "dsv4-board";
  let library = null;
  let frame = 0;
  const pictures = {};
  let owed = false;
  let busy = false;
  let again = false;
  const redraw = async () => {
    frame = 0;
    if (busy) again = true;
    if (!library || !state.templates || busy) return;
    busy = true;
    try {
      const template = state.templates[isDark(model.get("theme")) ? "dark" : "light"];
      for (const picture of Object.values(pictures)) {
        const cell = state.cells[picture.name];
        if (cell && picture.dirty) await picture.draw(library, cell, template);
        // While JupyterLab changes its theme, nothing has a width for a moment, and no observer tells when it is over.
        if (cell && picture.dirty && picture.visible && !picture.kept) setTimeout(schedule, RETRY_MS);
      }
    } finally {
      busy = false;
      if (owed) { owed = false; model.send({ kind: "drawn" }); }
      if (again) { again = false; schedule(); }
    }
  };
  const schedule = () => { if (!frame) frame = requestAnimationFrame(redraw); };
  const mark = (names) => { for (const name of names) if (pictures[name]) pictures[name].dirty = true; schedule(); };
  const news = (names) => { if (names.length) { owed = true; mark(names); } };
  const restyle = () => { for (const picture of Object.values(pictures)) picture.dirty = picture.repaint = true; schedule(); };
  for (const [name, wide] of model.get("cells")) {
    pictures[name] = new Picture(name, wide, schedule);
    pictures[name].clicked = (what) => model.send({ kind: "click", ...what });
    grid.appendChild(pictures[name].el);
  }
  const sight = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const picture = Object.values(pictures).find((p) => p.el === entry.target);
      picture.visible = entry.isIntersecting;
    }
    schedule();
  });
  const size = new ResizeObserver(() => mark(Object.keys(pictures)));
  for (const picture of Object.values(pictures)) { sight.observe(picture.el); size.observe(picture.el); }
  const theme = new MutationObserver(restyle);
  theme.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-vscode-theme-kind"] });
  const media = window.matchMedia("(prefers-color-scheme: dark)");
  media.addEventListener("change", restyle);
  model.on("change:theme", restyle);
  const images = async ({ format, name }) => {
    for (const picture of Object.values(pictures)) if (picture.drawn && picture.plot.clientWidth) await picture.image(library, format, name);
  };
  state.views.add(news);
  state.images.add(images);
  model.send({ kind: "hello" });
  plotly(model).then((loaded) => { library = loaded; mark(Object.keys(pictures)); },
    (error) => { grid.textContent = `plotly.js could not be loaded: ${error}`; });
  return () => {
    state.views.delete(news);
    state.images.delete(images);
    for (const observer of [sight, size, theme]) observer.disconnect();
    media.removeEventListener("change", restyle);
    model.off("change:theme", restyle);
    if (library) for (const picture of Object.values(pictures)) library.purge(picture.plot);
  };
}

// Called once per widget, so that all its views share one state.
export default () => {
  const state = { cells: {}, templates: null, views: new Set(), images: new Set() };
  return {
    initialize: ({ model }) => initialize(state, model),
    render: ({ model, el }) => render(state, model, el),
  };
};
