// Drawing of the trace explorer. A pen is a canvas or an SVG: both take the same few calls, so an export is the picture.

class CanvasPen {
  constructor(context) { this.c = context; this.fillNow = null; }
  rect(x, y, w, hgt, color, alpha = 1) {
    if (color !== this.fillNow) { this.c.fillStyle = color; this.fillNow = color; }
    this.c.globalAlpha = alpha;
    this.c.fillRect(x, y, w, hgt);
  }
  frame(x, y, w, hgt, color, width = 1) { this.c.globalAlpha = 1; this.c.strokeStyle = color; this.c.lineWidth = width; this.c.strokeRect(x, y, w, hgt); }
  text(text, x, y, color, { size = 11, align = "left", weight = 400, most = null } = {}) {
    this.c.globalAlpha = 1;
    this.c.font = `${weight} ${size}px Inter, 'Segoe UI', Arial, 'DejaVu Sans', sans-serif`;
    this.c.textAlign = align;
    this.c.textBaseline = "middle";
    this.c.fillStyle = color;
    this.fillNow = color;
    this.c.fillText(cut(text, most, size), x, y);
  }
  line(points, color, width = 1, alpha = 1) {
    this.c.globalAlpha = alpha;
    this.c.strokeStyle = color;
    this.c.lineWidth = width;
    this.c.beginPath();
    points.forEach(([x, y], i) => (i ? this.c.lineTo(x, y) : this.c.moveTo(x, y)));
    this.c.stroke();
  }
  area(points, color, alpha) {
    this.c.globalAlpha = alpha;
    this.c.fillStyle = color;
    this.fillNow = color;
    this.c.beginPath();
    points.forEach(([x, y], i) => (i ? this.c.lineTo(x, y) : this.c.moveTo(x, y)));
    this.c.fill();
  }
  clip(x, y, w, hgt) { this.c.save(); this.c.beginPath(); this.c.rect(x, y, w, hgt); this.c.clip(); this.fillNow = null; }
  unclip() { this.c.restore(); this.fillNow = null; }
}

const escaped = (text) => text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`).replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, "?");

class SvgPen {
  constructor(width, height) { this.size = [width, height]; this.out = []; this.clips = 0; }
  put(text) { this.out.push(text); }
  rect(x, y, w, hgt, color, alpha = 1) { this.put(`<rect x="${num(x)}" y="${num(y)}" width="${num(w)}" height="${num(hgt)}" fill="${escaped(color)}"${alpha < 1 ? ` fill-opacity="${num(alpha)}"` : ""}/>`); }
  frame(x, y, w, hgt, color, width = 1) { this.put(`<rect x="${num(x)}" y="${num(y)}" width="${num(w)}" height="${num(hgt)}" fill="none" stroke="${escaped(color)}" stroke-width="${width}"/>`); }
  text(text, x, y, color, { size = 11, align = "left", weight = 400, most = null } = {}) {
    const anchor = { left: "start", center: "middle", right: "end" }[align];
    this.put(`<text x="${num(x)}" y="${num(y)}" fill="${escaped(color)}" font-size="${size}" font-weight="${weight}" text-anchor="${anchor}" dominant-baseline="central">${escaped(cut(text, most, size))}</text>`);
  }
  line(points, color, width = 1, alpha = 1) { this.put(`<polyline points="${points.map((p) => p.map(num).join(",")).join(" ")}" fill="none" stroke="${escaped(color)}" stroke-width="${width}" stroke-opacity="${alpha}"/>`); }
  area(points, color, alpha) { this.put(`<polygon points="${points.map((p) => p.map(num).join(",")).join(" ")}" fill="${escaped(color)}" fill-opacity="${alpha}"/>`); }
  clip(x, y, w, hgt) { const id = `c${++this.clips}`; this.put(`<clipPath id="${id}"><rect x="${num(x)}" y="${num(y)}" width="${num(w)}" height="${num(hgt)}"/></clipPath><g clip-path="url(#${id})">`); }
  unclip() { this.put("</g>"); }
  blob() {
    const [w, hgt] = this.size;
    const head = `<svg xmlns="http://www.w3.org/2000/svg" width="${w}" height="${hgt}" viewBox="0 0 ${w} ${hgt}" font-family="Inter, 'Segoe UI', Arial, 'DejaVu Sans', sans-serif">`;
    return new Blob([head, ...this.out, "</svg>"], { type: "image/svg+xml" });
  }
}

const num = (value) => String(Math.round(value * 100) / 100);

function cut(text, most, size) {
  if (most === null) return text;
  const room = Math.floor(most / (size * 0.56));
  return text.length <= room ? text : room > 2 ? `${text.slice(0, room - 1)}…` : "";
}

// Round steps for a ruler: 1, 2 or 5 times a power of ten, at least `least` long.
function roundStep(least) {
  const ten = 10 ** Math.floor(Math.log10(Math.max(least, 1e-9)));
  return [1, 2, 5, 10].map((f) => f * ten).find((step) => step >= least);
}

const inks = new Map();
// Black or white, whichever reads better on `color` (#rrggbb).
function inkOn(color) {
  if (!inks.has(color)) {
    const [r, g, b] = [1, 3, 5].map((i) => parseInt(color.slice(i, i + 2), 16));
    inks.set(color, 0.299 * r + 0.587 * g + 0.114 * b > 150 ? "#10151b" : "#ffffff");
  }
  return inks.get(color);
}

// Edges on whole pixels of the screen: columns tile without seams, and a rectangle without soft edges is drawn far faster.
const snap = (value) => { const ratio = window.devicePixelRatio || 1; return Math.round(value * ratio) / ratio; };

// Columns of tracks with too many slices: bars as high as the column is busy, in the colour of what took most of it.
function drawCells(pen, shape, data, lanes, tones, dim) {
  const { cells, columns } = data;
  cells.tracks.forEach((track, at) => {
    const lane = lanes.get(track);
    if (!lane) return;
    const size = (data.end - data.start) / columns;
    const [from, to] = [Math.max(0, Math.floor((shape.start - data.start) / size)), Math.min(columns, Math.ceil((shape.end - data.start) / size))];
    const base = at * columns;
    for (let i = from; i < to;) {
      const share = cells.share[base + i];
      let j = i + 1;
      if (!share && !cells.count[base + i]) { i = j; continue; }
      while (j < to && cells.share[base + j] === share && cells.tone[base + j] === cells.tone[base + i] && cells.marked[base + j] === cells.marked[base + i] && cells.path[base + j] === cells.path[base + i]) j += 1;
      const [x0, x1] = [snap(shape.x(data.start + i * size)), snap(shape.x(data.start + j * size))];
      const tall = Math.max(1, snap((share / 255) * lane.h));
      pen.rect(x0, snap(lane.y + lane.h) - tall, Math.max(x1 - x0, 1), tall, tones[cells.tone[base + i]].color, dim && !cells.marked[base + i] ? 0.22 : 1);
      if (cells.path[base + i]) pen.rect(x0, snap(lane.y + lane.h), Math.max(x1 - x0, 1), 2, shape.palette.mark);
      i = j;
    }
  });
}

function drawSlices(pen, shape, data, lanes, tones, dim, names) {
  const s = data.slices;
  for (let i = 0; i < s.row.length; i += 1) {
    if (s.start[i] >= shape.end || s.end[i] <= shape.start) { if (s.start[i] !== s.end[i] || s.start[i] < shape.start || s.start[i] > shape.end) continue; }
    const lane = lanes.get(s.track[i]);
    if (!lane) continue;
    const tall = lane.h / lane.depth;
    const y = lane.y + Math.min(s.sub[i], lane.depth - 1) * tall;
    const [x0, x1] = [Math.max(shape.x(s.start[i]), shape.left - 2), Math.min(shape.x(s.end[i]), shape.right + 2)];
    const left = snap(x0);
    const w = Math.max(snap(x1) - left - (x1 - x0 > 4 ? 1 : 0), 1);
    const { color } = tones[s.tone[i]];
    const alpha = dim && !(s.flags[i] & 1) ? 0.22 : s.tone[i] === shape.waiting ? 0.35 : 1;
    const top = snap(y);
    pen.rect(left, top, w, Math.max(1, snap(y + tall) - top - (lane.depth > 1 ? 1 : 0)), color, alpha);
    if (s.flags[i] & 2) pen.rect(left, snap(lane.y + lane.h), w, 2, shape.palette.mark);
    if (w > 34 && tall > 8) {
      const name = names[lane.side]?.get(s.name[i]);
      if (name) pen.text(name, x0 + 4, y + tall / 2 + 0.5, alpha < 0.5 ? shape.palette.ink : inkOn(color), { size: Math.min(11, tall - 1), most: w - 8 });
    }
  }
}

function drawArrows(pen, shape, arrows, lanes, color) {
  for (const [a, subA, t0, b, subB, t1] of arrows) {
    const [from, to] = [lanes.get(a), lanes.get(b)];
    if (!from || !to) continue;
    const spot = (lane, sub) => lane.y + ((Math.min(sub, lane.depth - 1) + 0.5) * lane.h) / lane.depth;
    const [x0, y0, x1, y1] = [shape.x(t0), spot(from, subA), shape.x(t1), spot(to, subB)];
    if (Math.max(x0, x1) < shape.left || Math.min(x0, x1) > shape.right) continue;
    const bend = Math.max(6, Math.min(24, Math.abs(x1 - x0) / 2));
    pen.line([[x0, y0], [x0 + bend / 2, y0], [x1 - bend / 2, y1], [x1, y1]], color, 1.2, 0.85);
    pen.area([[x1, y1], [x1 - 6, y1 - 3.2], [x1 - 6, y1 + 3.2]], color, 0.95);
  }
}

// Absolute times while they fit; closer in, the first mark is absolute and the others count from it.
function drawRuler(pen, shape, y, tall) {
  const step = roundStep((shape.end - shape.start) / Math.max(2, (shape.right - shape.left) / 96));
  const first = Math.ceil(shape.start / step) * step;
  const unit = UNITS.find(([u]) => Math.max(Math.abs(shape.start), Math.abs(shape.end)) >= u) ?? UNITS[3];
  const digits = Math.max(0, -Math.floor(Math.log10(step / unit[0]) + 1e-9));
  const near = digits > 4;
  for (let t = first; t <= shape.end; t += step) {
    const x = shape.x(t);
    pen.rect(x, y + tall - 5, 1, 5, shape.palette.muted);
    const text = near && t > first ? `+${ns(t - first)}` : `${(t / unit[0]).toFixed(unit[0] === 1 ? 0 : digits)} ${unit[1]}`;
    if (x < shape.right - 40) pen.text(text, x + 4, y + tall / 2, shape.palette.muted, { size: 10.5 });
  }
}
