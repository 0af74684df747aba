"use strict";
// One chart: axes, lines, bands, points or a stack, a cursor that all charts share, zoom by dragging, a legend with the
// values at the cursor. `draw({x, xLabel, lines, points, stack, log, percent})` may be called again and again.
//   lines: [{name, values, low, high, faint, colour}]   points: [{x, y, error, name}]   stack: [{name, values, colour}]
(function (page) {
  const { el, svg } = page;
  const HEIGHT = 190;
  const MARGIN = { left: 54, right: 14, top: 10, bottom: 24 };
  const groups = new Map(); // charts with a common x axis, by its name

  page.chart = function (title, what, group) {
    const shared = groups.get(group) || groups.set(group, { charts: new Set(), zoom: null, cursor: null }).get(group);
    const legend = el("ul", { class: "legend" });
    const picture = svg("svg", { class: "chart", tabindex: 0, role: "img", height: HEIGHT });
    const log = page.button("log", () => { state.isLog = !state.isLog; render(); }, { class: "small", title: "logarithmic axis" });
    const node = el("figure", { class: "card" },
      el("figcaption", {}, el("h3", {}, title), log, el("p", { class: "what" }, what)), picture, legend);
    const state = { data: null, isLog: null, hidden: new Set(), width: 0, drag: null };
    const chart = { node, render, cursor: drawCursor };
    let scale = null;

    function draw(data) {
      state.data = data;
      if (state.isLog === null) state.isLog = Boolean(data.log);
      log.hidden = Boolean(data.stack) || Boolean(data.percent);
      render();
    }

    function visible() {
      const { x } = state.data;
      const zoom = shared.zoom;
      if (!zoom) return [0, x.length];
      let from = x.findIndex((value) => value >= zoom[0]);
      if (from < 0) from = x.length;
      let to = from;
      while (to < x.length && x[to] <= zoom[1]) to++;
      return [Math.max(0, from - 1), Math.min(x.length, to + 1)];
    }

    function render() {
      const { data } = state;
      log.setAttribute("aria-pressed", Boolean(state.isLog));
      if (!data || !picture.clientWidth) return;
      state.width = picture.clientWidth;
      picture.setAttribute("viewBox", `0 0 ${state.width} ${HEIGHT}`);
      if (!data.x.length) return empty();
      const [from, to] = visible();
      const cut = (values) => values && values.slice(from, to);
      const xs = cut(data.x);
      const lines = (data.lines || []).filter((line) => !state.hidden.has(line.name))
        .map((line) => ({ ...line, values: cut(line.values), low: cut(line.low), high: cut(line.high), faint: cut(line.faint) }));
      const layers = (data.stack || []).map((layer) => (
        { ...layer, values: state.hidden.has(layer.name) ? [] : cut(layer.values) }));
      const domain = xDomain(xs);
      const points = (data.points || []).filter((point) => !state.hidden.has(point.name))
        .filter((point) => point.x >= domain[0] && point.x <= domain[1]);
      scale = scales(domain, range(lines, points, layers));
      picture.replaceChildren(axes(data), shapes(xs, lines, layers, points), svg("g", { class: "cursor" }));
      picture.setAttribute("aria-label", described(lines));
      drawLegend();
      drawCursor();
    }

    function empty() {
      const text = svg("text", { x: state.width / 2, y: HEIGHT / 2, class: "axis middle" }, state.data.empty || "nothing recorded yet");
      picture.replaceChildren(text);
      legend.replaceChildren();
    }

    function xDomain(xs) {
      const whole = state.data.domain || (state.data.stack ? [page.edges(state.data.x)[0], page.edges(state.data.x).at(-1)] : [state.data.x[0], state.data.x.at(-1)]);
      const marks = (state.data.points || []).map((point) => point.x);
      let [low, high] = shared.zoom || [Math.min(whole[0], ...marks), Math.max(whole[1], ...marks)];
      if (low === high) [low, high] = [low - 0.5, high + 0.5];
      return [low, high];
    }

    function range(lines, points, layers) {
      if (layers.length) {
        const sums = layers[0] ? Array.from({ length: Math.max(...layers.map((layer) => layer.values.length), 0) },
          (_, i) => layers.reduce((sum, layer) => sum + (layer.values[i] || 0), 0)) : [];
        return [0, state.data.percent ? 1 : Math.max(...sums, 1e-12)];
      }
      const values = lines.flatMap((line) => [line.values, line.low || [], line.high || [], line.faint || []]).flat()
        .concat(points.flatMap((point) => [point.y - (point.error || 0), point.y + (point.error || 0)])).filter(page.isNumber);
      if (state.isLog) {
        const positive = values.filter((value) => value > 0);
        if (positive.length) {
          const [low, high] = extent(positive);
          return [Math.max(low, high * 1e-9), Math.max(high, low * 10)];
        }
      }
      if (state.data.percent) return [0, 1];
      if (!values.length) return [0, 1];
      let [low, high] = extent(values);
      if (low > 0 && low < 0.4 * high) low = 0;
      if (low === high) [low, high] = low === 0 ? [0, 1] : [low - Math.abs(low) / 2, high + Math.abs(high) / 2];
      const room = (high - low) * 0.06;
      return [low === 0 ? 0 : low - room, high + room];
    }
    function extent(values) {
      let low = Infinity;
      let high = -Infinity;
      for (const value of values) {
        if (value < low) low = value;
        if (value > high) high = value;
      }
      return [low, high];
    }

    function scales(domain, ys) {
      const inner = { width: state.width - MARGIN.left - MARGIN.right, height: HEIGHT - MARGIN.top - MARGIN.bottom };
      const isLog = state.isLog && !state.data.stack && ys[0] > 0;
      const to = isLog ? Math.log10 : (value) => value;
      const x = (value) => MARGIN.left + ((value - domain[0]) / (domain[1] - domain[0])) * inner.width;
      const y = (value) => {
        const at = (to(isLog ? Math.max(value, ys[0]) : value) - to(ys[0])) / (to(ys[1]) - to(ys[0]));
        return MARGIN.top + (1 - at) * inner.height;
      };
      const inverse = (pixel) => domain[0] + ((pixel - MARGIN.left) / inner.width) * (domain[1] - domain[0]);
      return { x, y, inverse, domain, ys, isLog };
    }

    function axes(data) {
      const { x, y, domain, ys, isLog } = scale;
      const right = state.width - MARGIN.right;
      const bottom = HEIGHT - MARGIN.bottom;
      const written = data.percent ? page.percent : page.number;
      const rows = (isLog ? page.logTicks(ys[0], ys[1]) : page.ticks(ys[0], ys[1], 4)).map((value) => [
        svg("line", { class: "grid", x1: MARGIN.left, x2: right, y1: y(value), y2: y(value) }),
        svg("text", { class: "axis end", x: MARGIN.left - 7, y: y(value) + 4 }, written(value))]);
      const format = data.xFormat || page.number;
      const ticks = page.ticks(domain[0], domain[1], Math.max(2, state.width / 110), data.whole);
      const columns = ticks.map((value) =>
        svg("text", { class: "axis middle", x: Math.min(x(value), right - 4), y: bottom + 17 }, format(value)));
      const clip = `clip-${title.replace(/\W/g, "")}`;
      return svg("g", {}, rows, columns,
        svg("clipPath", { id: clip }, svg("rect", { x: MARGIN.left - 4, y: 0, width: Math.max(0, right - MARGIN.left + 8), height: HEIGHT })));
    }

    function shapes(xs, lines, layers, points) {
      const { x, y } = scale;
      const group = svg("g", { "clip-path": `url(#clip-${title.replace(/\W/g, "")})` });
      if (layers.length) {
        const paths = page.stackPaths(page.edges(xs), layers.map((layer) => layer.values), x, y);
        layers.forEach((layer, i) => group.append(svg("path", { d: paths[i], "--c": layer.colour, class: "layer" })));
      }
      for (const line of lines) {
        if (line.low) group.append(svg("path", { d: page.bandPath(xs, line.low, line.high, x, y), "--c": line.colour, class: "band" }));
        if (line.faint) group.append(svg("path", { d: page.linePath(xs, line.faint, x, y).path, "--c": line.colour, class: "line faint" }));
        const { path, dots } = page.linePath(xs, line.values, x, y);
        group.append(svg("path", { d: path, "--c": line.colour, class: "line" }));
        const marked = xs.length <= 30 ? line.values.flatMap((value, i) => (page.isNumber(value) ? [i] : [])) : dots;
        for (const i of marked) group.append(svg("circle", { cx: x(xs[i]), cy: y(line.values[i]), r: 2.6, "--c": line.colour, class: "dot" }));
      }
      for (const point of points) {
        if (point.error) group.append(svg("line", { class: "error", x1: x(point.x), x2: x(point.x), y1: y(point.y - point.error), y2: y(point.y + point.error) }));
        group.append(svg("path", { class: "point", d: `M${x(point.x)} ${y(point.y) - 5.5}l5.5 5.5l-5.5 5.5l-5.5 -5.5Z` }, svg("title", {}, `${point.name} ${page.number(point.y)}`)));
      }
      return group;
    }

    function nearest(value) {
      const xs = state.data.x;
      let best = 0;
      for (let i = 1; i < xs.length; i++) if (Math.abs(xs[i] - value) < Math.abs(xs[best] - value)) best = i;
      return best;
    }

    function drawLegend() {
      const { data } = state;
      const index = shared.cursor === null ? null : nearest(shared.cursor);
      const written = data.percent ? page.percent : page.number;
      const newest = (values) => values.findLast(page.isNumber);
      const items = [...(data.lines || []), ...(data.stack || [])].map((item) => {
        const value = index === null ? newest(item.values) : item.values[index];
        return entry(item.name, item.colour, written(value), "");
      });
      for (const name of new Set((data.points || []).map((point) => point.name))) {
        const all = data.points.filter((point) => point.name === name);
        const x = index === null ? Infinity : data.x[index];
        const value = all.findLast((point) => point.x <= x);
        items.push(entry(name, null, value ? written(value.y) : "–", "point"));
      }
      const where = index === null ? "" : `${data.xLabel} ${(data.xFormat || page.number)(data.x[index])}`;
      legend.replaceChildren(...items, el("li", { class: "where" }, where));
    }

    function entry(name, colour, value, kind) {
      const toggle = () => {
        if (!state.hidden.delete(name)) state.hidden.add(name);
        render();
      };
      return el("li", {}, page.button([el("span", { class: `swatch ${kind}`, "--c": colour || "var(--text)" }), page.visible(name), el("b", {}, value)], toggle,
        { "aria-pressed": !state.hidden.has(name), title: "show or hide" }));
    }

    function described(lines) {
      const parts = lines.map((line) => {
        const known = line.values.filter(page.isNumber);
        return known.length ? `${line.name} from ${page.number(known[0])} to ${page.number(known.at(-1))}` : "";
      });
      return `${title}. ${parts.filter(Boolean).join("; ")}. Arrow keys move the cursor.`;
    }

    function drawCursor() {
      const layer = picture.querySelector(".cursor");
      if (!layer || !scale || !state.data.x.length) return;
      layer.replaceChildren();
      const bottom = HEIGHT - MARGIN.bottom;
      if (state.drag && state.drag.to !== state.drag.from) {
        const [a, b] = [state.drag.from, state.drag.to].sort((one, other) => one - other);
        layer.append(svg("rect", { class: "chosen", x: a, y: MARGIN.top, width: b - a, height: bottom - MARGIN.top }));
      } else if (shared.cursor !== null) {
        const x = scale.x(state.data.x[nearest(shared.cursor)]);
        if (x >= MARGIN.left - 1 && x <= state.width) layer.append(svg("line", { class: "here", x1: x, x2: x, y1: MARGIN.top, y2: bottom }));
      }
      drawLegend();
    }

    const pixel = (event) => event.clientX - picture.getBoundingClientRect().left;
    const all = (change) => shared.charts.forEach((other) => other.node.isConnected && change(other));
    function setCursor(value) {
      shared.cursor = value;
      all((other) => other.cursor());
    }
    picture.addEventListener("pointermove", (event) => {
      if (!scale) return;
      if (state.drag) state.drag.to = pixel(event);
      setCursor(scale.inverse(pixel(event)));
    });
    picture.addEventListener("pointerleave", () => setCursor(null));
    picture.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "mouse" && scale) state.drag = { from: pixel(event), to: pixel(event) };
    });
    window.addEventListener("pointerup", () => {
      const drag = state.drag;
      state.drag = null;
      if (drag && Math.abs(drag.to - drag.from) > 6) page.zoom(group, [drag.from, drag.to].map(scale.inverse).sort((a, b) => a - b));
    });
    picture.addEventListener("dblclick", () => page.zoom(group, null));
    picture.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") setCursor(null);
      if (!move || !state.data.x.length) return;
      const index = shared.cursor === null ? (move > 0 ? 0 : state.data.x.length - 1) : nearest(shared.cursor) + move;
      if (state.data.x[index] !== undefined) setCursor(state.data.x[index]);
      event.preventDefault();
    });
    new ResizeObserver(() => { if (picture.clientWidth !== state.width) render(); }).observe(picture);
    shared.charts.add(chart);
    return { node, draw };
  };

  // Show only a part of the x axis in all charts of a group; null: all of it.
  page.onZoom = new Map();
  page.zoom = function (group, range) {
    const shared = groups.get(group);
    if (!shared) return;
    const heed = page.onZoom.get(group);
    if (heed) return heed(range); // whoever fetches another window does so
    shared.zoom = range;
    shared.charts.forEach((chart) => chart.node.isConnected ? chart.render() : shared.charts.delete(chart));
    document.dispatchEvent(new CustomEvent("zoomed", { detail: { group, range } }));
  };
})(window.page);
