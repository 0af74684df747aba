"use strict";
// What all parts of the page use: elements, numbers, colours, and where data comes from.
// No text of a run ever becomes markup: elements are made one by one, and texts are text nodes.
window.page = {};
(function (page) {
  const SVG = "http://www.w3.org/2000/svg";

  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === undefined || value === null || value === false) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (name.startsWith("--")) node.style.setProperty(name, value);
      else node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
    return node;
  }
  page.el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
  page.svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
  page.isNumber = isNumber;

  // Four digits; thousands and more as 12.3k, very large and very small ones as 1.2e-7.
  page.number = function (value) {
    if (!isNumber(value)) return value === null || value === undefined ? "–" : String(value);
    const size = Math.abs(value);
    if (size === 0) return "0";
    if (size >= 1e13) return value.toExponential(1).replace("e+", "e").replace(/^-/, "−");
    if (size >= 1e9) return trimmed(value / 1e9) + "G";
    if (size >= 1e6) return trimmed(value / 1e6) + "M";
    if (size >= 1e4) return trimmed(value / 1e3) + "k";
    if (size < 1e-3) return value.toExponential(1).replace("e-", "e−").replace(/^-/, "−");
    return trimmed(value);
  };
  const trimmed = (value) => String(Number(value.toPrecision(4))).replace(/^-/, "−");
  page.signed = (value) => (isNumber(value) && value > 0 ? "+" : "") + page.number(value);
  page.percent = (value) => (isNumber(value) ? `${Number((100 * value).toPrecision(3))} %` : "–");

  page.duration = function (seconds) {
    if (!isNumber(seconds)) return "–";
    if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
    if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
    const whole = Math.round(seconds);
    if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
    return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} min`;
  };
  page.clock = (time) => new Date(time * 1000).toLocaleTimeString();
  page.date = (time) => new Date(time * 1000).toLocaleString();

  // Colours are names of the style sheet's variables, so that light and dark are its business alone.
  page.colour = (index) => `var(--series-${index % 8})`;
  page.stale = (staleness) => `var(--stale-${Math.min(staleness, 6)})`;

  const embedded = document.getElementById("data");
  const held = embedded ? JSON.parse(embedded.textContent) : null;
  page.made = held ? held.made : null; // when the report was written; null: this page is served
  page.isLive = held === null;

  // An answer of the JSON API, or of the report that this page is in. Throws Error with words for the user.
  page.ask = async function (name, query) {
    const words = new URLSearchParams(query || {}).toString();
    if (held) return fromReport(name, query || {});
    const response = await fetch(`api/${name}${words ? `?${words}` : ""}`, { cache: "no-store" });
    const answer = await response.json().catch(() => ({ error: `${response.status} ${response.statusText}` }));
    if (!response.ok) throw new Error(answer.error || `${response.status}`);
    return answer;
  };

  function fromReport(name, query) {
    const answers = held.answers;
    if (name === "series" && query.fields) return answers["series?all"];
    if (name === "timeline") {
      const near = answers["timeline?proposed"];
      return near && query.from >= near.from - 0.01 ? near : answers.timeline;
    }
    const words = Object.entries(query).map(([key, value]) => `${key}=${value}`).join("&");
    const answer = answers[words ? `${name}?${words}` : name];
    if (!answer) throw new Error("this is not among the samples that the report holds");
    return answer;
  }

  // Puts what `load` makes into `node`; what goes wrong is said in its place.
  page.into = async function (node, load) {
    try {
      node.replaceChildren(...[await load()].flat());
    } catch (error) {
      node.replaceChildren(page.el("p", { class: "empty", role: "alert" }, error.message));
    }
  };

  page.button = (label, onclick, attributes) => page.el("button", { type: "button", onclick, ...attributes }, label);
})(window.page);
