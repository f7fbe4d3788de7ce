// The kernel's part of the trace explorer for a saved page: the same answers, from the slices in the page.

const MOST_SLICES = 12000, MOST_IN_TRACK = 2000, MOST_ARROWS = 400, TONES = 32;

class LocalModel extends AnsweringModel {
  constructor(traits, data) {
    super(traits);
    this.data = data;
    for (const side of data.sides) {
      const n = side.start.length;
      side.end = side.start.map((t, i) => t + side.dur[i]);
      side.reach = new Float64Array(n);
      side.place = new Int32Array(n);
      side.trackOf = new Int32Array(n);
      side.found = side.onPath = null;
      for (let t = 0; t + 1 < side.first.length; t += 1) {
        let reach = -Infinity;
        for (let i = side.first[t]; i < side.first[t + 1]; i += 1) { reach = Math.max(reach, side.end[i]); side.reach[i] = reach; side.place[side.row[i]] = i; side.trackOf[i] = t; }
      }
    }
  }

  hello() { return { kind: "setup", ...this.data.setup }; }
  steps() { const { steps } = this.data; return { ...steps, kind: "steps", pairs: [] }; }
  tracks() { throw new Error("a saved page keeps the tracks that it was saved with"); }

  inside(side, t, start, end) {
    const bound = (array, low, high, goes) => { while (low < high) { const m = (low + high) >> 1; if (goes(array[m])) low = m + 1; else high = m; } return low; };
    const [low, high] = [side.first[t], side.first[t + 1]];
    const from = bound(side.reach, low, high, (v) => v <= start);
    return [from, Math.max(from, bound(side.start, low, high, (v) => v < end))];
  }

  view(q) {
    const [start, end] = [Math.round(q.start), Math.max(Math.round(q.end), Math.round(q.start) + 1)];
    const columns = Math.min(q.columns, end - start);
    const cells = { tracks: [], share: [], tone: [], count: [], marked: [], path: [] };
    const slices = { row: [], track: [], sub: [], tone: [], flags: [], name: [], start: [], end: [] };
    const names = this.data.sides.map(() => ({}));
    const wanted = new Set(q.tracks);
    const [running, busy] = [[], []];
    this.data.sides.forEach((side, number) => {
      const parts = [...Array(side.first.length - 1).keys()].filter((t) => wanted.has(side.track + t)).map((t) => [t, ...this.inside(side, t, start, end)]);
      let room = MOST_SLICES;
      for (const [t, from, to] of parts.toSorted((a, b) => a[2] - a[1] - (b[2] - b[1]))) {
        if (to - from <= Math.min(room, MOST_IN_TRACK)) { room -= to - from; this.single(side, t, from, to, start, q.color, slices, names[number]); }
        else this.binned(side, t, from, to, { start, end, columns }, q.color, cells);
      }
      const [sum, any] = this.together(side, start, end, columns);
      running.push(sum);
      busy.push(any);
    });
    const flat = (kind) => { const out = new kind(cells.tracks.length * columns); return (parts) => { parts.forEach((p, i) => out.set(p, i * columns)); return out; }; };
    for (const key of ["share", "tone", "marked", "path"]) cells[key] = flat(Uint8Array)(cells[key]);
    cells.count = flat(Int32Array)(cells.count);
    const idle = q.idle ? this.data.sides.map((side) => this.idle(side, start, end, columns)) : undefined;
    return { start, end, columns, cells, slices, running, busy, names, idle, flows: q.flows ? this.arrows(start, end) : [] };
  }

  single(side, t, from, to, start, color, out, names) {
    for (let i = from; i < to; i += 1) {
      if (side.end[i] <= start) continue;
      out.row.push(side.row[i]); out.track.push(side.track + t); out.sub.push(side.sub[i]); out.tone.push(side.tones[color][i]);
      out.flags.push((side.found?.[i] ? 1 : 0) | (side.onPath?.[i] ? 2 : 0)); out.name.push(side.name[i]); out.start.push(side.start[i]); out.end.push(side.end[i]);
      if (side.name[i] >= 0) names[side.name[i]] = side.names[side.name[i]].slice(0, 80);
    }
  }

  binned(side, t, from, to, { start, end, columns }, color, out) {
    const size = (end - start) / columns;
    const [share, count, time] = [new Float64Array(columns), new Int32Array(columns), new Float64Array(columns * TONES)];
    const [marked, path, tone] = [new Uint8Array(columns), new Uint8Array(columns), new Uint8Array(columns)];
    const column = (v) => Math.min(Math.max(Math.floor((v - start) / size), 0), columns - 1);
    let reach = -Infinity;
    for (let i = from; i < to; i += 1) {
      const [a, b] = [side.start[i], side.end[i]];
      const waits = side.kind[i] === 3;
      if (a >= start && a < end && !waits) count[column(a)] += 1;
      for (let c = column(a); c <= column(b); c += 1) {
        const [x, y] = [start + c * size, start + (c + 1) * size];
        const covered = Math.max(0, Math.min(b, y) - Math.max(a, x));
        time[c * TONES + side.tones[color][i]] += waits ? covered * 1e-9 : covered;
        if (!waits) share[c] += Math.max(0, Math.min(b, y) - Math.max(a, x, reach));
        if (covered > 0 || (a >= x && a < y)) { if (side.found?.[i]) marked[c] = 1; if (side.onPath?.[i]) path[c] = 1; }
      }
      if (!waits) reach = Math.max(reach, b);
    }
    for (let c = 0; c < columns; c += 1) { let best = c * TONES; for (let k = best; k < (c + 1) * TONES; k += 1) if (time[k] > time[best]) best = k; tone[c] = best - c * TONES; }
    out.tracks.push(side.track + t);
    out.share.push(Uint8Array.from(share, (v) => Math.min(255, Math.ceil((255 * v) / size - 1e-9))));
    out.count.push(count); out.tone.push(tone); out.marked.push(marked); out.path.push(path);
  }

  // Mean number of busy device tracks, and share in which any is busy, by column.
  together(side, start, end, columns) {
    const size = (end - start) / columns;
    const [sum, any] = [new Float32Array(columns), new Float32Array(columns)];
    const add = (into, a, b) => { for (let c = Math.max(0, Math.floor((a - start) / size)); c < columns && start + c * size < b; c += 1) into[c] += Math.max(0, Math.min(b, start + (c + 1) * size) - Math.max(a, start + c * size)) / size; };
    const [begins, ends] = side.union;
    for (let i = 0; i < begins.length; i += 1) if (ends[i] > start && begins[i] < end) add(any, begins[i], ends[i]);
    for (const t of this.devices(side)) for (const [a, b] of this.merged(side, t, start, end)) add(sum, a, b);
    return [sum, any];
  }

  // Idle time by cause and column, as shares from 0 to 255.
  idle(side, start, end, columns) {
    const size = (end - start) / columns;
    const time = new Float64Array(this.data.causes.length * columns);
    const [begins, durs, causes] = side.gaps;
    for (let i = 0; i < begins.length; i += 1) {
      const [a, b] = [begins[i], begins[i] + durs[i]];
      for (let c = Math.max(0, Math.floor((a - start) / size)); c < columns && start + c * size < b; c += 1) time[causes[i] * columns + c] += Math.max(0, Math.min(b, start + (c + 1) * size) - Math.max(a, start + c * size));
    }
    return Uint8Array.from(time, (t) => Math.min(255, Math.ceil((255 * t) / size - 1e-9)));
  }

  gaps(side, start, end) {
    const [begins, durs, causes, after, before] = side.gaps;
    const name = (id) => (side.names[id] ?? "unnamed").slice(0, 80);
    const [idle, inside] = [{}, []];
    for (let i = 0; i < begins.length; i += 1) {
      const within = Math.min(begins[i] + durs[i], end) - Math.max(begins[i], start);
      if (within <= 0) continue;
      const cause = this.data.causes[causes[i]];
      idle[cause] = (idle[cause] ?? 0) + within;
      inside.push(i);
    }
    const gaps = inside.sort((a, b) => durs[b] - durs[a]).slice(0, 60).map((i) => [begins[i], durs[i], this.data.causes[causes[i]], name(after[i]), name(before[i]), 0]);
    return { gaps, idle };
  }

  devices(side) { return [...Array(side.first.length - 1).keys()].filter((t) => this.data.setup.tracks[side.track + t].kind === "device"); }

  merged(side, t, start, end) {
    const out = [];
    const [from, to] = this.inside(side, t, start, end);
    for (let i = from; i < to; i += 1) {
      const [a, b] = [Math.max(side.start[i], start), Math.min(side.end[i], end)];
      if (b <= a || side.kind[i] === 3) continue;
      if (out.length && a <= out.at(-1)[1]) out.at(-1)[1] = Math.max(out.at(-1)[1], b); else out.push([a, b]);
    }
    return out;
  }

  table(q) {
    const [start, end] = [Math.round(q.start), Math.round(q.end)];
    const length = (set) => set.reduce((n, [a, b]) => n + b - a, 0);
    const sides = this.data.sides.map((side) => {
      const sets = new Map(this.devices(side).map((t) => [t, this.merged(side, t, start, end)]));
      const facts = (t) => this.data.setup.tracks[side.track + t];
      const mains = new Map([...sets].filter(([t]) => facts(t).role === "main").map(([t, set]) => [facts(t).rank, set]));
      const byName = new Map();
      const tracks = [...sets].map(([t, set]) => {
        const [from, to] = this.inside(side, t, start, end);
        let [events, sum] = [0, 0];
        for (let i = from; i < to; i += 1) {
          if (side.kind[i] > 2) continue;
          const inside = Math.max(0, Math.min(side.end[i], end) - Math.max(side.start[i], start));
          events += side.start[i] >= start;
          sum += inside;
          const named = byName.get(side.name[i]) ?? { rows: 0, ns: 0, at: i };
          named.rows += 1; named.ns += inside;
          byName.set(side.name[i], named);
        }
        const { label, role, rank } = facts(t);
        return { track: t, label, role, rank, events, busy_ns: length(set), sum_dur_ns: sum, hidden_ns: role === "side" ? shared(set, mains.get(rank) ?? []) : 0 };
      }).filter((t) => t.busy_ns || t.events).sort((a, b) => (a.role !== "main") - (b.role !== "main") || b.busy_ns - a.busy_ns);
      const [begins, ends] = side.union;
      let union = 0;
      for (let i = 0; i < begins.length; i += 1) union += Math.max(0, Math.min(ends[i], end) - Math.max(begins[i], start));
      const sum = tracks.reduce((n, t) => n + t.busy_ns, 0);
      const names = [...byName].map(([id, n]) => ({ name: side.names[id] ?? "unnamed", category: this.data.setup.tones[side.kinds[n.at]].label, rows: n.rows, ns: n.ns })).sort((a, b) => b.ns - a.ns).slice(0, 40);
      return { union_ns: union, sum_ns: sum, concurrency: union ? sum / union : 0, tracks, names, ...this.gaps(side, start, end) };
    });
    return { start, end, sides };
  }

  details({ side: number, row }) {
    const side = this.data.sides[number];
    const i = side.place[row];
    const told = (label, list, id) => (id >= 0 ? [[label, String(list ? list[id] : id)]] : []);
    const facts = [["name", side.names[side.name[i]] ?? "unnamed"], ...told("op", side.names, side.op[i]), ["kind", side.kind_names[side.kind[i]]], ["duration", `${ns(side.dur[i])} (${whole(side.dur[i])} ns)`], ["start", `${ns(side.start[i])} after the first row`],
      ...(side.wait[i] >= 0 ? [["waited in queue", ns(side.wait[i])]] : []), ...told("stream", side.streams, side.stream[i]), ...told("queue", side.queues, side.queue[i]), ...told("layer", null, side.layer[i]), ...told("step", null, side.step[i])];
    const arrows = [];
    for (let k = 0; k < side.pairs.length; k += 2) if (side.pairs[k] === row || side.pairs[k + 1] === row) arrows.push(this.arrow(side, side.pairs[k], side.pairs[k + 1]));
    return { row, side: number, track: side.track + side.trackOf[i], sub: side.sub[i], start: side.start[i], end: side.end[i], queued: side.wait[i] >= 0 ? side.start[i] - side.wait[i] : null, facts, arrows };
  }

  arrow(side, a, b) {
    const [i, j] = [side.place[a], side.place[b]];
    return [side.track + side.trackOf[i], side.sub[i], Math.min(side.end[i], side.start[j]), side.track + side.trackOf[j], side.sub[j], side.start[j]];
  }

  arrows(start, end) {
    const out = [];
    for (const side of this.data.sides) for (let k = 0; k < side.pairs.length && out.length < MOST_ARROWS; k += 2) { const t = side.start[side.place[side.pairs[k + 1]]]; if (t >= start && t < end) out.push(this.arrow(side, side.pairs[k], side.pairs[k + 1])); }
    return out;
  }

  search({ text }) {
    const wanted = text ? new RegExp(text, "i") : null;
    const counts = this.data.sides.map((side) => {
      const hits = wanted && side.names.map((name) => wanted.test(name));
      side.found = hits && Uint8Array.from(side.name, (id, i) => (hits[id] || hits[side.op[i]] ? 1 : 0));
      return side.found ? side.found.reduce((n, v) => n + v, 0) : 0;
    });
    return { text, counts };
  }

  next({ what, back, after, side: number, layer, row }) {
    const side = this.data.sides[number];
    const track = what === "track" ? side.trackOf[side.place[row]] : -1;
    const fits = (i) => (what === "found" ? side.found?.[i] : what === "layer" ? side.layer[i] === layer && side.kind[i] < 3 : side.trackOf[i] === track);
    let best = -1;
    for (let i = 0; i < side.start.length; i += 1) if (fits(i) && (back ? side.start[i] < after && (best < 0 || side.start[i] > side.start[best]) : side.start[i] > after && (best < 0 || side.start[i] < side.start[best]))) best = i;
    return { row: best < 0 ? null : side.row[best], side: number };
  }

  path({ on }) {
    for (const side of this.data.sides) side.onPath = on && side.path ? side.path[0] : null;
    return { on, parts: on ? this.data.sides.map((side) => side.path?.[1] ?? null) : [] };
  }

  csv({ start, end }) {
    const cell = (value) => { const text = String(value ?? ""); const safe = /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text; return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe; };
    const lines = ["trace,start_ns,dur_ns,step,layer,kind,name,stream,queue,op"];
    for (const side of this.data.sides) for (let i = 0; i < side.start.length; i += 1) if (side.start[i] < end && side.end[i] >= start) lines.push([side.label, side.start[i], side.dur[i], side.step[i] < 0 ? "" : side.step[i], side.layer[i] < 0 ? "" : side.layer[i], side.kind_names[side.kind[i]], side.names[side.name[i]], side.streams[side.stream[i]], side.queues[side.queue[i]], side.names[side.op[i]]].map(cell).join(","));
    return { kind: "file", name: "window.csv", type: "text/csv", buffers: [lines.join("\r\n")] };
  }

  html() { throw new Error("this is the saved page already"); }
}

// Length of what two lists of disjoint intervals have in common.
function shared(a, b) {
  let [i, j, sum] = [0, 0, 0];
  while (i < a.length && j < b.length) {
    sum += Math.max(0, Math.min(a[i][1], b[j][1]) - Math.max(a[i][0], b[j][0]));
    if (a[i][1] < b[j][1]) i += 1; else j += 1;
  }
  return sum;
}
