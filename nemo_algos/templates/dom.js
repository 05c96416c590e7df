"use strict";
// Text reaches the page through textContent alone: responses are hostile.
const byId = (id) => document.getElementById(id);
const data = (id) => JSON.parse(byId(id).textContent);

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "run") made.style.setProperty("--run", value);
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== ""));
  return made;
}

function options(select, names, chosen = 0) {
  select.replaceChildren(...names.map((name, i) => element("option", { value: i }, name)));
  select.value = Math.max(0, Math.min(chosen, names.length - 1));
}

// Rows of a table beside a box of the window, all of it to be seen.
function tell(box, ...rows) {
  const tip = byId("tip");
  tip.replaceChildren(element("table", {}, ...rows));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const under = box.bottom + 6 + height < innerHeight;
  tip.style.left = `${Math.max(4, Math.min(box.left, document.documentElement.clientWidth - width - 8))}px`;
  tip.style.top = `${under ? box.bottom + 6 : Math.max(4, box.top - height - 6)}px`;
}

byId("theme").addEventListener("click", () => {
  const { style } = document.documentElement, asked = matchMedia("(prefers-color-scheme: dark)").matches;
  style.colorScheme = (style.colorScheme || (asked ? "dark" : "light")) === "dark" ? "light" : "dark";
});
