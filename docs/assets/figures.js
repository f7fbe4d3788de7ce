// Draws the pictures of a page with the plotly that the site carries, in the site's light or dark colours.
"use strict";
(() => {
  const base = document.currentScript.src.replace(/figures\.js.*$/, "");
  const isDark = () => document.body.getAttribute("data-md-color-scheme") === "slate";
  const template = () => window.LAB_TEMPLATES[isDark() ? "dark" : "light"];

  function load(name) {
    return new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = base + name;
      script.onload = resolve;
      script.onerror = () => reject(new Error(`${name} could not be loaded`));
      document.head.append(script);
    });
  }

  function draw(block) {
    const { data, layout } = JSON.parse(block.querySelector("script").textContent);
    const config = { displaylogo: false, responsive: true };
    const box = block.querySelector(".lab-figure__plot");
    return window.Plotly.newPlot(box, data, { ...layout, width: undefined, template: template() }, config);
  }

  function frame(view) {
    // A saved view follows the reader's setting; here it follows the site's.
    view.style.colorScheme = isDark() ? "dark" : "light";
  }

  async function start() {
    const blocks = [...document.querySelectorAll(".lab-figure")];
    const views = [...document.querySelectorAll("iframe.lab-view")];
    views.forEach(frame);
    if (blocks.length) {
      await Promise.all([load("plotly.min.js"), load("templates.js")]);
      for (const block of blocks) await draw(block);
    }
    const dress = () => {
      views.forEach(frame);
      for (const block of blocks) {
        window.Plotly.relayout(block.querySelector(".lab-figure__plot"), { template: template() });
      }
    };
    new MutationObserver(dress).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
  }

  start();
})();
