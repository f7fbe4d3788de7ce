// What stands above the tracks: the whole trace with the window in it, ruler, steps, concurrency, gaps.

const SIDE_B = "#d55e00";

function paintMini(pen, view) {
  const { overview, whole, palette } = view;
  const scale = view.plot() / (whole.end - whole.start);
  overview.busy.forEach((busy, side) => {
    const tall = (MINI - 6) / overview.busy.length;
    const size = view.plot() / overview.columns;
    const base = snap(2 + (side + 1) * tall);
    for (let i = 0; i < overview.columns;) {
      const h = Math.ceil(busy[i] * (tall - 1));
      let j = i + 1;
      while (j < overview.columns && Math.ceil(busy[j] * (tall - 1)) === h) j += 1;
      const [x0, x1] = [snap(GUTTER + i * size), snap(GUTTER + j * size)];
      if (h > 0 && x1 > x0) pen.rect(x0, base - h, x1 - x0, h, side ? SIDE_B : palette.accent, 0.55);
      i = j;
    }
  });
  const [x0, x1] = [view.window.start, view.window.end].map((t) => GUTTER + Math.min(Math.max((t - whole.start) * scale, 0), view.plot()));
  pen.rect(GUTTER, 1, x0 - GUTTER, MINI - 4, palette.paper, 0.55);
  pen.rect(x1, 1, GUTTER + view.plot() - x1, MINI - 4, palette.paper, 0.55);
  pen.frame(x0 + 0.5, 1, Math.max(x1 - x0, 3) - 1, MINI - 4, palette.ink, 1);
  pen.text("whole trace", 6, MINI / 2, palette.muted, { size: 10.5 });
}

function paintHead(pen, view, shape) {
  const { palette } = view;
  let y = MINI;
  pen.text(ns(shape.end - shape.start), 6, y + RULER / 2, palette.ink, { size: 11, weight: 650 });
  pen.clip(GUTTER, y, view.plot(), HEAD);
  drawRuler(pen, shape, y, RULER);
  pen.unclip();
  y += RULER;
  pen.text("steps", 6, y + STEPS / 2, palette.muted, { size: 10.5 });
  pen.clip(GUTTER, y, view.plot(), HEAD);
  view.steps.forEach((marks, side) => {
    const tall = (STEPS - 2) / view.steps.length;
    marks.forEach(([label, mode, , start, last], i) => {
      const end = Math.min(last, marks[i + 1]?.[3] ?? last); // the rows of a step may run into the next
      if (end < shape.start || start > shape.end) return;
      const [x0, x1] = [Math.max(shape.x(start), shape.left), Math.min(shape.x(end), shape.right)];
      pen.rect(x0, y + 1 + side * tall, Math.max(x1 - x0 - 0.5, 1), tall - 1, side ? SIDE_B : palette.accent, i % 2 ? 0.3 : 0.16);
      if (x1 - x0 > 40 && tall > 8) pen.text(mode === "unknown" ? label : `${label} · ${mode}`, x0 + 4, y + STEPS / 2, palette.ink, { size: 10, most: x1 - x0 - 8 });
    });
  });
  pen.unclip();
  y += STEPS;
  paintRunning(pen, view, shape, y);
  y += RUNNING;
  paintGaps(pen, view, shape, y + 2);
}

function paintRunning(pen, view, shape, y) {
  const data = view.covers(view.data) ? view.data : view.overview;
  const size = (data.end - data.start) / data.columns;
  const from = Math.max(0, Math.floor((shape.start - data.start) / size));
  const to = Math.min(data.columns, Math.ceil((shape.end - data.start) / size));
  let most = 1;
  for (const running of data.running) for (let i = from; i < to; i += 1) most = Math.max(most, running[i]);
  most = Math.ceil(most - 1e-3);
  const tall = RUNNING - 8;
  const base = y + RUNNING - 2;
  pen.text("busy tracks", 6, y + RUNNING / 2, view.palette.muted, { size: 10.5 });
  pen.text(String(most), GUTTER - 6, y + 8, view.palette.muted, { size: 10, align: "right" });
  pen.text("0", GUTTER - 6, base - 4, view.palette.muted, { size: 10, align: "right" });
  pen.clip(GUTTER, y, view.plot(), RUNNING);
  for (let level = 0; level <= most; level += Math.max(1, Math.ceil(most / 4))) pen.rect(GUTTER, base - (level / most) * tall, view.plot(), 0.7, view.palette.line);
  data.running.forEach((running, side) => {
    const color = side ? SIDE_B : view.palette.accent;
    let before = null;
    for (let i = from; i < to; i += 1) {
      const [x0, x1] = [snap(shape.x(data.start + i * size)), snap(shape.x(data.start + (i + 1) * size))];
      const top = snap(base - (running[i] / most) * tall);
      if (x1 <= x0) continue;
      if (side === 0 && base > top) pen.rect(x0, top, x1 - x0, base - top, color, 0.28);
      const up = before === null ? top : Math.min(before, top);
      pen.rect(x0, up, before === null || before === top ? x1 - x0 : 1, Math.max(1, (before === null ? top : Math.max(before, top)) - up + 1), color);
      if (before !== null && before !== top) pen.rect(x0, top, x1 - x0, 1, color);
      before = top;
    }
  });
  pen.unclip();
}

// Idle time: its causes above each other in every column; grey while they are not there yet.
function paintGaps(pen, view, shape, y) {
  pen.text("idle, by cause", 6, y + GAPS / 2, view.palette.muted, { size: 10.5 });
  pen.clip(GUTTER, y, view.plot(), GAPS);
  const { causes, sides } = view.setup;
  const tall = GAPS / sides.length - 1;
  const data = view.covers(view.data) ? view.data : view.overview;
  const size = (data.end - data.start) / data.columns;
  const from = Math.max(0, Math.floor((shape.start - data.start) / size));
  const to = Math.min(data.columns, Math.ceil((shape.end - data.start) / size));
  sides.forEach((_, side) => {
    const base = y + (side + 1) * (tall + 1) - 1;
    for (let i = from; i < to; i += 1) {
      const x = snap(shape.x(data.start + i * size));
      const w = Math.max(snap(shape.x(data.start + (i + 1) * size)) - x, 1);
      if (!data.idle) { pen.rect(x, base - tall * (1 - data.busy[side][i]), w, tall * (1 - data.busy[side][i]), view.palette.muted, 0.5); continue; }
      let top = base;
      for (let cause = 0; cause < causes.length; cause += 1) {
        const share = data.idle[side][cause * data.columns + i];
        if (!share) continue;
        const h = Math.max(1, (share / 255) * tall);
        pen.rect(x, Math.max(top - h, base - tall), w, h, causes[cause].color);
        top -= h;
      }
    }
  });
  pen.unclip();
}
