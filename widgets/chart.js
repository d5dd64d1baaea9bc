/* A chart of curves over time or steps, on uPlot: zoom by dragging, marks, a readout, keys, and colours of the theme.
 *
 * Charts that belong together share an `axis`, and so their zoom and their cursor. A drawing is
 * {x, curves: [{label, values, colour, faint, band}], marks: [{x, kind, words, y}], log}. A curve that is `joined` has no
 * holes where others have values, `stairs` keep their height until the next value, of `dots` no line is drawn.
 */

import uPlot from "uplot";
import { clock, number, timeLabels } from "./figures.js";
import { OWN_KEYS, colour, element, keyed, setAttribute, setText } from "./page.js";

/*! uPlot 1.6.32
 *
 * The MIT License (MIT)
 *
 * Copyright (c) 2022 Leon Sorokin
 *
 * Permission is hereby granted, free of charge, to any person obtaining a copy
 * of this software and associated documentation files (the "Software"), to deal
 * in the Software without restriction, including without limitation the rights
 * to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
 * copies of the Software, and to permit persons to whom the Software is
 * furnished to do so, subject to the following conditions:
 *
 * The above copyright notice and this permission notice shall be included in
 * all copies or substantial portions of the Software.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
 * IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
 * FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
 * AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
 * LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
 * OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN
 * THE SOFTWARE.
 */

const MARKS = { revoked: "bad", checkpoint: "quiet", evaluation: "good" };
const NEAR_PIXELS = 5;
const FEW = 6;
const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 1209600, 2592000];
const WHOLE_STEPS = [...Array(12).keys()].flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** power));
let axes = 0;

/** What the charts of one panel share. */
export function sharedAxis() {
  const charts = [];
  return {
    key: `transient-${(axes += 1)}`,
    charts,
    byStep: false,
    word: "step",  // the unit of the lower axis, unless that is time
    /** @type {[number, number] | null} */
    zoom: null,
    zoomTo(from, to) {
      this.zoom = from === null || !(to > from) ? null : [from, to];
      for (const chart of charts) chart.redraw(true);
    },
    /** Zoom in (by < 1) or out around the middle of what is shown. */
    zoomBy(by) {
      const [from, to] = this.zoom ?? charts.find((chart) => chart.range())?.range() ?? [0, 0];
      const [middle, half] = [(from + to) / 2, ((to - from) / 2) * by];
      this.zoomTo(middle - half, middle + half);
    },
  };
}

/** The points that no line leads to or from, or all of them where they are few. */
function lonely({ data }, series) {
  const values = data[series];
  const known = [...values.keys()].filter((index) => (values[index] ?? null) !== null);
  if (known.length < FEW) return known;
  return known.filter((index) => (values[index - 1] ?? null) === null && (values[index + 1] ?? null) === null);
}

function known(values) {
  return values.filter((value) => (value ?? null) !== null).length;
}

/** A chart with its title and what the cursor points at; `draw(drawing)` shows another state of it. */
export function lineChart(title, axis, { height }) {
  const room = element("div", { class: "transient-plot" });
  const name = element("span", { text: title });
  const readout = element("span", { class: "transient-readout" });
  const names = element("div", { class: "transient-names", hidden: "" });
  const told = element("span", { class: "transient-hidden", role: "status", "aria-live": "polite" });
  const node = element("figure", { class: "transient-chart", tabindex: "0", role: "group", ...OWN_KEYS }, element("figcaption", {}, name, readout), room, names, told);
  /** @type {any} */
  let plot = null;
  let drawing = null;
  let shape = "";

  const line = (curve) => () => (curve.colour.startsWith("--") ? colour(node, curve.colour.slice(2)) : curve.colour);

  /** @returns {any} */
  function options() {
    const small = { stroke: () => colour(node, "faint"), grid: { stroke: () => colour(node, "grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const bands = drawing.curves.flatMap((curve, index) =>
      curve.band ? [{ series: [index + 1, index + 2], fill: line(curve) }] : []);
    return {
      width: Math.max(120, room.clientWidth), height, legend: { show: false }, padding: [6, 28, 0, 0],
      cursor: {
        y: false, points: { size: 5 }, sync: { key: axis.key }, drag: { x: true, y: false, setScale: false },
        bind: { dblclick: () => () => { axis.zoomTo(null); return null; } },
      },
      scales: {
        x: { time: !axis.byStep, range: (_, low, high) => axis.zoom ?? spread(reaching(low, high, "x")) },
        y: { distr: drawing.log ? 3 : 1, range: (_, first, most) => {
          const [low, high] = reaching(first, most, "y");
          if (low === null) return [drawing.log ? 0.1 : 0, 1];
          if (drawing.log) return uPlot.rangeLog(low, high, 10, false);
          const from = drawing.fromZero ? 0 : low - 0.05 * (high - low || 1);
          return [from, high + 0.06 * (high - from || 1)];
        } },
      },
      axes: [
        { ...small, size: 25, gap: 6, space: 72, incrs: axis.byStep ? WHOLE_STEPS : TIME_STEPS, values: axis.byStep ? (_, splits) => splits.map((at) => at?.toLocaleString("en-US") ?? "") : (_, splits, __, ___, step) => timeLabels(splits, step) },
        { ...small, size: 40, gap: 4, space: 26, values: (_, splits) => splits.map((value) => (value === null ? "" : number(value))) },
      ],
      series: [{}, ...drawing.curves.map((curve) => ({
        label: curve.label, spanGaps: Boolean(curve.joined), points: points(curve), ...(curve.stairs ? { paths: uPlot.paths.stepped?.({ align: 1 }) } : {}),
        stroke: line(curve), width: width(curve), alpha: curve.faint ? 0.3 : curve.dots ? 0.8 : 1,
      }))],
      bands,
      hooks: { draw: [drawMarks], setCursor: [read], setSelect: [selected] },
    };
  }

  function points(curve) {
    if (curve.dots) return { show: true, size: 5, fill: line(curve), stroke: line(curve) };
    if (curve.hidden || (curve.joined && known(curve.values) > 1)) return { show: false };
    return { show: false, size: 5, filter: lonely, fill: line(curve) };
  }

  function width(curve) {
    if (curve.dots || curve.hidden || (known(curve.values) < 3 && !curve.joined)) return 0;
    return curve.wide ? 2.5 : curve.faint ? 1 : 1.5;
  }

  /** From `low` to `high`, and as far as the marks are (those that are seen, where it is about their height). */
  /** @param {number | null} low @param {number | null} high @param {"x" | "y"} where @returns {[number, number] | [null, null]} */
  function reaching(low, high, where) {
    const seen = ({ x }) => where === "x" || !axis.zoom || (x >= axis.zoom[0] && x <= axis.zoom[1]);
    const places = drawing.marks.filter(seen).map((mark) => mark[where])
      .filter((place) => Number.isFinite(place) && !(where === "y" && drawing.log && place <= 0));
    const all = low === null || high === null ? places : [low, high, ...places];
    if (!all.length) return [null, null];
    const [least, most] = [Math.min(...all), Math.max(...all)];
    const margin = where === "x" ? 0.015 * (most - least) : 0;  // for half a mark
    return [least - (places.includes(least) ? margin : 0), most + (places.includes(most) ? margin : 0)];
  }

  /** @param {[number, number] | [null, null]} ends */
  function spread([low, high]) {
    return low !== null && low === high ? [low - 1, low + 1] : [low, high];
  }

  function drawMarks({ ctx, bbox, valToPos }) {
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    const pixel = devicePixelRatio;
    for (const mark of drawing.marks) {
      const x = Math.round(valToPos(mark.x, "x", true));
      ctx.strokeStyle = ctx.fillStyle = colour(node, MARKS[mark.kind] ?? "quiet");
      ctx.lineWidth = pixel;
      ctx.beginPath();
      if (mark.kind === "revoked") {
        ctx.setLineDash([3 * pixel, 3 * pixel]);
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
      } else if (mark.kind === "checkpoint") {
        const y = bbox.top + bbox.height;
        ctx.moveTo(x, y - 6 * pixel);
        ctx.lineTo(x + 3 * pixel, y);
        ctx.lineTo(x - 3 * pixel, y);
        ctx.fill();
      } else {
        const y = typeof mark.y === "number" ? valToPos(mark.y, "y", true) : bbox.top + 5 * pixel;
        ctx.setLineDash([]);
        ctx.arc(x, y, 3.5 * pixel, 0, 7);
        ctx.fill();
      }
    }
    ctx.restore();
  }

  function words(index) {
    const at = plot.data[0][index];
    const where = axis.byStep ? `${axis.word} ${Math.round(at).toLocaleString("en-US")}` : clock(at);
    if (drawing.words) return [where, ...drawing.words(index)].join(" · ");
    const values = drawing.curves.filter((curve) => !curve.hidden && !curve.faint && (curve.values[index] ?? null) !== null)
      .map((curve) => `${drawing.curves.length > 1 && curve.label !== title ? `${curve.label} ` : ""}${number(curve.values[index])}`);
    return [where, ...values.slice(0, 6)].join(" · ");
  }

  function read() {
    const { idx, left } = plot.cursor;
    if (idx === null || idx === undefined || left < 0) { setText(readout, drawing.said ?? ""); return; }
    const near = drawing.marks.find((mark) => Math.abs(plot.valToPos(mark.x, "x") - left) < NEAR_PIXELS);
    setText(readout, near ? near.words : words(idx));
  }

  function selected({ select, posToVal }) {
    if (select.width < 4) return;
    axis.zoomTo(posToVal(select.left, "x"), posToVal(select.left + select.width, "x"));
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  }

  node.addEventListener("keydown", (event) => {
    const keys = {
      ArrowLeft: () => move(-1), ArrowRight: () => move(1),
      "+": () => axis.zoomBy(0.5), "-": () => axis.zoomBy(2), 0: () => axis.zoomTo(null),
    };
    if (!plot || !(event.key in keys)) return;
    event.preventDefault();
    event.stopPropagation();
    keys[event.key]();
  });

  function move(by) {
    const [x] = plot.data;
    const visible = [...x.keys()].filter((index) => x[index] >= plot.scales.x.min && x[index] <= plot.scales.x.max);
    const place = visible.indexOf(plot.cursor.idx);
    const index = visible[place < 0 ? visible.length - 1 : Math.min(visible.length - 1, Math.max(0, place + by))];
    if (index === undefined) return;
    plot.setCursor({ left: plot.valToPos(x[index], "x"), top: 1 });
    setText(told, readout.textContent);
  }

  node.draw = (next) => {
    drawing = next;
    const seen = next.x.length > 1 && next.curves.length > 0;
    room.hidden = readout.hidden = !seen;
    node.hidden = !seen;
    if (!seen) return;
    names.hidden = !next.named;
    if (next.named) {
      keyed(names, next.curves, (curve) => `${curve.label} ${curve.colour}`, (curve) => {
        const made = element("span", { text: curve.label });
        made.style.setProperty("--of", curve.colour);
        return made;
      });
    }
    setAttribute(node, "aria-label", `${title}${next.said ? `, ${next.said}` : ""}. Arrow keys read it, plus and minus zoom, 0 shows all.`);
    const now = JSON.stringify([next.curves.map((curve) => [curve.label, curve.colour, curve.hidden, curve.faint, known(curve.values) < 3]), Boolean(next.log), axis.byStep]);
    const data = [next.x, ...next.curves.map((curve) => curve.values)];
    if (!plot || now !== shape) {
      shape = now;
      plot?.destroy();
      plot = new uPlot(options(), data, room);
    } else {
      plot.setData(data);
    }
    read();
  };
  node.entitle = (text) => { title = text; setText(name, text); };
  node.redraw = (again = false) => { if (plot) again ? plot.setData(plot.data) : plot.redraw(false, true); };
  node.range = () => (plot && plot.scales.x.min !== null ? [plot.scales.x.min, plot.scales.x.max] : null);
  /** What the lines are, and the areas between two of them, each with its colour; of a line that is the chart's own, nothing. */
  node.legend = () => (drawing?.curves ?? []).flatMap((curve, index, all) => {
    const label = curve.band ? `${all[index + 1].label} to ${curve.label}` : curve.label;
    const seen = curve.band || (!curve.hidden && known(curve.values) > 0 && label !== title);
    return seen ? [{ label, colour: line(curve)(), faint: Boolean(curve.faint) }] : [];
  });
  node.canvas = () => (node.hidden ? null : plot?.ctx.canvas);
  const resized = new ResizeObserver(() => {
    const width = Math.floor(room.clientWidth);
    if (plot && width > 0 && Math.abs(width - plot.width) > 1) plot.setSize({ width, height });
  });
  resized.observe(room);
  node.end = () => { resized.disconnect(); plot?.destroy(); plot = null; };
  axis.charts.push(node);
  return node;
}
