"use strict";
// The view `Timeline`: a lane each for the learner, generation as a whole and every engine; below, how full the flow was.
(function (page) {
  const { el, svg } = page;
  const ROW = 30;
  const BAR = 20;
  const AXIS = 26;
  const LABEL = { wide: 96, narrow: 66 };
  const SAID = {
    training: "training", waiting: "waiting for groups", snapshot: "writing a snapshot", checkpoint: "saving a checkpoint",
    paused: "paused by a guard", busy: "at work", idle: "nothing to do", publishing: "paused to load a version", swapping: "loading an adapter beside its work", away: "gets no work", starting: "starting",
  };
  const isPublish = (state) => state === "publishing" || state === "swapping"; // the step in which it was made is its version
  let view = null; // {data, range, follows, nodes}

  page.views = page.views || {};
  page.views.timeline = {
    async show(node, isNew) {
      if (isNew || !view) {
        view = { range: null, preset: "proposed" };
        build(node);
      }
      await load();
    },
  };

  function build(node) {
    const picture = svg("svg", { class: "lanes", tabindex: 0, role: "img", "aria-label": "timeline; arrow keys move it, plus and minus zoom" });
    const said = el("p", { class: "said", "aria-live": "polite" });
    const legend = el("ul", { class: "legend" });
    const flow = page.chart("Flow", "groups in flight, groups in the buffer, slots taken (a group's from admission to publish)", "time");
    const requests = page.chart("Open requests", "by engine", "time");
    view.nodes = { picture, said, legend, flow, requests };
    const buttons = [["last steps", () => preset("proposed")], ["whole run", () => preset("all")], ["−", () => scale(2), "zoom out"], ["+", () => scale(0.5), "zoom in"],
      ["←", () => shift(-0.5), "earlier"], ["→", () => shift(0.5), "later"]];
    const controls = el("div", { class: "controls" }, buttons.map(([name, act, label]) => page.button(name, act, { "aria-label": label || name, class: name.length > 2 ? "" : "square" })),
      el("span", { class: "hint" }, "times are since the run began; drag to zoom; + − and arrow keys work too"));
    node.replaceChildren(controls, el("figure", { class: "card" }, picture, said, legend), el("div", { class: "grid-of-charts" }, flow.node, requests.node));
    picture.addEventListener("pointermove", (event) => { if (view.drag) view.drag.to = pixel(event); tell(event); drawDrag(); });
    picture.addEventListener("pointerleave", () => { said.textContent = summary(); });
    picture.addEventListener("pointerdown", (event) => { if (event.pointerType === "mouse") view.drag = { from: pixel(event), to: pixel(event) }; });
    window.addEventListener("pointerup", () => {
      const drag = view && view.drag;
      if (!drag) return;
      view.drag = null;
      if (Math.abs(drag.to - drag.from) > 6) setRange([drag.from, drag.to].map((x) => view.data.from + view.seconds(x)).sort((a, b) => a - b));
      else drawDrag();
    });
    picture.addEventListener("dblclick", () => preset("all"));
    picture.addEventListener("keydown", (event) => {
      const act = { "+": () => scale(0.5), "=": () => scale(0.5), "-": () => scale(2), ArrowLeft: () => shift(-0.25), ArrowRight: () => shift(0.25), Home: () => preset("all"), End: () => preset("proposed") }[event.key];
      if (act) { event.preventDefault(); act(); }
    });
    page.onZoom.set("time", (range) => (range ? setRange(range.map((seconds) => view.data.from + seconds)) : preset("all")));
    new ResizeObserver(() => view.data && draw()).observe(picture.parentNode);
  }

  async function load() {
    const query = view.range ? { from: view.range[0], to: view.range[1] } : {};
    let data = await page.ask("timeline", query);
    if (!view.range && view.preset === "proposed" && data.proposed && data.proposed[0] > data.bounds[0]) data = await page.ask("timeline", { from: data.proposed[0], to: data.proposed[1] });
    view.data = data;
    draw();
  }
  const preset = (name) => { view.preset = name; view.range = null; refresh(); };
  const setRange = (range) => {
    const [low, high] = view.data.bounds;
    const width = Math.min(Math.max(range[1] - range[0], 0.02), high - low);
    const from = Math.min(Math.max(range[0], low), high - width);
    view.range = [from, from + width];
    refresh();
  };
  const refresh = () => load().catch((error) => { view.nodes.said.textContent = error.message; });
  const wanted = () => view.range || [view.data.from, view.data.to]; // also while it is still on its way
  const scale = (factor) => { const [from, to] = wanted(); const middle = (from + to) / 2; const half = ((to - from) / 2) * factor; setRange([middle - half, middle + half]); };
  const shift = (part) => { const [from, to] = wanted(); setRange([from + part * (to - from), to + part * (to - from)]); };

  const pixel = (event) => event.clientX - view.nodes.picture.getBoundingClientRect().left;
  const shown = () => (view.range ? [view.range[0] - view.data.from, view.range[1] - view.data.from] : [0, view.data.to - view.data.from]);

  function draw() {
    const { picture, said, legend, flow, requests } = view.nodes;
    const { data } = view;
    const width = picture.parentNode.clientWidth - 24;
    if (width < 100) return; // it is not shown at the moment
    if (!data.bounds) {
      picture.replaceChildren();
      said.textContent = "no timeline was recorded (spans.jsonl); runs of this version record one";
      flow.node.hidden = requests.node.hidden = true;
      return;
    }
    const label = width < 600 ? LABEL.narrow : LABEL.wide;
    const [low, high] = shown();
    const height = data.lanes.length * ROW + AXIS;
    const x = (seconds) => label + ((seconds - low) / (high - low)) * (width - label - 4);
    view.x = x;
    view.seconds = (at) => low + ((at - label) / (width - label - 4)) * (high - low);
    for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) picture.setAttribute(name, value);
    const ticks = page.ticks(low, high, Math.max(2, width / 120));
    const clip = svg("clipPath", { id: "lanes-clip" }, svg("rect", { x: label, y: 0, width: Math.max(0, width - label - 4), height }));
    picture.replaceChildren(clip,
      ...ticks.map((tick) => svg("g", {}, svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: 0, y2: height - AXIS + 4 }),
        svg("text", { class: "axis middle", x: Math.min(x(tick), width - 24), y: height - 6 }, clockOf(data, tick, high - low)))),
      ...data.lanes.map((lane, row) => drawLane(lane, row, x, label)), svg("g", { class: "cursor" }));
    drawLegend(legend);
    said.textContent = summary();
    drawFlow(flow, requests, data, [low, high]);
  }

  function clockOf(data, seconds, width) {
    const total = data.from - data.bounds[0] + seconds;
    if (width < 10) return `${Number(total.toFixed(2))} s`;
    if (data.to - data.bounds[0] < 120) return `${Math.round(total)} s`;
    const whole = Math.round(total);
    const minutes = Math.floor(whole / 60);
    const rest = String(whole % 60).padStart(2, "0");
    if (width > 7200) return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")}`;
    return minutes < 60 ? `${minutes}:${rest}` : `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")}:${rest}`;
  }

  function drawLane(lane, row, x, label) {
    const top = row * ROW + (ROW - BAR) / 2;
    const name = svg("text", { class: "axis lane", x: 0, y: top + BAR / 2 + 4 }, lane.name);
    const inside = svg("g", { "clip-path": "url(#lanes-clip)" });
    const drawn = lane.spans ? spans(lane, top, x, label) : slots(lane, top, x);
    const isUnder = (node) => node.classList.contains("busy"); // how busy it was is drawn over it
    inside.append(...drawn.filter(isUnder), ...intensity(lane, top, x), ...drawn.filter((node) => !isUnder(node)));
    return svg("g", {}, name, inside);
  }

  // How many requests an engine had, as the depth of its lane's colour.
  function intensity(lane, top, x) {
    const { flow, from, to } = view.data;
    const values = flow.requests[lane.name];
    if (!values) return [];
    const most = Object.values(flow.requests).flat().reduce((largest, value) => Math.max(largest, value || 0), 1);
    const paths = ["", "", "", "", ""];
    const gap = typical(flow.at, to - from);
    values.forEach((value, i) => {
      const start = flow.at[i];
      const end = Math.min(i + 1 < flow.at.length ? flow.at[i + 1] : to - from, start + 3 * gap);
      if (value > 0) paths[Math.min(4, Math.floor((5 * value) / (most + 1e-9)))] += `M${x(start)} ${top}H${x(end)}V${top + BAR}H${x(start)}Z`;
    });
    return paths.map((d, i) => svg("path", { d, class: "requests", "--depth": 0.25 + 0.15 * i }));
  }
  const typical = (at, width) => (at.length < 2 ? width : at.slice(1).map((value, i) => value - at[i]).sort((a, b) => a - b)[Math.floor((at.length - 1) / 2)]);

  function spans(lane, top, x, label) {
    const byState = new Map();
    const words = [];
    for (const [start, end, state, number] of lane.spans) {
      const name = view.data.states[state];
      const [a, b] = [x(start), Math.max(x(end), x(start) + 1.2)];
      byState.set(name, (byState.get(name) || "") + `M${a.toFixed(1)} ${top}H${b.toFixed(1)}V${top + BAR}H${a.toFixed(1)}Z`);
      const [left, right] = [Math.max(a, label), b];
      const texts = number < 0 ? [] : name === "training" ? [`step ${number}`, `${number}`] : isPublish(name) ? [`v${number}`] : [];
      const text = texts.find((each) => right - left > 8 + 6.6 * each.length);
      if (text) words.push(svg("text", { class: `inside ${name}`, x: (left + right) / 2, y: top + BAR / 2 + 4 }, text));
    }
    const now = ongoing(lane, top, x);
    return [...[...byState].map(([name, d]) => svg("path", { d, class: `span ${name}`, "--c": `var(--state-${name})` })), ...now, ...words];
  }
  // What the learner is in the middle of: it becomes a span only when it ends.
  function ongoing(lane, top, x) {
    const { data } = view;
    const since = lane.spans.length ? lane.spans.at(-1)[1] : 0;
    if (lane.name !== "learner" || !data.now || data.to < data.bounds[1] - 0.01 || data.to - data.from - since < 0.05) return [];
    return [svg("path", { d: `M${x(since)} ${top}H${x(data.to - data.from)}V${top + BAR}H${x(since)}Z`, class: "span ongoing", "--c": `var(--state-${data.now.learner})` })];
  }
  function slots(lane, top, x) {
    const names = Object.keys(lane.shares);
    const count = lane.shares[names[0]].length;
    const width = view.data.to - view.data.from;
    const edges = Array.from({ length: count + 1 }, (_, i) => (i / count) * width);
    const paths = page.stackPaths(edges, names.map((name) => lane.shares[name]), x, (share) => top + BAR - share * BAR);
    return names.map((name, i) => svg("path", { d: paths[i], class: `span ${name}`, "--c": `var(--state-${name})` }));
  }

  function drawLegend(legend) {
    const { data } = view;
    const used = new Set(data.lanes.flatMap((lane) => (lane.spans ? lane.spans.map((span) => data.states[span[2]]) : Object.keys(lane.shares))));
    const items = [...used].map((name) => el("li", {}, el("span", { class: "swatch", "--c": `var(--state-${name})` }), SAID[name] || name));
    if (Object.keys(data.flow.requests).length) items.push(el("li", {}, el("span", { class: "swatch", "--c": "var(--requests)" }), "open requests: the more, the deeper"));
    legend.replaceChildren(...items);
  }

  function summary() {
    const { data } = view;
    const [low, high] = shown();
    const learner = data.lanes.find((lane) => lane.name === "learner");
    const begins = `${page.duration(high - low)} from ${page.date(data.from + low)}`;
    if (!learner) return begins;
    const shares = data.states.map((name, i) => {
      const seconds = learner.spans ? learner.spans.filter((span) => span[2] === i).reduce((sum, [a, b]) => sum + Math.max(0, Math.min(b, high) - Math.max(a, low)), 0) / (high - low)
        : (learner.shares[name] || []).reduce((sum, share) => sum + share, 0) / learner.shares[Object.keys(learner.shares)[0]].length;
      return [name, seconds];
    }).filter(([, share]) => share > 0.004).sort((a, b) => b[1] - a[1]);
    return `${begins}. Learner: ${shares.map(([name, share]) => `${name} ${page.percent(Number(share.toFixed(3)))}`).join(", ") || "nothing recorded"}`;
  }

  function tell(event) {
    const { data, nodes } = view;
    if (!data.bounds || view.drag) return;
    const box = nodes.picture.getBoundingClientRect();
    const lane = data.lanes[Math.floor((event.clientY - box.top) / ROW)];
    const at = view.seconds(event.clientX - box.left);
    if (!lane || at < shown()[0]) { nodes.said.textContent = summary(); return; }
    const when = page.clock(data.from + at);
    const open = data.flow.requests[lane.name];
    const index = data.flow.at.findLastIndex((time) => time <= at);
    const requests = open && index >= 0 && page.isNumber(open[index]) ? `, ${open[index]} open requests` : "";
    const span = lane.spans && lane.spans.find(([start, end]) => start <= at && at < end);
    const number = span && span[3] >= 0 ? (isPublish(data.states[span[2]]) ? ` ${span[3]}` : `, step ${span[3]}`) : "";
    const doing = span ? `${SAID[data.states[span[2]]] || data.states[span[2]]}${number}, ${page.duration(span[1] - span[0])}` : lane.shares ? "many spans: zoom in" : open ? "serving" : "";
    nodes.said.textContent = `${when}  ${lane.name}: ${doing}${requests}`;
  }

  function drawDrag() {
    const layer = view.nodes.picture.querySelector(".cursor");
    if (!layer) return;
    layer.replaceChildren();
    if (!view.drag) return;
    const [a, b] = [view.drag.from, view.drag.to].sort((one, other) => one - other);
    layer.append(svg("rect", { class: "chosen", x: a, y: 0, width: b - a, height: view.data.lanes.length * ROW }));
  }

  function drawFlow(flow, requests, data, domain) {
    const { at } = data.flow;
    const axis = { x: at, xLabel: "at", xFormat: (seconds) => clockOf(data, seconds, domain[1] - domain[0]), domain, empty: "no sample of the flow in this window" };
    const names = [["in flight", "in_flight"], ["in the buffer", "buffered"], ["slots taken", "slots_held"]];
    flow.draw({ ...axis, lines: names.map(([name, field], i) => ({ name, values: data.flow[field], colour: page.colour(i) })) });
    const engines = Object.entries(data.flow.requests);
    requests.node.hidden = !engines.length;
    requests.draw({ ...axis, lines: engines.slice(0, 16).map(([name, values], i) => ({ name, values, colour: page.colour(i) })) });
  }
})(window.page);
