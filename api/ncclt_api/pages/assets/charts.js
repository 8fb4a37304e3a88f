// Draws every figure[data-chart] from the JSON in it, with uPlot. Without this script the table beside it is read.
"use strict";
(() => {
  const TONES = ["default", "policy", "best", "quiet", "good", "failed", "warn", "c1", "c2", "c3", "c4", "c5", "c6"];
  const PIXEL = () => window.devicePixelRatio || 1;

  function palette(figure) {
    const style = getComputedStyle(figure);
    const colours = { ink: style.getPropertyValue("--ink"), text: style.getPropertyValue("--quiet"), grid: style.getPropertyValue("--faint"), line: style.getPropertyValue("--line"), surface: style.getPropertyValue("--surface") };
    for (const tone of TONES) colours[tone] = style.getPropertyValue(`--tone-${tone}`).trim();
    return colours;
  }

  const short = (value) => String(Number(value.toPrecision(3)));
  function bytes(value) {
    for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) if (value >= size) return `${short(value / size)} ${unit}`;
    return `${short(value)} B`;
  }
  function time(value) {
    if (value >= 1e6) return `${short(value / 1e6)} s`;
    return value >= 1e3 ? `${short(value / 1e3)} ms` : `${short(value)} µs`;
  }
  const WRITTEN = {
    bytes, us: time,
    gbps: (value) => `${short(value)} GB/s`,
    ratio: (value) => `${Number(value.toPrecision(4))}×`,
    percent: (value) => `${short(value)} %`,
    count: (value) => value.toLocaleString("en").replaceAll(",", "\u202f"),
    hours: (value) => `${short(value)} h`,
    number: short,
    date: (value) => new Date(value * 1e3).toISOString().slice(0, 16).replace("T", " ").replace(" 00:00", ""),
  };

  // Ticks at equal distances, which are round in the base.
  function evenSplits(base, low, high, most) {
    const rough = (high - low) / Math.min(most, 5), power = base ** Math.floor(Math.log(rough) / Math.log(base));
    const step = power * [1, 2, 5, 10].find((factor) => power * factor >= rough && (base === 10 || factor !== 5));
    const found = [];
    for (let value = Math.ceil(low / step) * step; value <= high; value += step) found.push(value);
    return found;
  }

  // Ticks of a logarithmic axis: powers of two, or 1-2-5 per decade, as many as there is room for; even ones where the
  // range has fewer than three of those.
  function logSplits(base, low, high, most) {
    const found = [];
    if (base === 2) {
      for (let power = Math.ceil(Math.log2(low) - 1e-9); 2 ** power <= high * 1.0001; power++) found.push(2 ** power);
    } else {
      for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power++)
        for (const step of [1, 2, 5]) if (step * 10 ** power >= low && step * 10 ** power <= high) found.push(step * 10 ** power);
    }
    if (found.length < 3 && high > low) return evenSplits(base, low, high, most);
    const every = Math.ceil(found.length / most);
    return found.filter((_, place) => place % every === 0);
  }

  function scaleOf(axis) {
    const log = axis.log || 0;
    const range = (plot, low, high) => {
      if (low == null || high == null) { low = axis.low ?? 1; high = axis.high ?? 10; }
      if (axis.low != null && plot.zoomed !== true) low = axis.low;
      if (axis.high != null && plot.zoomed !== true) high = axis.high;
      if (plot.zoomed === true && axis.side === "x") return [low, high];
      if (log) { const room = low === high ? 2 : (high / low) ** 0.04; return [axis.low ?? low / room, axis.high ?? high * room]; }
      const room = low === high ? Math.abs(low) * 0.1 || 1 : (high - low) * 0.05;
      return [axis.low ?? low - room, axis.high ?? high + room];
    };
    return { time: axis.unit === "date", distr: log ? 3 : 1, log: log || 10, range };
  }

  function axisOf(axis, colours, rows) {
    const written = WRITTEN[axis.unit] || short;
    const made = {
      scale: axis.side, label: axis.label || undefined, stroke: colours.text, labelSize: 22, labelGap: 2,
      font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif",
      grid: { stroke: colours.grid, width: 1 }, ticks: { stroke: colours.grid, width: 1, size: 4 }, border: { show: axis.side === "x", stroke: colours.line, width: 1 },
      values: (plot, splits) => splits.map((value) => (value == null ? "" : written(value))),
    };
    made.space = axis.unit === "date" ? 110 : axis.side === "x" ? 72 : 30;
    if (axis.log) {
      made.splits = (plot, number, low, high) => {
        const room = axis.side === "x" ? plot.bbox.width / PIXEL() / 64 : plot.bbox.height / PIXEL() / 28;
        return logSplits(axis.log, low, high, Math.max(2, Math.floor(room)));
      };
      made.filter = (plot, splits) => splits;
    }
    if (axis.side === "y") made.size = rows ? rowRoom(rows) : 66;
    else made.size = 34;
    if (rows && axis.side === "y") {
      made.splits = () => rows.map((_, place) => place);
      made.values = () => rows.map((row) => row.length > 26 ? `${row.slice(0, 12)}…${row.slice(-12)}` : row);
      made.grid = { show: false };
      made.ticks = { show: false };
      made.filter = (plot, splits) => splits;
    }
    if (axis.unit === "count" && !axis.log) made.incrs = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000];
    return made;
  }
  const rowRoom = (rows) => Math.min(190, 18 + 6.6 * Math.max(...rows.map((row) => Math.min(row.length, 25))));

  const translucent = (colour, share) => `color-mix(in srgb, ${colour} ${share}%, transparent)`;

  // uPlot shares one x among all series: the tables are joined, and a gap is null.
  function tablesOf(spec) {
    const tables = [], series = [{}], bands = [], kept = [];
    for (const line of spec.lines) {
      const columns = [line.x, line.y];
      const at = series.length;
      series.push({ line, role: "value" });
      kept.push({ line, at });
      if (line.low) {
        columns.push(line.high, line.low);
        series.push({ line, role: "high" }, { line, role: "low" });
        bands.push({ series: [at + 1, at + 2], line });
      }
      tables.push(columns);
    }
    if (spec.spans.length) {
      const ends = spec.spans.flatMap((span) => [span.start, span.end]);
      const low = Math.min(...ends), high = Math.max(...ends);
      tables.push([[low, high === low ? low * 2 : high], [0, 0]]);
      series.push({ role: "hidden" });
    }
    return { data: tables.length > 1 ? uPlot.join(tables) : tables[0], series, bands, kept };
  }

  function drawMarks(plot, spec, kept, colours) {
    const context = plot.ctx, scale = PIXEL();
    context.save();
    context.beginPath();
    context.rect(plot.bbox.left, plot.bbox.top, plot.bbox.width, plot.bbox.height);
    context.clip();
    let taken = 0, row = 0;
    for (const rule of spec.levels) {
      const at = rule.axis === "x" ? plot.valToPos(rule.at, "x", true) : plot.valToPos(rule.at, "y", true);
      context.strokeStyle = colours[rule.tone];
      context.lineWidth = 1.4 * scale;
      context.setLineDash([5 * scale, 4 * scale]);
      context.beginPath();
      if (rule.axis === "x") { context.moveTo(at, plot.bbox.top); context.lineTo(at, plot.bbox.top + plot.bbox.height); }
      else { context.moveTo(plot.bbox.left, at); context.lineTo(plot.bbox.left + plot.bbox.width, at); }
      context.stroke();
      context.setLineDash([]);
      context.font = `${11 * scale}px system-ui, sans-serif`;
      context.fillStyle = colours.text;
      context.textBaseline = "bottom";
      if (rule.axis === "x") {
        // A name stays inside the plot, and below the one before where both are too long.
        const wide = context.measureText(rule.label).width + 8 * scale;
        const left = Math.min(at, plot.bbox.left + plot.bbox.width - wide);
        row = left < taken ? row + 1 : 0;
        taken = left + wide;
        context.textAlign = "left";
        context.fillText(rule.label, left + 4 * scale, plot.bbox.top + (14 + 13 * row) * scale);
      }
      else {
        // Of two levels that are close, the lower one is named below its line.
        const below = spec.levels.some((other) => other.axis === rule.axis && other.at > rule.at);
        context.textAlign = "right";
        context.textBaseline = below ? "top" : "bottom";
        context.fillText(rule.label, plot.bbox.left + plot.bbox.width - 4 * scale, at + (below ? 4 : -3) * scale);
      }
    }
    for (const { line, at } of kept) {
      if (line.mark !== "cross" && line.mark !== "stem") continue;
      context.strokeStyle = colours[line.tone];
      context.lineWidth = (line.mark === "cross" ? 1.6 : 2) * scale;
      line.x.forEach((value, place) => {
        const x = plot.valToPos(value, "x", true);
        if (line.mark === "stem") {
          context.beginPath();
          context.moveTo(x, plot.valToPos(line.low[place], "y", true));
          context.lineTo(x, plot.valToPos(line.high[place], "y", true));
          context.stroke();
          return;
        }
        if (line.y[place] == null) return;
        const y = plot.valToPos(line.y[place], "y", true), arm = 3.5 * scale;
        context.beginPath();
        context.moveTo(x - arm, y - arm); context.lineTo(x + arm, y + arm);
        context.moveTo(x + arm, y - arm); context.lineTo(x - arm, y + arm);
        context.stroke();
      });
    }
    for (const span of spec.spans) {
      const from = plot.valToPos(span.start, "x", true), to = plot.valToPos(span.end, "x", true);
      const middle = plot.valToPos(span.row, "y", true);
      const half = Math.min(13 * scale, plot.bbox.height / (2.6 * spec.rows.length));
      const left = Math.max(from, plot.bbox.left), width = Math.max(Math.min(to, plot.bbox.left + plot.bbox.width) - left, 2 * scale);
      context.fillStyle = translucent(colours[span.tone], span.gap ? 8 : 26);
      context.strokeStyle = colours[span.tone];
      context.lineWidth = scale;
      context.setLineDash(span.gap ? [3 * scale, 3 * scale] : []);
      context.beginPath();
      context.rect(left + scale, middle - half, width - 2 * scale, 2 * half);
      context.fill();
      context.stroke();
      context.setLineDash([]);
      context.fillStyle = span.gap ? colours.text : colours.ink;
      context.font = `${12 * scale}px system-ui, sans-serif`;
      context.textAlign = "center";
      context.textBaseline = "middle";
      if (context.measureText(span.label).width < width - 6 * scale) context.fillText(span.label, left + width / 2, middle);
    }
    context.restore();
  }

  function nearest(plot, spec, kept) {
    const { left, top } = plot.cursor;
    if (left == null || left < 0) return null;
    for (const span of spec.spans) {
      const from = plot.valToPos(span.start, "x"), to = plot.valToPos(span.end, "x"), middle = plot.valToPos(span.row, "y");
      if (left >= from && left <= to && Math.abs(top - middle) < 15)
        return { x: left, y: middle, words: [spec.rows[span.row], `${WRITTEN[spec.x.unit](span.start)} to ${WRITTEN[spec.x.unit](span.end)}`, span.note || span.label] };
    }
    let best = null;
    for (const { line } of kept) {
      line.x.forEach((value, place) => {
        if (line.y[place] == null) return;
        const x = plot.valToPos(value, "x"), y = plot.valToPos(line.y[place], "y");
        const away = Math.hypot(x - left, (y - top) * 0.6);
        if (away < 60 && (best === null || away < best.away)) best = { away, x, y, line, place };
      });
    }
    if (!best) return null;
    const { line, place } = best;
    const words = [line.label, `${spec.x.label ? `${spec.x.label} ` : ""}${(WRITTEN[spec.x.unit] || short)(line.x[place])}`];
    if (line.mark !== "cross") words.push((WRITTEN[spec.y.unit] || short)(line.y[place]));
    if (line.low && line.low[place] != null) words.push(`${(WRITTEN[spec.y.unit] || short)(line.low[place])} to ${(WRITTEN[spec.y.unit] || short)(line.high[place])}`);
    if (line.notes && line.notes[place]) words.push(line.notes[place]);
    return { x: best.x, y: best.y, words };
  }

  function tooltip(spec, kept, figure) {
    let box, dot;
    return { hooks: {
      init: (plot) => {
        box = document.createElement("div"); box.className = "tip"; box.hidden = true;
        dot = document.createElement("div"); dot.className = "tip-dot"; dot.hidden = true;
        plot.over.append(box, dot);
        plot.over.addEventListener("mouseleave", () => { box.hidden = dot.hidden = true; });
      },
      setCursor: (plot) => {
        const found = nearest(plot, spec, kept);
        box.hidden = dot.hidden = found === null;
        if (!found) return;
        box.replaceChildren(...found.words.filter(Boolean).map((words) => { const one = document.createElement("span"); one.textContent = words; return one; }));
        dot.style.transform = `translate(${found.x}px, ${found.y}px)`;
        const width = plot.over.clientWidth, wide = box.offsetWidth;
        const left = found.x + 14 + wide > width ? Math.max(0, found.x - 14 - wide) : found.x + 14;
        box.style.transform = `translate(${left}px, ${Math.max(0, found.y - box.offsetHeight - 8)}px)`;
      },
    } };
  }

  function optionsOf(spec, tables, size, colours, figure) {
    const lines = tables.series.map((entry) => {
      if (!entry.line) return entry.role === "hidden" ? { scale: "y", show: true, paths: () => null, points: { show: false } } : {};
      const { line, role } = entry, colour = colours[line.tone];
      if (role !== "value") return { scale: "y", stroke: "transparent", width: 0, points: { show: false }, paths: line.mark === "stem" ? () => null : undefined, spanGaps: true };
      if (line.mark === "cross" || line.mark === "stem" || line.mark === "dot" || line.mark === "ring") {
        const size = line.x.length > 400 ? 4 : 7;
        const drawn = line.mark === "dot" || line.mark === "ring";
        return { scale: "y", paths: () => null, stroke: colour, points: { show: drawn, size, width: 1.6, stroke: colour, fill: line.mark === "ring" ? colours.surface : colour, filter: undefined } };
      }
      return { scale: "y", stroke: colour, width: line.tone === "default" ? 1.6 : 2.2, spanGaps: true, dash: line.mark === "dashed" ? [6, 4] : undefined,
        paths: line.mark === "step" ? uPlot.paths.stepped({ align: 1 }) : undefined, points: { show: line.mark === "line" && line.x.length < 40, size: 6, fill: colour, stroke: colour } };
    });
    const x = { ...spec.x, side: "x" }, y = { ...spec.y, side: "y" };
    const rows = spec.rows.length ? spec.rows : null;
    const scales = { x: scaleOf(x), y: scaleOf(y) };
    if (rows) scales.y = { time: false, dir: -1, range: () => [-0.5, rows.length - 0.5] };
    return {
      ...size, scales, tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1e3), "Etc/UTC"), series: lines, legend: { show: false }, axes: [axisOf(x, colours), axisOf(y, colours, rows)],
      bands: tables.bands.filter((band) => band.line.mark !== "stem").map((band) => ({ series: band.series, fill: translucent(colours[band.line.tone], 20) })),
      cursor: { points: { show: false }, drag: { x: true, y: false, uni: 20 }, y: false },
      padding: [12, 24, 4, 4],
      plugins: [tooltip(spec, tables.kept, figure), { hooks: { draw: (plot) => drawMarks(plot, spec, tables.kept, colours) } }],
      hooks: { setSelect: [(plot) => { if (plot.select.width > 4) { plot.zoomed = true; figure.querySelector(".unzoom").hidden = false; } }] },
    };
  }

  function draw(figure) {
    if (figure.drawn) return;
    const source = figure.querySelector('script[type="application/json"]');
    const place = figure.querySelector(".plot");
    const spec = JSON.parse(source.textContent);
    // The page reserves the height of a chart of rows, so that nothing below it moves.
    const reserved = Number(place.querySelector("svg")?.getAttribute("height"));
    const heightOf = (width) => reserved || (width < 560 ? 250 : 310);
    place.replaceChildren();
    const reset = document.createElement("button");
    reset.type = "button"; reset.className = "unzoom"; reset.textContent = "Whole range"; reset.hidden = true;
    figure.querySelector("figcaption").append(reset);
    let plot = null;
    const make = () => {
      if (plot) plot.destroy();
      const width = Math.max(place.clientWidth, 240);
      const tables = tablesOf(spec);
      plot = new uPlot(optionsOf(spec, tables, { width, height: heightOf(width) }, palette(figure), figure), tables.data, place);
      reset.hidden = true;
    };
    make();
    const whole = () => { plot.zoomed = false; reset.hidden = true; plot.setData(plot.data); };
    reset.addEventListener("click", whole);
    place.addEventListener("dblclick", whole);
    place.addEventListener("keydown", (event) => keys(event, plot, whole, reset));
    new ResizeObserver(() => {
      if (Math.abs(place.clientWidth - plot.width) > 1 && place.clientWidth > 0) plot.setSize({ width: place.clientWidth, height: heightOf(place.clientWidth) });
    }).observe(place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", make);
    figure.drawn = true;
  }

  // Arrows walk along the points, + and - zoom, Escape shows everything again.
  function keys(event, plot, whole, reset) {
    const { key } = event, width = plot.over.clientWidth, at = plot.cursor.left >= 0 ? plot.cursor.left : width / 2;
    if (key === "ArrowLeft" || key === "ArrowRight") {
      const xs = plot.data[0].map((value) => plot.valToPos(value, "x"));
      const next = key === "ArrowRight" ? xs.find((x) => x > at + 1) : xs.findLast((x) => x < at - 1);
      if (next === undefined) return;
      const index = xs.indexOf(next);
      const value = plot.data.slice(1).map((column) => column[index]).find((found) => found != null);
      plot.setCursor({ left: next, top: value == null ? 10 : plot.valToPos(value, "y") });
    } else if (key === "+" || key === "-") {
      const share = key === "+" ? 0.25 : -0.5;
      plot.zoomed = true; reset.hidden = false;
      plot.setScale("x", { min: plot.posToVal(width * share, "x"), max: plot.posToVal(width * (1 - share), "x") });
    } else if (key === "Escape") whole();
    else return;
    event.preventDefault();
  }

  const all = (root) => { for (const figure of root.querySelectorAll("figure[data-chart]")) draw(figure); };
  all(document);
  document.addEventListener("htmx:load", (event) => all(event.target.parentElement || document));
})();
