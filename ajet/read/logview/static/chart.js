// Draws curves over steps: uPlot in a figure, with its content in words and as a table beside it.
import uPlot from "./vendor/uplot/uPlot.js";
import { el, lateFold, short, table, th } from "./dom.js";

/**
 * @typedef {{name: string, values: (number | null)[], points?: boolean, colour?: number}} Series
 * @typedef {{title: string, steps: number[], series: Series[], band?: (number | null)[],
 *   stacked?: boolean, isShare?: boolean, least?: number, warnings?: import("./data.js").Warning[], unit?: string,
 *   href?: (step: number) => string}} Chart
 * A series' `colour` is a number; without it, it is that of its place. `least` is the smallest upper end of the axis: what lies far below it is rounding.
 */

const COLOURS = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5", "--line-6"];
const HEIGHT = 170;
const MOST_IN_WORDS = 2; // series: the words of more would push the curves down

/** Returns a figure. A step that is clicked is opened where the chart has links.
 * @param {Chart} chart */
export function figure(chart) {
  const said = chart.series.map((series) => words(chart.steps, series)).join("; ");
  const place = el("div", { class: "plot", role: "img", "aria-label": `${chart.title}: ${said}` });
  const numbers = lateFold(chart.title, "as a table", () => numbersOf(chart));
  const made = el("figure", {},
    el("figcaption", {}, el("h3", {}, chart.title),
      chart.series.length > MOST_IN_WORDS ? null : el("p", { class: "dim" }, said)), place, numbers);
  // The width is known once the figure stands in the page.
  const observer = new ResizeObserver(() => {
    if (!place.isConnected || place.clientWidth === 0) return;
    observer.disconnect();
    draw(place, chart);
  });
  observer.observe(place);
  return made;
}

/** Says where a series begins, ends, and how far it goes. @param {number[]} steps @param {Series} series */
function words(steps, { name, values }) {
  const known = values.flatMap((value, index) => (value === null ? [] : [{ value, step: steps[index] }]));
  if (known.length === 0) return `${name} has no number`;
  const first = known[0];
  const last = known[known.length - 1];
  if (known.length === 1) return `${name} ${short(first.value)} at step ${first.step}`;
  const highest = known.reduce((best, each) => (each.value > best.value ? each : best));
  const lowest = known.reduce((best, each) => (each.value < best.value ? each : best));
  const between = `${short(lowest.value)} to ${short(highest.value)}`;
  return `${name} ${short(first.value)} → ${short(last.value)} (steps ${first.step} to ${last.step}, ${between})`;
}

/** @param {Chart} chart */
function numbersOf({ title, steps, series, href }) {
  const rows = steps.map((step, index) => el("tr", {},
    el("td", { class: "num" }, href ? el("a", { href: href(step) }, String(step)) : String(step)),
    series.map((each) => el("td", { class: "num" }, short(each.values[index])))));
  return table(title, [th("step", true), ...series.map((each) => th(each.name, true))], rows);
}

/** @param {string} name */
function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** @param {HTMLElement} place @param {Chart} chart */
function draw(place, chart) {
  const lines = chart.stacked ? stacked(chart.series) : chart.series;
  const band = chart.band ?? null;
  const data = [chart.steps, ...lines.map((each) => each.values)];
  /** @type {any[]} */
  const series = [{ label: "step" }, ...lines.map((each, index) => line(each, index, chart))];
  /** @type {any[]} */
  let bands = chart.stacked ? lines.slice(1).map((_, index) => ({ series: [index + 2, index + 1] })) : [];
  if (band) {
    const ends = [1, -1].map((sign) => chart.series[0].values.map((value, index) =>
      (value === null || band[index] === null ? null : value + sign * /** @type {number} */ (band[index]))));
    data.push(...ends);
    const value = (/** @type {any} */ _, /** @type {number | null} */ end) => short(end);
    series.push(...["+ std", "− std"].map((label) => ({ label, value, width: 0, points: { show: false } })));
    bands = [{ series: [data.length - 2, data.length - 1], fill: `${css("--line-1")}22` }];
  }
  // Without a mouse the legend says the last number of each series.
  const last = data.map((values) => values.findLastIndex((/** @type {number | null} */ value) => value !== null));
  const axis = { stroke: css("--dim"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  const plot = new uPlot({
    width: place.clientWidth, height: HEIGHT, series, bands,
    scales: { x: { time: false }, ...(chart.stacked ? { y: { range: (/** @type {any} */ _, /** @type {number} */ __, /** @type {number} */ most) => [0, 1.05 * most] } } : {}),
      ...(chart.isShare ? { y: { range: [0, 1] } } : {}),
      ...(chart.least ? { y: { range: (/** @type {any} */ _, /** @type {number} */ low, /** @type {number} */ high) => atLeast(low, high, chart.least ?? 0) } } : {}) },
    axes: [
      { ...axis, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 50000, 100000], size: 28 },
      { ...axis, size: 52, values: (/** @type {any} */ _, /** @type {number[]} */ ticks) => ticks.map(short) },
    ],
    cursor: { sync: { key: "steps" }, points: { size: 6 }, drag: { x: true, y: false } },
    legend: { show: true, live: true },
    hooks: {
      setLegend: [(/** @type {any} */ drawn) => drawn.legend.idx === null && drawn.setLegend({ idxs: last }, false)],
      draw: [(/** @type {any} */ drawn) => mark(drawn, chart.warnings ?? [])],
    },
  }, /** @type {any} */ (data), place);
  new ResizeObserver(() => plot.setSize({ width: place.clientWidth, height: HEIGHT })).observe(place);
  const { href } = chart;
  if (href) {
    place.classList.add("clickable");
    plot.over.addEventListener("click", () => {
      const index = plot.cursor.idx;
      if (index !== null && index !== undefined) location.hash = href(chart.steps[index]);
    });
  }
}

/** Returns the ends of an axis which reaches up to `least`.
 * @param {number} low @param {number} high @param {number} least @returns {[number | null, number | null]} */
function atLeast(low, high, least) {
  return high < least ? [Math.min(low, 0), least] : uPlot.rangeNum(low, high, 0.1, true);
}

/** @param {Series} each @param {number} index @param {Chart} chart */
function line(each, index, chart) {
  const colour = css(COLOURS[(each.colour ?? index) % COLOURS.length]);
  const original = chart.series[index].values;
  return {
    label: each.name, stroke: colour, width: 1.8, spanGaps: true,
    fill: chart.stacked ? `${colour}55` : undefined,
    points: { show: Boolean(each.points) || chart.steps.length < 3, size: 6 },
    // the value itself, where lines are stacked
    value: (/** @type {any} */ _, /** @type {any} */ __, /** @type {number} */ ___, /** @type {number | null} */ at) =>
      (at === null || at === undefined ? "–" : `${short(original[at])}${chart.unit ?? ""}`),
  };
}

/** Returns each series with those before it below. @param {Series[]} series */
function stacked(series) {
  /** @type {(number | null)[]} */
  let below = [];
  return series.map((each) => {
    below = each.values.map((value, index) =>
      (value === null && (below[index] ?? null) === null ? null : (value ?? 0) + (below[index] ?? 0)));
    return { ...each, values: below };
  });
}

/** Draws a line where the run warned, with the warning's name. @param {any} plot @param {import("./data.js").Warning[]} warnings */
function mark(plot, warnings) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = css("--warn");
  ctx.font = `${11 * devicePixelRatio}px system-ui`;
  ctx.setLineDash([4, 4]);
  for (const warning of warnings) {
    const x = plot.valToPos(warning.step, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.textAlign = x > bbox.left + bbox.width / 2 ? "right" : "left";
    ctx.fillText(` ${warning.name} `, x, bbox.top + 10 * devicePixelRatio);
  }
  ctx.restore();
}
