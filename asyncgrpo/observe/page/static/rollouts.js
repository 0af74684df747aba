"use strict";
// The view `Rollouts`: a step, its groups, and the samples of one group. Its address is #rollouts/step_000012/34.
(function (page) {
  const { el } = page;
  let view = null;
  let colouring = "staleness";

  const padded = (step) => `step_${String(step).padStart(6, "0")}`;
  const titled = (of) => (of === "untrained" ? "left over at the end" : of.startsWith("eval_") ? `evaluation of step ${Number(of.slice(5))}` : `step ${Number(of.slice(5))}`);

  page.views = page.views || {};
  page.views.rollouts = {
    async show(node, isNew, [of, group]) {
      if (isNew || !view) {
        view = { node, of: null, group: null, list: el("div", { class: "list" }), detail: el("div", { class: "detail" }), picker: el("div", { class: "controls" }), note: el("p", { class: "hint" }) };
        node.replaceChildren(view.picker, view.note, el("div", { class: "browser" }, view.list, view.detail));
      }
      view.recorded = await page.ask("rollouts");
      const files = filesOf(view.recorded);
      if (!files.length) {
        view.picker.replaceChildren();
        view.list.replaceChildren();
        view.detail.replaceChildren(el("p", { class: "empty" }, "No rollouts are here: no step has ended yet, or observe.save_rollouts is off."));
        return;
      }
      const wanted = of || view.of || newestStep(view.recorded) || files[0];
      // What somebody is using, or reading, is not replaced because the run has gone on.
      if (wanted !== view.of || !view.picker.contains(document.activeElement)) pick(files, wanted);
      if (wanted !== view.of) await showFile(wanted);
      const known = view.groups.map((each) => String(each.group));
      const chosen = group !== undefined && group !== "" ? group : known.includes(view.group) ? view.group : known[0];
      if (chosen !== undefined && (chosen !== view.group || isNew)) await showGroup(wanted, chosen);
    },
  };

  // A report names its files one by one, a run its steps by ranges.
  function filesOf(recorded) {
    if (recorded.files) return recorded.files;
    const steps = recorded.steps.flatMap(([first, last]) => (last - first < 2e5 ? Array.from({ length: last - first + 1 }, (_, i) => padded(first + i)) : []));
    return [...steps, ...recorded.evaluations.map((step) => `eval_${String(step).padStart(6, "0")}`), ...(recorded.untrained ? ["untrained"] : [])];
  }
  const newestStep = (recorded) => (recorded.files ? recorded.files.at(-1) : recorded.steps.length ? padded(recorded.steps.at(-1)[1]) : null);

  function pick(files, wanted) {
    const steps = files.filter((name) => name.startsWith("step_"));
    const others = files.filter((name) => !name.startsWith("step_"));
    const at = steps.indexOf(wanted);
    const go = (name) => name && page.go("rollouts", name);
    const slider = el("input", { type: "range", min: 0, max: Math.max(0, steps.length - 1), value: at < 0 ? 0 : at, "aria-label": "step", "aria-valuetext": titled(wanted), onchange: (event) => go(steps[event.target.value]), oninput: (event) => { name.textContent = titled(steps[event.target.value]); } });
    const name = el("b", { class: "where" }, titled(wanted));
    const select = others.length ? el("select", { "aria-label": "other rollouts", onchange: (event) => go(event.target.value) },
      el("option", { value: "" }, "evaluations and rest …"), others.map((each) => el("option", { value: each, selected: each === wanted }, titled(each)))) : null;
    const colours = el("select", { onchange: (event) => { colouring = event.target.value; paint(); } }, page.COLOURINGS.map(([value, label]) => el("option", { value, selected: value === colouring }, label)));
    if (document.activeElement && view.picker.contains(document.activeElement)) {
      const kept = document.activeElement.getAttribute("aria-label");
      requestAnimationFrame(() => { const again = kept && view.picker.querySelector(`[aria-label="${kept}"]`); if (again) again.focus(); });
    }
    view.picker.replaceChildren(...[page.button("‹", () => go(steps[at - 1]), { "aria-label": "step before", class: "square", disabled: at < 1 }), slider,
      page.button("›", () => go(steps[at + 1]), { "aria-label": "next step", class: "square", disabled: at < 0 || at >= steps.length - 1 }), name, select, el("label", { class: "push" }, "colour tokens by ", colours)].filter(Boolean));
    const { samples, of_files: all } = view.recorded;
    view.note.textContent = samples === undefined ? "" : `This report holds ${samples} samples, of ${files.length} of the run's ${all} steps; \`asyncgrpo view\` shows them all.`;
    view.note.hidden = samples === undefined;
  }

  async function showFile(of) {
    view.of = of;
    view.group = null;
    view.groups = [];
    await page.into(view.list, async () => {
      const answer = await page.ask("rollouts", { of });
      view.groups = answer.groups;
      const rows = answer.groups.map((each) => row(of, each));
      const more = answer.left_out ? el("p", { class: "hint" }, `groups that are not shown: ${answer.left_out}`) : null;
      return [el("h3", {}, `${answer.groups.length + answer.left_out} groups`), el("div", { class: "rows", onkeydown: arrows }, rows), more].filter(Boolean);
    });
  }

  function row(of, each) {
    const known = each.rewards.filter(page.isNumber);
    const mean = known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
    const facts = [each.fate === "trained" || each.fate === "evaluated" ? null : each.fate, page.isNumber(each.staleness) ? `staleness ${each.staleness}` : null, each.cut ? `${each.cut} cut` : null];
    return el("a", { class: "row", href: `#rollouts/${of}/${each.group}`, "data-group": each.group },
      el("span", { class: "mean" }, page.signed(mean === null ? null : Number(mean.toPrecision(3)))), el("span", { class: "prompt", dir: "auto" }, page.visible(each.prompt).replace(/↵\n/g, " ")),
      el("span", { class: "facts" }, bars(each.rewards), facts.filter(Boolean).join(" · ")));
  }
  // The rewards of a group, highest first, at one glance.
  function bars(rewards) {
    const known = rewards.filter(page.isNumber).sort((a, b) => b - a);
    const [low, high] = [Math.min(0, ...known), Math.max(0, ...known)];
    const width = 4;
    const scale = (value) => 14 - (14 * (value - low)) / (high - low || 1);
    const shown = known.slice(0, 24);
    return page.svg("svg", { class: "bars", width: shown.length * width, height: 14, "aria-hidden": "true" },
      shown.map((value, i) => page.svg("rect", { x: i * width, width: width - 1, y: Math.min(scale(value), scale(0)), height: Math.max(1, Math.abs(scale(value) - scale(0))), class: value < 0 ? "below" : "above" })));
  }
  function arrows(event) {
    const move = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    const next = move && document.activeElement[move];
    if (!move) return;
    event.preventDefault();
    if (next) next.focus();
  }

  async function showGroup(of, group) {
    view.group = String(group);
    view.list.querySelectorAll(".row").forEach((each) => (each.dataset.group === view.group ? each.setAttribute("aria-current", "true") : each.removeAttribute("aria-current")));
    view.tokens = [];
    await page.into(view.detail, async () => {
      const answer = await page.ask("group", { of, group });
      view.most = Math.max(0, ...answer.samples.map((sample) => Math.abs(sample.advantage || 0)));
      view.legend = el("div", { class: "token-legend" });
      view.told = el("p", { class: "told", "aria-live": "polite" });
      const head = [`group ${answer.group}`, `prompt ${answer.prompt_id}`, answer.fate, answer.version === null ? null : `trained by version ${answer.version}`, `begun at version ${answer.start_version}`, `${page.duration(answer.seconds)} from admission to the buffer`];
      view.cards = answer.samples.map(card);
      return [el("p", { class: "facts" }, head.filter(Boolean).join(" · ")), el("div", { class: "messages" }, answer.messages.map(message)), view.legend, view.told, ...view.cards.map((each) => each.node)];
    });
    if (!view.cards) return;
    const cards = view.cards;
    for (const each of cards) { // one after the other: a run that goes on serves them beside its work
      if (cards !== view.cards || view.group !== String(group)) return;
      await each.load(of, group);
    }
  }

  const message = ({ role, content }) => el("div", { class: "message" }, role ? el("span", { class: "role" }, role) : null, el("pre", { dir: "auto" }, page.visible(content).replace(/↵\n/g, "\n")));

  function card(sample) {
    const text = el("div", { class: "completion" }, el("pre", { dir: "auto" }, page.visible(sample.completion)));
    const facts = [
      ["reward", page.signed(sample.reward)], ["advantage", page.signed(sample.advantage)], ["staleness", page.number(sample.staleness)],
      ["ended", sample.finish_reason === "length" ? "cut" : sample.finish_reason], ["engine", sample.engine], ["took", page.duration(sample.seconds)],
    ];
    const rewards = Object.entries(sample.rewards);
    const more = [...(rewards.length > 1 ? rewards.map(([name, value]) => [name, page.signed(value)]) : []), ...Object.entries(sample.extra).map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value)])];
    const node = el("article", { class: "card sample" }, el("h4", {}, `sample ${sample.sample}`), pairs(facts), more.length ? pairs(more) : null, text);
    const made = { node, data: null, text,
      async load(of, group) {
        try {
          made.data = await page.ask("tokens", { of, group, sample: sample.sample });
          paintOne(made);
          view.legend.replaceChildren(page.tokenLegend(colouring, view.cards.flatMap((each) => each.data || [])));
        } catch (error) { // the whole text stays
          text.append(el("p", { class: "hint" }, error.message));
        }
      } };
    return made;
  }
  const pairs = (facts) => el("dl", { class: "pairs" }, facts.map(([name, value]) => el("div", {}, el("dt", {}, page.visible(name)), el("dd", {}, page.visible(value)))));

  function paintOne(each) {
    page.drawTokens(each.text, each.data, colouring, view.most, (said) => { view.told.textContent = said; });
  }
  function paint() {
    const known = (view.cards || []).filter((each) => each.data);
    known.forEach(paintOne);
    if (view.legend) view.legend.replaceChildren(page.tokenLegend(colouring, known.map((each) => each.data)));
  }
})(window.page);
