"use strict";
// The views `Settings` (config.yaml, with where each value is from) and `Warnings` (of the orchestrator's log).
(function (page) {
  const { el } = page;
  page.views = page.views || {};

  page.views.settings = {
    async show(node, isNew) {
      if (!isNew) return;
      const { text } = await page.ask("config");
      if (!text) return node.replaceChildren(el("p", { class: "empty" }, "This folder has no config.yaml."));
      const lines = text.split("\n").map(parsed);
      const filter = el("input", { type: "search", placeholder: "find a setting", "aria-label": "find a setting", oninput: apply });
      const all = el("input", { type: "checkbox", onchange: apply });
      const body = el("div", { class: "config" }, lines.map((line) => line.node));
      node.replaceChildren(el("div", { class: "controls" }, filter, el("label", {}, all, " defaults too")), body);
      apply();
      function apply() {
        const wanted = filter.value.trim().toLowerCase();
        let section = null;
        let isShown = true;
        for (const line of lines) {
          if (line.kind === "section") {
            section = line;
            line.node.hidden = true;
            isShown = line.text.toLowerCase().includes(wanted);
            if (line.source) show(line, (all.checked || line.source !== "default") && isShown);
            continue;
          }
          if (line.kind === "setting") isShown = (all.checked || line.source !== "default") && `${section ? section.text : ""} ${line.text}`.toLowerCase().includes(wanted);
          show(line, isShown && line.kind !== "blank");
          if (!line.node.hidden && section) section.node.hidden = false;
        }
      }
      function show(line, isShown) { line.node.hidden = !isShown; }
    },
  };

  // A line of config.yaml as `asyncgrpo config` writes it: `  name: value   # source`.
  function parsed(text) {
    const [, code, source] = /^(.*?)(?:\s+#\s(.*))?$/.exec(text);
    const kind = !text.trim() ? "blank" : /^\S/.test(text) ? "section" : /^ {2}[\w]+:/.test(text) ? "setting" : "more";
    const from = source === undefined ? null : source.trim();
    const node = el("div", { class: `${kind} ${from === "default" ? "default" : from ? "given" : ""}` }, el("code", {}, code), from ? el("span", { class: "source" }, from) : null);
    return { text: code, kind, source: from, node };
  }

  page.views.warnings = {
    async show(node) {
      const { warnings } = await page.ask("warnings");
      const broken = page.run && page.run.unreadable ? [el("p", { class: "hint" }, `${page.run.unreadable} lines of metrics.jsonl cannot be read and are left out`)] : [];
      if (!warnings.length) return node.replaceChildren(...broken, el("p", { class: "empty" }, "No warnings in the log."));
      node.replaceChildren(...broken, el("ol", { class: "warnings" }, warnings.map((each) => el("li", { class: each.level.toLowerCase() },
        el("span", { class: "level" }, each.level.toLowerCase()), el("time", {}, new Date(each.time).toLocaleString()), each.step === "-" ? null : el("span", {}, `step ${each.step}`),
        each.times > 1 ? el("span", { class: "count" }, `${each.times} times in a row`) : null, el("span", { class: "logger" }, each.logger), el("pre", {}, page.visible(each.text).replace(/↵\n/g, "\n"))))));
    },
  };
})(window.page);
