"use strict";
// Draws the figures of a report from its rows, and filters the settings of a sweep.
(() => {
  const root = document.documentElement;
  const report = JSON.parse(document.getElementById("report").textContent);
  const views = {}; // by the name of a figure

  const THEMES = {
    light: { ink: "#1b2430", soft: "#55606e", line: "#dfe4ea", paper: "#ffffff",
      colours: ["#1f5fa8", "#b0643c", "#2a7f50", "#7a4fa3", "#c23b4b", "#8a6d00", "#00788a", "#5b6470"] },
    dark: { ink: "#e8ecf1", soft: "#a9b4c0", line: "#303a46", paper: "#12171e",
      colours: ["#7fb6ff", "#f0a47c", "#6fd39b", "#c7a3f0", "#ff8f9c", "#e3c65a", "#5fd0e0", "#b3bcc7"] },
  };

  function config(theme) {
    const t = THEMES[theme];
    const font = getComputedStyle(document.body).fontFamily;
    return {
      background: null, font,
      view: { stroke: null },
      axis: { labelColor: t.soft, titleColor: t.ink, gridColor: t.line, domainColor: t.soft, tickColor: t.soft,
        labelFontSize: 12, titleFontSize: 12.5, titleFontWeight: 500, titlePadding: 8 },
      legend: { labelColor: t.ink, titleColor: t.ink, labelFontSize: 12.5, symbolStrokeWidth: 2.2, symbolSize: 170, rowPadding: 3, offset: 8,
        layout: { bottom: { anchor: "start", direction: "vertical", margin: 4 } } }, // side by side they do not fit a narrow screen
      header: { labelColor: t.ink, titleColor: t.ink, labelFontSize: 13, labelFontWeight: 600 },
      text: { fill: t.ink }, mark: { color: t.colours[0] }, rule: { stroke: t.soft },
      range: { category: t.colours },
    };
  }

  let theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const button = document.getElementById("theme");

  function dress() {
    root.dataset.theme = theme;
    button.setAttribute("aria-pressed", String(theme === "dark"));
  }

  // Names of the rows that a spec draws.
  function sources(spec, found = new Set()) {
    if (spec && typeof spec === "object") {
      if (spec.data && typeof spec.data.name === "string") found.add(spec.data.name);
      Object.values(spec).forEach((part) => sources(part, found));
    }
    return found;
  }

  const shown = Object.assign({}, report.data); // the rows that pass the filters

  async function draw(name) {
    const spec = report.figures[name];
    const datasets = {};
    for (const source of sources(spec)) datasets[source] = structuredClone(shown[source] || []);
    const place = document.querySelector(`[data-figure="${name}"]`);
    const title = document.getElementById(`title-${name}`).firstChild.textContent;
    const about = document.getElementById(`about-${name}`).textContent;
    if (views[name]) views[name].finalize();
    const made = await vegaEmbed(place, { ...spec, datasets, description: `${title}. ${about}` }, {
      actions: false, renderer: "svg", ast: true, config: config(theme), mode: "vega-lite", hover: false,
      tooltip: { theme: theme === "dark" ? "dark" : "light" }, logLevel: 1,
    });
    place.querySelectorAll("form:empty").forEach((form) => form.remove()); // empty forms for inputs
    views[name] = made.view;
  }

  async function renew(name) {
    for (const source of sources(report.figures[name])) views[name].data(source, structuredClone(shown[source] || []));
    await views[name].resize().runAsync();
  }

  const everything = () => Promise.all(Object.keys(report.figures).map(draw));

  // The rows of a figure as a table, made when a reader opens it.
  function tabulate(details) {
    details.querySelectorAll(".scroll").forEach((old) => old.remove());
    if (!details.open) return;
    const rows = shown[details.dataset.rows] || [];
    const hidden = new Set(["key", "at", "group"]);
    const columns = [...new Set(rows.flatMap(Object.keys))].filter(
      (name) => !hidden.has(name) && rows.some((row) => row[name] !== null && typeof row[name] !== "object"));
    const box = document.createElement("div");
    box.className = "scroll";
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", details.querySelector("summary").textContent);
    const table = box.appendChild(document.createElement("table"));
    const head = table.createTHead().insertRow();
    for (const name of columns) {
      const cell = head.appendChild(document.createElement("th"));
      cell.scope = "col";
      cell.textContent = name.replaceAll("_", " ");
      if (typeof rows[0][name] === "number") cell.className = "n";
    }
    const body = table.createTBody();
    for (const row of rows) {
      const line = body.insertRow();
      for (const name of columns) {
        const value = row[name];
        const cell = line.insertCell();
        cell.textContent = value === null || value === undefined ? "\u2013" : typeof value === "number" ? number(value) : value;
        if (typeof value === "number") cell.className = "n";
      }
    }
    details.append(box);
  }

  const number = (value) => (Number.isInteger(value) ? value.toLocaleString("en") : String(Number(value.toPrecision(5))));

  // Settings that no other beats at the same epsilon or less.
  function front(settings) {
    const known = settings.filter((row) => row.epsilon !== null && row.good !== null);
    known.sort((a, b) => a.epsilon - b.epsilon || b.good - a.good || a.key - b.key);
    const found = [];
    for (const row of known) {
      if (!found.length || row.good > found[found.length - 1].good) found.push(row);
    }
    return found;
  }

  const boxes = [...document.querySelectorAll(".filters input")];

  function filter() {
    if (!boxes.length) return;
    const off = new Set(boxes.filter((box) => !box.checked).map((box) => `${box.dataset.axis}/${box.dataset.value}`));
    const passes = (row) => row.at.every((value, axis) => !off.has(`${axis}/${value}`));
    const keys = new Set(report.data.settings.filter(passes).map((row) => row.key));
    for (const name of ["settings", "by_round"]) shown[name] = report.data[name].filter((row) => keys.has(row.key));
    shown.front = front(shown.settings);
    const best = new Set(shown.front.map((row) => row.key));
    document.querySelectorAll("tr[data-key]").forEach((line) => {
      const key = Number(line.dataset.key);
      line.hidden = !keys.has(key);
      const mark = line.querySelector("td:last-child");
      if (mark) mark.textContent = best.has(key) ? "on the front" : "";
    });
    document.getElementById("count").textContent =
      `${keys.size} of ${report.data.settings.length} settings, ${shown.front.length} on the Pareto front`;
  }

  function filtered() {
    filter();
    document.querySelectorAll("details.rows[open]").forEach(tabulate);
    return Promise.all(Object.keys(views).map(renew));
  }

  document.querySelectorAll("details.rows").forEach((details) => details.addEventListener("toggle", () => tabulate(details)));
  boxes.forEach((box) => box.addEventListener("change", filtered));
  const form = document.querySelector(".filters");
  if (form) {
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(filtered)); // the boxes change after this event
  }
  button.addEventListener("click", () => {
    theme = theme === "dark" ? "light" : "dark";
    dress();
    window.report.ready = everything();
  });

  dress();
  filter();
  window.report = { views, report, shown, ready: everything() };
})();
