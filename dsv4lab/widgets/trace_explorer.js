// Front end of dsv4lab.widgets.explore_trace. Asks the kernel (or, in a saved page, trace_local.js) for what it shows.

export default {
  render({ model, el }) {
    const canvas = h("canvas", { tabindex: "0", role: "img", "aria-label": "timeline: arrow keys move, W and S zoom, ? lists the keys" });
    const root = h("div", { class: "dsv4 dsv4-trace" });
    const holder = h("div", { class: "holder" }, canvas);
    el.append(root);
    const tip = tips(root);
    let panels = null;
    const view = new TraceView(model, canvas, {
      table: (answer, measured) => { panels.showTable(answer, measured); root.dataset.table = `${Math.round(answer.start)}:${Math.round(answer.end)}`; },
      selected: (answer) => { panels.showFacts(answer); root.dataset.row = answer ? String(answer.row) : ""; },
      drawn: (count, data) => { root.dataset.drawn = String(count); root.dataset.shows = `${Math.round(data.start)}:${Math.round(data.end)}`; },
      pictured: () => { root.dataset.pictured = "true"; },
      moved: (window) => { root.dataset.window = `${Math.round(window.start)}:${Math.round(window.end)}`; },
      note: (text) => fill(panels.note, text),
      tip: (text, x, y) => (text ? tip.show(text, x, y) : tip.hide()),
    });
    panels = new TracePanels(view, root);
    root.append(h("div", { class: "bar" }, panels.title), panels.bar, panels.note, holder, panels.legend, panels.below);
    ownKeys(root, (event) => { if (event.target === canvas) pressKey(view, event, panels); });
    const take = (message, buffers) => {
      if (message.kind === "setup") { view.begin(message); panels.begin(message); root.dataset.tracks = message.by; }
      if (message.kind === "file") save(message.name, new Blob([buffers[0]], { type: message.type }));
      if (message.kind === "failed") fill(panels.note, message.text);
    };
    model.on("msg:custom", take);
    const endTheme = followTheme(root, model, (palette) => { view.palette = palette; view.draw(); });
    const size = new ResizeObserver(() => { if (view.setup && Math.abs(holder.clientWidth - view.width) > 1) { view.resize(); view.request(); } });
    size.observe(holder);
    model.send({ kind: "hello" });
    return () => { model.off("msg:custom", take); view.end(); endTheme(); size.disconnect(); tip.end(); };
  },
};
