// Maps of cells: a grid on a canvas that can be pointed at, walked through with the arrow keys, and drawn as a picture.

const LAYER_TINTS = { 0: "#56b4e9", 4: "#e69f00", 128: "#009e73" };
const GAP = 1;

class CellMap {
  // `hooks`: tip(text, x, y), pick(index), text(index). The map is `count` cells, `unit` of which stay together.
  constructor(label, hooks) {
    this.hooks = hooks;
    this.canvas = h("canvas", { tabindex: "0", role: "img", "aria-label": `${label}: arrow keys walk through the cells, Enter picks one` });
    Object.assign(this, { count: 0, cursor: -1, paintCell: null });
    const { canvas } = this;
    canvas.addEventListener("pointermove", (event) => {
      const at = this.at(event.offsetX, event.offsetY);
      canvas.style.cursor = at >= 0 ? "pointer" : "default";
      hooks.tip(at >= 0 ? hooks.text(at) : null, event.clientX, event.clientY);
    });
    canvas.addEventListener("pointerleave", () => hooks.tip(null));
    canvas.addEventListener("click", (event) => { const at = this.at(event.offsetX, event.offsetY); if (at >= 0) { this.cursor = at; hooks.pick(at); this.draw(); } });
    canvas.addEventListener("blur", () => { hooks.tip(null); this.draw(); });
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns };
    if (event.key in moves && this.count) {
      this.cursor = Math.min(Math.max((this.cursor < 0 ? 0 : this.cursor + moves[event.key]), 0), this.count - 1);
      const box = this.canvas.getBoundingClientRect();
      const [x, y] = this.spot(this.cursor);
      this.hooks.tip(this.hooks.text(this.cursor), box.left + x + this.w, box.top + y + this.h);
      this.draw();
      event.preventDefault();
    } else if (event.key === "Enter" && this.cursor >= 0) this.hooks.pick(this.cursor);
    else if (event.key === "Escape") { this.cursor = -1; this.hooks.tip(null); this.draw(); }
  }

  // Lays `count` cells out in the width there is: several times wider than high, at most `tall` pixels.
  set(count, unit, paintCell, { tall = 190, most = 16, columns = null } = {}) {
    Object.assign(this, { count, unit, paintCell });
    const width = Math.max(200, this.canvas.parentElement?.clientWidth ?? 600);
    let wide = columns ?? Math.max(1, Math.sqrt(count * 12));
    if (!columns) {
      const units = Math.max(1, Math.round(wide / unit));
      wide = Math.min(units * unit, Math.max(count, 1));
      if (wide / width > 1) wide = Math.floor(width / unit) * unit || Math.floor(width);
    }
    this.columns = wide;
    this.lines = Math.ceil(count / wide);
    this.w = Math.min(width / wide, columns ? width : most * 2.2);
    this.h = Math.max(2.5, Math.min(most, tall / Math.max(this.lines, 1)));
    const ratio = window.devicePixelRatio || 1;
    const high = Math.ceil(this.lines * this.h) + 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(high * ratio);
    Object.assign(this.canvas.style, { width: `${width}px`, height: `${high}px` });
    this.size = [width, high];
    this.cursor = Math.min(this.cursor, count - 1);
    this.draw();
  }

  spot(index) { return [(index % this.columns) * this.w, Math.floor(index / this.columns) * this.h]; }

  at(x, y) {
    if (!this.count) return -1;
    const column = Math.floor(x / this.w);
    const index = Math.floor(y / this.h) * this.columns + column;
    return column >= 0 && column < this.columns && index < this.count ? index : -1;
  }

  draw() {
    const ratio = window.devicePixelRatio || 1;
    const context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, ...(this.size ?? [0, 0]));
    if (this.paintCell) this.paint(new CanvasPen(context));
  }

  paint(pen) {
    const gap = this.w > 4 && this.h > 4 ? GAP : 0.25;
    for (let i = 0; i < this.count; i += 1) {
      const [x, y] = this.spot(i);
      this.paintCell(pen, i, x, y, Math.max(this.w - gap, 0.6), Math.max(this.h - gap, 1.5));
    }
    if (this.cursor >= 0 && document.activeElement === this.canvas) { const [x, y] = this.spot(this.cursor); pen.frame(x, y, this.w, this.h, this.hooks.palette().ink, 2); }
  }
}

// The colour of a cell of the pool and how strong it is.
function poolTint(view, cells, i, ratio) {
  const owner = cells.owner[i];
  const used = cells.used[i] / 255;
  if (owner === -2) return ["#8c929b", 0.55];
  if (owner === -1) return ["#8c929b", 0.14];
  if (owner === -3 && view.color !== "layer kind") return ["#8c929b", 0.3 + 0.4 * used];
  const own = view.owners[owner < 0 ? 0 : owner % view.owners.length];
  if (view.color === "age") return [view.palette.accent, cells.age[i] < 0 ? 0.2 : 1 - 0.8 * Math.min(1, Math.log1p(cells.age[i]) / Math.log1p(Math.max(view.oldest, 1)))];
  if (view.color === "layer kind") return [LAYER_TINTS[ratio], 0.2 + 0.8 * used];
  if (view.color === "last reader") return cells.read[i] ? [view.palette.mark, 0.35 + 0.65 * (cells.read[i] / 255)] : [own, 0.18];
  return [own, 0.22 + 0.78 * used];
}

function paintPoolCell(view, cells, ratio) {
  return (pen, i, x, y, w, tall) => {
    const [color, alpha] = poolTint(view, cells, i, ratio);
    pen.rect(x, y, w, tall, color, alpha);
    if (cells.holders[i] > 1 && tall > 4) pen.rect(x, y, w, 1.5, view.palette.ink, 0.8);
    if (cells.read[i] && view.color !== "last reader") pen.rect(x, y + tall - Math.max(1.5, tall * 0.3), w, Math.max(1.5, tall * 0.3), view.palette.mark);
    if (view.page !== null && ratio && covers(cells, i, view)) pen.frame(x, y, w, tall, view.palette.ink, 1.5);
  };
}

// Whether cell `i` of the pool's compressed rows holds rows of the page that is looked at.
function covers(cells, i, view) {
  const per = view.setup.shape.page_size / view.ratio;
  const [from, to] = [i * cells.rows, (i + 1) * cells.rows];
  return from < (view.page + 1) * per && to > view.page * per;
}
