// All that the page does by script: it works without.
"use strict";

// A link to log in has its token behind the "#", which no server and no log gets to see: it is put into the form, out of the address, and sent.
const login = document.getElementById("token");
const follow = () => {
  if (!login || location.hash.length < 2) return;
  login.value = decodeURIComponent(location.hash.slice(1));
  history.replaceState(null, "", location.pathname + location.search);
  login.form.requestSubmit();
};
follow();
// Whoever is on this very page already, and follows the link there.
addEventListener("hashchange", follow);

// What is live changes by itself while somebody looks at it and has not paused it: a part of the page is read anew every few seconds
// (data-refresh); of a list the server tells which rows are new (data-newer), and they are counted, and not put in, so that nothing
// moves under the reader. What the page says of that (data-said) is true at each moment.
const live = document.querySelector("[data-refresh]");
const news = document.querySelector("[data-newer]");
const said = document.querySelector("[data-said]");
const usual = said?.textContent;
const say = (words) => { if (said && said.textContent !== words) said.textContent = words; };
const lost = () => say("The connection is lost, so nothing new is shown here. It is tried again; if that lasts, load the page anew. ");
let paused = false;

const refresh = async () => {
  if (live.contains(document.activeElement)) return;
  try {
    const answer = await fetch(location.href, { credentials: "same-origin", redirect: "error" });
    if (!answer.ok) throw answer;
    const read = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("[data-refresh]");
    if (!paused) say(usual);
    // It has ended, and will not change any more.
    if (!read) location.reload();
    else if (read.textContent !== live.textContent) live.replaceChildren(...read.childNodes);
  } catch {
    if (!paused) lost();
  }
};
const shown = new Set([...document.querySelectorAll("tbody tr")].map((row) => row.id));
const fresh = new Set();
const count = (ids) => {
  for (const id of ids) if (!shown.has(id)) fresh.add(id);
  if (!fresh.size) return;
  const link = document.createElement("a");
  link.href = location.href;
  link.textContent = `${fresh.size < 500 ? fresh.size : "500 or more"} new: show`;
  if (news.textContent !== link.textContent) news.replaceChildren(link);
};

if (live || news) {
  const pause = document.createElement("button");
  pause.type = "button";
  let timer;
  let source;
  let failed = 0;
  const listen = () => {
    source = new EventSource(news.dataset.newer);
    source.onmessage = (event) => {
      failed = 0;
      say(usual);
      count(JSON.parse(event.data));
    };
    // Where it was only cut off, as each few minutes, the browser connects anew by itself. An answer that tells nothing ends it for good:
    // a proxy's, while the server begins anew, or that for logging in. What is missed meanwhile is told to whoever connects.
    source.onerror = () => {
      failed += 1;
      const ended = source.readyState === EventSource.CLOSED;
      if (ended || failed > 1) lost();
      if (ended) timer = setTimeout(listen, Math.min(2 ** failed, 60) * 1000);
    };
  };
  // Begins, or ends: what nobody looks at costs nothing.
  const look = () => {
    const looked = !paused && !document.hidden;
    pause.textContent = paused ? "Go on" : "Pause";
    clearInterval(timer);
    clearTimeout(timer);
    source?.close();
    failed = 0;
    say(paused ? "It is paused. " : usual);
    if (looked && live) timer = setInterval(refresh, Number(live.dataset.refresh) * 1000);
    if (looked && news) listen();
  };
  pause.addEventListener("click", () => { paused = !paused; look(); });
  document.addEventListener("visibilitychange", look);
  look();
  document.getElementById("live").append(" ", pause);
}
