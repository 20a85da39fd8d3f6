"use strict";

// Shared elements. Text from outside is only ever inserted as text.

const part = (id) => document.getElementById(id);

const nameOf = ({ index, name }) => name ?? `class ${index}`;

const number = (value) =>
  value === null || value === undefined ? "–" : value < 0.001 && value > 0 ? value.toExponential(1) : value.toFixed(3);

// Whether a key is a command to the page, rather than text or one of the browser's own.
function isCommand(event) {
  const writing = event.target.matches("input:not([type=radio], [type=range], [type=checkbox]), select, textarea");
  return !(writing || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented);
}

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// Tabs; `choose` gets the value of the selected one. The arrow keys move between tabs.
function tabs(label, options, selected, choose, { vertical = false, controls = null } = {}) {
  const list = element("div", { role: "tablist", "aria-label": label, class: "tabs" });
  if (vertical) list.setAttribute("aria-orientation", "vertical");
  const mark = (value) => {
    const all = [...list.children];
    const chosen = all.find((tab) => tab.dataset.value === String(value));
    for (const tab of all) {
      tab.setAttribute("aria-selected", tab === chosen);
      tab.tabIndex = tab === (chosen ?? all[0]) ? 0 : -1; // one of them is always reached by Tab
    }
  };
  for (const { value, content, title = null } of options) {
    const attributes = { type: "button", role: "tab", "aria-controls": controls, title };
    const tab = element("button", attributes, ...content);
    tab.dataset.value = value;
    tab.addEventListener("click", () => {
      mark(value);
      choose(value);
    });
    list.append(tab);
  }
  const [back, on] = vertical ? ["ArrowUp", "ArrowDown"] : ["ArrowLeft", "ArrowRight"];
  list.addEventListener("keydown", (event) => {
    const step = { [back]: -1, [on]: 1 }[event.key];
    const at = [...list.children].indexOf(document.activeElement);
    if (!step || at < 0) return;
    event.preventDefault();
    event.stopPropagation();
    const next = list.children[(at + step + list.children.length) % list.children.length];
    next.focus();
    next.click();
  });
  mark(selected);
  return list;
}

// The view and the opacity, synchronized between all controls.
const look = {
  views: ["photo", "map", "overlay"],
  places: [],

  add(place) {
    const group = element("span", { class: "views", role: "radiogroup", "aria-label": "View" });
    const radios = this.views.map((view, index) => {
      const radio = element("input", { type: "radio", name: `${place.id}-view`, value: view });
      radio.addEventListener("change", () => this.setView(view));
      const key = element("kbd", { "aria-hidden": "true" }, String(index + 1));
      group.append(element("label", {}, radio, element("span", {}, view, " ", key)));
      return radio;
    });
    const slider = element("input", { type: "range", class: "opacity", min: 0, max: 100 });
    slider.addEventListener("input", () => this.setOpacity(slider.value));
    place.append(group, element("label", { class: "slider" }, "Opacity ", slider));
    this.places.push({ radios, slider });
  },

  setView(view) {
    document.documentElement.dataset.view = view;
    for (const { radios, slider } of this.places) {
      for (const radio of radios) radio.checked = radio.value === view;
      slider.disabled = view !== "overlay";
    }
  },

  setOpacity(percent) {
    document.documentElement.style.setProperty("--opacity", percent / 100);
    for (const { slider } of this.places) slider.value = percent;
  },
};

// Follows the system until a theme is chosen.
function themes(button) {
  const names = ["auto", "light", "dark"];
  const store = (value) => {
    try {
      if (value !== undefined) localStorage.setItem("eb-saliency-theme", value);
      return localStorage.getItem("eb-saliency-theme");
    } catch {
      return null; // some browsers have no storage for local pages
    }
  };
  const set = (theme) => {
    document.documentElement.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
  };
  set(names.includes(store()) ? store() : "auto");
  button.addEventListener("click", () => {
    const theme = names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length];
    set(theme);
    store(theme);
  });
}

themes(part("theme"));
