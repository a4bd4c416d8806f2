"use strict";
// Keeps an open page up to date. The page is complete without this file.
const main = document.getElementById("main");
const log = document.getElementById("log");
const LINES_MAX = 2000;
let source, last = main.dataset.last, waiting = new Map();

// Replaces the content of an element, and keeps the focus and what the user has opened.
function put(id, html) {
  const element = document.getElementById(id);
  const selected = getSelection();
  if (!element || (!selected.isCollapsed && element.contains(selected.anchorNode))) return waiting.set(id, html);
  const focus = element.contains(document.activeElement) && document.activeElement.getAttribute("href");
  const open = [...element.querySelectorAll("details")].map((details) => details.open);
  const before = element.querySelector(".state")?.textContent;
  const next = document.createElement("template");
  next.innerHTML = html;
  if (next.innerHTML === element.innerHTML) return;
  element.replaceChildren(next.content);
  element.querySelectorAll("details").forEach((details, index) => { details.open = open[index]; });
  if (focus) element.querySelector(`[href="${CSS.escape(focus)}"]`)?.focus({ preventScroll: true });
  const state = element.querySelector(".state")?.textContent;
  if (id === "head" && before !== state) document.getElementById("said").textContent = `The job is ${state}`;
  enhance(element);
}

function span(text, name) {
  const element = document.createElement("span");
  element.textContent = text;
  if (name) element.className = name;
  return element;
}

// Adds lines of output. Stays at the end if the user looks at the end.
function add(lines) {
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  for (const { replica, colour, spans } of lines) {
    const item = document.createElement("div");
    item.append(span(replica, `name n${colour}`), " ", ...spans.map(({ text, class: name }) => span(text, name)));
    log.append(item);
  }
  while (log.children.length > LINES_MAX) log.firstChild.remove();
  filter(log);
  if (atEnd) log.scrollTop = log.scrollHeight;
}

function filter(list) {
  const words = document.querySelector(`[data-filter="${list.id}"]`)?.value.toLowerCase() ?? "";
  for (const item of list.children) item.hidden = words !== "" && !item.textContent.toLowerCase().includes(words);
}

function say(text) {
  document.getElementById("live").textContent = text;
}

// One stream for each visible tab: a browser opens at most six connections to a host.
function listen() {
  source?.close();
  if (!main.dataset.events || document.hidden) return;
  const query = main.dataset.events.includes("?") ? "&" : `${location.search || "?"}&`;
  source = new EventSource(`${main.dataset.events}${query}last=${encodeURIComponent(last)}`);
  source.onopen = () => say("live");
  source.onerror = () => say("connecting …");
  source.addEventListener("part", ({ data }) => put(data.slice(0, data.indexOf("\n")), data.slice(data.indexOf("\n") + 1)));
  source.addEventListener("lines", ({ data, lastEventId }) => { last = lastEventId; add(JSON.parse(data)); });
  source.addEventListener("anew", ({ data, lastEventId }) => { last = lastEventId; log.replaceChildren(); add(JSON.parse(data)); });
}

// Asks in a dialog instead of on a page of its own.
async function ask(event) {
  const dialog = document.getElementById("asking"), link = event.currentTarget;
  if (!dialog || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const answer = await fetch(link.href).catch(() => null);
  const form = answer?.ok && new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("form.ask");
  if (!form) return location.assign(link.href);
  form.action = link.href;
  form.querySelector("[data-close]").onclick = (click) => { click.preventDefault(); dialog.close(); };
  dialog.replaceChildren(form);
  dialog.showModal();
}

function enhance(element) {
  element.querySelectorAll("[data-ask]").forEach((link) => link.addEventListener("click", ask));
  element.querySelectorAll("[data-copy]").forEach((code) => {
    const button = document.createElement("button");
    button.textContent = "Copy";
    button.onclick = () => navigator.clipboard.writeText(code.textContent).then(() => { button.textContent = "Copied"; });
    code.after(" ", button);
  });
}

document.querySelectorAll("[data-filter]").forEach((input) => { input.oninput = () => filter(document.getElementById(input.dataset.filter)); });
addEventListener("visibilitychange", listen);
addEventListener("pagehide", () => source?.close());
addEventListener("pageshow", listen);
enhance(document);
if (log) log.scrollTop = log.scrollHeight;
// Parts that came while the user had selected text in them.
document.addEventListener("selectionchange", () => getSelection().isCollapsed && [...waiting].forEach(([id, html]) => waiting.delete(id) && put(id, html)));
