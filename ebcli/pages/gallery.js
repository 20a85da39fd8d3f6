"use strict";

// The header, the filters and the global keys.

const count = (total, one, many = `${one}s`) => `${total.toLocaleString("en")} ${total === 1 ? one : many}`;

const filter = { ...unfiltered };
const viewer = new Viewer(part("viewer"), new Grid(part("grid"), (index) => viewer.open(index)));

function update() {
  const shown = select(filter);
  part("count").textContent =
    shown.length === data.images.length
      ? count(shown.length, unit)
      : `${shown.length.toLocaleString("en")} of ${count(data.images.length, unit)}`;
  if (filter.pair !== null) part("count").append(`: ${pairWords(filter.pair)}`);
  markPair(filter.pair);
  part("none").hidden = shown.length > 0;
  viewer.grid.show(shown);
}

function summarize() {
  const outcomes = data.images.flatMap((image) => image.outcomes);
  const failed = outcomes.filter((outcome) => outcome.error !== null);
  const maps = outcomes.flatMap((outcome) => outcome.maps);
  const blank = maps.filter((map) => map.blank).length;
  const seconds = outcomes.reduce((sum, outcome) => sum + outcome.seconds, 0);
  const models = data.models.map(([model, weights]) => `${model} (${weights})`);
  document.title = `${data.name} – saliency maps`;
  document.querySelector("h1").textContent = data.name || "Saliency maps";
  const lead = [count(data.images.length, unit), count(maps.length, "saliency map")];
  if (failed.length) lead.push(`${failed.length.toLocaleString("en")} failed`);
  for (const names of [models, data.layers, data.methods]) if (names.length === 1) lead.push(names[0]);
  part("lead").textContent = lead.join(" · ");
  facts(part("facts"), [
    ["Images", count(data.images.length, unit)],
    ["Maps", `${count(maps.length, "map")}, of ${count(data.classes.length, subject, isAnswers ? "words" : "classes")}`],
    ["Blank", count(blank, "map")],
    ["Failed", count(failed.length, unit)],
    ["Models", models.join(", ") || "–"],
    ["Layers", data.layers.join(", ") || "–"],
    ["Methods", data.methods.join(", ") || "–"],
    ["Time", `${seconds.toFixed(1)} s in all, ${(seconds / Math.max(1, outcomes.length)).toFixed(2)} s per ${unit}`],
  ]);
  if (labeled.length) {
    const right = labeled.filter((image) => !isWrong(image.prediction)).length;
    lead.push(`accuracy ${(right / labeled.length).toFixed(3)} (${right} of ${labeled.length})`);
    part("lead").textContent = lead.join(" · ");
    const only = part("status").querySelector("[value=wrong]");
    only.hidden = only.disabled = false;
    part("confusion").hidden = false;
    part("confusion").append(...confusionTable(showPair));
  }
  if (isAnswers && data.classes.length) {
    part("words").hidden = false;
    part("words").append(...wordTable(showWord));
    [part("subject").textContent, part("mass").textContent] = ["Word", "Share"];
    part("query").placeholder = "Search files and answers";
    part("sort").querySelector("[value=mass]").textContent = massName;
  }
  const reasons = new Map();
  for (const outcome of failed) reasons.set(outcome.error, (reasons.get(outcome.error) ?? 0) + 1);
  part("failures").hidden = !failed.length;
  const items = [...reasons].sort((a, b) => b[1] - a[1]).slice(0, 50);
  const list = part("failures").querySelector("ul");
  list.replaceChildren(
    ...items.map(([reason, total]) => element("li", {}, element("span", {}, count(total, unit)), reason)),
  );
  if (failed.length) {
    const only = element("button", { type: "button", class: "link" }, "Show them");
    only.addEventListener("click", () => {
      part("bar").reset();
      part("status").value = "failed";
      Object.assign(filter, { status: "failed" });
      update();
    });
    part("failures").append(only);
  }
}

function showPair(pair) {
  part("bar").reset();
  Object.assign(filter, { pair });
  update();
  viewer.grid.focus(0);
}

function showWord(value) {
  part("bar").reset();
  [part("class").value, part("sort").value] = [value, "mass"];
  Object.assign(filter, { class: String(value), sort: "mass" });
  update();
  viewer.grid.focus(0);
}

function offer() {
  const totals = new Map();
  for (const image of data.images) {
    for (const outcome of image.outcomes) {
      for (const map of outcome.maps) if (!map.against) totals.set(map.class, (totals.get(map.class) ?? 0) + 1);
    }
  }
  const options = [...totals].map(([value, total]) => [nameOf(data.classes[value]), value, total]);
  options.sort((a, b) => collator.compare(a[0], b[0]));
  part("class").append(...options.map(([name, value, total]) => element("option", { value }, `${name} (${total})`)));
  for (const [field, names] of [["layer", data.layers], ["method", data.methods]]) {
    const choice = part(`${field}s`);
    choice.hidden = names.length < 2;
    const sorted = [...names.entries()].sort((a, b) => collator.compare(a[1], b[1]));
    const choices = [["", "all"], ...sorted].map(([value, name]) => ({ value, content: [name], title: name }));
    const choose = (value) => {
      filter[field] = value;
      update();
    };
    choice.append(tabs(choice.textContent, choices, "", choose, { controls: "grid" }));
  }
}

function listen() {
  const on = (id, event, change) =>
    part(id).addEventListener(event, ({ target }) => {
      change(target);
      update();
    });
  on("query", "input", ({ value }) => Object.assign(filter, { query: value }));
  for (const id of ["class", "status", "sort"]) on(id, "change", ({ value }) => Object.assign(filter, { [id]: value }));
  for (const range of ["score", "mass"]) {
    const [from, to] = [part(`${range}-from`), part(`${range}-to`)];
    for (const input of [from, to]) {
      on(input.id, "input", () => {
        filter[range] = [from.value === "" ? 0 : from.valueAsNumber, to.value === "" ? Infinity : to.valueAsNumber];
      });
    }
  }
  const direct = (descending) => {
    filter.descending = descending;
    part("descending").setAttribute("aria-pressed", descending);
    part("descending").textContent = descending ? "↓" : "↑";
  };
  on("descending", "click", () => direct(!filter.descending));
  part("bar").addEventListener("submit", (event) => {
    event.preventDefault();
    viewer.grid.focus(0);
  });
  part("bar").addEventListener("reset", () => {
    const { layer, method } = filter; // these are tabs, which a form reset does not affect
    Object.assign(filter, unfiltered, { layer, method });
    const percent = part("look").querySelector(".opacity").value;
    const { view } = document.documentElement.dataset;
    direct(false);
    update();
    setTimeout(() => {
      look.setView(view);
      look.setOpacity(percent);
    });
  });
  part("none").querySelector("button").addEventListener("click", () => part("bar").reset());
  addEventListener("keydown", onKey);
}

function onKey(event) {
  if (event.key === "Escape" && event.target === part("query")) viewer.grid.focus(viewer.grid.active);
  else if (!isCommand(event)) return;
  else if (event.key === "/" && !viewer.dialog.open) {
    part("query").focus();
    part("query").select();
  } else if (["1", "2", "3"].includes(event.key)) look.setView(look.views[event.key - 1]);
  else if (event.key.startsWith("Arrow") && event.target === document.body) viewer.grid.focus(viewer.grid.active);
  else return;
  event.preventDefault();
}

// On small screens, the filters are folded until they are asked for.
function fold() {
  const narrow = matchMedia("(max-width: 760px)");
  const set = () => {
    part("filters").open = !narrow.matches;
  };
  narrow.addEventListener("change", set);
  set();
}

function legend() {
  const [low, bar, high] = part("legend").children;
  [low.textContent, high.textContent] = data.ends;
  bar.style.background = `linear-gradient(to right, ${data.colors.map((color) => `rgb(${color})`)})`;
  part("legend").setAttribute("aria-label", `Color scale from ${data.ends.join(" to ")}`);
}

fold();
legend();
look.add(part("look"));
look.add(part("viewer-look"));
look.setView("overlay");
look.setOpacity(100 * data.alpha); // as in exported overlays
summarize();
offer();
listen();
update();
