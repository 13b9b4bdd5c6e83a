// All that the web UI does by script. It works without.
"use strict";

// For the style sheet: rows look like links only if a click on them works.
document.documentElement.classList.add("scripted");

// A login link has its token behind the "#", which no server sees and no log keeps. The token moves into the form, which is sent.
const login = document.getElementById("token");
const follow = () => {
  if (!login || location.hash.length < 2) return;
  login.value = decodeURIComponent(location.hash.slice(1));
  history.replaceState(null, "", location.pathname + location.search);
  login.form.requestSubmit();
};
follow();
// The browser does not load the page anew if it is open already.
addEventListener("hashchange", follow);

// Times are shown in the browser's time zone, with their distance from now. The exact UTC time is the title of each.
const clock = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
const day = { day: "numeric", month: "short" };
const formats = [clock, { ...day, ...clock }, { ...day, year: "numeric", ...clock }].map((one) => new Intl.DateTimeFormat("en-GB", one));
const distance = new Intl.RelativeTimeFormat("en");
const units = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];
const ago = (moment, now) => {
  const seconds = Math.round((moment - now) / 1000);
  const [unit, length] = units.find(([, length]) => Math.abs(seconds) >= length) ?? units.at(-1);
  return Math.abs(seconds) < 2 ? "just now" : distance.format(Math.trunc(seconds / length), unit);
};
const localize = (within) => {
  const now = new Date();
  for (const time of within.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    if (Number.isNaN(moment.valueOf())) continue;
    const format = moment.toDateString() === now.toDateString() ? 0 : moment.getFullYear() === now.getFullYear() ? 1 : 2;
    const local = formats[format].format(moment);
    const since = document.createElement("span");
    since.className = "ago";
    since.textContent = ago(moment, now);
    if (time.textContent !== `${local} ${since.textContent}`) time.replaceChildren(local, " ", since);
  }
};
const slashIsOff = () => {
  try { return localStorage.getItem("slash") === "off"; } catch { return false; }
};
const zone = document.querySelector("[data-zone]");
if (zone) {
  zone.textContent = `Times are in your time zone, ${Intl.DateTimeFormat().resolvedOptions().timeZone}. Each shows its UTC time when you point at it. `;
  // A shortcut of one character can be turned off (WCAG 2.1, 2.1.4): speech input may hear it in any word.
  const toggle = document.createElement("button");
  const name = () => { toggle.textContent = slashIsOff() ? "Let the key / lead to the search" : "Turn off the key / for the search"; };
  toggle.addEventListener("click", () => {
    try {
      if (slashIsOff()) localStorage.removeItem("slash");
      else localStorage.setItem("slash", "off");
    } catch { /* Without storage the key stays on. */ }
    name();
  });
  name();
  zone.after(toggle);
}
localize(document);
const age = () => {
  if (!document.hidden) localize(document);
  setTimeout(age, 20_000);
};
setTimeout(age, 20_000);

// A click anywhere in a row follows its link, unless it selects text or is meant for something else in the row.
document.addEventListener("click", (click) => {
  const link = click.target.closest("tr")?.querySelector("a.row");
  if (!link || click.target.closest("a, button, input, select, label, summary") || !getSelection().isCollapsed) return;
  const { ctrlKey, metaKey, shiftKey } = click;
  link.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true, ctrlKey, metaKey, shiftKey }));
});

// The key "/" leads to the search, which is on the first screen, unless it is typed into an input or turned off in the footer.
const search = document.getElementById("q");
if (location.hash === "#q") search?.focus();
document.addEventListener("keydown", (key) => {
  const types = key.target.closest("input, select, textarea, [contenteditable]");
  if (key.key !== "/" || key.ctrlKey || key.metaKey || key.altKey || types || !zone || slashIsOff()) return;
  key.preventDefault();
  if (search) search.select();
  else location.href = "/#q";
});

// A live part of the page is read again every few seconds (data-refresh), while it is visible and not paused. Of a list only the
// new rows are counted (data-newer, each data-poll seconds), so that nothing moves under the reader. data-said says what happens.
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
  // The part has ended and will not change any more, or it wants another interval.
  if (part?.dataset.refresh !== live.dataset.refresh) return location.reload();
  localize(part);
  if (part.textContent !== live.textContent) live.replaceChildren(...part.childNodes);
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
  link.href = location.pathname + location.search;
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
      if (!paused) say("The connection is lost, so nothing new is shown here. The page keeps trying; if that does not help, reload it. ");
    } finally {
      asking = false;
    }
  };
  // Nothing is polled while the page is hidden or paused.
  const look = () => {
    pause.textContent = paused ? "Resume" : "Pause";
    clearInterval(timer);
    say(paused ? "Paused. " : usual);
    if (!paused && !document.hidden) timer = setInterval(turn, every);
  };
  pause.addEventListener("click", () => { paused = !paused; look(); });
  document.addEventListener("visibilitychange", look);
  look();
  document.getElementById("live").append(" ", pause);
}
