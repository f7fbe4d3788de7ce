// What lies under the pointer, what is selected, and how one gets from one slice to the next.

class TraceSelection {
  // What lies under a point: a slice, a column of cells, a label, or a part of the head.
  at(x, y) {
    if (!this.setup || !this.overview) return null;
    if (y < HEAD) return { part: y < MINI ? "mini" : y < MINI + RULER ? "ruler" : y < MINI + RULER + STEPS ? "steps" : y < MINI + RULER + STEPS + RUNNING ? "running" : "gaps" };
    for (const [track, lane] of this.lanes()) {
      if (y < lane.y - 1 || y > lane.y + lane.h + 2) continue;
      if (x < GUTTER) return { part: "label", track };
      return this.slice(track, lane, x, y) ?? this.cell(track, x) ?? { part: "track", track };
    }
    return null;
  }

  slice(track, lane, x, y) {
    const s = (this.data ?? this.overview).slices;
    const t = this.time(x);
    const slack = ((this.window.end - this.window.start) / this.plot()) * 2;
    const sub = Math.min(Math.floor(((y - lane.y) / lane.h) * lane.depth), lane.depth - 1);
    let best = null;
    let nearest = slack;
    for (let i = 0; i < s.row.length; i += 1) {
      if (s.track[i] !== track || Math.min(s.sub[i], lane.depth - 1) !== sub) continue;
      const away = t < s.start[i] ? s.start[i] - t : t > s.end[i] ? t - s.end[i] : 0;
      if (away < nearest || (away === 0 && nearest === 0)) { nearest = away; best = i; }
    }
    if (best === null) return null;
    const name = this.names[lane.side].get(s.name[best]) ?? "unnamed";
    return { part: "slice", track, side: lane.side, row: s.row[best], start: s.start[best], end: s.end[best], name, tone: s.tone[best] };
  }

  cell(track, x) {
    const data = this.covers(this.data) ? this.data : this.overview;
    const at = data.cells.tracks.indexOf(track);
    if (at < 0) return null;
    const column = Math.floor(((this.time(x) - data.start) / (data.end - data.start)) * data.columns);
    if (column < 0 || column >= data.columns) return null;
    const i = at * data.columns + column;
    return { part: "cell", track, share: data.cells.share[i] / 255, count: data.cells.count[i], tone: data.cells.tone[i], size: (data.end - data.start) / data.columns };
  }

  select(side, row) {
    this.ask("details", { side, row }, (answer) => { this.selected = answer; this.hooks.selected(answer); this.draw(); });
  }

  ask(kind, question, done) {
    const once = asker(this.model, kind);
    once.ask(question, (answer) => { once.end(); done(answer); });
  }

  step(direction) {
    const side = this.selected?.side ?? 0;
    if (this.selected) this.ask("next", { what: "track", row: this.selected.row, side, after: this.selected.start, back: direction < 0 }, (answer) => this.go(answer));
  }

  find(direction, what = "found", extra = {}) {
    const middle = (this.window.start + this.window.end) / 2;
    const after = Math.round(this.selected && this.selected.start > this.window.start && this.selected.start < this.window.end ? this.selected.start : direction > 0 ? this.window.start : middle);
    this.ask("next", { what, after, back: direction < 0, side: this.selected?.side ?? 0, ...extra }, (answer) => this.go(answer));
  }

  // Shows a row: selects it and brings it into the window, close enough to be seen.
  go({ row, side }) {
    if (row === null) { this.hooks.note("nothing further in that direction"); return; }
    this.ask("details", { side, row }, (answer) => {
      this.selected = answer;
      this.hooks.selected(answer);
      const length = Math.min(this.window.end - this.window.start, Math.max((answer.end - answer.start) * 40, 2000));
      if (answer.start < this.window.start || answer.end > this.window.end || (answer.end - answer.start) / (this.window.end - this.window.start) < 2 / this.plot()) {
        const middle = (answer.start + answer.end) / 2;
        this.show(middle - length / 2, middle + length / 2);
      }
      const spot = this.rows().find((r) => r.track === answer.track);
      if (spot && (spot.y < this.scroll || spot.y + spot.h > this.scroll + this.room())) this.scrollBy(spot.y - this.scroll - 20);
      this.draw();
    });
  }
}
