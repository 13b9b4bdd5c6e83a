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

// What is live is read anew every few seconds, while somebody looks at it and has not paused it: a part of the page that changes
// (data-refresh), or a list whose new rows are counted, and not put in, so that nothing moves under the reader (data-newer).
const live = document.querySelector("[data-refresh]");
const news = document.querySelector("[data-newer]");
if (live || news) {
  const pause = document.createElement("button");
  pause.type = "button";
  let paused = false;
  const label = () => { pause.textContent = paused ? "Go on" : "Pause"; };
  pause.addEventListener("click", () => { paused = !paused; label(); });
  label();
  document.getElementById("live").append(" ", pause);

  const refresh = (read) => {
    const anew = read.querySelector("[data-refresh]");
    if (anew && anew.textContent !== live.textContent) live.replaceChildren(...anew.childNodes);
  };
  const rows = (page) => [...page.querySelectorAll("tbody tr")].map((row) => row.id);
  const shown = rows(document);
  const count = (read) => {
    const now = rows(read);
    const known = now.findIndex((id) => shown.includes(id));
    const fresh = known < 0 ? now.length : known;
    const text = fresh ? `${fresh}${known < 0 && shown.length ? " or more" : ""} new: show` : "";
    if (news.textContent === text) return;
    const link = document.createElement("a");
    link.href = location.href;
    link.textContent = text;
    news.replaceChildren(...(text ? [link] : []));
  };
  setInterval(async () => {
    if (paused || document.hidden || live?.contains(document.activeElement)) return;
    try {
      const answer = await fetch(location.href, { credentials: "same-origin", redirect: "error" });
      if (!answer.ok) return;
      const read = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (live) refresh(read); else count(read);
    } catch { /* It is tried again. */ }
  }, Number((live ?? news).dataset[live ? "refresh" : "newer"]) * 1000);
}
