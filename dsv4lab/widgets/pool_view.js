// State of the pool explorer: which snapshot, layer kind, request, query and page are looked at, and what is known.

const KIND_NAMES = { 0: "SWA (window only)", 4: "CSA (ratio 4)", 128: "HCA (ratio 128)" };
const OWNER_NAMES = { "-1": "free", "-2": "reserved: padding and masked writes land here", "-3": "in use, held by no request of this snapshot (prefix cache)" };

class PoolView {
  constructor(model, hooks) {
    Object.assign(this, { model, hooks, setup: null, at: 0, ratio: 4, color: "owner", request: null, position: 0, page: null, exact: null });
    Object.assign(this, { pool: null, own: null, reads: null, palette: model.get("palettes").light, owners: model.get("owners"), oldest: 1 });
    const silent = (on) => hooks.note(on ? SILENCE : "");
    this.asks = asker(model, "pool", silent);
    this.asksOwn = asker(model, "request", silent);
    this.asksReads = asker(model, "reads", silent);
    this.asksPoll = asker(model, "poll", silent);
  }

  begin(setup) {
    this.setup = setup;
    this.at = setup.steps.length - 1;
    this.ratio = setup.ratios.includes(4) ? 4 : setup.ratios.at(-1);
    if (this.request === null && setup.requests.length) this.request = setup.requests[0];
    this.position = null;
    this.look();
  }

  query() { return this.request === null || this.position === null ? {} : { request: this.request, position: this.position, layer: this.exact?.layer ?? null }; }

  // Asks for the request first, since the query's position may have to follow its length; then for the pool.
  look() {
    const known = this.request !== null;
    if (!known) { this.own = this.reads = null; this.lookPool(); return; }
    this.asksOwn.ask({ at: this.at, request: this.request }, (answer) => {
      if (answer.request === null) { this.pick(answer.others[0] ?? null); return; } // it ended
      this.own = answer;
      const last = Math.max(answer.tokens - 1, 0);
      if (this.position === null) this.followsEnd = true;
      if (this.followsEnd || (this.position > last && !this.exact)) this.position = last; // what was really read may be ahead
      this.lookReads();
      this.lookPool();
    });
  }

  lookReads() {
    this.asksReads.ask({ at: this.at, ratio: this.ratio, ...this.query() }, (answer) => { this.reads = answer; this.hooks.drawRequest(); });
  }

  lookPool() {
    this.asks.ask({ at: this.at, ratio: this.ratio, ...this.query() }, (answer) => {
      this.pool = answer;
      if (this.request !== null && !answer.requests.some(([id]) => id === this.request)) { this.pick(answer.requests[0]?.[0] ?? null); return; }
      if (this.request === null && answer.requests.length) { this.pick(answer.requests[0][0]); return; }
      this.oldest = Math.max(1, ...[answer.rings, answer.pages].filter(Boolean).map((m) => m.age.reduce((a, b) => Math.max(a, b), 0)));
      this.hooks.drawPool();
    });
  }

  pick(request) { this.request = request; this.position = null; this.page = null; this.exact = null; this.look(); }
  scrub(at) { this.at = at; this.exact = null; this.look(); }
  moveQuery(position) { this.position = position; this.exact = null; this.followsEnd = this.own && position >= this.own.tokens - 1; this.lookReads(); this.lookPool(); }
  setRatio(ratio) { this.ratio = ratio; this.exact = null; this.lookReads(); this.lookPool(); }

  poll() {
    this.asksPoll.ask({}, ({ steps, requests }) => {
      const grew = steps.length !== this.setup.steps.length || steps.at(-1) !== this.setup.steps.at(-1);
      Object.assign(this.setup, { steps, requests });
      if (grew) { this.at = steps.length - 1; this.look(); }
    });
  }

  exactly(layer) {
    this.asksReads.ask({ at: this.at, ratio: this.ratio, request: this.request, layer, exact: true }, (answer) => {
      Object.assign(this.setup, { steps: answer.steps, requests: answer.requests });
      Object.assign(this, { at: answer.steps.length - 1, request: answer.request, ratio: answer.ratio, position: answer.position, exact: { layer }, followsEnd: false });
      this.hooks.changed();
      this.look();
    });
  }

  perPage() { return this.ratio ? this.setup.shape.page_size / this.ratio : 0; }
  swaRows() { return this.setup.shape.slots * this.setup.shape.ring_rows; }

  // Position of the token in row `r` of the request's ring, -1 where none was written yet.
  ringPosition(r) {
    const head = this.own.tokens - 1;
    const size = this.setup.shape.ring_rows;
    const back = (((head - r) % size) + size) % size;
    return head - back;
  }

  poolRow(entry) { return this.swaRows() + this.own.pages[Math.floor(entry / this.perPage())] * this.perPage() + (entry % this.perPage()); }

  entryText(entry) {
    const { ratio } = this;
    const row = this.poolRow(entry);
    const state = (entry + 1) * ratio > this.own.tokens ? "not written yet" : this.readRows().has(row) ? "read by the query" : (entry + 1) * ratio <= this.position + 1 ? "visible, not read" : "after the query";
    return `entry ${whole(entry)}: tokens ${whole(entry * ratio)} to ${whole((entry + 1) * ratio - 1)}\npage ${this.own.pages[Math.floor(entry / this.perPage())]} (its page ${Math.floor(entry / this.perPage())}), pool row ${whole(row)}\nbyte ${whole(row * this.setup.shape.row_bytes)} of the layer\n${state}`;
  }

  readRows() {
    if (this.reads && !this.reads.set) this.reads.set = new Set(this.reads.rows);
    return this.reads?.set ?? new Set();
  }

  windowRows() {
    if (this.reads && !this.reads.ring) this.reads.ring = new Set(this.reads.window);
    return this.reads?.ring ?? new Set();
  }

  end() { for (const ask of [this.asks, this.asksOwn, this.asksReads, this.asksPoll]) ask.end(); }
}
