// Front end of dsv4lab.widgets.explore_pool. Asks the kernel (or, in a saved page, pool_local.js) for what it shows.

export default {
  render({ model, el }) {
    const root = el.appendChild(h("div", { class: "dsv4 dsv4-pool" }));
    const tip = tips(root);
    const panels = new PoolPanels(model, root, tip);
    ownKeys(root, () => {});
    const take = (message, buffers) => {
      if (message.kind === "setup") panels.begin(message);
      if (message.kind === "file") save(message.name, new Blob([buffers[0]], { type: message.type }));
      if (message.kind === "failed") {
        fill(panels.note, message.text);
        if (message.question === "poll") { panels.follow(false); panels.controls(); } // no engine to follow any more
      }
    };
    model.on("msg:custom", take);
    const endTheme = followTheme(root, model, (palette) => { panels.view.palette = palette; panels.drawPool(); });
    let width = 0;
    const size = new ResizeObserver(() => { if (Math.abs(root.clientWidth - width) > 1) { width = root.clientWidth; panels.drawPool(); } });
    size.observe(root);
    model.send({ kind: "hello" });
    return () => { model.off("msg:custom", take); panels.end(); endTheme(); size.disconnect(); tip.end(); };
  },
};
