// The kernel's part of the pool explorer for a saved page: recorded maps, and reads by the rules of the geometry.

class LocalModel extends AnsweringModel {
  constructor(traits, data) { super(traits); this.data = data; }

  hello() { return { kind: "setup", ...this.data.setup }; }
  html() { throw new Error("this is the saved page already"); }
  poll() { throw new Error("a saved page has the snapshots that it was saved with"); }

  own(at, id) {
    const found = this.data.snapshots[at].requests.find((r) => r.request === id);
    return found ?? { request: null, others: this.data.snapshots[at].requests.map((r) => r.request) };
  }

  request({ at, request }) { return { ...this.own(at, request) }; }

  reads({ at, request, position, ratio }) {
    const { shape } = this.data.setup;
    const own = this.own(at, request);
    if (own.request === null) return { request, position, ratio, exact: false, window: [], rows: [] };
    const window = [];
    for (let p = Math.max(0, position + 1 - shape.window); p <= position; p += 1) window.push(own.slot * shape.ring_rows + (p % shape.ring_rows));
    const per = ratio ? shape.page_size / ratio : 0;
    const rows = ratio ? Array.from({ length: Math.floor((position + 1) / ratio) }, (_, e) => shape.slots * shape.ring_rows + own.pages[Math.floor(e / per)] * per + (e % per)) : [];
    return { request, position, ratio, exact: false, window, rows };
  }

  // The recorded map, with the query's rows marked in it.
  pool({ at, ratio, request, position }) {
    const kept = this.data.snapshots[at].pools[ratio];
    const answer = { ...kept, rings: { ...kept.rings }, pages: kept.pages && { ...kept.pages } };
    if (request === undefined || position === undefined || position === null) return answer;
    const { window, rows } = this.reads({ at, request, position, ratio });
    const { ring_rows: size } = this.data.setup.shape;
    const ring = answer.rings;
    ring.read = this.shares(ring, window.map((row) => (ring.rows >= size ? Math.floor(row / ring.rows) : Math.floor(row / size) * ring.unit + Math.floor((row % size) / ring.rows))));
    if (answer.pages) answer.pages.read = this.shares(answer.pages, rows.map((row) => Math.floor((row - answer.pages.first_row) / answer.pages.rows)));
    return answer;
  }

  shares(map, cells) {
    const count = new Float64Array(map.owner.length);
    for (const cell of cells) count[cell] += 1;
    return Uint8Array.from(count, (n) => Math.min(255, Math.ceil((255 * n) / map.rows)));
  }
}
