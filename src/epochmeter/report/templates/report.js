// Unpacks and draws the charts and the table of runs, one after the other, so that the page stays responsive.
"use strict";

const PANEL_PX = 300; // smallest width of one of several panels
const NARROW_PX = 560; // legends of a narrower chart have one column
const MAX_STACKED = 12; // rows of a table up to which a narrow window shows each as a list
const isDark = window.matchMedia("(prefers-color-scheme: dark)");
const isFramed = window.self !== window.top; // as MLflow shows an artifact, where no page can be opened
const drawn = new Map(); // element -> the embedded view

async function unpack(id) {
  const letters = atob(document.getElementById(id).textContent);
  const bytes = Uint8Array.from(letters, (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

// Notes when something was first shown, in ms since the page began to load.
function note(event) {
  document.documentElement.dataset[event] ??= Math.round(performance.now());
}

function showAddress(link, element) {
  const section = element.closest("figure, section");
  const line = section.querySelector(".address") ?? document.createElement("p");
  line.className = "note address";
  line.textContent = `This frame cannot open pages. Address: ${link}`;
  section.append(line);
}

if (isFramed) {
  document.querySelector(".framed").hidden = false;
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[target="_blank"]');
    if (!link) return;
    event.preventDefault();
    showAddress(link.href, link);
  });
}

// Labels the cells of short tables with their columns, for narrow windows.
for (const table of document.querySelectorAll(".words table")) {
  if (table.tBodies[0].rows.length > MAX_STACKED) continue;
  table.classList.add("stacked");
  const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  for (const row of table.tBodies[0].rows) {
    [...row.cells].forEach((cell, column) => {
      cell.dataset.label = names[column];
      cell.classList.toggle("absent", ["", "-"].includes(cell.textContent));
    });
  }
}

// Fits a chart to the width of its place; small multiples share the axis on their left.
function fit(spec, width) {
  const { columns } = spec.usermeta;
  if (!columns.length) return { ...spec, width: "container", autosize: { type: "fit-x", contains: "padding" } };
  const fitting = columns.find((count) => count * PANEL_PX <= width) ?? 1;
  return { ...spec, columns: fitting, spec: { ...spec.spec, width: Math.floor((width - 60) / fitting) - 15 } };
}

async function draw(place, spec, themes) {
  drawn.get(place)?.finalize();
  const width = place.clientWidth;
  const theme = themes[isDark.matches ? "dark" : "light"];
  const legend = width < NARROW_PX ? { ...theme.legend, columns: 1 } : theme.legend;
  const embedded = await vegaEmbed(place, fit(spec, width), {
    config: { ...theme, legend },
    renderer: spec.usermeta.renderer,
    logLevel: 1, // errors only
    actions: false,
    loader: { target: "_blank", rel: "noopener" },
    tooltip: { theme: isDark.matches ? "dark" : "light" },
  });
  if (isFramed) {
    embedded.view.addEventListener("click", (event, item) => {
      if (item?.datum?.link) showAddress(item.datum.link, place);
    });
  }
  drawn.set(place, embedded);
  place.dataset.width = width;
  place.classList.add("drawn");
  place.classList.toggle("dark", isDark.matches);
}

async function drawAll() {
  const withoutLinks = (key, value) => (isFramed && key === "href" ? undefined : value); // a link would leave the frame
  const [source, packed] = await Promise.all([unpack("vega"), unpack("specs")]);
  const { specs, themes } = JSON.parse(packed, withoutLinks);
  const script = document.createElement("script");
  script.textContent = source;
  document.head.append(script);
  const places = [...document.querySelectorAll(".plot")];
  const redraw = async (isNeeded) => {
    for (const place of places) {
      if (place.clientWidth && isNeeded(place)) await draw(place, specs[place.dataset.name], themes);
      note("ready");
      await new Promise((resume) => setTimeout(resume));
    }
  };
  await redraw(() => true);
  const hasNewWidth = (place) => Math.abs(place.clientWidth - (place.dataset.width ?? 0)) > 8;
  let timer;
  window.addEventListener("resize", () => {
    clearTimeout(timer);
    timer = setTimeout(() => redraw(hasNewWidth), 200);
  });
  isDark.addEventListener("change", () => redraw(() => true));
  for (const details of document.querySelectorAll("details")) {
    details.addEventListener("toggle", () => redraw(hasNewWidth));
  }
}

// Scripts that come with the table run as it is inserted.
async function showTable() {
  const setDark = () => document.documentElement.classList.toggle("dark", isDark.matches); // for DataTables
  setDark();
  isDark.addEventListener("change", setDark);
  const place = document.getElementById("table");
  place.append(document.createRange().createContextualFragment(await unpack("runs-packed")));
}

async function show() {
  if (document.getElementById("specs")) await drawAll();
  if (document.getElementById("runs-packed")) await showTable();
  note("drawn");
}

show().catch((error) => {
  const line = document.createElement("p");
  line.className = "banner";
  line.textContent = `Part of this page cannot be shown (${error}). Its charts and its table are also next to it, as files.`;
  document.querySelector("header").append(line);
});
