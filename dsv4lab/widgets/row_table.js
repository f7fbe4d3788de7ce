// The front end of dsv4lab.widgets.row_table. Traits: columns [heading, help], rows of [text, number], marks, chosen.

function render({ model, el }) {
  const root = el.appendChild(h("div", { class: "dsv4 rt" }));
  const head = h("tr", null);
  const body = h("tbody", null);
  const table = h("table", { role: "grid", tabindex: 0, "aria-label": "measured settings; up and down choose one, headings sort" }, h("thead", null, head), body);
  root.append(h("div", { class: "rt-scroll" }, table));
  let sort = null;
  let shown = [];
  const value = ([text, number]) => (number === null || number === undefined ? text : number);
  const order = () => {
    const places = model.get("rows").map((_, i) => i);
    if (!sort) return places;
    const rows = model.get("rows");
    return places.sort((i, j) => {
      const [a, b] = [value(rows[i][sort.column]), value(rows[j][sort.column])];
      const less = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
      return sort.down ? -less : less;
    });
  };
  const choose = (row) => { model.set("chosen", row); model.save_changes(); if (model.send) model.send({ kind: "choose", row }); draw(); };
  const draw = () => {
    const rows = model.get("rows");
    const marks = model.get("marks");
    const chosen = model.get("chosen");
    shown = order();
    fill(head, model.get("columns").map(([name, help], column) => {
      const on = sort?.column === column;
      const act = () => { sort = on && sort.down ? null : { column, down: on }; draw(); };
      const extra = { class: "rt-sort", "data-column": name };
      return h("th", { "aria-sort": on ? (sort.down ? "descending" : "ascending") : "none" }, button(`${name}${on ? (sort.down ? " \u25be" : " \u25b4") : ""}`, help, act, extra));
    }));
    fill(body, shown.map((i) => h("tr", { class: `${marks[i] ?? ""}${i === chosen ? " rt-chosen" : ""}`, "aria-selected": String(i === chosen), "data-row": i, on: { click: () => choose(i) } },
      rows[i].map(([text]) => h("td", null, text)))));
  };
  ownKeys(table, (event) => {
    if (event.target !== table) return;
    const at = shown.indexOf(model.get("chosen"));
    const next = { ArrowDown: at + 1, ArrowUp: at < 0 ? shown.length - 1 : at - 1, Home: 0, End: shown.length - 1 }[event.key];
    if (next === undefined || shown[next] === undefined) return;
    event.preventDefault();
    choose(shown[next]);
    body.children[next].scrollIntoView({ block: "nearest" });
  });
  const endTheme = followTheme(root, model, () => {});
  const tip = tips(root);
  const names = ["columns", "rows", "marks", "chosen"];
  for (const name of names) model.on(`change:${name}`, draw);
  draw();
  return () => { for (const name of names) model.off(`change:${name}`, draw); endTheme(); tip.end(); };
}

export default { render };
