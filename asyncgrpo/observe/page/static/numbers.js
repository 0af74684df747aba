"use strict";
// The numbers that matter first, as tiles; and the view `Numbers`: every field that the run records, explained.
(function (page) {
  const { el } = page;
  let tiles = null;

  const TILES = [
    ["reward", "of the last step", (r) => page.signed(r.reward_mean)],
    ["held-out", "last evaluation", (r, s) => { const last = s.evaluations.findLast((each) => page.isNumber(each.reward_mean)); return last ? page.signed(last.reward_mean) : null; }],
    ["staleness", "mean of all steps, in versions", (r, s) => page.number(mean(s, "staleness_mean"))],
    ["generated", "tokens per second", (r, s) => page.number(mean(s, "generated_tokens_per_second"))],
    ["step", "mean wall-clock", (r, s) => page.duration(mean(s, "step_seconds"))],
    ["overlap", "of tokens sampled while training", (r, s) => page.percent(mean(s, "generated_while_training_ratio"))],
    ["limited by", () => (page.run.verdict ? "the whole run" : "the last step"), (r) => ({ "generation-bound": "generation", "training-bound": "training" })[page.run.verdict || r.verdict] || page.run.verdict || r.verdict],
  ];

  // Of a field, over all steps.
  function mean(series, name) {
    const values = series.fields[name] ? series.fields[name].mean.filter(page.isNumber) : [];
    return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
  }

  page.tiles = function () {
    tiles = el("dl", { class: "tiles" });
    return tiles;
  };
  page.fillTiles = function (series) {
    const newest = page.run ? page.run.newest : {};
    const shown = TILES.map(([name, what, value]) => [name, what, newest.step ? value(newest, series) : null]).filter(([, , value]) => value);
    tiles.replaceChildren(...shown.map(([name, what, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value), el("dd", { class: "what" }, typeof what === "function" ? what() : what))));
  };

  page.views = page.views || {};
  page.views.numbers = {
    async show(node, isNew) {
      const { numbers } = await page.ask("numbers");
      if (!isNew && node.querySelector("table")) return fillRows(node, numbers);
      const filter = el("input", { type: "search", placeholder: "find a number, by name or meaning", "aria-label": "find a number", oninput: () => hide(node, filter.value) });
      const body = el("tbody", {});
      const table = el("table", { class: "numbers" },
        el("thead", {}, el("tr", {}, ["name", "first", "newest", "least", "largest", "meaning"].map((name) => el("th", { scope: "col" }, name)))), body);
      node.replaceChildren(el("div", { class: "controls" }, filter, el("span", { class: "hint" }, "a name draws its curve")), el("div", { class: "scroll" }, table));
      fillRows(node, numbers);
    },
  };

  function fillRows(node, numbers) {
    const body = node.querySelector("tbody");
    const focused = body.contains(document.activeElement) ? document.activeElement.textContent : null;
    const open = new Map([...body.querySelectorAll("tr.drawn")].map((row) => [row.dataset.name, row]));
    body.replaceChildren(...numbers.flatMap((each) => {
      const row = el("tr", {}, el("th", { scope: "row" }, page.button(breakable(each.name), () => toggle(row, each), { class: "link", "aria-expanded": open.has(each.name) })),
        ...[each.first, each.newest, each.min, each.max].map((value) => el("td", { class: "number" }, page.number(value))), el("td", {}, each.meaning));
      return open.has(each.name) ? [row, open.get(each.name)] : [row];
    }));
    hide(node, node.querySelector("input[type=search]").value);
    const again = focused && [...body.querySelectorAll("button.link")].find((button) => button.textContent === focused);
    if (again) again.focus();
  }

  // A long name may be broken where its parts end.
  const breakable = (name) => page.visible(name).split(/(?<=[_/])/).flatMap((part) => [part, el("wbr", {})]);

  async function toggle(row, each) {
    const button = row.querySelector("button");
    const next = row.nextElementSibling;
    if (next && next.classList.contains("drawn")) {
      button.setAttribute("aria-expanded", "false");
      return next.remove();
    }
    button.setAttribute("aria-expanded", "true");
    const cell = el("td", { colspan: 6 });
    row.after(el("tr", { class: "drawn", "data-name": each.name }, cell));
    await page.into(cell, async () => {
      const series = await page.ask("series", { fields: JSON.stringify([each.name]) });
      const chart = page.chart(each.name, each.meaning, "single");
      queueMicrotask(() => {
        const field = series.fields[each.name] || { mean: series[each.name] };
        chart.draw({ x: series.step, xLabel: "step", whole: true, lines: [{ name: each.name, values: field.mean, low: field.min, high: field.max, colour: page.colour(0) }] });
      });
      return chart.node;
    });
  }

  function hide(node, text) {
    const wanted = text.trim().toLowerCase();
    for (const row of node.querySelectorAll("tbody tr:not(.drawn)")) {
      row.hidden = wanted !== "" && !row.textContent.toLowerCase().includes(wanted);
      const next = row.nextElementSibling;
      if (next && next.classList.contains("drawn")) next.hidden = row.hidden;
    }
  }
})(window.page);
