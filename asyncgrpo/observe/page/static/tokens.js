"use strict";
// A completion token by token, coloured by what is known of each; and what is known of the one under the pointer.
(function (page) {
  const { el } = page;
  const AT_ONCE = 3000; // tokens that are drawn before one asks for more

  page.COLOURINGS = [
    ["staleness", "staleness"], ["gap", "log-probability gap"], ["logprob", "log-probability"], ["version", "policy version"], ["advantage", "advantage"], ["none", "nothing"],
  ];

  // How far the learner, before its step, was from what sampled the token; nats.
  const gap = (data, i) => (data.proximal && page.isNumber(data.proximal[i]) ? data.proximal[i] - data.logprobs[i] : null);

  // How a token is coloured: a class, and how deep. `most`: the largest |advantage| of the group.
  function look(data, i, by, most) {
    if (!data.sampled[i]) return ["given", 0];
    const version = data.versions[i];
    if (by === "staleness" && data.version !== null) return [`stale-${Math.min(data.version - version, 6)}`, 1];
    if (by === "version") return [`turn-${version % 4}`, 1];
    if (by === "gap" && page.isNumber(gap(data, i))) return [gap(data, i) < 0 ? "less" : "more", Math.min(1, Math.abs(gap(data, i)))];
    if (by === "logprob") return ["surprise", Math.min(1, -data.logprobs[i] / 5)];
    if (by === "advantage" && page.isNumber(data.advantage) && most > 0) return [data.advantage < 0 ? "worse" : "better", Math.abs(data.advantage) / most];
    return ["plain", 0];
  }

  // Control characters, ends of lines and what would be seen as nothing at all are shown as signs.
  const UNSEEN = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\u{e0000}-\u{e007f}]/gu;
  function visible(text) {
    return text.replace(UNSEEN, (sign) => (sign === "\t" ? "⇥\t" : `\\x${sign.codePointAt(0).toString(16).padStart(2, "0")}`)).replace(/\n/g, "↵\n");
  }
  page.visible = visible;

  page.drawTokens = function (node, data, by, most, tell) {
    const texts = data.texts || data.ids.map((id) => ` ${id}`);
    let shown = 0;
    let here = null; // the token that the keys are at
    const body = el("div", { class: `tokens by-${by}`, dir: "auto", tabindex: 0, role: "group", "aria-label": "tokens; arrow keys go through them",
      onpointerover: heed, onpointerleave: () => tell(""), onkeydown: walk, onblur: () => mark(null) });
    function heed(event) {
      const place = event.target.dataset && event.target.dataset.i;
      if (place !== undefined) tell(told(data, Number(place)));
    }
    function mark(node) {
      if (here) here.classList.remove("here");
      here = node;
      if (!here) return;
      here.classList.add("here");
      here.scrollIntoView({ block: "nearest" });
      tell(told(data, Number(here.dataset.i)));
    }
    function walk(event) {
      const next = { ArrowRight: (node) => node.nextElementSibling, ArrowLeft: (node) => node.previousElementSibling }[event.key];
      if (!next || !body.firstElementChild) return;
      event.preventDefault();
      mark(here ? next(here) || here : body.firstElementChild);
    }
    function more() {
      const end = Math.min(texts.length, shown + AT_ONCE);
      const made = [];
      for (let i = shown; i < end; i++) {
        const [kind, depth] = look(data, i, by, most);
        // A token without a text of its own is the first part of a character that the next ones complete.
        made.push(el("span", { class: `t ${kind}${texts[i] ? "" : " part"}`, "data-i": i, "--depth": depth.toFixed(2) }, texts[i] ? visible(texts[i]) : "·"));
      }
      shown = end;
      body.append(...made);
      rest.hidden = shown >= texts.length;
      rest.textContent = `${texts.length - shown} more tokens`;
    }
    const rest = page.button("", more, { class: "small" });
    more();
    const note = data.texts ? null : el("p", { class: "hint" }, "no tokenizer is at hand (final_model/ has it once the run has ended): token ids");
    node.replaceChildren(...[note, body, rest].filter(Boolean));
    if (!texts.length) node.replaceChildren(el("p", { class: "hint" }, "no tokens"));
  };

  function told(data, i) {
    const text = data.texts ? JSON.stringify(data.texts[i]) : "";
    const parts = [`token ${i + 1} of ${data.ids.length}: ${text} (id ${data.ids[i]})`];
    if (!data.sampled[i]) return `${parts[0]}, given by the environment: not sampled, not trained`;
    parts.push(`log-probability ${page.number(data.logprobs[i])} (p = ${page.number(Math.exp(data.logprobs[i]))})`);
    parts.push(`sampled by version ${data.versions[i]}${data.version === null ? "" : `, staleness ${data.version - data.versions[i]}`}`);
    if (page.isNumber(gap(data, i))) parts.push(`gap ${page.signed(Number(gap(data, i).toFixed(4)))}`);
    if (page.isNumber(data.advantage)) parts.push(`advantage ${page.signed(data.advantage)}`);
    return parts.join(", ");
  }

  // What the colours mean, for those that are used.
  page.tokenLegend = function (by, all) {
    const item = (kind, name, depth) => el("li", {}, el("span", { class: `t ${kind}`, "--depth": depth === undefined ? 1 : depth }, "token"), name);
    const items = [];
    const sampled = (data) => data.versions.filter((_, i) => data.sampled[i]);
    if (by === "staleness") {
      const found = new Set(all.filter((data) => data.version !== null).flatMap((data) => sampled(data).map((version) => Math.min(data.version - version, 6))));
      items.push(...[...found].sort().map((value) => item(`stale-${value}`, value === 6 ? "6 or more versions old" : value === 0 ? "of the learner's own version" : `${value} version${value > 1 ? "s" : ""} old`)));
      if (!items.length) items.push(el("li", {}, "these samples were not trained: they have no staleness"));
    } else if (by === "version") {
      const found = [...new Set(all.flatMap(sampled))].sort((a, b) => a - b);
      items.push(...found.slice(0, 12).map((version) => item(`turn-${version % 4}`, `version ${version}`)));
    } else if (by === "gap") {
      const isKnown = all.some((data) => data.proximal && data.proximal.some(page.isNumber));
      items.push(...(isKnown ? [item("less", "less likely to the learner before its step than when sampled (1 nat and more)"), item("more", "more likely")] : [el("li", {}, "not recorded of these samples")]));
    } else if (by === "logprob") {
      items.push(item("surprise", "certain (p = 1)", 0), item("surprise", "p = 0.08", 0.5), item("surprise", "p < 0.007", 1));
    } else if (by === "advantage") {
      items.push(item("better", "better than its group", 0.8), item("worse", "worse", 0.8));
    }
    if (all.some((data) => data.sampled.includes(false))) items.push(item("given", "given by the environment, not trained", 0));
    return el("ul", { class: "legend" }, items);
  };
})(window.page);
