// What the front ends of dsv4lab share. Text that comes from records reaches the page through textContent, setAttribute
// on a fixed set of names, or a canvas: never as markup.

const ARRAYS = { float64: Float64Array, float32: Float32Array, int32: Int32Array, uint32: Uint32Array, uint16: Uint16Array, int16: Int16Array, uint8: Uint8Array };

// Puts the buffers of a message back in place of their {$buffer, dtype} notes (dsv4lab.widgets.wire); arrays stay flat.
function arrays(value, buffers) {
  if (Array.isArray(value)) return value.map((item) => arrays(item, buffers));
  if (value === null || typeof value !== "object" || ArrayBuffer.isView(value)) return value;
  if ("$buffer" in value) {
    const view = buffers[value.$buffer];
    return new ARRAYS[value.dtype](view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
  }
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, arrays(item, buffers)]));
}

const PLAIN = new Set(["class", "type", "title", "role", "tabindex", "for", "id", "min", "max", "step", "value", "placeholder", "colspan", "size", "name"]);

// An element with properties and children. `on` holds listeners, `style` CSS properties, `help` a text shown on hover and
// focus; children are elements or plain text.
function h(tag, props, ...children) {
  const el = document.createElement(tag);
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "on") for (const [name, call] of Object.entries(value)) el.addEventListener(name, call);
    else if (key === "style") for (const [name, css] of Object.entries(value)) el.style.setProperty(name, css);
    else if (key === "help") { el.dataset.help = value; if (!el.hasAttribute("tabindex") && !/^(button|select|input|canvas)$/i.test(tag)) el.tabIndex = 0; }
    else if (key === "disabled" || key === "checked" || key === "hidden") el[key] = Boolean(value);
    else if (PLAIN.has(key) || key.startsWith("aria-") || key.startsWith("data-")) el.setAttribute(key, String(value));
    else throw new Error(`h: unknown property ${key}`);
  }
  fill(el, ...children);
  return el;
}

function fill(el, ...children) {
  el.replaceChildren(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false).map((c) => (c instanceof Node ? c : String(c))));
  return el;
}

function button(text, help, act, extra) {
  return h("button", { type: "button", help, "aria-label": `${text}: ${help}`, on: { click: act }, ...extra }, text);
}

function toggle(text, help, get, set, extra) {
  const el = button(text, help, () => { set(!get()); el.setAttribute("aria-pressed", String(get())); }, { "aria-pressed": String(get()), ...extra });
  el.sync = () => el.setAttribute("aria-pressed", String(get()));
  return el;
}

function choice(label, help, options, value, act, extra) {
  const select = h("select", { "aria-label": label, help, on: { change: () => act(select.value) }, ...extra });
  const offer = (items, chosen) => {
    fill(select, items.map(([key, text]) => h("option", { value: key }, text)));
    select.value = chosen;
  };
  offer(options, value);
  return { el: h("span", { class: "group" }, h("label", null, label), select), select, offer };
}

function isDark(theme) {
  if (theme !== "auto") return theme === "dark";
  const body = document.body.dataset;
  if (body.jpThemeLight) return body.jpThemeLight === "false";
  if (body.vscodeThemeKind) return body.vscodeThemeKind.includes("dark");
  return window.matchMedia("(prefers-color-scheme: dark)").matches;
}

// Keeps `el` in the colours of the page's theme and calls `changed(palette)` now and whenever it changes.
function followTheme(el, model, changed) {
  const dress = () => {
    const dark = isDark(model.get("theme"));
    const palette = model.get("palettes")[dark ? "dark" : "light"];
    for (const [name, color] of Object.entries(palette)) el.style.setProperty(`--dsv4-${name}`, color);
    el.style.colorScheme = dark ? "dark" : "light";
    changed(palette, dark);
  };
  const seen = new MutationObserver(dress);
  seen.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-vscode-theme-kind"] });
  const media = window.matchMedia("(prefers-color-scheme: dark)");
  media.addEventListener("change", dress);
  model.on("change:theme", dress);
  dress();
  return () => { seen.disconnect(); media.removeEventListener("change", dress); model.off("change:theme", dress); };
}

// A tooltip for everything under `root` that has data-help, by pointer or by focus; `show` and `hide` for canvases.
function tips(root) {
  const box = document.body.appendChild(h("div", { class: "dsv4-tip", role: "tooltip", hidden: true }));
  const show = (text, x, y) => {
    box.textContent = text;
    box.hidden = false;
    const paint = getComputedStyle(root);
    box.style.background = paint.getPropertyValue("--dsv4-raised");
    box.style.color = paint.getPropertyValue("--dsv4-ink");
    const { width, height } = box.getBoundingClientRect();
    box.style.left = `${Math.max(4, Math.min(x + 12, window.innerWidth - width - 6))}px`;
    box.style.top = `${y + 16 + height > window.innerHeight ? Math.max(4, y - height - 10) : y + 16}px`;
  };
  const hide = () => { box.hidden = true; };
  const over = (event) => {
    const el = event.target instanceof Element ? event.target.closest("[data-help]") : null;
    if (!el || !root.contains(el) || el.tagName === "CANVAS") return;
    const at = el.getBoundingClientRect();
    show(el.dataset.help, at.left - 12, at.bottom - 10);
  };
  for (const name of ["pointerover", "focusin"]) root.addEventListener(name, over);
  for (const name of ["pointerout", "focusout", "pointerdown"]) root.addEventListener(name, hide);
  return { show, hide, end: () => box.remove() };
}

// JupyterLab takes single keys as commands of the cell around a widget: this keeps them for the widget.
function ownKeys(el, act) {
  el.dataset.lmSuppressShortcuts = "true";
  el.addEventListener("keydown", (event) => { act(event); event.stopPropagation(); });
}

function save(name, blob) {
  const url = URL.createObjectURL(blob);
  const link = h("a", null);
  link.href = url;
  link.download = name.replace(/[^\w.-]+/g, "_").slice(0, 80);
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// One question at a time to the kernel; of those asked meanwhile only the last is put. A question that the kernel
// refuses ("failed") is over as well; whoever listens for that kind of message shows why.
// `silent(true)` is called when no answer came for some seconds (a busy, restarted or dead kernel), `silent(false)` when one
// does after all.
const PATIENCE_MS = 6000;

function asker(model, kind, silent = () => {}) {
  const own = Math.random().toString(36).slice(2); // two views of one widget hear each other's answers
  let waiting = null;
  let next = null;
  let count = 0;
  let told = false;
  const put = (question, done) => {
    const timer = setTimeout(() => { told = true; silent(true); }, PATIENCE_MS);
    waiting = { number: `${own}:${(count += 1)}`, done, timer };
    try {
      model.send({ ...question, kind, number: waiting.number });
    } catch { // the channel is closed: there is no kernel behind this view any more
      clearTimeout(timer);
      waiting = null;
      told = true;
      silent(true);
    }
  };
  const take = (message, buffers) => {
    if (!waiting || message.number !== waiting.number) return;
    const { done, timer } = waiting;
    clearTimeout(timer);
    if (told) { told = false; silent(false); }
    waiting = null;
    if (next) { const [question, then] = next; next = null; put(question, then); }
    if (message.kind === kind) done(arrays(message, buffers));
  };
  model.on("msg:custom", take);
  return {
    ask: (question, done) => { if (waiting) next = [question, done]; else put(question, done); },
    end: () => { clearTimeout(waiting?.timer); model.off("msg:custom", take); },
    forget: () => { clearTimeout(waiting?.timer); waiting = next = null; },
  };
}

const SILENCE = "no answer from the kernel: it is busy, or was restarted; then run the cell again";
const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];

// A duration in nanoseconds in the unit that suits it.
function ns(value, digits) {
  const size = Math.abs(value);
  const [unit, name] = UNITS.find(([u]) => size >= u) ?? UNITS[3];
  const scaled = value / unit;
  return `${unit === 1 ? Math.round(scaled) : scaled.toFixed(digits ?? (Math.abs(scaled) < 10 ? 2 : 1))} ${name}`;
}

function bytes(value) {
  for (const [unit, name] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) if (value >= unit) return `${(value / unit).toFixed(1)} ${name}`;
  return `${value} B`;
}

const whole = (value) => Math.round(value).toLocaleString("en-US");
const percent = (share) => `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;
