// Draws the state that the page came with, and each newer one that the server sends.
// Texts of records are set as text nodes and attributes, never as HTML.
"use strict";

const HISTORY_S = 300;
const SILENT_MS = 15_000; // the server sends an event every second
const MAX_DETAILED = 8; // active runs of a sweep with charts
const MAX_REASONS = 5; // newest reasons of failures above the table of a sweep
const MAX_NUMBERS = 5; // runs listed with each reason
const SVG = "http://www.w3.org/2000/svg";
const COLORS = ["var(--compute)", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b"];
// Titles and units of metrics, and units of increasing size: from Python, as the panels of a run.
const { parts: PARTS, figures: FIGURES, columns: COLUMNS, totals: TOTALS, units: UNITS, whole_percent: WHOLE_PERCENT, active: ACTIVE } = JSON.parse(
  document.getElementById("table").textContent,
);
const ACCOUNT_COLORS = [...COLORS, "#8a8a8a", "#bbbbbb"];
const MISSING = { energy: "Energy is not measured", power: "No power over time", gauges: "No gauges over time" };
let { snapshot, error } = JSON.parse(document.getElementById("state").textContent);
let receivedMs = Date.now();
let source; // the stream of events
let heardMs; // when it last sent something
let lostMs = null; // when the connection was lost; null while it is not
let maxRows = 100; // of a sweep's table; all after the first paint, which they would delay
let cursor = null; // { folder, fraction } of the time axis that the pointer is on
const drawn = new Map(); // name of a section -> { key, node }
const drawnRows = new Map(); // the same of the rows of tables

// Formatting: three significant digits, in a unit of a readable size.
function number(value, size = value) {
  const decimals = size ? Math.min(6, Math.max(0, 2 - Math.floor(Math.log10(Math.abs(size))))) : 0;
  return value.toFixed(decimals);
}

function quantity(value, base, format = number) {
  if (!Number.isFinite(value)) return "–";
  if (base === "%") return percent(value);
  const units = UNITS[base] ?? [[base, 1, 0]];
  const fitting = value ? units.findLast(([, , start]) => start <= Math.abs(value)) : units.find(([, size]) => size === 1);
  const [name, size] = fitting ?? units[0];
  return `${format(value / size)} ${name}`.trim();
}

// The same for an axis: without zeros at the end.
function bound(value, base) {
  return quantity(value, base, (scaled) => `${Number(scaled.toPrecision(3))}`);
}

function percent(fraction, decimals = null) {
  return `${(100 * fraction).toFixed(decimals ?? (Math.abs(fraction) >= WHOLE_PERCENT ? 0 : 1))} %`;
}

function duration(seconds) {
  const rounded = Math.max(0, Math.round(seconds));
  const [days, hours, minutes] = [rounded / 86_400, (rounded / 3600) % 24, (rounded / 60) % 60].map(Math.floor);
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min ${rounded % 60} s` : `${rounded} s`;
}

function timeOfDay(unixS) {
  return new Date(1000 * unixS).toLocaleTimeString("en-GB");
}

function countOf(count, noun) {
  return `${count.toLocaleString("en-US")} ${noun}${count === 1 ? "" : "s"}`;
}

// Returns an element; children that are strings become text.
function make(tag, properties = {}, ...children) {
  const isDrawing = ["svg", "path", "line"].includes(tag);
  const made = isDrawing ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "style") Object.entries(value).forEach((entry) => made.style.setProperty(...entry));
    else made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== ""));
  return made;
}

// Returns the parts of a message, those between backticks as code.
function withCode(message) {
  return message.split(/`([^`]+)`/).map((part, index) => (index % 2 ? make("code", {}, part) : part));
}

function present(message, tag, className) {
  return message ? make(tag, { class: className }, withCode(message)) : null;
}

// Progress
function badge(state) {
  return make("span", { class: `state ${state}` }, state);
}

function isActive(state) {
  return ACTIVE.includes(state);
}

function bar(fraction) {
  const done = make("span", { style: { width: `${100 * fraction}%`, background: "var(--accent)" } });
  const label = { role: "progressbar", "aria-valuenow": Math.round(100 * fraction), "aria-label": "progress" };
  return make("div", { class: "bar", ...label }, done);
}

function remaining(from, runs, agoS, isMaximum) {
  const remainingS = from.remaining_s - agoS;
  if (from.remaining_s === null || remainingS < 0.5 || !isActive(from.state)) return [];
  const joules = from.remaining_j === null ? "" : `, ${quantity(from.remaining_j, "J")}`;
  const priced = from.remaining_j === null ? undefined : runs.find((run) => run.cost_per_j);
  const cost = priced ? `, ${number(from.remaining_j * priced.cost_per_j)} ${priced.currency}` : "";
  const end = from.state === "stalled" ? [] : [`ends about ${timeOfDay(receivedMs / 1000 + from.remaining_s)}`];
  return [`${isMaximum ? "at most " : ""}${duration(remainingS)}${joules}${cost} to go`, ...end];
}

function progressOf(run, agoS) {
  const { progress } = run;
  const ofProcess = progress.pid === null ? null : [`process ${progress.pid}`];
  const epochs = progress.epochs === null ? `epoch ${progress.epoch}` : `epoch ${progress.epoch} of ${progress.epochs}`;
  const running = isActive(run.state) ? agoS : 0;
  const counts = ofProcess ?? [epochs, countOf(progress.steps + (run.splits.current?.metrics.steps ?? 0), "step")];
  const facts = [...counts, `${duration(progress.elapsed_s + running)} elapsed`];
  const estimate = { ...progress, state: run.state };
  return [
    progress.fraction === null ? null : bar(progress.fraction),
    make("p", {}, [...facts, ...remaining(estimate, [run], running, progress.is_maximum)].join(" · ")),
    isActive(run.state) && progress.silent_s + agoS > 30
      ? make("p", { class: "note" }, `The record has not grown for ${duration(progress.silent_s + agoS)}.`)
      : null,
  ];
}

function legendEntry(color, before, value, after = "") {
  return make("li", {}, make("span", { class: "key", style: { background: color } }), before, make("b", {}, value), after);
}

// The split of epochs
function splitBar(name, parts) {
  const total = Object.values(parts).reduce((sum, value) => sum + Math.max(0, value), 0);
  if (!total) return [];
  const pieces = Object.keys(PARTS).filter((part) => parts[part] > 0);
  const text = pieces.map((part) => `${PARTS[part]} ${percent(parts[part] / total)}`).join(", ");
  const stack = pieces.map((part) =>
    make("span", {
      title: `${PARTS[part]}: ${quantity(parts[part], "s")}`,
      style: { width: `${(100 * parts[part]) / total}%`, background: `var(--${part})` },
    }),
  );
  return [make("span", {}, name), make("div", { class: "bar parts", role: "img", "aria-label": `${name}: ${text}` }, stack)];
}

function split(run) {
  const splits = Object.entries(run.splits).map(([kind, { title, metrics }]) => {
    const times = Object.keys(PARTS).map((part) => [part, metrics[`${part}_s`]]);
    return { title: kind === "mean" ? title : `epoch ${title}`, parts: Object.fromEntries(times.filter(([, seconds]) => Number.isFinite(seconds))) };
  });
  const shown = splits.findLast(({ parts }) => Object.keys(parts).length)?.parts;
  if (!shown) return make("p", { class: "note" }, "No times by part are recorded yet.");
  const total = Object.values(shown).reduce((sum, seconds) => sum + Math.max(0, seconds), 0);
  const legend = Object.entries(PARTS)
    .filter(([part]) => part in shown)
    .map(([part, name]) => {
      const fraction = percent(Math.max(0, shown[part]) / total);
      return legendEntry(`var(--${part})`, `${name} `, fraction, ` ${quantity(shown[part], "s")}`);
    });
  const bars = splits.reverse().flatMap(({ title, parts }) => splitBar(title, parts));
  return make("div", {}, make("ul", { class: "legend" }, legend), make("div", { class: "split" }, bars));
}

// Where the time of the whole run went, with a fixed color for each row
function account(run) {
  const total = run.account.reduce((sum, [, seconds]) => sum + seconds, 0);
  if (!total) return [];
  const rows = run.account.map(([name, seconds], index) => [name, seconds, ACCOUNT_COLORS[index % ACCOUNT_COLORS.length]]).filter(([, seconds]) => seconds / total >= 0.001);
  const legend = rows.map(([name, seconds, shade]) => legendEntry(shade, `${name} `, percent(seconds / total), ` ${duration(seconds)}`));
  const stack = rows.map(([name, seconds, shade]) =>
    make("span", { title: `${name}: ${duration(seconds)}`, style: { width: `${(100 * seconds) / total}%`, background: shade } }),
  );
  const bars = [make("span", {}, duration(total)), make("div", { class: "bar parts", role: "img", "aria-label": run.account_text }, stack)];
  const title = isActive(run.state) ? "Run so far" : "Whole run";
  return make("div", { class: "account" }, make("h3", {}, title), make("ul", { class: "legend" }, legend), make("div", { class: "split" }, bars));
}

function figures(run) {
  const { last, mean } = run.splits;
  const shown = [...FIGURES, ...run.unlisted].map(([name, metric, ...unit]) => {
    const value = mean?.metrics[metric];
    return value === undefined ? [`${name}, epoch ${last?.title}`, last?.metrics[metric], ...unit] : [name, value, ...unit];
  });
  const soFar = isActive(run.state) ? ", so far" : "";
  shown.push(...TOTALS.map(([name, metric, base]) => [`${name}${soFar}`, run.metrics[metric], base]));
  const tiles = shown.filter(([, value]) => Number.isFinite(value));
  const text = (value, base, decimals) => (base === "%" ? percent(value, decimals) : quantity(value, base));
  const tile = ([name, value, ...unit]) => make("div", {}, make("dt", {}, name), make("dd", {}, text(value, ...unit)));
  return tiles.length ? make("dl", { class: "figures" }, tiles.map(tile)) : null;
}

// Small multiples over one axis of time
function scale(values, kind = {}) {
  const largest = Math.max(0, ...values);
  if (kind.is_fraction) return [0, Math.max(1, largest)];
  if (kind.from_zero === false) return [10 * Math.floor(Math.min(...values) / 10), 10 * Math.ceil((largest + 1) / 10)];
  const step = 10 ** Math.floor(Math.log10(largest || 1));
  return [0, step * [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((factor) => factor * step >= largest * 1.02) || 1];
}

function path(series, [startS, endS], [low, high]) {
  const x = (time) => (100 * (time - startS)) / (endS - startS || 1);
  const y = (value) => 100 - (100 * (value - low)) / (high - low || 1);
  const gapS = Math.max(5, (5 * (endS - startS)) / series.times_s.length);
  let before = -Infinity;
  const steps = series.times_s.map((time, index) => {
    if (time < startS || series.values[index] === null) return "";
    const isGap = time - before > gapS;
    before = time;
    return `${isGap ? "M" : "L"}${x(time).toFixed(2)} ${y(series.values[index]).toFixed(2)}`;
  });
  return series.times_s.length === 1 ? `${steps[0]}h0.5` : steps.join("");
}

function at(series, timeS) {
  const distances = series.times_s.map((time) => Math.abs(time - timeS));
  const nearest = distances.indexOf(Math.min(...distances));
  return distances[nearest] <= 5 ? series.values[nearest] : null;
}

function panel(run, axis, kind, entries) {
  const { title, unit: base, is_fraction: isFraction, decimals } = kind;
  const format = decimals === null ? number : (value) => value.toFixed(decimals);
  const values = entries.flatMap(([, series]) => series.values).filter((value) => value !== null);
  const bounds = scale(values, kind);
  const timeS = cursor?.folder === run.folder ? axis[0] + cursor.fraction * (axis[1] - axis[0]) : null;
  const legend = entries.map(([name, series], index) => {
    const value = quantity(timeS === null ? series.latest : at(series, timeS), base, format);
    return legendEntry(color(index), entries.length > 1 || !isFraction ? `${name} ` : "", value);
  });
  const lines = entries.map(([, series], index) =>
    make("path", { class: "line", style: { stroke: color(index) }, d: path(series, axis, bounds) }),
  );
  const place = timeS === null ? null : 100 * cursor.fraction;
  const grid = [0, 50].map((y) => make("line", { class: "grid", x1: 0, x2: 100, y1: y, y2: y }));
  const mark = place === null ? null : make("line", { class: "cursor", x1: place, x2: place, y1: 0, y2: 100 });
  const drawing = make("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": "true" }, grid, mark, lines);
  const plot = make("div", { class: "plot", "data-folder": run.folder }, drawing, make("span", { class: "top" }, bound(bounds[1], base)));
  const start = bounds[0] ? `${bound(bounds[0], base)} · ${timeOfDay(axis[0])}` : timeOfDay(axis[0]);
  const ends = [start, ...(timeS === null ? [] : [`| ${timeOfDay(timeS)}`]), timeOfDay(axis[1])];
  return make("figure", {}, make("h3", {}, title), make("ul", { class: "legend" }, legend), plot, axisLabels(ends));
}

function color(index) {
  return COLORS[index % COLORS.length];
}

function axisLabels(texts) {
  return make("div", { class: "axis" }, texts.map((text) => make("span", {}, text)));
}

function cores(run, { title }, entries) {
  if (entries.length < 2) return [];
  const names = entries.map(([name, { latest }]) => `${name}: ${percent(latest)}`);
  const bars = entries.map(([, { latest }], index) =>
    make("span", { title: names[index], style: { height: `${100 * Math.min(1, latest)}%` } }),
  );
  const busy = entries.filter(([, { latest }]) => latest > 0.9).length;
  return make(
    "figure",
    {},
    make("h3", {}, `${title}, ${isActive(run.state) ? "now" : "last recorded"}`),
    make("ul", { class: "legend" }, make("li", {}, make("b", {}, `${busy} of ${entries.length}`), " above 90 %")),
    make("div", { class: "cores", role: "img", "aria-label": names.join(", ") }, bars),
    axisLabels([entries[0][0], entries.at(-1)[0]]),
  );
}

function panels(run) {
  const columns = { ...run.power, ...run.gauges };
  const all = Object.values(columns).filter((series) => series.times_s.length);
  const endS = Math.max(...all.map((series) => series.times_s.at(-1)));
  const startS = Math.max(endS - HISTORY_S, Math.min(...all.map((series) => series.times_s[0])));
  const drawings = run.panels.map((kind) => {
    const entries = kind.columns.map(([column, name]) => [name, columns[column]]);
    if (kind.is_of_cores) return cores(run, kind, entries);
    const recent = entries.filter(([, series]) => series.times_s.length);
    return recent.length ? panel(run, [startS, endS], kind, recent) : [];
  });
  return make("div", { class: "panels" }, drawings);
}

function missing(run) {
  return Object.entries(run.missing).map(([name, why]) => present(`${MISSING[name]}: ${why}`, "p", "note"));
}

function energyDoubt(run) {
  if (run.energy_valid !== false || run.missing.energy) return null;
  const reasons = Object.entries(run.energy_reasons).map(([code, text]) => `${text.replace(/\.$/, "")} (${code})`);
  return present(`The energy is absent or doubtful: ${reasons.join("; ")}.`, "p", "note");
}

function runSection(run, agoS, isAlone) {
  const row = snapshot.runs.find((other) => other.number === run.number);
  const varied = Object.entries(row?.overrides ?? {}).map((override) => override.join("="));
  const heading = make(isAlone ? "h1" : "h2", {}, isAlone ? run.name : `Run ${run.number}: ${varied.join(" ") || run.name}`);
  return make(
    "section",
    { "data-folder": run.folder },
    make("div", { class: "title" }, heading, badge(run.state)),
    present(run.reason, "p", `reason ${run.state}`),
    present(run.verdict, "p", "verdict"),
    present(run.straggler, "p", "verdict"),
    progressOf(run, agoS),
    run.rehearsal.length ? make("p", { class: "banner" }, `Rehearsal: ${run.rehearsal.join("; ")}`) : null,
    present(run.failure, "pre", ""),
    run.progress.pid === null ? split(run) : null,
    account(run),
    figures(run),
    run.throttling ? make("p", { class: "banner" }, `Clocks are lowered: ${run.throttling}`) : null,
    energyDoubt(run),
    run.warnings.map((warning) => present(warning, "p", "note")),
    missing(run),
    make("p", { class: "path" }, `${run.host} · ${run.folder}`),
  );
}

// A sweep
function sweepHead(agoS) {
  const { counts } = snapshot;
  const total = Object.values(counts).reduce((sum, count) => sum + count, 0);
  const failures = new Map(); // numbers of the runs with the same reason
  for (const { number, state, reason } of snapshot.runs.filter((run) => run.reason && !isActive(run.state))) {
    const key = JSON.stringify([state, reason]);
    if (!failures.has(key)) failures.set(key, []);
    failures.get(key).push(number);
  }
  const facts = [countOf(total, "run"), ...Object.entries(counts).map(([state, count]) => `${count} ${state}`)];
  return make(
    "section",
    {},
    make("div", { class: "title" }, make("h1", {}, snapshot.name), badge(snapshot.state)),
    present(snapshot.reason, "p", `reason ${snapshot.state}`),
    snapshot.fraction === null ? null : bar(snapshot.fraction),
    make("p", {}, [...facts, ...remaining(snapshot, snapshot.active, agoS, false)].join(" · ")),
    snapshot.rehearsal.length && !snapshot.active.length ? make("p", { class: "banner" }, `Rehearsal: ${snapshot.rehearsal.join("; ")}`) : null,
    [...failures].slice(-MAX_REASONS).map(([key, numbers]) => {
      const [state, reason] = JSON.parse(key);
      const more = numbers.length > MAX_NUMBERS ? `, ${numbers.length - MAX_NUMBERS} more` : "";
      const runs = `${numbers.length > 1 ? "Runs" : "Run"} ${numbers.slice(0, MAX_NUMBERS).join(", ")}${more}`;
      return present(`${runs} ${state}: ${reason}`, "p", `reason ${state}`);
    }),
    failures.size > MAX_REASONS ? make("p", { class: "note" }, `${failures.size - MAX_REASONS} more reasons are in the table.`) : null,
    make("p", { class: "path" }, snapshot.folder),
  );
}

function table(columns, rows) {
  const kind = (column) => (column.isNumber ? { class: "number" } : {});
  const head = make("tr", {}, columns.map((column) => make("th", { scope: "col", ...kind(column) }, column.title)));
  const cell = (column, row) => {
    const attributes = { ...kind(column), ...(column.attributes?.(row) ?? {}) };
    const text = column.text(row);
    return make("td", { "data-label": column.title, ...attributes }, column.isMessage ? withCode(text) : text);
  };
  const body = rows.map((row, index) => {
    const name = `${columns[0].title} ${index}`;
    const key = JSON.stringify([columns.map((column) => column.title), row]);
    const build = () => make("tr", row.is_on_front ? { class: "on-front" } : {}, columns.map((column) => cell(column, row)));
    return (drawnRows.get(name)?.key === key ? drawnRows : drawnRows.set(name, { key, node: build() })).get(name).node;
  });
  return make("div", { class: "words scroll" }, make("table", { class: "stacked" }, make("thead", {}, head), make("tbody", {}, body)));
}

function stateOf(run) {
  if (run.is_reused) return `${run.state} (reused)`;
  return run.progress ? `${run.state} ${run.progress.epoch}${run.progress.epochs === null ? "" : `/${run.progress.epochs}`}` : run.state;
}

function sweepTable() {
  const { runs } = snapshot;
  const keys = [...new Set(runs.flatMap((run) => Object.keys(run.overrides)))];
  const metric = ([title, name, base]) => ({ title, isNumber: true, text: (run) => (run[name] === null ? "" : quantity(run[name], base)) });
  const columns = [
    { title: "Run", text: (run) => `${run.number}` },
    { title: "State", text: stateOf, attributes: (run) => ({ class: `state ${run.state}` }) },
    ...keys.map((key) => ({ title: key, text: (run) => run.overrides[key] ?? "" })),
    ...COLUMNS.map(metric),
    { title: "Duration", isNumber: true, text: (run) => (run.duration_s === null ? "" : duration(run.duration_s)) },
    { title: "Host", text: (run) => [run.host, run.slurm_job && `job ${run.slurm_job}`].filter(Boolean).join(", ") },
    { title: "Reason", isMessage: true, text: (run) => run.reason },
  ];
  const used = columns.filter((column) => runs.some((run) => column.text(run)));
  const legend = snapshot.front.length ? make("p", { class: "note" }, "Runs with a colored edge are on the Pareto front.") : null;
  return make("section", {}, make("h2", {}, "Runs"), legend, table(used, runs.slice(0, maxRows)));
}

function front() {
  const measured = snapshot.runs.filter((run) => run.epoch_s !== null && run.energy_j !== null);
  const [timeTitle, energyTitle] = ["epoch_s", "energy_j"].map((name) => COLUMNS.find((column) => column[1] === name)[0]);
  const heading = make("h2", {}, snapshot.active.length || snapshot.counts.planned ? "Pareto front so far" : "Pareto front");
  if (!snapshot.front.length) return make("section", {}, heading, present(`None: ${snapshot.no_front}`, "p", "note"));
  const right = scale([...measured.map((run) => run.epoch_s), ...snapshot.front.map((point) => point.time_s)])[1];
  const top = scale([...measured.map((run) => run.energy_j), ...snapshot.front.map((point) => point.energy_j)])[1];
  const place = (timeS, energyJ) => `${((100 * timeS) / right).toFixed(2)} ${(100 - (100 * energyJ) / top).toFixed(2)}`;
  const dot = (timeS, energyJ, color, size) =>
    make("path", { class: "dot", d: `M${place(timeS, energyJ)}h0.001`, style: { stroke: color, "stroke-width": size } });
  const steps = snapshot.front.map((point, index) => `${index ? "L" : "M"}${place(point.time_s, point.energy_j)}`);
  const line = make("path", { class: "line", style: { stroke: COLORS[0] }, d: steps.join("") });
  const dots = [
    ...measured.map((run) => dot(run.epoch_s, run.energy_j, "var(--overhead)", 7)),
    ...snapshot.front.map((point) => dot(point.time_s, point.energy_j, COLORS[0], 10)),
  ];
  const about = { role: "img", "aria-label": "energy by time per epoch" };
  const drawing = make("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", ...about }, line, dots);
  const points = table(
    [
      { title: "Configuration", text: (point) => point.title },
      { title: "Run numbers", text: (point) => point.numbers.join(", ") },
      { title: timeTitle, isNumber: true, text: (point) => quantity(point.time_s, "s") },
      { title: energyTitle, isNumber: true, text: (point) => quantity(point.energy_j, "J") },
    ],
    snapshot.front,
  );
  const axis = axisLabels(["0", `${timeTitle}: ${bound(right, "s")}`]);
  return make(
    "section",
    {},
    heading,
    make(
      "div",
      { class: "front" },
      make("figure", {}, axisLabels([`${energyTitle}: ${bound(top, "J")}`]), make("div", { class: "plot" }, drawing), axis),
      points,
    ),
  );
}

// Drawing: a section is made again only if its data have changed.
function draw() {
  const agoS = Math.max(0, (lostMs ?? Date.now()) - receivedMs) / 1000;
  const second = isActive(snapshot.state) ? Math.floor(agoS) : 0;
  const runs = snapshot.active.slice(0, MAX_DETAILED);
  const sections = runs.flatMap((run) => {
    const { power, gauges, panels: kinds, ...rest } = run;
    return [
      [`run ${run.folder}`, [rest, second], () => runSection(run, second, !snapshot.is_sweep)],
      [`panels ${run.folder}`, [power, gauges, kinds, cursor], () => panels(run)],
    ];
  });
  if (snapshot.is_sweep) {
    const { active, runs: rows, front: points, ...rest } = snapshot;
    const head = ["sweep", [rest, rows, second], () => sweepHead(second)];
    sections.unshift(head, ["runs", [rows, maxRows], sweepTable], ["front", [points, rows, snapshot.no_front], front]);
  }
  if (error) sections.unshift(["error", error, () => make("p", { class: "banner" }, `The folder cannot be read: ${error}`)]);
  for (const [name, data, build] of sections) {
    const key = JSON.stringify(data);
    const before = drawn.get(name);
    if (before?.key !== key) drawn.set(name, { key, node: build(), scrolled: before?.node.querySelector(".scroll")?.scrollTop });
  }
  const names = new Set(sections.map(([name]) => name));
  for (const name of drawn.keys()) if (!names.has(name)) drawn.delete(name);
  const nodes = sections.map(([name]) => drawn.get(name).node);
  const view = document.getElementById("view");
  if (nodes.length !== view.children.length || nodes.some((node, index) => view.children[index] !== node)) view.replaceChildren(...nodes);
  for (const entry of drawn.values()) {
    if (entry.scrolled) entry.node.querySelector(".scroll").scrollTop = entry.scrolled;
    entry.scrolled = 0;
  }
  document.title = `${snapshot.state}: ${snapshot.name} · epochmeter`;
  document.documentElement.dataset.drawn = Math.round(performance.now());
}

// Updates
function appended(before, after) {
  const merged = Object.entries(after).map(([column, series]) => {
    const old = before?.[column] ?? { times_s: [], values: [] };
    const first = series.times_s[0] ?? Infinity;
    const startS = (series.times_s.at(-1) ?? old.times_s.at(-1)) - HISTORY_S;
    const kept = [...old.times_s.keys()].filter((index) => old.times_s[index] < first && old.times_s[index] > startS);
    const joined = (name) => kept.map((index) => old[name][index]).concat(series[name]);
    return [column, { latest: series.latest, times_s: joined("times_s"), values: joined("values") }];
  });
  return Object.fromEntries(merged);
}

function receive(update) {
  if (update.snapshot.folder !== snapshot.folder) location.reload(); // the next run or sweep, or another server at the same address
  if (!update.is_full) {
    for (const run of update.snapshot.active) {
      const before = snapshot.active.find((other) => other.folder === run.folder);
      run.power = appended(before?.power, run.power);
      run.gauges = appended(before?.gauges, run.gauges);
    }
    const rows = new Map([...snapshot.runs, ...update.snapshot.runs].map((row) => [row.number, row]));
    update.snapshot.runs = [...rows.values()].sort((one, other) => one.number - other.number);
  }
  ({ snapshot, error } = update);
  receivedMs = Date.now();
  draw();
}

function showConnection(text, isLost) {
  const status = document.getElementById("connection");
  lostMs = isLost ? lostMs ?? Date.now() : null;
  status.classList.toggle("lost", isLost);
  if (status.textContent !== text) status.textContent = text;
}

function heard() {
  heardMs = Date.now();
  showConnection("live", false);
}

function lose() {
  const isRefused = source.readyState === EventSource.CLOSED;
  const what = isRefused
    ? "The server refuses this page: open the address that it printed last."
    : "The server does not answer; it was stopped, or the connection is lost.";
  showConnection(`${what} Values are of ${timeOfDay(receivedMs / 1000)}.`, true);
}

// A lost connection is opened again by the browser if it was closed, and here if it is silent.
function connect() {
  heardMs = Date.now();
  source = new EventSource(`events${location.search}`);
  source.addEventListener("open", heard);
  source.addEventListener("message", (event) => {
    heard();
    receive(JSON.parse(event.data));
  });
  source.addEventListener("error", lose);
}

setInterval(() => {
  if (Date.now() - heardMs > SILENT_MS) {
    lose();
    source.close();
    connect();
  }
  if (lostMs === null) draw();
}, 1000);

document.addEventListener("pointermove", (event) => {
  const plot = event.target.closest?.(".panels .plot");
  if (!plot && !cursor) return;
  const box = plot?.getBoundingClientRect();
  cursor = plot ? { folder: plot.dataset.folder, fraction: Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)) } : null;
  draw();
});

draw();
connect();
requestAnimationFrame(() =>
  setTimeout(() => {
    maxRows = Infinity;
    draw();
  }),
);
