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
