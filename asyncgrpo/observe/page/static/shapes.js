"use strict";
// Paths of a chart, from numbers to the `d` of an SVG path. `x` and `y` map values to pixels.
(function (page) {
  const at = (value) => Math.round(value * 10) / 10;

  // A line with gaps where there is no value; single points between gaps are given as dots.
  page.linePath = function (xs, ys, x, y) {
    let path = "";
    const dots = [];
    for (let i = 0; i < xs.length; i++) {
      if (!page.isNumber(ys[i])) continue;
      const begins = i === 0 || !page.isNumber(ys[i - 1]);
      const ends = i === xs.length - 1 || !page.isNumber(ys[i + 1]);
      if (begins && ends) dots.push(i);
      else path += `${begins ? "M" : "L"}${at(x(xs[i]))} ${at(y(ys[i]))}`;
    }
    return { path, dots };
  };

  // The area between two rows of values, in pieces where one of them is missing.
  page.bandPath = function (xs, low, high, x, y) {
    let path = "";
    let from = 0;
    const has = (i) => page.isNumber(low[i]) && page.isNumber(high[i]);
    while (from < xs.length) {
      while (from < xs.length && !has(from)) from++;
      let to = from;
      while (to < xs.length && has(to)) to++;
      if (to - from > 1) {
        const there = [];
        const back = [];
        for (let i = from; i < to; i++) {
          there.push(`${at(x(xs[i]))} ${at(y(high[i]))}`);
          back.unshift(`${at(x(xs[i]))} ${at(y(low[i]))}`);
        }
        path += `M${there.join("L")}L${back.join("L")}Z`;
      }
      from = to;
    }
    return path;
  };

  // Layers on top of each other, a step of the stairs per value: true for one value as for a thousand.
  page.stackPaths = function (edges, layers, x, y) {
    const below = new Array(edges.length - 1).fill(0);
    return layers.map((values) => {
      const there = [];
      const back = [];
      for (let i = 0; i < below.length; i++) {
        const low = below[i];
        const high = low + (values[i] || 0);
        there.push(`${at(x(edges[i]))} ${at(y(high))}L${at(x(edges[i + 1]))} ${at(y(high))}`);
        back.unshift(`${at(x(edges[i + 1]))} ${at(y(low))}L${at(x(edges[i]))} ${at(y(low))}`);
        below[i] = high;
      }
      return `M${there.join("L")}L${back.join("L")}Z`;
    });
  };

  // Where each value of a stack begins and ends: midway to its neighbours.
  page.edges = function (xs) {
    if (xs.length < 2) return [xs[0] - 0.5, xs[0] + 0.5];
    const middle = xs.slice(1).map((value, i) => (value + xs[i]) / 2);
    return [2 * xs[0] - middle[0], ...middle, 2 * xs[xs.length - 1] - middle[middle.length - 1]];
  };

  // Round numbers between two values, about `count` of them; whole ones if that is wanted.
  page.ticks = function (low, high, count, whole) {
    const raw = Math.max((high - low) / Math.max(1, count), whole ? 1 : 0);
    if (!(raw > 0)) return [low];
    const unit = 10 ** Math.floor(Math.log10(raw));
    const step = (whole ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10]).map((factor) => factor * unit).find((size) => size >= raw * 0.999);
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(Number((i * step).toPrecision(12)));
    return found;
  };
  page.logTicks = function (low, high) {
    const found = [];
    const every = Math.max(1, Math.ceil((Math.log10(high) - Math.log10(low)) / 5));
    for (let power = Math.ceil(Math.log10(low) - 1e-9); power <= Math.log10(high) + 1e-9; power += every) found.push(10 ** power);
    return found.length > 1 ? found : [low, high];
  };
})(window.page);
