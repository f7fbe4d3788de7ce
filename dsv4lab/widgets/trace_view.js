// The picture of the trace explorer: window, tracks, what is selected, and how pointer and keys change them. Times are
// nanoseconds since the first row. What is drawn while an answer is on its way is the latest one, stretched.

const GUTTER = 172;
const MINI = 24, RULER = 20, STEPS = 15, RUNNING = 40, GAPS = 10, HEAD = MINI + RULER + STEPS + RUNNING + GAPS + 6;
const CLOSEST_NS = 20;
const OVERSCAN = 0.2;
const RESTING_MS = 200;
const STRETCH_MS = 45;

class TraceView extends TraceSelection {
  constructor(model, canvas, hooks) {
    super();
    Object.assign(this, { model, canvas, hooks, setup: null, data: null, overview: null, steps: [], pairs: [], gaps: [] });
    Object.assign(this, { selected: null, measure: null, scroll: 0, frame: 0, timer: 0, drawn: 0, hover: null });
    this.options = { color: "category", layout: "stacked", host: true, flows: false, path: false, searching: false };
    this.names = [];
    const silent = (on) => hooks.note(on ? SILENCE : "");
    this.asks = asker(model, "view", silent);
    this.asksOverview = asker(model, "view", silent);
    this.asksTable = asker(model, "table", silent);
    this.palette = model.get("palettes").light;
    listen(this);
  }

  begin(setup) {
    const fresh = !this.setup;
    Object.assign(this, { setup, data: null, overview: null, scroll: 0, selected: fresh ? null : this.selected });
    this.names = setup.sides.map(() => new Map());
    for (const ask of [this.asks, this.asksOverview, this.asksTable]) ask.forget();
    if (fresh) this.options.color = setup.color;
    const [from, to] = setup.window;
    const margin = (to - from) * 0.01;
    this.whole = { start: from - margin, end: to + margin };
    if (fresh) this.window = { ...this.whole };
    this.resize();
    this.look();
  }

  // The whole first, which is also the first picture; then what the window shows.
  look() {
    const tracks = this.setup.order.slice(0, 120);
    this.asksOverview.ask({ ...this.question(), ...this.whole, columns: 1000, tracks, flows: false }, (answer) => {
      this.overview = this.kept(answer);
      this.request();
      this.draw();
    });
  }

  kept(answer) {
    answer.names.forEach((names, side) => { for (const [id, name] of Object.entries(names)) this.names[side]?.set(Number(id), name); });
    return answer;
  }

  question() { return { color: this.options.color }; }

  request() {
    if (!this.setup || !this.overview) return;
    const { start, end } = this.window;
    const margin = (end - start) * OVERSCAN;
    const tracks = this.rows().filter((r) => r.y + r.h >= this.scroll - 60 && r.y <= this.scroll + this.room() + 60).map((r) => r.track);
    const columns = Math.max(1, Math.min(3000, Math.round(this.plot() * (1 + 2 * OVERSCAN))));
    clearTimeout(this.timer); // tables wait until the window rests: they must not stand before the next picture
    this.asks.ask({ ...this.question(), start: start - margin, end: end + margin, columns, tracks, flows: this.options.flows, idle: this.table !== undefined }, (answer) => {
      this.data = this.kept(answer);
      this.fresh = true;
      this.draw();
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.settle(), RESTING_MS);
    });
  }

  settle() {
    this.asksTable.ask(this.measure ?? this.window, (answer) => {
      if (!this.table) { this.table = answer; this.request(); } // causes of idle time come with pictures after the first
      this.table = answer;
      this.gaps = answer.sides.map((side) => side.gaps);
      this.hooks.table(answer, this.measure !== null);
      this.draw();
    });
  }

  refresh() { this.look(); }

  // Tracks from top to bottom with their places, before scrolling.
  rows() {
    const { tracks, order, sides } = this.setup;
    const shown = order.filter((t) => this.options.host || tracks[t].kind === "device");
    let sequence = shown;
    const overlaid = sides.length > 1 && this.options.layout === "overlaid";
    if (overlaid) {
      const key = (t) => `${tracks[t].kind}:${tracks[t].role === "main" ? "main" : tracks[t].label.split("/").pop()}`;
      const others = new Map(shown.filter((t) => tracks[t].side === 1).map((t) => [key(t), t]));
      sequence = [];
      for (const t of shown.filter((u) => tracks[u].side === 0)) {
        sequence.push(t);
        if (others.has(key(t))) { sequence.push(others.get(key(t))); others.delete(key(t)); }
      }
      sequence.push(...others.values());
    }
    let y = 4;
    return sequence.map((track) => {
      const { depth, kind, side } = tracks[track];
      const lines = kind === "ranges" ? Math.min(depth, 4) : depth;
      const tall = lines > 1 ? lines * (kind === "device" ? 13 : 12) : overlaid || kind !== "device" ? 15 : 22;
      const row = { track, y, h: tall, depth: lines, side };
      y += tall + (overlaid && side === 0 ? 2 : 7);
      return row;
    });
  }

  room() { return this.height - HEAD; }
  plot() { return Math.max(60, this.width - GUTTER - 8); }

  resize() {
    const ratio = window.devicePixelRatio || 1;
    this.width = Math.max(320, this.canvas.parentElement.clientWidth);
    const rows = this.setup ? this.rows() : [];
    const needed = HEAD + (rows.length ? rows.at(-1).y + rows.at(-1).h : 40) + 10;
    this.height = Math.min(this.model.get("height"), Math.max(190, needed));
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${this.height}px`;
    this.draw();
  }

  // A window that stays within the trace and above the closest zoom.
  show(start, end) {
    const { whole } = this;
    const length = Math.min(Math.max(end - start, CLOSEST_NS), (whole.end - whole.start) * 1.2);
    const middle = Math.min(Math.max((start + end) / 2, whole.start), whole.end);
    this.window = { start: middle - length / 2, end: middle + length / 2 };
    this.request();
    this.drawSoon();
    this.hooks.moved(this.window);
  }

  zoom(factor, at) {
    const { start, end } = this.window;
    const pin = at ?? (start + end) / 2;
    this.show(pin - (pin - start) * factor, pin + (end - pin) * factor);
  }

  pan(share) {
    const shift = (this.window.end - this.window.start) * share;
    this.show(this.window.start + shift, this.window.end + shift);
  }

  scrollBy(pixels) {
    const rows = this.rows();
    const most = Math.max(0, (rows.at(-1)?.y ?? 0) + (rows.at(-1)?.h ?? 0) + 10 - this.room());
    const next = Math.min(Math.max(this.scroll + pixels, 0), most);
    const moved = next !== this.scroll;
    this.scroll = next;
    if (moved) { this.request(); this.draw(); }
    return moved;
  }

  time(x) { return this.window.start + ((x - GUTTER) / this.plot()) * (this.window.end - this.window.start); }

  shape() {
    const { start, end } = this.window;
    const scale = this.plot() / (end - start);
    const waiting = this.setup.tones.findIndex((tone) => tone.label.startsWith("waiting"));
    return { start, end, left: GUTTER, right: GUTTER + this.plot(), x: (t) => GUTTER + (t - start) * scale, palette: this.palette, waiting };
  }

  // The answer is usually here in a frame or two; only where it takes longer is the latest picture stretched meanwhile.
  drawSoon() {
    if (!this.stretch) this.stretch = setTimeout(() => this.draw(), STRETCH_MS);
  }

  draw() {
    clearTimeout(this.stretch);
    this.stretch = 0;
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      if (!this.setup) return;
      const context = this.canvas.getContext("2d");
      const ratio = this.canvas.width / this.width;
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      this.paint(new CanvasPen(context));
      if (this.overview) this.hooks.pictured();
      if (this.fresh) { this.fresh = false; this.drawn += 1; this.hooks.drawn(this.drawn, this.data); }
    });
  }

  lanes() {
    const lanes = new Map();
    for (const row of this.rows()) {
      const y = HEAD + row.y - this.scroll;
      if (y + row.h >= HEAD && y <= this.height) lanes.set(row.track, { ...row, y });
    }
    return lanes;
  }

  covers(data) { return data && data.start <= this.window.start && data.end >= this.window.end; }

  paint(pen) {
    const shape = this.shape();
    const { palette } = this;
    pen.rect(0, 0, this.width, this.height, palette.paper);
    if (!this.overview) { pen.text("reading the trace …", GUTTER, 60, palette.muted, { size: 12 }); return; }
    paintMini(pen, this);
    paintHead(pen, this, shape);
    const lanes = this.lanes();
    pen.clip(0, HEAD - 2, this.width, this.height - HEAD + 2);
    for (const [track, lane] of lanes) {
      pen.rect(GUTTER, lane.y, this.plot(), lane.h, palette.faint);
      this.paintLabel(pen, track, lane);
    }
    pen.clip(GUTTER, HEAD - 2, this.plot(), this.height - HEAD + 2);
    const { tones } = this.setup;
    const missing = new Map(this.covers(this.data) ? [...lanes].filter(([t]) => !this.has(t)) : lanes);
    if (missing.size) this.paintData(pen, shape, this.overview, missing, tones);
    if (this.data && missing.size && !this.covers(this.data)) {
      const under = { ...shape, start: Math.max(shape.start, this.data.start), end: Math.min(shape.end, this.data.end) };
      if (under.end > under.start) for (const [t, lane] of lanes) if (this.has(t)) pen.rect(shape.x(under.start), lane.y, shape.x(under.end) - shape.x(under.start), lane.h, palette.paper);
    }
    if (this.data) this.paintData(pen, shape, this.data, lanes, tones);
    if (this.options.flows && this.data) drawArrows(pen, shape, this.data.flows, lanes, palette.mark);
    this.paintSelection(pen, shape, lanes);
    pen.unclip();
    pen.unclip();
    if (this.measure) this.paintMeasure(pen, shape, this.measure);
    if (this.dragged) this.paintMeasure(pen, shape, this.dragged);
    if (this.hover !== null && !this.drag) pen.line([[this.hover, MINI + 2], [this.hover, this.height]], palette.muted, 1, 0.5);
    this.paintScroll(pen);
  }

  has(track) {
    if (this.data.shown === undefined) this.data.shown = new Set([...this.data.cells.tracks, ...this.data.slices.track]);
    return this.data.shown.has(track);
  }

  paintData(pen, shape, data, lanes, tones) {
    drawCells(pen, shape, data, lanes, tones, this.options.searching);
    drawSlices(pen, shape, data, lanes, tones, this.options.searching, this.names);
  }

  paintLabel(pen, track, lane) {
    const { label, role, kind, side } = this.setup.tracks[track];
    const two = this.setup.sides.length > 1;
    if (two) pen.text(side ? "B" : "A", 6, lane.y + lane.h / 2, side ? SIDE_B : this.palette.accent, { size: 10.5, weight: 700 });
    const tag = role === "main" && label !== "main" ? " (main)" : "";
    pen.text(kind === "device" ? `${label}${tag}` : label, two ? 20 : 6, lane.y + lane.h / 2, role === "main" ? this.palette.ink : this.palette.muted, { size: 11, weight: role === "main" ? 650 : 400, most: GUTTER - (two ? 26 : 12) });
  }

  paintSelection(pen, shape, lanes) {
    const s = this.selected;
    if (!s) return;
    drawArrows(pen, shape, s.arrows, lanes, this.palette.mark);
    const lane = lanes.get(s.track);
    if (!lane) return;
    const tall = lane.h / lane.depth;
    const y = lane.y + Math.min(s.sub, lane.depth - 1) * tall;
    const [x0, x1] = [shape.x(s.start), shape.x(s.end)];
    if (s.queued !== null && s.queued < s.start) pen.rect(Math.max(shape.x(s.queued), shape.left), lane.y + lane.h / 2 - 1, Math.max(0, x0 - Math.max(shape.x(s.queued), shape.left)), 2, this.palette.mark, 0.7);
    pen.frame(Math.max(x0, shape.left - 4) - 1, y - 1, Math.max(Math.min(x1, shape.right + 4) - Math.max(x0, shape.left - 4), 2) + 2, tall + 2, this.palette.mark, 2);
  }

  paintMeasure(pen, shape, { start, end }) {
    const [x0, x1] = [Math.max(shape.x(Math.min(start, end)), shape.left), Math.min(shape.x(Math.max(start, end)), shape.right)];
    if (x1 < x0) return;
    pen.rect(x0, MINI + 2, x1 - x0, this.height - MINI, this.palette.accent, 0.13);
    pen.rect(x0, MINI + 2, 1, this.height, this.palette.accent);
    pen.rect(x1 - 1, MINI + 2, 1, this.height, this.palette.accent);
    pen.text(ns(Math.abs(end - start)), (x0 + x1) / 2, MINI + RULER / 2 + 2, this.palette.accent, { align: "center", weight: 650, size: 12 });
  }

  paintScroll(pen) {
    const rows = this.rows();
    const whole = (rows.at(-1)?.y ?? 0) + (rows.at(-1)?.h ?? 0) + 10;
    if (whole <= this.room()) return;
    const tall = Math.max(18, (this.room() / whole) * this.room());
    pen.rect(this.width - 5, HEAD + (this.scroll / whole) * this.room(), 4, tall, this.palette.muted, 0.6);
  }

  end() { for (const ask of [this.asks, this.asksOverview, this.asksTable]) ask.end(); clearTimeout(this.timer); clearTimeout(this.stretch); cancelAnimationFrame(this.frame); }
}
