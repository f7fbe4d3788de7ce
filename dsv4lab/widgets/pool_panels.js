// Controls, maps and facts of the pool explorer: the pool, one request, one page or ring, linked.

const POOL_HELP = {
  waste: "Internal fragmentation: share of the token places of held pages that hold no token yet.",
  contiguity: "Share of page boundaries inside requests where the next page number follows. Pages need not be contiguous: this describes the pool, it costs nothing.",
  longest: "Longest run of free page numbers; any free page serves any request.",
  bytes: "KV rows of all layers as stored; index keys and compressor state are not in it.",
  slots: "A slot is a request's ring: the last raw rows of its window, in every layer.",
  shared: "Pages that several requests hold: a common prefix.",
  other: "Pages in use that no request of this snapshot holds: the prefix cache keeps them.",
};

class PoolPanels {
  constructor(model, root, tip) {
    this.root = root;
    const hook = (text, pick) => ({ tip: (t, x, y) => (t ? tip.show(t, x, y) : tip.hide()), text, pick, palette: () => this.view.palette });
    this.view = new PoolView(model, { drawPool: () => this.drawPool(), drawRequest: () => this.drawRequest(), changed: () => this.controls(), note: (text) => fill(this.note, text) });
    this.rings = new CellMap("rings", hook((i) => this.ringCell(i), (i) => this.pickOwner(this.view.pool.rings.owner[i], null)));
    this.pages = new CellMap("pages", hook((i) => this.pageCell(i), (i) => this.pickPage(i)));
    this.ownRing = new CellMap("ring of the request", hook((i) => this.ownRingText(i), () => { this.view.page = "ring"; this.drawRequest(); }));
    this.entries = new CellMap("compressed entries of the request", hook((i) => this.view.entryText(i * this.group), (i) => { this.view.page = this.view.own.pages[Math.floor((i * this.group) / this.view.perPage())]; this.drawRequest(); this.drawPool(); }));
    this.single = new CellMap("single rows", hook((i) => this.rowText(i), () => {}));
    this.title = h("span", { class: "title" });
    this.note = h("div", { class: "note", role: "status" });
    this.bar = h("div", { class: "bar" });
    this.legend = h("div", { class: "legend" });
    this.facts = h("section");
    this.heads = Object.fromEntries(["rings", "pages", "ownRing", "entries", "single"].map((name) => [name, h("h4")]));
    const part = (name) => [this.heads[name], h("div", { class: "map" }, this.el(name))];
    this.body = h("div", { class: "body" }, h("div", { class: "maps" }, ["rings", "pages", "ownRing", "entries", "single"].map(part)), this.facts);
    root.append(h("div", { class: "bar" }, this.title), this.bar, this.note, this.legend, this.body);
  }

  el(name) { return { rings: this.rings, pages: this.pages, ownRing: this.ownRing, entries: this.entries, single: this.single }[name].canvas; }

  begin(setup) { this.view.begin(setup); this.controls(); }

  controls() {
    const { view } = this;
    const { setup } = view;
    this.slider = h("input", { type: "range", min: "0", max: String(setup.steps.length - 1), value: String(view.at), step: "1", "aria-label": "recorded snapshot", help: "Recorded snapshots, oldest on the left.", on: { input: (e) => view.scrub(Number(e.target.value)) } });
    this.stepText = h("span", { class: "quiet" });
    this.ask = h("input", { type: "range", min: "0", max: "0", value: "0", step: "1", "aria-label": "position of the query token", help: "The query token: what it may read is marked in all maps. At the right end it follows the request.", on: { input: (e) => view.moveQuery(Number(e.target.value)) } });
    this.askText = h("span", { class: "quiet" });
    this.requests = choice("request", "Whose rows are shown below; a click in the maps chooses as well.", [], "", (id) => view.pick(Number(id)));
    const kind = choice("layer kind", "Layers of a kind have the same rows: a ring for each slot, then the entries of each page.", setup.ratios.map((r) => [String(r), KIND_NAMES[r]]), String(view.ratio), (r) => view.setRatio(Number(r)));
    const color = choice("colour", "Owner: the request. Age: steps since its holder got it, as far back as snapshots go. Layer kind: by kind, stronger is fuller. Last reader: rows that the query reads.", ["owner", "age", "layer kind", "last reader"].map((c) => [c, c]), view.color, (c) => { view.color = c; this.drawPool(); });
    const layers = setup.live && choice("next read in", "The rows that the request's next forward really reads in one layer, the indexer's choice included.", [["", "–"], ...setup.layers.map(([n, name]) => [String(n), `layer ${n} (${name})`])], view.exact ? String(view.exact.layer) : "", (n) => { if (n !== "") view.exactly(Number(n)); });
    const exports = choice("export", "PNG of the pool map, HTML of the whole view.", [["", "…"], ["png", "PNG"], ["html", "HTML"]], "", (what) => { exports.select.value = ""; if (what === "png") this.pages.canvas.toBlob((blob) => save("pool.png", blob)); if (what === "html") view.model.send({ kind: "html" }); });
    fill(this.bar, kind.el, color.el, this.requests.el,
      h("span", { class: "group" }, h("label", null, "query at"), this.ask, this.askText), layers && layers.el,
      h("span", { class: "group" }, h("label", null, "step"), button("‹", "snapshot before", () => this.nudge(-1)), this.slider, button("›", "snapshot after", () => this.nudge(1)), this.stepText),
      setup.live && toggle("follow", "Record a snapshot whenever the pool changed, up to twice a second, and show it.", () => Boolean(this.timer), (on) => this.follow(on)),
      setup.live && button("snapshot", "record one now", () => view.poll()), exports.el);
  }

  nudge(by) { const { view } = this; const at = Math.min(Math.max(view.at + by, 0), view.setup.steps.length - 1); view.scrub(at); }

  follow(on) {
    clearInterval(this.timer);
    this.timer = on ? setInterval(() => this.view.poll(), 500) : null;
  }

  sync() {
    const { view } = this;
    const { setup, pool, own } = view;
    Object.assign(this.slider, { max: String(setup.steps.length - 1) });
    this.slider.value = String(view.at);
    fill(this.stepText, `${pool.step} (${view.at + 1} of ${setup.steps.length})`);
    this.requests.offer(pool.requests.map(([id, tokens]) => [String(id), `${id} · ${whole(tokens)} tokens`]), String(view.request ?? ""));
    this.ask.max = String(own ? Math.max(own.tokens - 1, 0) : 0);
    this.ask.value = String(view.position ?? 0);
    fill(this.askText, own ? whole(view.position ?? 0) : "–");
    Object.assign(this.root.dataset, { step: String(pool.step), ratio: String(view.ratio), request: String(view.request ?? ""), position: String(view.position ?? "") });
  }

  drawPool() {
    const { view } = this;
    const { pool, setup } = view;
    if (!pool) return;
    this.sync();
    fill(this.title, `KV pool after step ${pool.step}`);
    const per = (map, noun, size) => (map.rows === 1 ? "one row a cell" : map.rows < size ? `${map.rows} rows a cell` : map.rows === size ? `one ${noun} a cell` : `${whole(map.rows / size)} ${noun}s a cell`);
    fill(this.heads.rings, `Rings: ${whole(setup.shape.slots)} slots of ${setup.shape.ring_rows} rows `, h("span", { class: "quiet" }, per(pool.rings, "slot", setup.shape.ring_rows)));
    this.rings.set(pool.rings.owner.length, pool.rings.unit, paintPoolCell(view, pool.rings, 0), { tall: 110, most: 12 });
    this.pages.canvas.parentElement.hidden = this.heads.pages.hidden = !pool.pages;
    if (pool.pages) {
      const size = setup.shape.page_size / view.ratio;
      fill(this.heads.pages, `${KIND_NAMES[view.ratio]} entries: ${whole(setup.shape.pages)} pages of ${size} rows `, h("span", { class: "quiet" }, `${per(pool.pages, "page", size)}; ${whole(pool.pages.owner.length * pool.pages.rows)} rows from row ${whole(pool.pages.first_row)} on`));
      this.pages.set(pool.pages.owner.length, pool.pages.unit, paintPoolCell(view, pool.pages, view.ratio), { tall: 170, most: 13 });
    }
    this.showLegend();
    this.showFacts(pool.facts);
    this.drawRequest();
  }

  showLegend() {
    const { view } = this;
    const key = (color, alpha, text) => h("span", null, h("span", { class: "key", style: { background: color, opacity: alpha } }), text);
    const people = view.color === "owner" || view.color === "last reader" ? view.pool.requests.slice(0, 10).map(([id]) => key(view.owners[id % view.owners.length], 1, `request ${id}`)) : [];
    const how = { owner: "stronger is fuller", age: `stronger is younger: 0 to ${whole(view.oldest)} steps`, "layer kind": "stronger is fuller", "last reader": "stronger is more of the cell read" }[view.color];
    const kinds = view.color === "layer kind" ? [key(LAYER_TINTS[0], 1, "raw rows in rings"), view.ratio ? key(LAYER_TINTS[view.ratio], 1, `${KIND_NAMES[view.ratio]} entries`) : null] : [];
    fill(this.legend, people, kinds, key("#8c929b", 0.2, "free"), key("#8c929b", 0.6, "reserved"), key(view.palette.mark, 1, "read by the query"), h("span", null, how));
  }

  showFacts(f) {
    const line = (label, text, help) => [h("dt", { help }, label), h("dd", null, text)];
    fill(this.facts, h("h4", null, "This snapshot"), h("dl", null,
      line("requests", whole(f.requests)), line("slots", `${whole(f.slots_held)} of ${whole(f.slots)}`, POOL_HELP.slots),
      line("pages", `${whole(f.pages_held)} held, ${whole(f.pages_free)} free`), f.pages_other ? line("other pages", whole(f.pages_other), POOL_HELP.other) : null, f.pages_shared ? line("shared pages", whole(f.pages_shared), POOL_HELP.shared) : null,
      line("tokens", `${whole(f.tokens)} of ${whole(f.capacity)}`), line("waste", percent(f.waste), POOL_HELP.waste), line("contiguity", percent(f.contiguity), POOL_HELP.contiguity), line("longest free run", `${whole(f.longest_free)} pages`, POOL_HELP.longest), line("bytes", bytes(f.bytes), POOL_HELP.bytes)),
      h("table", null, h("tr", null, ["part", "layers", "rows each", "bytes", "used"].map((t) => h("th", null, t))), f.parts.map((p) => h("tr", null, [p.part, whole(p.layers), whole(p.rows), bytes(p.bytes), percent(p.bytes ? p.used_bytes / p.bytes : 0)].map((c) => h("td", null, c))))));
  }

  drawRequest() {
    const { view } = this;
    const { own, reads, setup } = view;
    const none = !own || !view.pool;
    for (const name of ["ownRing", "entries", "single"]) this.heads[name].hidden = this.el(name).parentElement.hidden = none || (name === "entries" && !view.ratio);
    if (none) return;
    const color = view.owners[own.request % view.owners.length];
    const { mark, ink } = view.palette;
    const size = setup.shape.ring_rows;
    const exact = reads?.exact ? "as its forward read them" : view.ratio === 4 ? "visible; the indexer picks its top-k of them when the query runs" : "all of them";
    fill(this.heads.ownRing, `Request ${own.request}: ring of slot ${own.slot} `, h("span", { class: "quiet" }, `${whole(own.tokens)} tokens in ${whole(own.pages.length)} pages; the query at ${whole(view.position ?? 0)} reads ${whole(reads?.window.length ?? 0)} window rows${view.ratio ? ` and ${whole(reads?.rows.length ?? 0)} entries (${exact})` : ""}`));
    const ringRead = view.windowRows();
    this.ownRing.set(size, 1, (pen, i, x, y, w, tall) => {
      const position = view.ringPosition(i);
      pen.rect(x, y, w, tall, position < 0 ? "#8c929b" : color, position < 0 ? 0.14 : 0.25 + 0.75 * (1 - (own.tokens - 1 - position) / size));
      if (ringRead.has(own.slot * size + i)) pen.rect(x, y + tall * 0.65, w, tall * 0.35, mark);
      if (position === own.tokens - 1) pen.rect(x + w - 2, y, 2, tall, ink);
    }, { columns: size, most: 15 });
    if (view.ratio) this.drawEntries(color, mark);
    this.drawRows(color, mark);
    Object.assign(this.root.dataset, { window: String(reads?.window.length ?? ""), read: String(reads?.rows.length ?? ""), exact: String(Boolean(reads?.exact)) });
  }

  drawEntries(color, mark) {
    const { view } = this;
    const { own } = view;
    const total = own.pages.length * view.perPage();
    this.group = 1;
    while (total / this.group > 6000) this.group *= 2;
    const cells = Math.ceil(total / this.group);
    const read = new Float32Array(cells);
    const place = new Map();
    own.pages.forEach((page, at) => place.set(page, at));
    for (const row of view.reads?.rows ?? []) {
      const slot = row - view.swaRows();
      const at = place.get(Math.floor(slot / view.perPage()));
      if (at !== undefined) read[Math.floor((at * view.perPage() + (slot % view.perPage())) / this.group)] += 1 / this.group;
    }
    fill(this.heads.entries, "Its compressed entries, oldest first ", h("span", { class: "quiet" }, this.group === 1 ? "one entry a cell" : `${this.group} entries a cell`));
    this.entries.set(cells, this.group === 1 ? view.perPage() : 1, (pen, i, x, y, w, tall) => {
      const written = Math.min(Math.max(own.tokens / view.ratio - i * this.group, 0), this.group) / this.group;
      pen.rect(x, y, w, tall, written ? color : "#8c929b", written ? 0.2 + 0.45 * written : 0.14);
      if (read[i]) pen.rect(x, y + tall * 0.4, w, tall * 0.6, mark, 0.35 + 0.65 * read[i]);
      if (view.page !== null && own.pages[Math.floor((i * this.group) / view.perPage())] === view.page) pen.rect(x, y, w, 1.5, view.palette.ink);
    }, { tall: 120, most: 13 });
  }

  // The rows of the page that was picked, else of the request's newest page; in an SWA layer or on request, of its ring.
  drawRows(color, mark) {
    const { view } = this;
    const { own } = view;
    const at = view.page === "ring" || !view.ratio || !own.pages.length ? -1 : Math.max(0, own.pages.includes(view.page) ? own.pages.indexOf(view.page) : Math.floor(Math.max(own.tokens - 1, 0) / view.setup.shape.page_size));
    this.rowsAt = at;
    const size = view.setup.shape.ring_rows;
    const count = at < 0 ? size : view.perPage();
    const rowOf = (i) => (at < 0 ? own.slot * size + i : view.poolRow(at * count + i));
    fill(this.heads.single, at < 0 ? `Rows of its ring, slot ${own.slot} ` : `Rows of page ${own.pages[at]}, its page ${at} `, h("span", { class: "quiet" }, "pool row numbers; marked rows are read by the query"));
    const [reads, ring] = [view.readRows(), view.windowRows()];
    this.single.set(count, 1, (pen, i, x, y, w, tall) => {
      const written = at < 0 ? view.ringPosition(i) >= 0 : (at * count + i + 1) * view.ratio <= own.tokens;
      const isRead = at < 0 ? ring.has(rowOf(i)) : reads.has(rowOf(i));
      pen.rect(x, y, w, tall, isRead ? mark : written ? color : "#8c929b", isRead ? 0.75 : written ? 0.4 : 0.14);
      if (w > 30) pen.text(String(rowOf(i)), x + w / 2, y + tall / 2 + 0.5, isRead ? "#ffffff" : view.palette.ink, { size: 10, align: "center", most: w });
    }, { columns: Math.min(count, 16), most: 18, tall: 18 * Math.ceil(count / 16) });
  }

  rowText(i) { return this.rowsAt < 0 ? this.ownRingText(i) : this.view.entryText(this.rowsAt * this.view.perPage() + i); }

  ownRingText(i) {
    const { view } = this;
    const position = view.ringPosition(i);
    const row = view.own.slot * view.setup.shape.ring_rows + i;
    const state = position < 0 ? "not written yet" : `position ${whole(position)}${position === view.own.tokens - 1 ? ", the newest" : ""}, ${whole(view.own.tokens - 1 - position)} tokens old`;
    return `ring row ${i}, pool row ${whole(row)}\n${state}\n${view.windowRows().has(row) ? this.readThen(i, position) : "not read by the query"}`;
  }

  // A query of the past read its window as it was then; the ring has gone round since.
  readThen(i, position) {
    const { view } = this;
    const size = view.setup.shape.ring_rows;
    const then = view.position - ((((view.position - i) % size) + size) % size);
    return then === position ? "read by the query" : `read by the query when position ${whole(then)} was here`;
  }

  owner(id) { return id >= 0 ? `request ${id}` : OWNER_NAMES[id]; }

  cellText(map, i, first, what) {
    const share = (v) => percent(v / 255);
    return `${what}\nrows ${whole(first)} to ${whole(first + map.rows - 1)}: ${this.owner(map.owner[i])}\n${share(map.used[i])} filled${map.read[i] ? `, ${share(map.read[i])} read by the query` : ""}${map.age[i] >= 0 ? `\nheld for at least ${whole(map.age[i])} steps` : ""}${map.holders[i] > 1 ? `\nshared by ${map.holders[i]} requests` : ""}`;
  }

  ringCell(i) {
    const map = this.view.pool.rings;
    const size = this.view.setup.shape.ring_rows;
    if (map.rows >= size) return this.cellText(map, i, i * map.rows, `slots ${i * (map.rows / size)} to ${(i + 1) * (map.rows / size) - 1}`);
    const slot = Math.floor(i / map.unit);
    return this.cellText(map, i, slot * size + (i % map.unit) * map.rows, `slot ${slot}`);
  }

  pageCell(i) {
    const map = this.view.pool.pages;
    const per = this.view.perPage();
    const [from, to] = [Math.floor((i * map.rows) / per), Math.floor(((i + 1) * map.rows - 1) / per)];
    return this.cellText(map, i, map.first_row + i * map.rows, from === to ? `page ${whole(from)}` : `pages ${whole(from)} to ${whole(to)}`);
  }

  pickOwner(owner, page) {
    const { view } = this;
    if (owner < 0) { fill(this.note, this.owner(owner)); return; }
    fill(this.note);
    if (owner !== view.request) view.pick(owner);
    view.page = page;
    if (owner === view.own?.request) { this.drawPool(); }
  }

  pickPage(i) { const map = this.view.pool.pages; this.pickOwner(map.owner[i], Math.floor((i * map.rows) / this.view.perPage())); }

  end() { this.follow(false); this.view.end(); }
}
