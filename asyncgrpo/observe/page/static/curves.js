"use strict";
// The view `Curves`: what is drawn, from the fields of a step record. docs/page.md says how to read it.
(function (page) {
  const { el } = page;
  const settings = { x: "step", smoothing: 0 };
  let charts = null;

  // Each: title, one line of explanation, and what to draw from a series (null: there is nothing to draw).
  const CHARTS = [
    ["Reward", "mean of a step's samples ± standard error; diamonds are evaluations on held-out prompts", reward],
    ["Staleness", "share of trained tokens by how many versions older than the learner their policy was", staleness],
    ["Learner's time", "what each step's wall-clock went into", learnerTime],
    ["Throughput", "tokens per second that engines sampled, and that were trained", lines(
      ["generated", "generated_tokens_per_second"], ["trained", "trained_tokens_per_second"])],
    ["Overlap", "share of tokens sampled while the learner trained; share of time without any group in flight", share(
      ["sampled while training", "generated_while_training_ratio"], ["generation idle", "generation_idle_ratio"])],
    ["Entropy", "of the current policy, nats per token; towards 0 all samples become alike", lines(
      ["entropy", "policy_entropy_nats"])],
    ["KL divergences", "between policies, nats per token: engine mismatch and staleness, and what the updates changed", kls],
    ["Completion length", "mean tokens, between the shortest and the longest", lengths],
    ["Cut and uniform", "completions that a limit cut short; groups whose rewards are all equal, without a gradient", share(
      ["cut short", "truncated_ratio"], ["uniform groups", "uniform_groups_ratio"])],
    ["Gradient norm", "before clipping", lines(["gradient norm", "gradient_norm"])],
    ["Loss", "mean over the step's updates; its value alone says little", lines(["loss", "loss"])],
    ["Effective samples", "how many tokens the importance weights leave, as a share; and tokens that the clip left out", effective],
    ["Seconds", "of a step, and of the latest publish", lines(["step", "step_seconds"], ["publish", "publish_seconds"])],
  ];

  function line(name, field, index) {
    const smooth = settings.smoothing;
    const own = { name, colour: page.colour(index), values: field.mean, low: field.min, high: field.max };
    return smooth ? { ...own, values: smoothed(field.mean, smooth), faint: field.mean } : own;
  }
  function smoothed(values, weight) {
    let last = null;
    return values.map((value) => {
      if (!page.isNumber(value)) return null;
      last = last === null ? value : weight * last + (1 - weight) * value;
      return last;
    });
  }
  function lines(...wanted) {
    return ({ fields }) => {
      const known = wanted.filter(([, field]) => fields[field]);
      return known.length ? { lines: known.map(([name, field], i) => line(name, fields[field], i)) } : null;
    };
  }

  function share(...wanted) {
    return (series) => {
      const drawn = lines(...wanted)(series);
      return drawn && { ...drawn, percent: true };
    };
  }

  const labelled = (fields, name) => Object.keys(fields).filter((field) => field.startsWith(`${name}/`))
    .map((field) => [field.slice(name.length + 1), fields[field]]);

  function reward(series) {
    const { fields } = series;
    if (!fields.reward_mean) return null;
    const total = line("reward", fields.reward_mean, 0);
    const error = fields.reward_standard_error;
    if (!total.low && error) {
      const around = (sign) => fields.reward_mean.mean.map((value, i) =>
        page.isNumber(value) && page.isNumber(error.mean[i]) ? value + sign * error.mean[i] : null);
      [total.low, total.high] = [around(-1), around(1)];
    }
    const functions = labelled(fields, "reward_mean");
    const single = functions.length < 2 ? [] : functions.map(([name, field], i) => ({ ...line(name, field, i + 2), low: undefined, high: undefined }));
    const points = series.evaluations.filter((each) => page.isNumber(each.reward_mean)).map((each) => ({
      name: `held-out mean@${each.samples_per_prompt}`, x: axisOfEvaluation(series, each), y: each.reward_mean, error: each.reward_standard_error }));
    return { lines: [total, ...single], points };
  }
  function axisOfEvaluation(series, each) {
    return settings.x === "step" ? each.step : (each.time - series.time[0]) / 3600;
  }

  function staleness({ fields }) {
    const found = labelled(fields, "staleness_tokens").map(([label, field]) => [Number(label), field.mean]).sort((a, b) => a[0] - b[0]);
    if (!found.length) return null;
    const MOST = 6;
    const byLabel = new Map();
    for (const [value, tokens] of found) {
      const label = value < MOST ? `${value} version${value === 1 ? "" : "s"}` : `${MOST} and more`;
      const before = byLabel.get(label);
      byLabel.set(label, before ? before.map((sum, i) => (sum || 0) + (tokens[i] || 0)) : tokens);
    }
    const layers = [...byLabel].map(([name, values], i) => ({ name, values, colour: page.stale(Math.min(found[i][0], MOST)) }));
    return { stack: shares(layers), percent: true };
  }
  function learnerTime({ fields }) {
    if (!fields.step_seconds) return null;
    const parts = [["training", "training_seconds"], ["waiting", "waiting_seconds"], ["snapshot", "snapshot_seconds"]].filter(([, field]) => fields[field]);
    const layers = parts.map(([name, field]) => ({ name, values: fields[field].mean, colour: `var(--state-${name})` }));
    const rest = fields.step_seconds.mean.map((whole, i) =>
      Math.max(0, (whole || 0) - layers.reduce((sum, layer) => sum + (layer.values[i] || 0), 0)));
    return { stack: shares([...layers, { name: "other", values: rest, colour: "var(--state-other)" }]), percent: true };
  }
  function shares(layers) {
    const sums = layers[0].values.map((_, i) => layers.reduce((sum, layer) => sum + (layer.values[i] || 0), 0));
    return layers.map((layer) => ({ ...layer, values: layer.values.map((value, i) => (sums[i] ? (value || 0) / sums[i] : null)) }));
  }
  function kls({ fields }) {
    const found = labelled(fields, "policy_kl_nats");
    return found.length ? { lines: found.map(([name, field], i) => line(name.replace("_", " from "), field, i)) } : null;
  }
  function lengths({ fields }) {
    const [mean, low, high] = ["mean", "min", "max"].map((name) => fields[`completion_tokens_${name}`]);
    if (!mean) return null;
    return { lines: [{ ...line("mean", mean, 0), low: low && (low.min || low.mean), high: high && (high.max || high.mean) }] };
  }
  function effective(series) {
    const fixed = [["importance weights", "importance_weight_effective_ratio"], ["ratios to behaviour", "behaviour_ratio_effective_ratio"]]
      .filter(([, field]) => series.fields[field]).map(([name, field], i) => line(name, series.fields[field], i));
    const clipped = labelled(series.fields, "clipped_tokens_ratio").map(([side, field], i) => line(`clipped ${side}`, field, i + 2));
    return fixed.length + clipped.length ? { lines: [...fixed, ...clipped], percent: true } : null;
  }

  // The x axis of a series, as the settings want it.
  page.axis = function (series) {
    if (settings.x === "step" || !series.time) return { x: series.step || [], xLabel: "step", whole: true };
    const start = series.time[0];
    return { x: series.time.map((time) => (time - start) / 3600), xLabel: "hour", xFormat: (hours) => `${Number(hours.toPrecision(3))} h` };
  };

  function controls(redraw) {
    const reset = page.button("whole run", () => page.zoom("steps", null), { hidden: true });
    document.addEventListener("zoomed", (event) => { if (event.detail.group === "steps") reset.hidden = !event.detail.range; });
    const axis = el("select", { onchange: (event) => { settings.x = event.target.value; page.zoom("steps", null); redraw(); } },
      el("option", { value: "step" }, "steps"), el("option", { value: "time" }, "hours"));
    const smooth = el("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: 0, oninput: (event) => { settings.smoothing = Number(event.target.value); redraw(); } });
    return el("div", { class: "controls" }, el("label", {}, "over ", axis), el("label", {}, "smoothing ", smooth), reset,
      el("span", { class: "hint" }, "drag over a chart to zoom, double-click for all; names in a legend hide their line"));
  }

  page.views = page.views || {};
  page.views.curves = {
    async show(node, isNew) {
      const series = await page.ask("series");
      if (isNew || !charts) {
        settings.x = "step";
        settings.smoothing = 0;
        charts = { nodes: new Map(), series, grid: el("div", { class: "grid-of-charts" }), note: el("p", { class: "hint", hidden: true }) };
        node.replaceChildren(page.tiles(), controls(draw), charts.note, charts.grid);
      }
      charts.series = series;
      draw();
    },
  };

  function draw() {
    const { series, nodes, grid } = charts;
    page.fillTiles(series);
    charts.note.textContent = series.evaluations_error || "";
    charts.note.hidden = !series.evaluations_error;
    for (const [title, what, make] of CHARTS) {
      const drawn = series.rows ? make(series) : null;
      if (!drawn && title !== "Reward") continue;
      if (!nodes.has(title)) {
        nodes.set(title, page.chart(title, what, "steps"));
        grid.append(nodes.get(title).node);
      }
      nodes.get(title).draw({ lines: [], ...page.axis(series), empty: "no step has ended yet", ...drawn });
    }
  }
})(window.page);
