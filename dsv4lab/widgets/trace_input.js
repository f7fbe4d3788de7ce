// Pointer and keys of the trace explorer's picture.

const KEYS = [
  ["W S", "zoom in and out (also + and -; the wheel once the picture has the focus, Ctrl+wheel always)"],
  ["A D ← →", "move in time; with Shift by a whole window"], ["↑ ↓", "scroll the tracks"], ["F", "fit the selected slice"],
  ["0 or Home", "show everything"], ["[ ]", "step before, step after"], [", .", "slice before, slice after in its track"],
  ["/", "search names by regular expression; N and Shift+N go through what was found"], ["M", "measure the window; Shift+drag measures a range"],
  ["Esc", "clear selection, measure and search"], ["?", "this list"],
];

function listen(view) {
  const { canvas } = view;
  const place = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  canvas.addEventListener("wheel", (event) => {
    const focused = document.activeElement === canvas || canvas.getRootNode().activeElement === canvas;
    if (!view.setup || !(event.ctrlKey || event.metaKey || event.shiftKey || focused || Math.abs(event.deltaX) > Math.abs(event.deltaY))) return;
    event.preventDefault();
    const [x] = place(event);
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) view.pan(((event.deltaX || event.deltaY) / view.plot()) * 1.2);
    else view.zoom(1.0018 ** Math.max(-400, Math.min(400, event.deltaY * (event.deltaMode ? 30 : 1))), view.time(Math.max(x, GUTTER)));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => { canvas.focus({ preventScroll: true }); canvas.setPointerCapture(event.pointerId); press(view, event, place(event)); });
  canvas.addEventListener("pointermove", (event) => move(view, event, place(event)));
  canvas.addEventListener("pointerup", (event) => release(view, place(event)));
  canvas.addEventListener("pointercancel", () => { view.drag = view.dragged = null; view.draw(); });
  canvas.addEventListener("pointerleave", () => { view.hover = null; view.hooks.tip(null); view.draw(); });
  canvas.addEventListener("dblclick", (event) => {
    const hit = view.at(...place(event));
    if (hit?.part === "slice") fit(view, hit.start, hit.end);
    else if (hit) view.zoom(0.25, view.time(place(event)[0]));
  });
}

function fit(view, start, end) {
  const margin = Math.max((end - start) * 0.15, CLOSEST_NS / 2);
  view.show(start - margin, end + margin);
}

function press(view, event, [x, y]) {
  if (!view.setup) return;
  const hit = view.at(x, y);
  const range = event.shiftKey || ["ruler", "steps", "running", "gaps"].includes(hit?.part);
  view.drag = { x, y, window: { ...view.window }, scroll: view.scroll, how: hit?.part === "mini" ? "mini" : range ? "range" : "pan", keep: event.shiftKey, moved: false };
  if (view.drag.how === "mini") miniTo(view, x);
}

function miniTo(view, x) {
  const { whole } = view;
  const middle = whole.start + ((x - GUTTER) / view.plot()) * (whole.end - whole.start);
  const half = (view.window.end - view.window.start) / 2;
  view.show(middle - half, middle + half);
}

function move(view, event, [x, y]) {
  const { drag } = view;
  if (!drag) { hoverAt(view, event, x, y); return; }
  if (Math.abs(x - drag.x) + Math.abs(y - drag.y) > 3) drag.moved = true;
  if (!drag.moved) return;
  view.hooks.tip(null);
  if (drag.how === "mini") { miniTo(view, x); return; }
  if (drag.how === "range") { view.dragged = { start: view.time(drag.x), end: view.time(x) }; view.draw(); return; }
  const shift = ((drag.x - x) / view.plot()) * (drag.window.end - drag.window.start);
  view.scrollBy(drag.scroll + drag.y - y - view.scroll);
  view.show(drag.window.start + shift, drag.window.end + shift);
}

function release(view, [x, y]) {
  const { drag, dragged } = view;
  view.drag = view.dragged = null;
  if (!drag || drag.how === "mini") return;
  if (dragged && drag.moved) {
    const range = { start: Math.min(dragged.start, dragged.end), end: Math.max(dragged.start, dragged.end) };
    if (drag.keep) { view.measure = range; view.settle(); view.draw(); } else view.show(range.start, range.end);
    return;
  }
  if (drag.moved) return;
  const hit = view.at(x, y);
  if (hit?.part === "slice") view.select(hit.side, hit.row);
  else if (hit?.part === "cell") view.hooks.note("too many slices here to pick one: zoom in");
  else { view.selected = null; view.hooks.selected(null); view.draw(); }
}

function hoverAt(view, event, x, y) {
  view.hover = x > GUTTER ? x : null;
  const hit = view.at(x, y);
  view.hooks.tip(hit ? hint(view, hit, x) : null, event.clientX, event.clientY);
  view.canvas.style.cursor = hit?.part === "slice" ? "pointer" : ["ruler", "steps", "running", "gaps"].includes(hit?.part) ? "col-resize" : "default";
  view.draw();
}

function hint(view, hit, x) {
  const tone = (i) => view.setup.tones[i].label;
  if (hit.part === "slice") return `${hit.name}\n${ns(hit.end - hit.start)} at ${ns(hit.start)}${tone(hit.tone) ? `\n${tone(hit.tone)}` : ""}\nclick for details`;
  if (hit.part === "cell") return hit.count || hit.share ? `${percent(hit.share)} busy in a column of ${ns(hit.size)}\n${whole(hit.count)} slices begin here${tone(hit.tone) ? `, most time: ${tone(hit.tone)}` : ""}` : null;
  if (hit.part === "label") {
    const track = view.setup.tracks[hit.track];
    return `${track.label}\n${whole(track.rows)} rows${track.kind === "device" ? `, busy ${ns(track.busy_ns)} in all (length of the union of its slices)` : ""}`;
  }
  const now = `${ns(view.time(x))}`;
  if (hit.part === "steps") {
    for (const marks of view.steps) for (const [label, mode, rank, start, end] of marks) if (view.time(x) >= start && view.time(x) < end) return `${label}\nrank ${rank}, ${mode}\n${ns(end - start)} on the device, first row to last`;
    return now;
  }
  if (hit.part === "gaps") {
    for (const gaps of view.gaps) for (const [start, dur, cause, after, before] of gaps) if (view.time(x) >= start && view.time(x) < start + dur) return `idle ${ns(dur)}: ${cause}\nafter ${after}\nbefore ${before}`;
    return `${now}\nshare of each column in which no track is busy, by cause`;
  }
  if (hit.part === "running") return `${now}\nmean number of device tracks that are busy in a column: concurrency over time`;
  return hit.part === "ruler" ? `${now}\ndrag to zoom to a range` : null;
}

// Returns whether the key meant something here.
function pressKey(view, event, panel) {
  if (event.ctrlKey || event.metaKey || event.altKey || !view.setup) return false;
  const acts = {
    w: () => view.zoom(0.7, view.hover === null ? undefined : view.time(view.hover)), s: () => view.zoom(1 / 0.7, view.hover === null ? undefined : view.time(view.hover)),
    "+": () => view.zoom(0.7), "=": () => view.zoom(0.7), "-": () => view.zoom(1 / 0.7),
    a: () => view.pan(-0.15), d: () => view.pan(0.15), ArrowLeft: () => view.pan(event.shiftKey ? -1 : -0.15), ArrowRight: () => view.pan(event.shiftKey ? 1 : 0.15),
    ArrowUp: () => view.scrollBy(-40), ArrowDown: () => view.scrollBy(40),
    f: () => { if (view.selected) fit(view, view.selected.start, view.selected.end); }, 0: () => view.show(view.whole.start, view.whole.end), Home: () => view.show(view.whole.start, view.whole.end),
    "[": () => panel.step(-1), "]": () => panel.step(1), ",": () => view.step(-1), ".": () => view.step(1),
    "/": () => panel.focusSearch(), n: () => view.find(event.shiftKey ? -1 : 1),
    m: () => { view.measure = view.measure ? null : { ...view.window }; view.settle(); view.draw(); },
    "?": () => panel.help(), Escape: () => panel.clear(),
  };
  const act = acts[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!act) return false;
  act();
  event.preventDefault();
  return true;
}
