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
// moves under the reader.
const live = document.querySelector("[data-refresh]");
const news = document.querySelector("[data-newer]");

const refresh = async () => {
  if (live.contains(document.activeElement)) return;
  try {
    const answer = await fetch(location.href, { credentials: "same-origin", redirect: "error" });
    if (!answer.ok) return;
    const read = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("[data-refresh]");
    // It has ended, and will not change any more.
    if (!read) location.reload();
    else if (read.textContent !== live.textContent) live.replaceChildren(...read.childNodes);
  } catch { /* It is tried again. */ }
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
  let paused = false;
  let timer;
  let source;
  // Begins, or ends: what nobody looks at costs nothing.
  const look = () => {
    const looked = !paused && !document.hidden;
    pause.textContent = paused ? "Go on" : "Pause";
    clearInterval(timer);
    source?.close();
    if (looked && live) timer = setInterval(refresh, Number(live.dataset.refresh) * 1000);
    if (looked && news) {
      source = new EventSource(news.dataset.newer);
      source.onmessage = (event) => count(JSON.parse(event.data));
    }
  };
  pause.addEventListener("click", () => { paused = !paused; look(); });
  document.addEventListener("visibilitychange", look);
  look();
  document.getElementById("live").append(" ", pause);
}
