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
// (data-refresh); of a list the new rows are asked for (data-newer, each data-poll seconds), and they are counted, and not put in, so
// that nothing moves under the reader. What the page says of that (data-said) is true at each moment.
const live = document.querySelector("[data-refresh]");
const news = document.querySelector("[data-newer]");
const said = document.querySelector("[data-said]");
const usual = said?.textContent;
const say = (words) => { if (said && said.textContent !== words) said.textContent = words; };
let paused = false;

const read = async (path) => {
  const answer = await fetch(path, { credentials: "same-origin", redirect: "error" });
  if (!answer.ok) throw answer;
  return answer;
};
const refresh = async () => {
  if (live.contains(document.activeElement)) return;
  const answer = await read(location.href);
  const part = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("[data-refresh]");
  // It has ended, and will not change any more; or it is to be read as often as the new page says.
  if (part?.dataset.refresh !== live.dataset.refresh) location.reload();
  else if (part.textContent !== live.textContent) live.replaceChildren(...part.childNodes);
};
const shown = new Set([...document.querySelectorAll("tbody tr")].map((row) => row.id));
const fresh = new Set();
const count = async () => {
  const { rows, after } = await (await read(news.dataset.newer)).json();
  const next = new URL(news.dataset.newer, location.href);
  next.searchParams.set("after", after);
  news.dataset.newer = next.pathname + next.search;
  for (const row of rows) if (!shown.has(row)) fresh.add(row);
  if (!fresh.size) return;
  const link = document.createElement("a");
  link.href = location.href;
  link.textContent = `${fresh.size < 500 ? fresh.size : "500 or more"} new: show`;
  if (news.textContent !== link.textContent) news.replaceChildren(link);
};

if (live || news) {
  const pause = document.createElement("button");
  pause.type = "button";
  const every = Number(live ? live.dataset.refresh : news.dataset.poll) * 1000;
  let timer;
  let asking = false;
  const turn = async () => {
    if (asking) return;
    asking = true;
    try {
      await (live ? refresh() : count());
      if (!paused) say(usual);
    } catch {
      if (!paused) say("The connection is lost, so nothing new is shown here. It is tried again; if that lasts, load the page anew. ");
    } finally {
      asking = false;
    }
  };
  // Begins, or ends: what nobody looks at costs nothing.
  const look = () => {
    pause.textContent = paused ? "Go on" : "Pause";
    clearInterval(timer);
    say(paused ? "It is paused. " : usual);
    if (!paused && !document.hidden) timer = setInterval(turn, every);
  };
  pause.addEventListener("click", () => { paused = !paused; look(); });
  document.addEventListener("visibilitychange", look);
  look();
  document.getElementById("live").append(" ", pause);
}
