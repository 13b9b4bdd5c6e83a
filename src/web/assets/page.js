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

// What is marked so is read anew every few seconds, while somebody looks at it and has not paused it.
const live = document.querySelector("[data-refresh]");
if (live) {
  const pause = document.createElement("button");
  pause.type = "button";
  let paused = false;
  const label = () => { pause.textContent = paused ? "Go on" : "Pause"; };
  pause.addEventListener("click", () => { paused = !paused; label(); });
  label();
  document.getElementById("live").append(" ", pause);
  setInterval(async () => {
    if (paused || document.hidden || live.contains(document.activeElement)) return;
    try {
      const answer = await fetch(location.href, { credentials: "same-origin", redirect: "error" });
      if (!answer.ok) return;
      const read = new DOMParser().parseFromString(await answer.text(), "text/html");
      const anew = read.querySelector("[data-refresh]");
      if (anew && anew.textContent !== live.textContent) live.replaceChildren(...anew.childNodes);
    } catch { /* It is tried again. */ }
  }, Number(live.dataset.refresh) * 1000);
}
