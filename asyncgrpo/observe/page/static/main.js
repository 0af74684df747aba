"use strict";
// Which view is shown, what stands above all of them, and when to look again.
(function (page) {
  const NAMES = ["curves", "timeline", "rollouts", "numbers", "settings", "warnings"];
  const LIVE_MS = 4000;
  const IDLE_MS = 30000;
  const find = (id) => document.getElementById(id);
  const sections = new Map();
  page.run = null;

  page.go = function (...parts) {
    location.hash = `#${parts.join("/")}`;
  };

  function place() {
    const [name, ...rest] = location.hash.slice(1).split("/");
    return NAMES.includes(name) ? [name, rest] : ["curves", []];
  }

  async function show(isLook) {
    const [name, rest] = place();
    document.querySelectorAll("nav a").forEach((link) => (link.hash === `#${name}` ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current")));
    const link = document.querySelector("nav a[aria-current]");
    link.parentNode.scrollLeft = link.offsetLeft - (link.parentNode.clientWidth - link.offsetWidth) / 2;
    const isNew = !sections.has(name);
    if (isNew) sections.set(name, page.el("section", { class: name, "aria-label": name }));
    const node = sections.get(name);
    if (find("view") !== node) {
      node.id = "view";
      find("view").removeAttribute("id");
      document.querySelector("main > section").replaceWith(node);
    }
    try {
      await page.views[name].show(node, isNew, rest);
      find("problem").hidden = true;
    } catch (error) {
      sections.delete(name);
      complain(error);
    }
    if (!isLook && isNew) window.scrollTo(0, 0);
  }

  function complain(error) {
    find("problem").textContent = page.isLive && error instanceof TypeError ? "The run does not answer: it has ended, or its address is not reached. `asyncgrpo view` shows its folder." : error.message;
    find("problem").hidden = false;
  }

  function head(run) {
    const { name, state, steps, target_steps: target } = run;
    document.title = `${name} · asyncgrpo`;
    find("name").textContent = name;
    find("state").textContent = page.isLive || state !== "running" ? state : "was running";
    find("state").className = `pill ${state}`;
    find("progress").textContent = target ? `step ${steps} of ${target}` : `${steps} steps`;
    find("done").hidden = !target;
    find("done").value = target ? steps / target : 0;
    const parts = [];
    if (page.made) parts.push(`report of ${page.date(page.made)}`);
    if (state === "stopped" && run.last_sign) parts.push(`last sign of life ${page.date(run.last_sign)}`);
    if (state === "running" && steps && steps < target && run.newest.step_seconds) parts.push(`about ${page.duration((target - steps) * run.newest.step_seconds)} left`);
    find("made").textContent = parts.join(" · ");
  }

  async function countWarnings() {
    const { warnings } = await page.ask("warnings");
    find("warning-count").textContent = warnings.length >= 200 ? "200+" : warnings.length;
    find("warning-count").hidden = !warnings.length;
  }

  // Nothing is asked for again before the folder has changed.
  async function look() {
    try {
      const run = await page.ask("run");
      const isChanged = !page.run || page.run.revision !== run.revision || page.run.state !== run.state;
      page.run = run;
      head(run);
      if (isChanged) {
        await countWarnings();
        await show(sections.size > 0);
      }
    } catch (error) {
      complain(error);
    }
    if (page.isLive) setTimeout(look, document.hidden || (page.run && page.run.state !== "running") ? IDLE_MS : LIVE_MS);
  }

  window.addEventListener("hashchange", () => show(false));
  // The address names the view, so following this link must not change it.
  document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); find("main").focus(); });
  document.addEventListener("visibilitychange", () => { if (!document.hidden && page.isLive && page.run) page.ask("run").then(head, complain); });
  look();
})(window.page);
