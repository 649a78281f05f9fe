// Unpacks the pictures and the table of runs, and draws one after the other, so that the page answers meanwhile.
"use strict";

const PAPER = { width: 680, height: 370, list: 600 }; // px; what is higher than the last is a list of bars, and stays
const CONFIG = {
  responsive: true,
  displaylogo: false,
  typesetMath: false, // a $ is a $
  modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
};

async function unpacked(id) {
  const letters = atob(document.getElementById(id).textContent);
  const bytes = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at++) bytes[at] = letters.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

// When something was there for the first time, in ms since the page began to load.
function tell(what) {
  document.documentElement.dataset[what] ??= Math.round(performance.now());
}

// Within a frame, as MLflow shows an artifact in, no page may be opened: its address is shown in place of it.
const framed = window.self !== window.top;

function show_address(link, beside) {
  const place = beside.closest("figure, section");
  const said = place.querySelector(".address") ?? document.createElement("p");
  said.className = "note address";
  said.textContent = `No page opens from within this frame. Its address: ${link}`;
  place.append(said);
}

function open_page(event) {
  const link = event.points[0].customdata?.[1];
  if (link && framed) show_address(link, event.event.target);
  else if (link) window.open(link, "_blank", "noopener");
}

if (framed) {
  document.querySelector(".framed").hidden = false;
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[target="_blank"]');
    if (!link) return;
    event.preventDefault();
    show_address(link.href, link);
  });
}

async function draw() {
  const [source, pictures] = await Promise.all([unpacked("plotly"), unpacked("pictures").then(JSON.parse)]);
  const script = document.createElement("script");
  script.textContent = source;
  document.head.append(script);
  for (const place of document.querySelectorAll(".plot")) {
    const { data, layout } = pictures[place.dataset.name];
    place.dataset.height = layout.height;
    place.style.height = `${layout.height}px`; // kept whatever the width
    delete layout.height;
    await Plotly.newPlot(place, data, layout, CONFIG);
    place.on("plotly_click", open_page);
    place.classList.add("drawn");
    tell("ready");
    await new Promise((go) => setTimeout(go));
  }
}

// Paper is narrower than a window, and is laid out only after the pictures were asked to fit.
function fit(place, paper) {
  const asked = Number(place.dataset.height);
  const height = paper && asked < PAPER.list ? Math.min(asked, PAPER.height) : asked;
  place.style.height = `${height}px`;
  Plotly.relayout(place, { width: paper ? PAPER.width : null, height, autosize: !paper });
}

for (const event of ["beforeprint", "afterprint"]) {
  window.addEventListener(event, () => {
    for (const place of document.querySelectorAll(".plot.drawn")) fit(place, event === "beforeprint");
  });
}

// Scripts that come with the table run as it is put in.
async function list() {
  const place = document.getElementById("table");
  place.append(document.createRange().createContextualFragment(await unpacked("runs-packed")));
}

async function show() {
  if (document.getElementById("pictures")) await draw();
  if (document.getElementById("runs-packed")) await list();
  tell("drawn");
}

show().catch((error) => {
  const said = document.createElement("p");
  said.className = "banner";
  said.textContent = `Not all of this page can be shown here (${error}). Beside it lie its pictures and its table.`;
  document.querySelector("header").append(said);
});
