"use strict";
(() => {
  const INTERVAL_MS = 2000, TIMEOUT_MS = 5000, TYPING_MS = 200;
  const main = document.querySelector("main");
  const live = document.getElementById("live");
  const clock = document.getElementById("clock");
  const input = document.getElementById("q");
  let timer = 0, wanted = 0, shown = main.innerHTML, staleSince = "";

  const time = () => new Date().toLocaleTimeString([], { hourCycle: "h23" });

  // Said to a screen reader, so only when it changes.
  function say(state, text) {
    if (live.textContent !== text) { live.className = state; live.textContent = text; }
    document.body.classList.toggle("stale", state === "stale");
  }

  function isSelecting() {
    const selection = document.getSelection();
    return selection && !selection.isCollapsed && main.contains(selection.anchorNode);
  }

  function put(text) {
    if (text === shown || isSelecting()) { return; }
    const focused = main.contains(document.activeElement) ? document.activeElement : null;
    const href = focused && focused.getAttribute("href");
    const scrolled = [...main.querySelectorAll(".table")].map((each) => each.scrollLeft);
    main.innerHTML = shown = text;
    main.querySelectorAll(".table").forEach((each, n) => { each.scrollLeft = scrolled[n] || 0; });
    if (focused) {
      const again = focused.id ? document.getElementById(focused.id)
        : [...main.querySelectorAll("a")].find((each) => each.getAttribute("href") === href);
      if (again) { again.focus({ preventScroll: true }); }
    }
    const content = document.getElementById("content");
    if (content) { document.title = content.dataset.title; }
  }

  async function refresh() {
    clearTimeout(timer);
    if (document.hidden) { return; }
    const number = ++wanted;
    const url = new URL(location.href);
    url.hash = "";
    url.searchParams.set("fragment", "1");
    try {
      const answer = await fetch(url, { signal: AbortSignal.timeout(TIMEOUT_MS), cache: "no-store" });
      if (!answer.ok) { throw new Error(answer.statusText); }
      const text = await answer.text();
      if (number !== wanted) { return; }
      put(text);
      staleSince = "";
      say("live", "Live");
      clock.textContent = time();
    } catch {
      if (number !== wanted) { return; }
      staleSince = staleSince || clock.textContent || time();
      say("stale", `Stale since ${staleSince}: the node doesn't answer`);
      clock.textContent = "";
    }
    timer = setTimeout(refresh, INTERVAL_MS);
  }

  function go(url, keeps) {
    history[keeps ? "replaceState" : "pushState"](null, "", url);
    refresh();
  }

  main.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-live]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) { return; }
    event.preventDefault();
    go(link.href, false);
  });

  if (input) {
    let typing = 0;
    const search = () => {
      const url = new URL(location.href);
      url.search = "";
      if (input.value) { url.searchParams.set("q", input.value); }
      go(url, true);
    };
    input.addEventListener("input", () => {
      // What is here already is found at once, the rest by the node.
      const part = input.value.toLowerCase();
      main.querySelectorAll("[data-found] tbody tr").forEach((row) => {
        row.hidden = !row.querySelector("th").textContent.toLowerCase().includes(part);
      });
      shown = "";
      clearTimeout(typing);
      typing = setTimeout(search, TYPING_MS);
    });
    input.form.addEventListener("submit", (event) => { event.preventDefault(); search(); });
  }
  addEventListener("popstate", refresh);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { clearTimeout(timer); say("", "Paused"); } else { refresh(); }
  });
  document.documentElement.classList.add("scripted");
  say("live", "Live");
  clock.textContent = time();
  timer = setTimeout(refresh, INTERVAL_MS);
})();
